"""Scenarios in which the journal's files are damaged, the disk is full or fails, or the backlog is huge."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from producer import capture, scope
from producer.journal import Journal, segments
from producer.journal import line as lines
from tests.faults.on_broker import CAPTURE_MS, must, slowest_ms
from tests.faults.process import Process
from tests.faults.scenario import Scale, scenario
from tests.faults.table import Row
from tests.faults.world import World, wait_for

_BACKLOG_MEMORY_BYTES = 150 << 20
_FIRST_CAPTURE_MS = 1000.0  # ten times the benchmark's 100 ms


def _captured(world: World, journal: int, count: int) -> list[Path]:
    """A journal that nobody dispatches yet: its segments."""
    host = world.host(
        name=f"c{journal}", journal=journal, rate=0, count=count, mix="turns", dispatches=False, leave="close"
    )
    must(world, host.wait(60) == 0, "a capturing host failed")
    return sorted(world.journal(journal).glob("segment-*.jsonl"))


def _lines_of(path: Path) -> list[bytes]:
    return [raw for raw in path.read_bytes().split(b"\n") if raw.startswith(b'{"v":')]


@scenario("F39-damage")
def damage(name: str, scale: Scale) -> Row:
    """Torn tails, NULs and a flipped bit: every other record is delivered, the bad one is kept aside and counted."""
    with World() as world:
        torn: set[str] = set()
        # Cut in the last record.
        last = _captured(world, 1, 30)[-1]
        raw = last.read_bytes()
        torn.add(json.loads(_lines_of(last)[-1])["id"])
        os.truncate(last, len(raw) - 100)
        # 4 KB of NULs appended.
        last = _captured(world, 2, 30)[-1]
        with last.open("ab") as file:
            file.write(bytes(4096))
        # One bit flipped in the middle.
        last = _captured(world, 3, 30)[-1]
        middle = _lines_of(last)[15]
        torn.add(json.loads(middle)["id"])
        place = last.read_bytes().index(middle) + len(middle) // 2
        with last.open("r+b") as file:
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 0x04]))
        for journal in (1, 2, 3):  # more is captured behind the damage, and all is dispatched
            world.host(journal=journal, rate=0, count=10, mix="turns")
        world.wait_done(*world.hosts[3:])
        must(world, world.settle(), "not settled")
        for journal in (1, 2, 3):
            kept = list((world.journal(journal) / "quarantine").glob("*"))
            must(world, len(kept) == 1, f"{len(kept)} pieces in quarantine of journal {journal}")
        return world.row(name, torn=frozenset(torn))


@scenario("F39-cut-anywhere")
def cut_anywhere(name: str, scale: Scale) -> Row:
    """Cut anywhere in the last two records: all whole ones are read, the next one is not glued to the rest."""
    with World(workers=0) as world:
        (segment,) = _captured(world, 1, 4)
        raw = segment.read_bytes()
        whole = _lines_of(segment)
        from_ = raw.index(whole[-2])
        cuts = range(from_, len(raw), 1 if scale.long else 41)
        bad = 0
        directory = world.directory / "cut"
        for number, cut in enumerate(cuts):
            here = directory / str(number)
            here.mkdir(parents=True)
            (here / segment.name).write_bytes(raw[:cut])
            (here / "journal-id").write_bytes((segment.parent / "journal-id").read_bytes())
            with Journal.open(here, max_bytes=1 << 20, reserve_bytes=0, segment_max_bytes=1 << 20) as journal:
                event = json.loads(whole[0])["event"]
                journal.append_event(event)
                found = [located.line.text.encode() for located in journal.scan()]
            expected = [one for one in whole if raw.index(one) + len(one) <= cut]
            bad += found[:-1] != expected or json.loads(found[-1])["event"] != event
        must(world, not bad, f"{bad} of {len(cuts)} cuts spoilt another record")
        world.notes.append(f"{len(cuts)} cuts")
        return Row(
            scenario=name,
            events=len(cuts),
            lost=0,
            doubled=0,
            dead=0,
            seconds=world.age_s(),
            notes=tuple(world.notes),
            problems=tuple(world.problems),
        )


@contextlib.contextmanager
def _small_disk(size: str) -> Iterator[Path]:
    directory = Path(f"/tmp/mf-disk-{os.getpid()}")
    directory.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)], check=True)
        try:
            yield directory
        finally:
            subprocess.run(["umount", "-l", str(directory)], check=True)
    finally:
        directory.rmdir()


@scenario("F40-disk-full")
def disk_full(name: str, scale: Scale) -> Row:
    """The journal's disk fills: no partial record, refusals are counted, capture resumes when there is room."""
    with (
        _small_disk("1m") as disk,
        World(settings={"MEMORY_JOURNAL_RESERVE_BYTES": "65536"}, journal_dir=disk / "journal") as world,
    ):
        with contextlib.ExitStack() as away:
            world.redis.freeze()
            away.callback(world.redis.thaw)
            host = world.host(rate=0, count=1500, mix="turns", more=["--sentences", "20"])
            world.wait_done(host)
            refused = [one for one in world.promised() if one["kind"] == "refused"]
            must(world, len(refused) >= 100, f"{len(refused)} captures were refused: the disk was not full")
            reasons = {one["reason"] for one in refused}
            must(world, reasons == {"journal_full"}, f"refused as {sorted(reasons)}")
            must(world, slowest_ms(world) < CAPTURE_MS, f"a capture took {slowest_ms(world)} ms")
            subprocess.run(["mount", "-o", "remount,size=16m", str(disk)], check=True)
            later = world.host(rate=0, count=50, mix="turns")
            world.wait_done(later)
            must(world, len(world.acknowledged(later.name)) == 50, "capture did not resume")
        world.notes.append(f"{len(refused)} refused while full")
        return world.row(name)


@scenario("F40-budget-spent")
def budget_spent(name: str, scale: Scale) -> Row:
    """The same for the journal's own budget: refusals while it is spent, and room again once lines have left."""
    settings = {
        "MEMORY_JOURNAL_MAX_BYTES": str(600_000),
        "MEMORY_JOURNAL_RESERVE_BYTES": str(100_000),
        "MEMORY_SEGMENT_MAX_BYTES": str(50_000),
    }
    with World(settings=settings) as world:
        world.redis.freeze()
        host = world.host(rate=0, count=400, mix="turns", more=["--sentences", "20", *_QUICK])
        world.wait_done(host)
        refused = sum(one["kind"] == "refused" for one in world.promised())
        must(world, refused > 0, "the budget was not spent")
        size = sum(path.stat().st_size for path in world.journal().glob("segment-*"))
        must(world, size <= 600_000, f"segments hold {size} bytes")
        world.redis.thaw()
        must(world, world.settle(), "not settled")
        wait_for(
            lambda: sum(path.stat().st_size for path in world.journal().glob("segment-*")) < 300_000,
            90,
            "compaction makes room",
        )
        later = world.host(rate=0, count=50, mix="turns")
        world.wait_done(later)
        must(world, len(world.acknowledged(later.name)) == 50, "capture did not resume")
        world.notes.append(f"{refused} refused while spent")
        return world.row(name)


_QUICK = ("--compact-every", "1")


@scenario("F41-fsync-fails")
def fsync_fails(name: str, scale: Scale) -> Row:
    """A sync fails: its lines are rewritten to a new segment, or not acknowledged when that fails too."""
    with World() as world:
        once = world.host(rate=0, count=30, mix="turns", more=["--fail-syncs", "5"])
        twice = world.host(journal=1, rate=0, count=30, mix="turns", more=["--fail-syncs", "5,6"])
        world.wait_done(once, twice)
        must(world, len(world.acknowledged(once.name)) == 30, "one failed sync cost a capture")
        must(world, len(list(world.journal(0).glob("segment-*"))) == 2, "the segment was not left")
        must(world, len(world.acknowledged(twice.name)) == 29, "two failed syncs did not refuse the capture")
        return world.row(name)


@scenario("F45-huge-backlog")
def huge_backlog(name: str, scale: Scale) -> Row:
    """Starting on a huge backlog: the first capture is fast, memory and disk stay bounded, all is delivered."""
    count = scale.pick(4_000, 100_000)
    settings = {"MEMORY_JOURNAL_MAX_BYTES": str(count * 1500 + (64 << 20))}
    with World(workers=1, settings=settings) as world:
        torn = _write_backlog(world, count)
        host = world.host(rate=0, count=1, mix="turns")
        world.wait_done(host)
        worst = slowest_ms(world, host.name)
        must(world, worst < _FIRST_CAPTURE_MS, f"the first capture took {worst} ms")
        highest = _watched(world, host, scale.pick(240, 3600))
        must(world, highest < _BACKLOG_MEMORY_BYTES, f"the host took {highest >> 20} MiB")
        used = sum(path.stat().st_size for path in world.journal().glob("segment-*"))
        must(world, used <= int(settings["MEMORY_JOURNAL_MAX_BYTES"]), f"the journal holds {used} bytes")
        world.notes.append(f"first capture {worst:.0f} ms, host at most {highest >> 20} MiB")
        return world.row(name, torn=torn, deadline_s=scale.pick(240, 3600))


def _watched(world: World, host: Process, deadline_s: float) -> int:
    """The most memory that the host took until all was delivered."""
    highest, until = 0, time.monotonic() + deadline_s
    while world.pending() and time.monotonic() < until:
        highest = max(highest, host.rss_bytes())
        time.sleep(0.25)
    return highest


def _write_backlog(world: World, count: int) -> frozenset[str]:
    """Segments as hosts would have left them, three lines of them damaged; the damaged ids."""
    directory = world.journal()
    with Journal.open(directory, max_bytes=1 << 34, reserve_bytes=0, segment_max_bytes=8 << 20) as journal:
        journal_id = journal.journal_id
    owner = scope.Scope(
        agent_id="faults",
        profile_id="default",
        privacy_scope="private",
        participant_scope_hash="ab" * 32,
        sandbox_eligible=False,
    )
    at = "2026-12-01T12:00:00.000Z"
    made: list[tuple[str, str]] = []
    for number in range(count):
        event = capture.build_episode(
            scope=owner, runtime="custom", external_session_id=f"backlog-{number // 200}",
            source_event_id=f"backlog/{number}", turn_index=number % 200, user_text=f"What was number {number}?",
            assistant_text=f"It was the one after {number - 1}.", observed_at=at, conversation_kind="local",
            visibility="participant", trust_class="mixed", origin_class="conversation", provenance="faults",
        ).event  # fmt: skip
        made.append(
            (event["eventId"], lines.encode(kind="event", id=event["eventId"], appended_at=at, body={"event": event}))
        )
    torn = {random.Random(world.seed).randrange(count) for _ in range(3)}
    for start in range(0, count, 4_000):
        at_ms = segments.ms_of_iso(at) + start
        text = "".join(
            (line.replace("the one after", "the one aftem") if start + n in torn else line) + "\n"
            for n, (_, line) in enumerate(made[start : start + 4_000])
        )
        path = directory / segments.segment_name(at_ms)
        path.write_bytes(segments.header(journal_id, at_ms) + text.encode("ascii"))
        path.chmod(0o600)
    with world.promises_of("backlog").open("w") as file:
        for id_, _ in made:
            file.write(json.dumps({"kind": "turn", "id": id_}) + "\n")
    return frozenset(made[number][0] for number in torn)
