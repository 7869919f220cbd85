"""Scenarios with RabbitMQ as the broker: killed, frozen, full, forgetful; receipts stay in Redis."""

from __future__ import annotations

import time

from producer import message
from producer.receipt import State
from tests.faults.kills import Kills
from tests.faults.on_broker import must, slowest_ms
from tests.faults.scenario import Scale, scenario
from tests.faults.table import Row
from tests.faults.world import World, frozen, wait_for
from tests.rabbitmq_server import RabbitServer

CAPTURE_MS = 2000.0  # a node starts beside the load on two cores; far less than a broker is away


def rabbit_of(world: World) -> RabbitServer:
    assert world.rabbit is not None
    return world.rabbit


@scenario("rabbit-killed-before-ack")
def killed_before_ack(name: str, scale: Scale) -> Row:
    """A worker is killed between the store's commit and its answer: redelivered at once, one record."""
    with World(broker="rabbitmq") as world:
        assert world.store is not None
        world.store.fail("delay", on="write", label="EPISODE", count=1, delay_s=1.5)
        host = world.host(rate=0, count=1, mix="turns")
        wait_for(lambda: len(world.records("EPISODE")) == 1, 30, "the record is committed")
        world.workers[0].kill()
        began = time.monotonic()
        world.workers[0].start()
        world.wait_done(host)
        must(world, world.settle(60), "the line did not retire")
        must(world, "redelivered=True" in world.workers[0].words(), "nothing was redelivered")
        world.notes.append(f"retired {time.monotonic() - began:.1f} s after the kill")
        return world.row(name)


@scenario("rabbit-killed-under-load")
def killed_under_load(name: str, scale: Scale) -> Row:
    """RabbitMQ is killed under load again and again: what was confirmed is there, workers come back by themselves."""
    with World(broker="rabbitmq", workers=2) as world:
        world.host(rate=20), world.host(rate=20, journal=1)
        world.begin()
        for _ in range(scale.pick(2, 10)):
            time.sleep(1.5)  # load
            rabbit_of(world).kill()
            rabbit_of(world).start()
        time.sleep(1.5)  # load
        worst = slowest_ms(world)
        must(world, worst < CAPTURE_MS, f"a capture took {worst} ms")
        return world.row(name)


@scenario("rabbit-frozen-under-load")
def frozen_under_load(name: str, scale: Scale) -> Row:
    """RabbitMQ is frozen for longer than every timeout: captures stay fast, all are stored once it goes on."""
    with World(broker="rabbitmq", workers=2) as world:
        world.host(rate=20), world.host(rate=20, journal=1), world.agent()
        world.begin()
        time.sleep(2.0)  # load
        with frozen(rabbit_of(world)):
            time.sleep(7.0)  # longer than the timeouts of workers and hosts
        time.sleep(1.0)  # load
        worst = slowest_ms(world)
        must(world, worst < CAPTURE_MS, f"a capture took {worst} ms")
        world.notes.append(f"slowest capture {worst:.0f} ms")
        return world.row(name)


@scenario("rabbit-alarm-under-load")
def alarm_under_load(name: str, scale: Scale) -> Row:
    """A memory alarm blocks all publishers for a while, also workers with retries: nothing is lost, it heals."""
    with World(broker="rabbitmq", workers=2) as world:
        assert world.store is not None
        world.store.fail("error", on="write", label="EPISODE", count=20)
        world.host(rate=20), world.host(rate=20, journal=1)
        world.begin()
        time.sleep(1.0)  # load
        rabbit_of(world).control("set_vm_memory_high_watermark", "0.0001")
        time.sleep(5.0)  # load against the alarm
        rabbit_of(world).control("set_vm_memory_high_watermark", "0.4")
        time.sleep(1.0)  # load
        return world.row(name)


@scenario("rabbit-amnesia")
def amnesia(name: str, scale: Scale) -> Row:
    """The queues are deleted with all that waits in them: declared again, journals publish again."""
    with World(broker="rabbitmq") as world:
        host = world.host(rate=0, count=scale.pick(200, 1000), mix="turns")
        wait_for(lambda: world.stored() > 20, 60, "a part is stored")
        world.workers[0].freeze()
        world.wait_done(host, deadline_s=120)
        with rabbit_of(world).connection() as connection:
            for queue in (message.QUEUE, message.BACKLOG_QUEUE):
                connection.default_channel.queue_delete(queue)
        must(world, world.pending() > 0, "nothing was waiting")
        world.workers[0].thaw()
        return world.row(name)


@scenario("rabbit-poison")
def poison(name: str, scale: Scale) -> Row:
    """One event ends its process each time: the worker dies once, a child takes the rest, 50 behind it are stored."""
    with World(broker="rabbitmq", workers=0, settings={"MEMORY_CONCURRENCY": "1"}) as world:
        faults = world.directory / "faults"
        faults.mkdir()
        first = world.host(name="poison", rate=0, count=1, mix="turns", dispatches=False, leave="close")
        must(world, first.wait(30) == 0, "the capturing host failed")
        (bad,) = (one["id"] for one in world.acknowledged())
        (faults / f"exit-{bad}").touch()
        worker = world.worker(
            env={"TEST_FAULTS_DIR": str(faults)}, entry=["-m", "celery", "-A", "tests.integration.faulty_worker"]
        )
        world.wait_done(world.host(rate=0, count=50, mix="turns"))
        until = time.monotonic() + 90
        while world.pending() and time.monotonic() < until:
            world.supervise(expected=137)
            time.sleep(0.1)
        deaths = worker.starts - 1
        must(world, deaths <= 1, f"the worker died {deaths} times")
        dead = [id_ for id_, states in world.watch(world.journal()).states().items() if State.DEAD in states]
        must(world, dead == [bad], f"{len(dead)} are dead, or another one")
        world.notes.append(f"the worker itself died {deaths} times")
        return world.row(name, dead=1)


@scenario("rabbit-random-kills")
def random_kills(name: str, scale: Scale) -> Row:
    """Hosts, workers, agent, RabbitMQ, Redis and the store are killed and frozen at random points of one load."""
    with World(broker="rabbitmq", workers=2, seed=scale.seed, store="rushdb") as world:
        world.host(rate=10, journal=0), world.host(rate=10, journal=1)
        world.agent(journal=0)
        world.begin()
        struck = Kills(world, seed=scale.seed)
        struck.run(kills=scale.kills or scale.pick(20, 200))
        world.notes.append(f"seed {scale.seed}, {struck.note()}")
        return world.row(name, deadline_s=300)
