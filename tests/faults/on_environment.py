"""Scenarios in which operators, their tools and the machine around do what nobody planned for."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import celery
import psutil

from producer import message
from tests.faults.on_broker import must
from tests.faults.process import Process
from tests.faults.scenario import Scale, scenario
from tests.faults.table import Row
from tests.faults.world import World, frozen, is_ready, wait_for


@contextlib.contextmanager
def _controls(world: World) -> Iterator[Any]:
    """What Flower's buttons send."""
    app = celery.Celery(broker=world.environ["MEMORY_BROKER_URL"], set_as_current=False)
    try:
        yield app.control
    finally:
        app.close()


def _wait_ready(worker: Process) -> None:
    wait_for(lambda: is_ready(worker), 60, f"{worker.name} is back")


@scenario("operator-revokes")
def operator_revokes(name: str, scale: Scale) -> Row:
    """Tasks are revoked in Flower, waiting retries and later looks too: each event is stored all the same, and soon."""
    with World() as world, _controls(world) as control:
        assert world.store is not None
        world.store.fail("busy", on="write", label="EPISODE", retry_after_s=1)
        first = world.host(rate=0, count=1, mix="turns")
        world.wait_done(first)
        wait_for(lambda: world.counts().get("retried", 0) > 0, 30, "the event is retried")
        ids = [one["id"] for one in world.acknowledged()]
        must(world, len(control.revoke(ids, reply=True, terminate=True)) == 1, "no worker took the order to revoke")
        world.store.clear_faults()
        must(world, world.settle(40), "not settled 40 s after it was revoked")
        with frozen(world.workers[0]):  # what was sent and has no receipt is unsure after a restart
            second = world.host(rate=0, count=1, mix="turns", journal=1)
            wait_for(lambda: world.queued() > 0, 30, "the message")
            second.kill()
            second.start()
            wait_for(lambda: world.queued() > 1, 30, "the unsure message")
        wait_for(lambda: world.counts().get("looks", 0) > 0, 30, "a later look waits")
        ids = [one["id"] for one in world.acknowledged(second.name)]
        must(world, len(control.revoke(ids, reply=True)) == 1, "no worker took the order to revoke")
        wait_for(lambda: world.workers[0].times_said("look=True") > 0, 30, "the later look is made")
        return world.row(name, deadline_s=60)


@scenario("operator-presses-every-button")
def operator_presses_every_button(name: str, scale: Scale) -> Row:
    """Purge, revoke, rate limits, pool sizes, consumers cancelled and added, shutdown: from Flower, under load."""
    rng = random.Random(scale.seed)
    with World(workers=2) as world, _controls(world) as control:
        world.host(rate=30), world.host(rate=30, journal=1)
        world.begin()
        queues = (message.QUEUE, message.BACKLOG_QUEUE)
        for _ in range(scale.pick(10, 60)):
            time.sleep(rng.uniform(0.3, 1.0))  # load
            match rng.choice(("purge", "revoke", "rate", "grow", "shrink", "consumer", "limit", "shutdown")):
                case "purge":
                    world.client.delete(*queues)
                case "revoke":
                    control.revoke([one["id"] for one in world.acknowledged()[-50:]], terminate=True)
                case "rate":
                    control.rate_limit(message.TASK_NAME, "1/s")
                    time.sleep(1.0)  # load that waits
                    control.rate_limit(message.TASK_NAME, 0)
                case "grow":
                    control.pool_grow(3)
                case "shrink":
                    control.pool_shrink(2)
                case "consumer":
                    queue = rng.choice(queues)
                    control.cancel_consumer(queue)
                    time.sleep(1.0)  # load that waits
                    control.add_consumer(queue)
                case "limit":
                    control.time_limit(message.TASK_NAME, soft=1, hard=2)
                case "shutdown":
                    worker = rng.choice(world.workers)
                    control.shutdown(destination=[f"{worker.name}@{os.uname().nodename}"])
                    must(world, worker.wait(30) == 0, f"{worker.name} did not end")
                    worker.start()
                    _wait_ready(worker)
        return world.row(name, deadline_s=90)


@scenario("rolling-deploy")
def rolling_deploy(name: str, scale: Scale) -> Row:
    """Workers are replaced one after another under load, politely, in a hurry and with a store that is slow."""
    with World(workers=3) as world:
        assert world.store is not None
        world.host(rate=30), world.host(rate=30, journal=1)
        world.store.fail("delay", probability=0.3, delay_s=0.5)
        world.begin()
        longest = 0.0
        for _round in range(scale.pick(2, 10)):
            for worker, how in zip(world.workers, ("stop", "twice", "quit"), strict=True):
                began = time.monotonic()
                os.kill(worker.pid, signal.SIGQUIT if how == "quit" else signal.SIGTERM)
                if how == "twice":
                    time.sleep(0.2)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(worker.pid, signal.SIGTERM)
                must(world, worker.wait(20) is not None, f"a worker did not end ({how})")
                longest = max(longest, time.monotonic() - began)
                if worker.running:
                    worker.kill()
                worker.start()
                _wait_ready(worker)
        world.store.clear_faults()
        world.notes.append(f"longest end of a worker {longest:.1f} s")
        return world.row(name)


@scenario("journal-cloned")
def journal_cloned(name: str, scale: Scale) -> Row:
    """A journal is copied to a second host with what is pending (a cloned machine): both deliver, all is one record."""
    with World() as world:
        world.redis.freeze()
        first = world.host(rate=0, count=50, mix="turns", leave="close")
        must(world, first.wait(30) == 0, "the host failed")
        shutil.copytree(world.journal(0), world.journal(1))
        world.redis.thaw()
        world.host(name="original", rate=10, mix="turns")
        world.host(name="clone", rate=10, mix="turns", journal=1)
        world.begin()
        time.sleep(6.0)  # load of both
        world.end()
        began = time.monotonic()
        world.settle(120)
        world.notes.append(f"settled {time.monotonic() - began:.1f} s after the load")
        return world.row(name)


@scenario("journal-replaced")
def journal_replaced(name: str, scale: Scale) -> Row:
    """The directory under a running host is replaced by a copy: what is acknowledged from then on is delivered."""
    with World() as world:
        host = world.host(rate=20, mix="turns")
        world.begin()
        wait_for(lambda: len(world.acknowledged()) > 20, 30, "captures")
        with frozen(host):
            shutil.copytree(world.journal(), aside := world.directory / "aside")
            world.journal().rename(world.directory / "moved")
            aside.rename(world.journal())
        _wait_for_more(world, 20)
        return world.row(name, deadline_s=40)


def _wait_for_more(world: World, count: int) -> None:
    before = len(world.acknowledged())
    wait_for(lambda: len(world.acknowledged()) >= before + count, 30, "captures go on")


def _limit(process: Process, what: str, value: str) -> None:
    """Change a resource limit of a running process and its children; `value` as prlimit takes it."""
    pids = [process.pid, *(child.pid for child in psutil.Process(process.pid).children(recursive=True))]
    for pid in pids:
        subprocess.run(["prlimit", f"--pid={pid}", f"--{what}={value}"], check=False, capture_output=True)


def _start_again(world: World) -> None:
    """What ended for want of something ended rightly, and is started again as in service."""
    world.supervise()
    world.notes += world.problems
    world.problems.clear()


@scenario("no-descriptors")
def no_descriptors(name: str, scale: Scale) -> Row:
    """Host, worker and agent in turn run out of descriptors while connections drop: they go on by themselves after."""
    with World(redis_proxy=True, store_proxy=True) as world:
        assert world.redis_proxy is not None and world.store_proxy is not None
        agent = world.agent(journal=1)
        world.host(rate=20, mix="turns"), world.host(rate=20, mix="turns", journal=1, dispatches=False)
        world.begin()
        for host in world.hosts:
            wait_for(lambda host=host: len(world.acknowledged(host.name)) > 10, 30, "captures")  # type: ignore[misc]
        for victim in (world.hosts[0], world.workers[0], agent):
            time.sleep(1.0)  # load
            _limit(victim, "nofile", "3:")
            world.redis_proxy.drop()
            world.store_proxy.drop()
            time.sleep(3.0)  # load without descriptors
            if victim.running:
                _limit(victim, "nofile", "1024:")
            _start_again(world)
            _wait_for_more(world, 1)
        refused = [one["reason"] for one in world.promised() if one["kind"] == "refused"]
        world.notes.append(f"refused meanwhile: {len(refused)} {sorted(set(refused))}")
        return world.row(name)


@scenario("no-memory")
def no_memory(name: str, scale: Scale) -> Row:
    """A worker's address space is spent under load, and a child of it is killed by the kernel: no event is blamed."""
    with World() as world:
        world.host(rate=30)
        world.begin()
        worker = world.workers[0]
        for _ in range(scale.pick(3, 20)):
            time.sleep(2.0)  # load
            used = psutil.Process(worker.pid).memory_info().vms
            _limit(worker, "as", f"{used}:")
            time.sleep(2.0)  # load without memory
            if worker.running:
                _limit(worker, "as", "unlimited:")
            _start_again(world)
        return world.row(name)


@scenario("all-suspended")
def all_suspended(name: str, scale: Scale) -> Row:
    """The whole machine is suspended for longer than the visibility timeout, under load, and goes on."""
    with World(workers=2) as world:
        world.host(rate=30), world.host(rate=30, journal=1)
        world.begin()
        time.sleep(3.0)  # load
        with contextlib.ExitStack() as asleep:
            assert world.store is not None
            for process in (*world.hosts, *world.workers, world.redis, world.store):
                asleep.enter_context(frozen(process))
            time.sleep(15.0)  # the suspension: longer than MEMORY_VISIBILITY_TIMEOUT_S
        time.sleep(2.0)  # load
        return world.row(name)


@scenario("store-file-in-trouble")
def store_file_in_trouble(name: str, scale: Scale) -> Row:
    """The SQLite store's file is locked by another process, on a full disk, damaged, and mended: nothing is dead."""
    with World(workers=2, store="sqlite") as world:
        world.host(rate=20)
        world.begin()
        wait_for(lambda: world.stored() > 20, 30, "something is stored")
        with contextlib.closing(sqlite3.connect(world.store_file, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            time.sleep(6.0)  # locked for longer than MEMORY_STORE_TIMEOUT_S
            other.execute("ROLLBACK")
        for worker in world.workers:
            _limit(worker, "fsize", f"{world.store_file.stat().st_size // 2}:")
        time.sleep(5.0)  # no room in the store's files
        for worker in world.workers:
            _limit(worker, "fsize", "unlimited:")
        return world.row(name)


@scenario("journal-comes-and-goes")
def journal_comes_and_goes(name: str, scale: Scale) -> Row:
    """The journal's directory is read-only, unmounted and moved away for a while; it goes on by itself."""
    with _bound(World(settings={"MEMORY_SEGMENT_MAX_BYTES": "8000"})) as (world, disk):
        host = world.host(rate=20, mix="turns")
        world.begin()
        for trouble in (_read_only, _unmounted, _moved):
            _wait_for_more(world, 10)
            with trouble(world.journal(), disk):
                time.sleep(3.0)  # load without a journal
        _wait_for_more(world, 10)
        must(world, host.running, "the host ended")
        refused = [one["reason"] for one in world.promised() if one["kind"] == "refused"]
        world.notes.append(f"refused meanwhile: {len(refused)} {sorted(set(refused))}")
        return world.row(name, deadline_s=90)


@contextlib.contextmanager
def _bound(world: World) -> Iterator[tuple[World, Path]]:
    """A world whose journal is a mount of its own, of the second directory."""
    with world, contextlib.ExitStack() as stack:
        disk = world.directory / "disk"
        disk.mkdir()
        world.journal().mkdir(parents=True)
        _mount("--bind", str(disk), str(world.journal()))
        stack.callback(subprocess.run, ["umount", "-l", str(world.journal())], check=False)
        yield world, disk


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


@contextlib.contextmanager
def _read_only(journal: Path, disk: Path) -> Iterator[None]:
    away = journal.with_name("read-only")  # made so where nobody opens a file in between
    away.mkdir()
    _mount("--bind", str(disk), str(away))
    _mount("-o", "remount,bind,ro", str(away))
    _mount("--bind", str(away), str(journal))
    try:
        yield
    finally:
        for one in (journal, away):
            subprocess.run(["umount", "-l", str(one)], check=True)


@contextlib.contextmanager
def _unmounted(journal: Path, disk: Path) -> Iterator[None]:
    subprocess.run(["umount", "-l", str(journal)], check=True)
    try:
        yield
    finally:
        _mount("--bind", str(disk), str(journal))


@contextlib.contextmanager
def _moved(journal: Path, disk: Path) -> Iterator[None]:
    """Its mount point is taken away with it."""
    aside = journal.with_name("aside")
    subprocess.run(["umount", "-l", str(journal)], check=True)
    journal.rename(aside)
    try:
        yield
    finally:
        if journal.exists():
            shutil.rmtree(journal)
        aside.rename(journal)
        _mount("--bind", str(disk), str(journal))


@scenario("keys-rotated")
def keys_rotated(name: str, scale: Scale) -> Row:
    """The producer's key is rotated while messages of the old one are queued: both are accepted, nothing is dropped."""
    old, new = ("k-2025", "old-secret-" * 4), ("k-2026", "new-secret-" * 4)
    with World(workers=0, settings={"MEMORY_KEY_ID": old[0], "MEMORY_PRODUCER_KEY": old[1]}) as world:
        tenants = world.directory / "tenants.json"
        tenants.touch(0o600)
        tenants.write_text(
            json.dumps(
                [{"keyId": id_, "secret": secret, "tenant": world.settings.tenant} for id_, secret in (old, new)]
            )
        )
        host = world.host(rate=0, count=50, mix="turns")
        world.wait_done(host)
        wait_for(lambda: world.queued() >= 50, 30, "messages of the old key")
        host.stop()
        host.env |= {"MEMORY_KEY_ID": new[0], "MEMORY_PRODUCER_KEY": new[1]}
        host.start()
        world.worker(env={"MEMORY_TENANTS_FILE": str(tenants)})
        half_written = world.worker(wait=False, env={"MEMORY_TENANTS_FILE": str(_cut(tenants))})
        must(world, half_written.wait(60) not in (None, 0), "a worker started on half a tenants file")
        world.workers.remove(half_written)
        return world.row(name, deadline_s=60)


def _cut(path: Path) -> Path:
    half = path.with_suffix(".half")
    half.touch(0o600)
    half.write_text(path.read_text()[:-20])
    return half


@scenario("other-pools")
def other_pools(name: str, scale: Scale) -> Row:
    """Workers started by hand with other pools, under one name, and killed the way containers are: all is stored."""
    with World(workers=1) as world:
        for pool in ("prefork", "solo"):
            worker = world.worker(wait=False)
            worker.kill()
            command = [pool if word == "threads" else word for word in worker.command]
            worker.command = [word.replace(f"{worker.name}@", "w0@") for word in command]
            worker.start()
        world.host(rate=20), world.host(rate=20, journal=1)
        world.begin()
        time.sleep(6.0)  # load
        for worker in world.workers[1:]:
            worker.stop(deadline_s=1.0)  # and then SIGKILL
            worker.start()
        time.sleep(4.0)  # load
        return world.row(name)


@scenario("broker-of-others")
def broker_of_others(name: str, scale: Scale) -> Row:
    """Somebody else's messages stand in our queues and somebody else's worker takes ours: nothing stays away."""
    with World() as world:
        app = celery.Celery(broker=world.environ["MEMORY_BROKER_URL"], set_as_current=False)
        thief = world.worker(wait=False, entry=["-m", "celery", "--broker", world.environ["MEMORY_BROKER_URL"]])
        thief.kill()
        words = ["worker", "-P", "solo", "-Q", f"{message.QUEUE},{message.BACKLOG_QUEUE}", "-n", "thief@%h"]
        thief.command = [*thief.command[:4], *thief.command[4:5], *words]
        thief.start()
        world.host(rate=20)
        world.begin()
        for number in range(20):
            app.send_task("their.task", args=["x" * (10 << 20 if number == 10 else 10)], queue=message.QUEUE)
            time.sleep(0.2)  # load
        app.close()
        thief.kill()
        world.workers.remove(thief)
        world.client.rpush(message.QUEUE, b"no message at all")  # kombu's own format: it ends the worker, once
        wait_for(lambda: not world.workers[0].running, 30, "the worker meets it")
        _start_again(world)
        return world.row(name)
