"""Scenarios in which the master of a Sentinel group is lost: killed, frozen, ahead of its replica, moved by hand.

Half a second after the master was last heard the sentinels call it down; electing another takes them one to three
seconds more. What the old master took and the new one never got is lost: messages, receipts, counts, recent writes.
"""

from __future__ import annotations

import time

import redis as redis_py

from memory_tasks import lease
from producer import receipt
from tests.faults.on_broker import CAPTURE_MS, must, slowest_ms
from tests.faults.scenario import Scale, scenario
from tests.faults.table import Row
from tests.faults.world import World, wait_for
from tests.redis_server import RedisServer
from tests.sentinel_group import NAME, SentinelGroup

PROGRESS_S = 30.0  # from the new master to an event captured under it being stored, and to each worker at work
_RECEIVED = "] received"


def _group(world: World) -> SentinelGroup:
    assert world.group is not None
    return world.group


def _goes_on(world: World, what: str) -> None:
    """What is captured from now on is stored in time, and each worker takes messages in time."""
    began, known = time.monotonic(), {one["id"] for one in world.acknowledged()}
    takes = {worker.name: worker.times_said(_RECEIVED) for worker in world.workers}
    wait_for(lambda: bool(_stored_since(world, known)), PROGRESS_S, f"an event is stored after {what}")
    stored_s = time.monotonic() - began
    wait_for(
        lambda: all(worker.times_said(_RECEIVED) > takes[worker.name] for worker in world.workers),
        PROGRESS_S,
        f"each worker takes messages after {what}",
    )
    takes_s = time.monotonic() - began
    world.notes.append(f"new events stored {stored_s:.1f} s, all workers at work {takes_s:.1f} s after {what}")


def _stored_since(world: World, known: set[str]) -> set[str]:
    new = {one["id"] for one in world.acknowledged()} - known
    found = {record.get("eventId") for record in world.records("EPISODE")}
    return new & (found | {record.get("factId") for record in world.records("MEMORY_FACT")})


def _taken_over(world: World, old: RedisServer) -> None:
    began = time.monotonic()
    _group(world).wait_for_master(not_=old)
    world.notes.append(f"another master after {time.monotonic() - began:.1f} s")


def _captures_stay_quick(world: World) -> None:
    worst = slowest_ms(world)
    must(world, worst < CAPTURE_MS, f"a capture took {worst} ms")


@scenario("sentinel-master-killed")
def master_killed(name: str, scale: Scale) -> Row:
    """The master is killed under load and comes back as a replica, and its successor is killed too."""
    with World(workers=2, broker="sentinel") as world:
        world.host(rate=30), world.host(rate=30, journal=1), world.agent(journal=2)
        world.begin()
        wait_for(lambda: world.stored() > 30, 60, "load")
        for _ in range(2):
            old = _group(world).master
            old.kill()
            _taken_over(world, old)
            _goes_on(world, "the failover")
            old.start()
            _group(world).wait_for_replica(old)
        _captures_stay_quick(world)
        return world.row(name)


@scenario("sentinel-master-frozen")
def master_frozen(name: str, scale: Scale) -> Row:
    """The master freezes under load, another takes over, and the old one wakes up believing that it still is."""
    with World(workers=2, broker="sentinel") as world:
        world.host(rate=30), world.host(rate=30, journal=1)
        world.begin()
        wait_for(lambda: world.stored() > 30, 60, "load")
        old = _group(world).master
        old.freeze()
        _taken_over(world, old)
        _goes_on(world, "the failover")
        old.thaw()
        _group(world).wait_for_replica(old)  # until then it takes writes, and loses them
        _captures_stay_quick(world)
        return world.row(name)


@scenario("sentinel-writes-lost")
def writes_lost(name: str, scale: Scale) -> Row:
    """The replica lags when its master is lost: messages and receipts that only the old one had are made up for."""
    with World(workers=2, broker="sentinel") as world:
        group = _group(world)
        old = group.master
        (replica,) = (server for server in group.servers if server is not old)
        host = world.host(rate=0, count=scale.pick(300, 1000), mix="turns")
        wait_for(lambda: world.stored() > 20, 60, "a part is stored")
        replica.freeze()  # from here on nothing reaches it: messages, nor receipts
        host.freeze()  # nobody takes the receipts
        before = world.stored()
        wait_for(lambda: world.stored() > before, 60, "more is stored")
        lost = _receipts(world, old)
        world.workers[0].freeze(), world.workers[1].freeze()
        old.kill()
        replica.thaw()
        group.wait_for_master(not_=old)
        world.workers[0].thaw(), world.workers[1].thaw(), host.thaw()
        must(world, lost > 0, "no receipt was lost: the scenario tried nothing")
        world.notes.append(f"{lost} receipts lost")
        world.wait_done(host, deadline_s=120)
        return world.row(name)


def _receipts(world: World, server: RedisServer) -> int:
    with _group(world).client(server.port) as client:
        return sum(int(client.llen(key)) for key in client.scan_iter(receipt.list_name("*")))


@scenario("sentinel-unacked")
def unacked(name: str, scale: Scale) -> Row:
    """A worker and the master are killed together: the other worker gets its messages, and its lease is there again."""
    with World(workers=2, broker="sentinel") as world:
        group = _group(world)
        host = world.host(rate=0, count=scale.pick(300, 1000), mix="turns")
        wait_for(lambda: world.stored() > 20, 60, "a part is stored")
        old, killed = group.master, world.workers.pop(0)
        killed.kill(), old.kill()
        _taken_over(world, old)
        wait_for(lambda: any(b"w1@" in one for one in world.client.hkeys(lease.KEY)), PROGRESS_S, "the lease of w1")
        world.wait_done(host, deadline_s=120)
        return world.row(name)


@scenario("sentinel-taken-over-by-hand")
def taken_over_by_hand(name: str, scale: Scale) -> Row:
    """An operator moves the master again and again under load (SENTINEL FAILOVER): connections move on with it."""
    with World(workers=2, broker="sentinel") as world:
        group = _group(world)
        world.host(rate=30), world.host(rate=30, journal=1)
        world.begin()
        wait_for(lambda: world.stored() > 30, 60, "load")
        for _ in range(scale.pick(2, 4)):
            old = group.master
            wait_for(lambda: _moved(group), 60, "the sentinels agree to move it")
            group.wait_for_master(not_=old)
            _goes_on(world, "it was moved")
            group.wait_for_replica(old)
        return world.row(name)


def _moved(group: SentinelGroup) -> bool:
    try:
        with group.client(group.sentinels[0].port, password=group.sentinel_password) as client:
            client.execute_command("SENTINEL", "FAILOVER", NAME)
    except redis_py.ResponseError:  # INPROG, or no replica that is fresh enough yet
        return False
    return True


@scenario("sentinel-all-away")
def all_away(name: str, scale: Scale) -> Row:
    """All sentinels are away: known connections go on, new ones wait, and nothing needs a hand when they are back."""
    with World(workers=1, broker="sentinel") as world:
        group = _group(world)
        world.host(rate=20)
        world.begin()
        wait_for(lambda: world.stored() > 20, 60, "load")
        for one in group.sentinels:
            one.kill()
        with group.client(group.servers[0].port) as client:
            client.client_kill_filter(_type="normal", skipme=True)  # each has to ask anew, and nobody answers
        time.sleep(3.0)  # the outage itself
        for one in group.sentinels:
            one.start()
        _goes_on(world, "the sentinels were back")
        _captures_stay_quick(world)
        return world.row(name)
