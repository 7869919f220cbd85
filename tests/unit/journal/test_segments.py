"""Segments as bytes: format, appending, sealing, reading, damage."""

from __future__ import annotations

import json

import pytest

from producer.journal import line as lines
from producer.journal import segments
from producer.journal.segments import Reader, Segment
from tests.unit.journal.crashing_filesystem import CrashingFileSystem

ID = "ab" * 16
AT_MS = 1_796_126_400_123  # 2026-12-01T12:00:00.123Z
DIRECTORY = "/journal"


def line(number: int) -> bytes:
    text = lines.encode(
        kind="event", id=f"{number:064x}", appended_at="2026-12-01T12:00:00.000Z", body={"event": {"n": number}}
    )
    return text.encode("ascii") + b"\n"


@pytest.fixture
def fs() -> CrashingFileSystem:
    made = CrashingFileSystem()
    made.make_directory(DIRECTORY)
    return made


def create(fs: CrashingFileSystem) -> Segment:
    return Segment.create(fs, DIRECTORY, journal_id=ID, at_ms=AT_MS)


def again(fs: CrashingFileSystem, segment: Segment) -> Segment:
    return Segment.open(fs, DIRECTORY, segment.name, journal_id=ID)


def written(fs: CrashingFileSystem, *numbers: int) -> Segment:
    segment = create(fs)
    assert segment.hold()
    segment.append(b"".join(line(number) for number in numbers))
    segment.let_go()
    return segment


def path(segment: Segment) -> str:
    return f"{DIRECTORY}/{segment.name}"


def pieces(fs: CrashingFileSystem, segment: Segment, *, to_end: bool = True) -> list[segments.Piece]:
    return list(Reader(fs, fs.open_to_read(path(segment))).pieces(to_end=to_end))


def numbers(found: list[segments.Piece]) -> list[int]:
    return [piece.line.body["event"]["n"] for piece in found if piece.line is not None]


def damage(found: list[segments.Piece]) -> list[bytes]:
    return [piece.raw for piece in found if piece.line is None]


def test_a_name_says_when_it_was_made_and_sorts_by_that() -> None:
    name = segments.segment_name(AT_MS)
    assert name.startswith("segment-20261201T120000.123Z-")
    assert name.endswith(".jsonl")
    assert segments.is_segment(name)
    assert segments.created_ms(name) == AT_MS
    assert segments.segment_name(AT_MS + 1) > name
    assert not segments.is_segment(name + ".tmp")
    assert not segments.is_segment("reserve")


@pytest.mark.parametrize("ms", [0, 951_782_400_001, AT_MS, 1_709_164_800_000, 4_102_444_799_999])
def test_times_are_read_as_they_are_written(ms: int) -> None:
    assert segments.ms_of_iso(segments.iso_of_ms(ms)) == ms


def test_a_text_that_is_no_time_is_zero() -> None:
    assert segments.ms_of_iso("yesterday") == 0
    assert segments.ms_of_iso("") == 0


def test_the_first_line_is_a_header_with_a_version_and_every_line_is_json(fs: CrashingFileSystem) -> None:
    segment = written(fs, 1)
    segment.hold()
    segment.seal(AT_MS)
    first, middle, last = (json.loads(text) for text in fs.contents(path(segment)).splitlines())
    assert first["segment"] == 1
    assert first["journalId"] == ID
    assert first["createdAt"] == "2026-12-01T12:00:00.123Z"
    assert middle["kind"] == "event"
    assert last["sealed"] == "2026-12-01T12:00:00.123Z"
    assert all(len(one["sum"]) == 16 for one in (first, middle, last))


def test_a_segment_is_appended_to_by_whoever_holds_its_lock(fs: CrashingFileSystem) -> None:
    mine = written(fs, 1)
    theirs = again(fs, mine)
    assert mine.hold()
    assert not theirs.hold()
    mine.append(line(2))
    mine.let_go()
    assert theirs.hold()
    theirs.append(line(3))
    theirs.let_go()
    assert mine.hold()
    mine.append(line(4))
    assert numbers(pieces(fs, mine)) == [1, 2, 3, 4]


def test_nobody_appends_to_a_sealed_segment(fs: CrashingFileSystem) -> None:
    mine = written(fs, 1)
    theirs = again(fs, mine)
    assert theirs.hold()
    theirs.seal(AT_MS)
    theirs.let_go()
    assert not mine.hold()
    assert mine.ended
    assert not again(fs, mine).hold()


def test_nobody_appends_to_a_removed_segment(fs: CrashingFileSystem) -> None:
    mine = written(fs, 1)
    fs.unlink(path(mine))
    assert not mine.hold()
    assert mine.ended


def test_nobody_appends_to_a_segment_that_was_moved_away_or_replaced(fs: CrashingFileSystem) -> None:
    mine = written(fs, 1)
    whole = fs.contents(path(mine))
    fs.rename(path(mine), f"{path(mine)}.aside")
    assert not mine.hold()
    other = fs.create(path(mine))
    fs.write_all(other, whole)
    assert not mine.hold()
    assert mine.ended


def test_a_segment_of_a_later_version_is_neither_appended_to_nor_read_nor_taken_for_compaction(
    fs: CrashingFileSystem,
) -> None:
    mine = written(fs, 1)
    later = segments._summed(b'{"segment":2,"journalId":"x"') + b"\n" + b"something else\n" + segments.footer(AT_MS)
    fs.damage(path(mine), lambda _: later)
    assert not again(fs, mine).hold()
    assert not again(fs, mine).hold_sealed()
    reader = Reader(fs, fs.open_to_read(path(mine)))
    assert list(reader.pieces(to_end=True)) == []
    assert reader.unreadable


@pytest.mark.parametrize("header", [b"", b"garbage\n", b'{"segment":9,"journalId":"x","sum":"0123456789abcdef"}\n'])
def test_a_lost_or_damaged_header_costs_no_line(fs: CrashingFileSystem, header: bytes) -> None:
    mine = written(fs, 1, 2)
    fs.damage(path(mine), lambda data: header + data.partition(b"\n")[2])
    assert numbers(pieces(fs, mine)) == [1, 2]
    other = again(fs, mine)
    assert other.hold()
    other.append(line(3))
    assert numbers(pieces(fs, mine)) == [1, 2, 3]


@pytest.mark.parametrize("cut", range(1, len(line(2)) + 1))
def test_a_torn_tail_is_never_glued_to_the_next_line(fs: CrashingFileSystem, cut: int) -> None:
    mine = written(fs, 1, 2)
    fs.damage(path(mine), lambda data: data[:-cut])
    taker = again(fs, mine)
    assert taker.hold()
    taker.append(line(3))
    found = pieces(fs, mine)
    assert numbers(found) == ([1, 2, 3] if cut == 1 else [1, 3])
    assert len(damage(found)) == (0 if cut in (1, len(line(2))) else 1)


def test_nulls_at_the_end_are_a_torn_tail(fs: CrashingFileSystem) -> None:
    mine = written(fs, 1)
    fs.damage(path(mine), lambda data: data + bytes(4096))
    taker = again(fs, mine)
    assert taker.hold()
    taker.append(line(2))
    assert numbers(pieces(fs, mine)) == [1, 2]
    assert damage(pieces(fs, mine)) == [bytes(4096)]


def test_an_append_that_fails_leaves_no_part_of_itself(fs: CrashingFileSystem) -> None:
    mine = written(fs, 1)
    before = fs.contents(path(mine))
    assert mine.hold()
    fs.fail_at = len(fs.operations)
    with pytest.raises(OSError, match="write"):
        mine.append(line(2))
    assert fs.contents(path(mine)) == before
    mine.let_go()
    assert mine.hold()
    mine.append(line(3))
    assert numbers(pieces(fs, mine)) == [1, 3]


def test_of_an_append_that_fails_whole_lines_stay_because_somebody_may_have_read_them(fs: CrashingFileSystem) -> None:
    mine = written(fs, 1)
    descriptor = fs.open_to_read(path(mine))
    reader = Reader(fs, descriptor)
    assert numbers(list(reader.pieces())) == [1]
    fs.capacity = fs._used() + 2 * len(line(2)) + 30
    assert mine.hold()
    with pytest.raises(OSError, match="write"):
        mine.append(line(2) + line(3) + line(4))
    assert numbers(list(reader.pieces())) == [2, 3]
    fs.capacity = None
    mine.append(line(5))
    assert numbers(list(reader.pieces())) == [5]
    assert damage(pieces(fs, mine)) == []


def test_an_append_that_fails_and_cannot_be_cut_off_leaves_a_torn_tail(fs: CrashingFileSystem) -> None:
    class Stubborn(CrashingFileSystem):
        def truncate(self, descriptor: int, length: int) -> None:
            raise OSError(5, "truncate")

    stubborn = Stubborn()
    stubborn.make_directory(DIRECTORY)
    mine = written(stubborn, 1)
    assert mine.hold()
    stubborn.fail_at = len(stubborn.operations)
    with pytest.raises(OSError, match="write"):
        mine.append(line(2))
    mine.let_go()
    assert mine.hold()
    mine.append(line(3))
    found = pieces(stubborn, mine)
    assert numbers(found) == [1, 3]
    assert len(damage(found)) == 1


@pytest.mark.parametrize("is_stubborn", [False, True])
def test_whole_lines_of_a_failed_append_stay_when_the_next_append_fails_too(is_stubborn: bool) -> None:
    class Stubborn(CrashingFileSystem):
        refuses = is_stubborn

        def truncate(self, descriptor: int, length: int) -> None:
            if self.refuses:
                raise OSError(5, "truncate")
            super().truncate(descriptor, length)

    fs = Stubborn()
    fs.make_directory(DIRECTORY)
    mine = written(fs, 1)
    assert mine.hold()
    fs.capacity = fs._used() + 2 * len(line(2)) + 30
    with pytest.raises(OSError, match="write"):
        mine.append(line(2) + line(3) + line(4))
    assert numbers(pieces(fs, mine)) == [1, 2, 3]
    fs.refuses = False
    for room in (0, 10, 0):
        fs.capacity = fs._used() + room
        with pytest.raises(OSError, match="write"):
            mine.seal(AT_MS)
        assert numbers(pieces(fs, mine)) == [1, 2, 3]
    fs.capacity = None
    mine.append(line(5))
    assert numbers(pieces(fs, mine)) == [1, 2, 3, 5]


def test_after_an_append_that_wrote_nothing_a_torn_tail_is_still_one(fs: CrashingFileSystem) -> None:
    mine = written(fs, 1)
    fs.damage(path(mine), lambda data: data + b"torn")
    assert mine.hold()
    fs.capacity = fs._used()
    with pytest.raises(OSError, match="write"):
        mine.append(line(2))
    fs.capacity = None
    mine.append(line(3))
    assert numbers(pieces(fs, mine)) == [1, 3]
    assert b"torn\n" in fs.contents(path(mine))


def test_every_whole_line_is_read_whatever_bit_is_flipped(fs: CrashingFileSystem) -> None:
    mine = written(fs, 1, 2, 3)
    whole = fs.contents(path(mine))
    start = whole.index(line(2))
    for position in range(start, start + len(line(2))):
        for bit in (0, 5):
            flipped = bytearray(whole)
            flipped[position] ^= 1 << bit
            fs.damage(path(mine), lambda _, flipped=flipped: bytes(flipped))
            found = pieces(fs, mine)
            is_newline = position == start + len(line(2)) - 1
            assert numbers(found) == ([1, 2, 3] if is_newline else [1, 3])
            assert damage(found), "the damage is not reported"


def test_whole_lines_inside_damage_are_read(fs: CrashingFileSystem) -> None:
    mine = written(fs, 1)
    glued = bytes(100) + line(2).strip() + b"\x0b" + line(3).strip() + b"tail\n" + line(4)
    fs.damage(path(mine), lambda data: data + glued)
    found = pieces(fs, mine)
    assert numbers(found) == [1, 2, 3, 4]
    assert damage(found) == [bytes(100), b"\x0b", b"tail"]


def test_pieces_say_where_they_stand(fs: CrashingFileSystem) -> None:
    mine = written(fs, 1)
    fs.damage(path(mine), lambda data: data + b"xx" + line(2) + line(3))
    whole = fs.contents(path(mine))
    for piece in pieces(fs, mine):
        assert whole[piece.offset : piece.offset + len(piece.raw)] == piece.raw


def test_reading_large_damage_takes_little_memory_and_still_finds_what_follows(fs: CrashingFileSystem) -> None:
    mine = written(fs, 1)
    fs.damage(path(mine), lambda data: data + bytes(5 << 20) + line(2))
    found = pieces(fs, mine)
    assert numbers(found) == [1, 2]
    assert sum(map(len, damage(found))) == 5 << 20
    assert max(map(len, damage(found))) <= lines.MAX_LINE_BYTES + segments._CHUNK


def test_what_was_appended_is_read_later_from_where_reading_stopped(fs: CrashingFileSystem) -> None:
    mine = written(fs, 1)
    descriptor = fs.open_to_read(path(mine))
    reader = Reader(fs, descriptor)
    assert numbers(list(reader.pieces())) == [1]
    assert list(reader.pieces()) == []
    assert mine.hold()
    mine.append(line(2))
    assert numbers(list(Reader(fs, descriptor, offset=reader.offset).pieces())) == [2]


def test_a_tail_without_newline_is_left_for_later_unless_nobody_appends_any_more(fs: CrashingFileSystem) -> None:
    mine = written(fs, 1, 2)
    fs.damage(path(mine), lambda data: data[:-1])
    assert numbers(pieces(fs, mine, to_end=False)) == [1]
    assert numbers(pieces(fs, mine, to_end=True)) == [1, 2]


def test_a_torn_tail_is_healed_with_a_newline(fs: CrashingFileSystem) -> None:
    mine = written(fs, 1, 2)
    fs.damage(path(mine), lambda data: data[:-1])
    taker = again(fs, mine)
    assert taker.hold()
    taker.heal()
    assert numbers(pieces(fs, mine, to_end=False)) == [1, 2]
    before = fs.contents(path(mine))
    taker.heal()
    assert fs.contents(path(mine)) == before


def test_only_a_sealed_segment_is_held_for_compaction(fs: CrashingFileSystem) -> None:
    mine = written(fs, 1)
    assert not again(fs, mine).hold_sealed()
    assert mine.hold()
    mine.seal(AT_MS)
    assert not again(fs, mine).hold_sealed(), "it is locked"
    mine.let_go()
    assert again(fs, mine).hold_sealed()


def test_what_was_synced_survives_a_crash_with_its_name() -> None:
    for seed in range(50):
        fs = CrashingFileSystem(seed)
        fs.make_directory(DIRECTORY)
        fs.sync_directory("/")
        segment = written(fs, 1)
        segment.sync()
        fs.crash()
        assert numbers(pieces(fs, segment)) == [1]


def test_whoever_takes_a_segment_over_makes_its_name_durable_too() -> None:
    for seed in range(50):
        fs = CrashingFileSystem(seed)
        fs.make_directory(DIRECTORY)
        fs.sync_directory("/")
        taker = again(fs, written(fs, 1))  # its maker died before it could sync
        assert taker.hold()
        taker.append(line(2))
        taker.sync()
        fs.crash()
        assert numbers(pieces(fs, taker)) == [1, 2]


def test_a_footer_is_not_glued_to_a_torn_tail_of_our_own() -> None:
    class Stubborn(CrashingFileSystem):
        def truncate(self, descriptor: int, length: int) -> None:
            raise OSError(5, "truncate")

    stubborn = Stubborn()
    stubborn.make_directory(DIRECTORY)
    mine = written(stubborn, 1)
    assert mine.hold()
    stubborn.fail_at = len(stubborn.operations)
    with pytest.raises(OSError, match="write"):
        mine.append(line(2))
    mine.seal(AT_MS)
    mine.let_go()
    assert not mine.hold(), "it is not sealed for the others"
    assert mine.ended
    assert numbers(pieces(stubborn, mine)) == [1]
