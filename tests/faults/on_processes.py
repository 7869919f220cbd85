"""Scenarios in which hosts, workers and agents are killed, frozen, forked, left in a hurry or come in numbers, and what
status says of it after restarts."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import psutil

from producer.receipt import State
from tests.faults.kills import Kills
from tests.faults.on_broker import must
from tests.faults.on_store import REFUSED
from tests.faults.scenario import Scale, scenario
from tests.faults.table import Row
from tests.faults.world import World, frozen, wait_for


@scenario("F4-killed-before-ack")
def killed_before_ack(name: str, scale: Scale) -> Row:
    """A worker is killed between the store's commit and its answer: one record, and the line retires soon."""
    with World() as world:
        assert world.store is not None
        world.store.fail("delay", on="write", label="EPISODE", count=1, delay_s=1.5)
        host = world.host(rate=0, count=1, mix="turns")
        wait_for(lambda: len(world.records("EPISODE")) == 1, 30, "the record is committed")
        world.workers[0].kill()
        began = time.monotonic()
        world.workers[0].start()
        world.wait_done(host)
        must(world, world.settle(12 + 110), "the line did not retire")
        world.notes.append(f"retired {time.monotonic() - began:.1f} s after the kill")
        return world.row(name)


@scenario("F5-poison")
def poison(name: str, scale: Scale) -> Row:
    """One event ends its process each time: it is dead after at most 5 deliveries, the 100 behind it are stored."""
    with World(workers=0, settings={"MEMORY_CONCURRENCY": "1"}) as world:
        faults = world.directory / "faults"
        faults.mkdir()
        first = world.host(name="poison", rate=0, count=1, mix="turns", dispatches=False, leave="close")
        must(world, first.wait(30) == 0, "the capturing host failed")
        (bad,) = (one["id"] for one in world.acknowledged())
        (faults / f"exit-{bad}").touch()
        worker = world.worker(
            env={"TEST_FAULTS_DIR": str(faults)}, entry=["-m", "celery", "-A", "tests.integration.faulty_worker"]
        )
        world.wait_done(world.host(rate=0, count=100, mix="turns"))
        wait_for(lambda: not worker.running or not world.pending(), 60, "the worker dies once, before it is warned")
        world.client.flushall()  # the count of deaths must not live in Redis
        until = time.monotonic() + 120
        while world.pending() and time.monotonic() < until:
            world.supervise(expected=137)
            time.sleep(0.1)
        deaths = worker.starts - 1
        must(world, deaths <= 1, f"the worker died {deaths} times")
        dead = [id_ for id_, states in world.watch(world.journal()).states().items() if State.DEAD in states]
        must(world, dead == [bad], f"{len(dead)} are dead, or another one")
        deliveries = worker.times_said(f"ids={bad}") + deaths
        must(world, deliveries <= 5, f"{deliveries} deliveries of the poison")
        world.notes.append(f"{deliveries} deliveries, the worker itself died {deaths} times")
        return world.row(name, dead=1)


@scenario("F11-many-publishers")
def many_publishers(name: str, scale: Scale) -> Row:
    """One turn captured by thirty threads of three hosts at once: one record, 1 stored and the rest duplicates."""
    with World(workers=2) as world:
        for journal in range(3):
            world.host(
                journal=journal, rate=0, count=1, mix="same", more=["--threads", "10", "--participant", "the-same"]
            )
        world.wait_done()
        must(world, world.settle(), "not settled")
        counted = world.counts()
        told = (counted.get("stored"), counted.get("duplicates"))
        lines = sum(world.watch(world.journal(number)).lines() for number in range(3))
        must(world, told == (1, lines - 1), f"{lines} lines are counted as {told[0]} stored, {told[1]} duplicates")
        must(world, len(world.records("EPISODE")) == 1, "not one record")
        return world.row(name)


@scenario("F12-fork-and-threads")
def fork_and_threads(name: str, scale: Scale) -> Row:
    """A host publishes, forks, and both capture from 32 threads at once: nothing is lost, no protocol breaks."""
    with World() as world:
        host = world.host(rate=0, count=1, mix="turns", more=["--fork"])
        world.wait_done(host)
        must(world, len(world.acknowledged()) == 65, f"{len(world.acknowledged())} of 65 were acknowledged")
        must(world, world.settle(), "not settled")
        for words in ("ProtocolError", "InvalidResponse", "Traceback"):
            must(world, words not in host.words(), f"{words} in the host's log")
        return world.row(name)


@scenario("F16-history")
def history(name: str, scale: Scale) -> Row:
    """45 are stored and 5 dead: status says so, with reasons, whatever is started again; what a wipe took is told."""
    with World(store_proxy=True) as world:
        assert world.store_proxy is not None
        world.store_proxy.set("answer", data=REFUSED, count=10**6)
        world.store_proxy.drop(reset=False)
        first = world.host(rate=0, count=5, mix="turns")
        world.wait_done(first)
        must(world, world.settle(), "the refused ones are not dead")
        world.store_proxy.set("pass")
        world.wait_done(world.host(rate=0, count=45, mix="turns"))
        must(world, world.settle(), "not settled")
        for process in (*world.workers, world.redis):
            process.stop()
            process.start()
        report = _status(world)
        counted, since = report["redis"]["counts"], report["redis"]["countsSince"]
        told = (counted["stored"], counted["dead"], counted["dead:store_refused:422"], report["redis"]["deadLetters"])
        must(world, told == (45, 5, 5, 5), f"status says {told}")
        must(world, report["journal"]["dead"] == 5, f"the journal says {report['journal']['dead']} dead")
        world.client.flushall()
        first.stop()  # whoever drains next asks about the dead lines, and so lists them again
        wait_for(lambda: _status(world)["redis"].get("deadLetters") == 5, 60, "the listing is filled again")
        report = _status(world)
        must(world, report["redis"]["countsSince"] > since, "status does not say that Redis counts anew")
        must(world, "stored" not in report["redis"]["counts"], "stored is counted of what came before the wipe")
        return world.row(name, dead=5)


def _status(world: World) -> dict[str, Any]:
    return json.loads(world.command("status", "--json"))  # type: ignore[no-any-return]


@scenario("F18-redis-restarted")
def redis_restarted(name: str, scale: Scale) -> Row:
    """Redis is killed and started again under load: what status counts equals what journals and store hold."""
    rng = random.Random(scale.seed)
    with World(workers=2) as world:
        world.host(rate=20, mix="turns"), world.host(rate=20, mix="turns", journal=1)
        world.begin()
        for _ in range(scale.pick(3, 20)):
            time.sleep(rng.uniform(1.0, 3.0))  # load
            world.redis.kill()
            world.redis.start()
        time.sleep(2.0)  # load
        world.end()
        must(world, world.settle(), "not settled")
        counted, stored, promised = _status(world)["redis"]["counts"], world.stored(), len(world.acknowledged())
        told = counted["stored"]
        must(world, told == stored == promised, f"{told} counted, {stored} stored, {promised} acknowledged")
        world.notes.append(f"{counted.get('duplicates', 0)} duplicates counted beside")
        return world.row(name)


@scenario("frozen-drainer")
def frozen_drainer(name: str, scale: Scale) -> Row:
    """The drainer of a journal is frozen: after a minute a deputy delivers, then both, then the drainer alone."""
    with World() as world:
        drainer = world.host(rate=0, count=20, mix="turns")
        world.wait_done(drainer)
        must(world, world.settle(), "not settled before the freeze")
        world.host(rate=4, mix="turns")
        began = time.monotonic()
        with frozen(drainer):
            world.begin()
            before = world.stored()
            wait_for(lambda: world.stored() > before, 60 + 30, "a deputy delivers")
            world.notes.append(f"a deputy delivered after {time.monotonic() - began:.0f} s")
            time.sleep(scale.pick(5, 60))  # load
        time.sleep(10.0)  # load, for both
        must(world, world.settle(), "not settled after the freeze")
        lock = world.journal() / "drainer.lock"
        beaten = lock.stat().st_mtime_ns
        wait_for(lambda: lock.stat().st_mtime_ns > beaten, 30, "the drainer beats again")
        return world.row(name)


@scenario("F29-exit")
def exit_at_once(name: str, scale: Scale) -> Row:
    """Hosts end by os._exit or SIGKILL right after capture returned: the next process or the agent delivers."""
    with World() as world:
        for number in range(scale.pick(6, 60)):
            leave = "exit" if number % 2 else "killed"
            hasty = world.host(journal=number % 2, rate=0, count=2, mix="turns", leave=leave, dispatches=number % 3 > 0)
            must(world, hasty.wait(30) == (0 if leave == "exit" else -9), "a hasty host ended otherwise")
        world.agent(journal=0)
        world.host(journal=1, rate=0, count=1, mix="turns")
        return world.row(name)


@scenario("F34-one-journal")
def one_journal(name: str, scale: Scale) -> Row:
    """Ten processes append to one journal, two would drain and compact it, all are killed at random."""
    rng = random.Random(scale.seed)
    settings = {"MEMORY_SEGMENT_MAX_BYTES": "400000", "MEMORY_MAX_TURN_UNITS": "60000"}
    with World(settings=settings) as world:
        drainers = [world.host(rate=0, count=0, more=["--compact-every", "1"]) for _ in range(2)]
        for _ in range(10):
            world.host(rate=scale.pick(4, 20), mix="sizes", dispatches=False)
        world.begin()
        wanted = scale.pick(400, 10_000)
        while len(world.acknowledged()) < wanted:
            time.sleep(rng.uniform(0.1, 0.6))  # load
            victim = rng.choice(world.hosts)
            victim.kill()
            victim.start()
        world.end()
        must(world, world.settle(scale.pick(180, 1800)), "not settled")
        must(world, any(drainer.running for drainer in drainers), "no drainer is left")
        return world.row(name)


@scenario("F38-leaks")
def leaks(name: str, scale: Scale) -> Row:
    """Sessions open and close, some are killed: processes, descriptors, threads and connections come back."""
    with World() as world:
        world.agent(journal=0)
        warm = world.host(rate=0, count=200, mix="turns", leave="close", journal=0)  # all pools are in use
        must(world, warm.wait(60) == 0, "the warming host failed")
        must(world, world.settle(), "not settled before the load")
        before = _open(world)
        cycling = world.host(rate=0, mix="turns", leave="close", journal=1, more=["--cycles", str(scale.pick(60, 450))])
        must(world, cycling.wait(scale.pick(120, 900)) == 0, "the cycling host failed")
        (said,) = [one for one in world.promised(cycling.name) if one["kind"] == "cycles"]
        must(world, said["after"] <= said["before"] + 2, f"descriptors grew from {said['before']} to {said['after']}")
        must(world, said["threads"] < 20, f"{said['threads']} threads are left")
        for _ in range(scale.pick(6, 50)):
            world.host(rate=0, count=1, mix="turns", leave="killed", journal=0).wait(30)
        world.host(rate=0, count=1, mix="turns", journal=1)  # drains what the cycles left
        must(world, world.settle(), "not settled after the load")
        world.hosts[-1].stop()
        until = time.monotonic() + 30
        while (after := _open(world))["connections"] > before["connections"] and time.monotonic() < until:
            time.sleep(0.1)
        must(world, all(after[what] <= before[what] + 5 for what in before), f"open before {before}, after {after}")
        world.notes.append(f"open before {before}, after {after}")
        return world.row(name)


def _open(world: World) -> dict[str, int]:
    """What the lasting processes hold."""
    lasting = [psutil.Process(process.pid) for process in (*world.workers, *world.agents)]
    return {
        "descriptors": sum(process.num_fds() for process in lasting),
        "threads": sum(process.num_threads() for process in lasting),
        "children": sum(len(process.children(recursive=True)) for process in lasting),
        "connections": len(world.client.client_list()),
    }


def _random_kills(name: str, scale: Scale, *, store: str, kills: int) -> Row:
    with World(workers=2, seed=scale.seed, store=store) as world:
        world.host(rate=10, journal=0), world.host(rate=10, journal=1), world.host(rate=10, journal=1)
        world.agent(journal=0)
        world.begin()
        struck = Kills(world, seed=scale.seed)
        struck.run(kills=kills)
        world.notes.append(f"seed {scale.seed}, {struck.note()}")
        return world.row(name, deadline_s=300 + kills)  # what many kills held up is a longer backlog


@scenario("random-kills")
def random_kills(name: str, scale: Scale) -> Row:
    """Hosts, workers, agent, Redis and the store are killed and frozen at random points of one load."""
    return _random_kills(name, scale, store="rushdb", kills=scale.kills or scale.pick(60, 500))


@scenario("random-kills-sqlite")
def random_kills_sqlite(name: str, scale: Scale) -> Row:
    """The same over the SQLite store that workers share."""
    return _random_kills(name, scale, store="sqlite", kills=scale.kills or scale.pick(25, 200))
