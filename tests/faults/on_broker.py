"""Scenarios in which Redis vanishes, freezes, forgets, fills or drops connections."""

from __future__ import annotations

import random
import time
import urllib.request

import psutil

from memory_tasks import receipts, supervisor
from tests.faults.process import Process
from tests.faults.scenario import Scale, scenario
from tests.faults.table import Row
from tests.faults.world import World, frozen, wait_for

CAPTURE_MS = 500.0  # ten times the benchmark's 50 ms


def slowest_ms(world: World, *names: str) -> float:
    return max((one["ms"] for one in world.promised(*names) if "ms" in one), default=0.0)


def must(world: World, holds: bool, otherwise: str) -> None:
    """Note a problem of the row in place of ending the scenario: the count at the end is wanted in any case."""
    if not holds:
        world.problems.append(otherwise)


@scenario("F2-frozen-broker")
def frozen_broker(name: str, scale: Scale) -> Row:
    """Redis is frozen: captures stay fast and durable, and all are stored once it goes on."""
    with World() as world:
        with frozen(world.redis):
            host = world.host(rate=0, count=100, mix="turns")
            world.wait_done(host)
            must(world, world.pending() == 100, f"{world.pending()} of 100 captures are in the journal")
            worst = slowest_ms(world)
            must(world, worst < CAPTURE_MS, f"a capture took {worst} ms")
            world.notes.append(f"slowest capture {worst:.0f} ms")
        return world.row(name)


@scenario("F3-deaf-after-reconnect")
def deaf_after_reconnect(name: str, scale: Scale) -> Row:
    """Connections to Redis drop three times in ten seconds under a queue: it goes on within 30 seconds."""
    with World(redis_proxy=True) as world:
        proxy = world.redis_proxy
        assert proxy is not None
        with frozen(world.workers[0]):
            host = world.host(rate=0, count=scale.pick(300, 1000), mix="turns")
            world.wait_done(host, deadline_s=120)
            wait_for(lambda: world.queued() > 100, 30, "a queue")
        for _ in range(3):
            proxy.set("refuse")
            time.sleep(1.0)  # the outage itself
            proxy.set("pass")
            time.sleep(2.0)
        before, began = world.stored(), time.monotonic()
        wait_for(lambda: world.stored() > before or not world.pending(), 30, "progress after the third drop")
        world.notes.append(f"went on after {time.monotonic() - began:.1f} s")
        return world.row(name)


def _half_done(world: World, count: int) -> None:
    """Some are stored, the rest is published and waits behind a frozen worker."""
    host = world.host(rate=0, count=count, mix="turns")
    wait_for(lambda: world.stored() > count // 10, 60, "a part is stored")
    world.workers[0].freeze()
    world.wait_done(host, deadline_s=120)
    wait_for(lambda: world.queued() > count // 10, 60, "a queue")


@scenario("F7-flushall")
def flushall(name: str, scale: Scale) -> Row:
    """Redis forgets everything (FLUSHALL): journals publish again, nobody does anything."""
    with World() as world:
        _half_done(world, scale.pick(300, 1000))
        world.client.flushall()
        world.workers[0].thaw()
        return world.row(name)


@scenario("F7-no-persistence")
def no_persistence(name: str, scale: Scale) -> Row:
    """Redis without persistence is killed: journals publish again."""
    with World(persistent=False) as world:
        _half_done(world, scale.pick(300, 1000))
        world.redis.kill()
        world.workers[0].thaw()
        time.sleep(1.0)  # the outage itself
        world.redis.start()
        return world.row(name)


@scenario("F7-old-dump")
def old_dump(name: str, scale: Scale) -> Row:
    """An old dump of Redis is restored: what was stored meanwhile comes again and makes no second record."""
    with World(persistent=False) as world:
        _half_done(world, scale.pick(300, 1000))
        world.client.save()
        world.workers[0].thaw()
        must(world, world.settle(), "not settled before the restore")
        world.redis.kill()
        world.redis.start()
        must(world, world.queued() > 0, "the dump held no messages")
        return world.row(name)


@scenario("F8-keys-leak")
def keys_leak(name: str, scale: Scale) -> Row:
    """Tasks and Flower come and go: the number of keys comes back, and each has a time to live or a name."""
    with World() as world:
        known = ["--participant", "one"]  # each scope has a key of recent writes, which expires
        world.wait_done(world.host(rate=0, count=200, mix="turns", more=known))
        must(world, world.settle(), "not settled before the load")
        connections = len(world.client.client_list())
        flower = _flower(world)
        listens = ("_kombu.binding.celeryev", "_kombu.binding.reply.celery.pidbox")
        wait_for(lambda: world.client.exists(*listens) == 2, 60, "Flower listens")
        baseline = {bytes(key).decode() for key in world.client.scan_iter("*")}
        members = _members(world)
        host = world.host(rate=0, count=scale.pick(500, 20_000), mix="turns", more=known)
        for _ in range(scale.pick(2, 5)):
            flower.stop()
            world.agents.remove(flower)
            flower = _flower(world)
        world.wait_done(host, deadline_s=600)
        must(world, world.settle(600), "not settled after the load")
        after = {bytes(key).decode() for key in world.client.scan_iter("*")}
        more = _members(world) - members
        flower.stop()
        world.agents.remove(flower)
        now = len(world.client.client_list()) - 3  # of the second host
        must(world, now <= connections + 4, f"connections grew from {connections} to {now}")
        must(world, len(after) <= len(baseline) * 1.05, f"{len(after)} keys after {len(baseline)}: {after - baseline}")
        named = ("_kombu.binding", *receipts.KEYS_WITHOUT_TTL)  # the first: which queues Celery has declared
        lasting = {key for key in after if world.client.ttl(key) == -1 and not key.startswith(named)}
        # Each Flower leaves a few names behind; kombu drops them an hour after nobody listens any more.
        must(world, more <= 4 * scale.pick(2, 5), f"the lists of queues grew by {more}")
        must(world, not lasting, f"keys without a time to live: {sorted(lasting)}")
        world.notes.append(f"{len(baseline)} keys before, {len(after)} after; {connections} connections, {now}")
        return world.row(name)


def _members(world: World) -> int:
    """Entries of the sets in which kombu keeps its queues: one per queue that lives."""
    size = {b"set": world.client.scard, b"zset": world.client.zcard, b"hash": world.client.hlen}
    keys = world.client.scan_iter("_kombu.binding*")
    return sum(size.get(world.client.type(key), lambda _: 0)(key) for key in keys)


def _flower(world: World) -> Process:
    port = _free_port()
    flower = Process(
        f"flower{port}",
        supervisor.flower_command(port=port, state_dir=world.directory),
        env=world.environ,
        log=world.directory / "flower.log",
    )
    world.agents.append(flower)  # stopped with the rest
    flower.start()

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthcheck", timeout=1) as answer:
                return answer.status == 200
        except OSError:
            return False

    wait_for(answers, 60, "Flower answers")
    return flower


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@scenario("F9-eviction-and-full")
def eviction_and_full(name: str, scale: Scale) -> Row:
    """An evicting Redis is refused at start; a full one refuses publishes, and captures stay fast and durable."""
    with World(workers=0, redis_extra=["--maxmemory", "20mb", "--maxmemory-policy", "allkeys-lru"]) as world:
        refused = world.worker(wait=False)
        must(world, refused.wait(60) not in (None, 0), "a worker started on an evicting broker")
        must(world, "noeviction" in refused.words(), "the refusal does not say what to set")
        world.workers.clear()
        world.client.config_set("maxmemory-policy", "noeviction")
        world.worker()
        _fill(world)
        host = world.host(rate=100, count=300, mix="turns")
        world.wait_done(host)
        worst = slowest_ms(world)
        must(world, worst < CAPTURE_MS, f"a capture took {worst} ms")
        must(world, world.pending() > 0, "Redis was not full")
        time.sleep(2.0)  # the workers meet the full Redis too
        world.client.delete("filling")
        world.notes.append(f"slowest capture {worst:.0f} ms")
        return world.row(name)


def _fill(world: World) -> None:
    import redis

    piece = b"x" * 65_536
    while piece:
        try:
            world.client.rpush("filling", piece)
        except redis.exceptions.OutOfMemoryError:
            piece = piece[: len(piece) // 2]


@scenario("redis-full-under-load")
def redis_full_under_load(name: str, scale: Scale) -> Row:
    """Redis fills while workers are at work and empties again, three times over."""
    with World(workers=2, redis_extra=["--maxmemory", "20mb"]) as world:
        world.host(rate=30), world.host(rate=30, journal=1)
        world.begin()
        for _ in range(3):
            time.sleep(1.0)  # load
            _fill(world)
            time.sleep(2.0)  # load against a full Redis
            world.client.delete("filling")
        return world.row(name)


@scenario("redis-frozen-under-load")
def redis_frozen_under_load(name: str, scale: Scale) -> Row:
    """Redis is frozen for longer than every timeout while workers are at work, twice."""
    with World(workers=2) as world:
        world.host(rate=30), world.host(rate=30, journal=1), world.agent()
        world.begin()
        for _ in range(2):
            time.sleep(2.0)  # load
            with frozen(world.redis):
                time.sleep(7.0)  # longer than the timeouts of workers and hosts
        time.sleep(1.0)  # load
        return world.row(name)


@scenario("redis-connections-break")
def redis_connections_break(name: str, scale: Scale) -> Row:
    """Connections to Redis are reset, cut in the middle of an answer, delayed and held, in turn and at random."""
    rng = random.Random(scale.seed)
    with World(workers=2, redis_proxy=True) as world:
        proxy = world.redis_proxy
        assert proxy is not None
        world.host(rate=20), world.host(rate=20, journal=1)
        world.begin()
        for _ in range(scale.pick(8, 40)):
            match rng.choice(("reset", "cut", "delay", "freeze", "refuse", "drop")):
                case "cut":
                    proxy.set("cut", after_bytes=rng.choice((1, 5, 17, 300, 5000)))
                case "delay":
                    proxy.set("delay", delay_s=0.1)
                case "drop":
                    proxy.drop()
                case mode:
                    proxy.set(mode)
            time.sleep(rng.uniform(0.2, 1.2))  # the trouble itself
            proxy.set("pass")
            time.sleep(rng.uniform(0.2, 1.0))  # load
        return world.row(name)


@scenario("redis-killed-under-load")
def redis_killed_under_load(name: str, scale: Scale) -> Row:
    """Redis (AOF once a second) is killed under load again and again: its queue may lose a second."""
    with World(workers=2) as world:
        world.host(rate=30), world.host(rate=30, journal=1)
        world.begin()
        for _ in range(scale.pick(4, 20)):
            time.sleep(1.5)  # load
            world.redis.kill()
            world.redis.start()
        workers = [psutil.Process(worker.pid).create_time() for worker in world.workers if worker.running]
        must(world, len(workers) == 2, "a worker ended with its Redis")
        return world.row(name)
