"""Ids, canonical JSON and bounded text are those of the reference TypeScript, byte for byte."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producer import errors, identity

GOLDEN = Path(__file__).parent.parent / "golden"
VECTORS = json.loads((GOLDEN / "vectors.v1.json").read_text("utf-8"))
# Made once by a JavaScript program of ours on Node 20; `json` is the raw text of a value.
EXTRA = json.loads((GOLDEN / "extra_vectors.json").read_text("utf-8"))
CONFORMANCE = json.loads((GOLDEN / "conformance.v1.json").read_text("utf-8"))

UNITS = st.integers(0, 0xFFFF).map(chr)
any_text = st.text(st.one_of(st.characters(), st.characters(categories=["Cs"]), st.sampled_from("\0\ufeff\u0085 a")))


def _name(vector: dict) -> str:
    return str(vector.get("name", "extra"))


def test_the_published_conformance_fixture_holds() -> None:
    assert identity.episode_event_id(CONFORMANCE["episodeInput"]) == CONFORMANCE["expectedEventId"]


@pytest.mark.parametrize("vector", VECTORS["episodes"] + EXTRA["episodes"], ids=_name)
def test_episode_ids_are_the_references(vector: dict) -> None:
    assert identity.episode_event_id(vector["input"]) == vector["eventId"]
    full = {**vector["input"], "schemaVersion": 1, "eventType": "episode", "eventId": "0" * 64}
    assert identity.episode_event_id(full) == vector["eventId"], "a full event has the id of its input"


@pytest.mark.parametrize("vector", VECTORS["facts"] + EXTRA["facts"], ids=_name)
def test_fact_ids_are_the_references(vector: dict) -> None:
    assert identity.fact_id(vector["input"]) == vector["factId"]
    assert identity.fact_id({**vector["input"], "schemaVersion": 1, "eventType": "fact"}) == vector["factId"]


@pytest.mark.parametrize("vector", VECTORS["boundedText"] + EXTRA["boundedText"], ids=_name)
def test_bounded_text_is_the_references(vector: dict) -> None:
    assert identity.bounded_text(vector["value"], vector["max"]) == vector["result"]


@pytest.mark.parametrize("vector", VECTORS["hashScope"] + EXTRA["hashScope"], ids=_name)
def test_scope_hashes_are_the_references(vector: dict) -> None:
    assert identity.scope_hash(vector["parts"], vector["salt"]) == vector["hash"]


@pytest.mark.parametrize("vector", VECTORS["stableStringify"], ids=_name)
def test_canonical_json_is_the_references(vector: dict) -> None:
    assert identity.canonical_json(vector["value"]) == vector["result"]


@pytest.mark.parametrize("vector", EXTRA["stableStringify"], ids=_name)
def test_canonical_json_is_javascripts_for_numbers_and_keys_of_all_sorts(vector: dict) -> None:
    assert identity.canonical_json(json.loads(vector["json"])) == vector["result"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("nan"), "null"),
        (float("inf"), "null"),
        (10**400, "null"),
        (True, "true"),
        (-0.0, "0"),
        ((1, 2), "[1,2]"),
        ("\ud83d" + "\ude80", '"🚀"'),
        ("\ud800", '"\\ud800"'),
        ({"k": "\x7f"}, '{"k":"\x7f"}'),
    ],
)
def test_values_that_json_text_cannot_carry_are_javascripts_too(value: object, text: str) -> None:
    assert identity.canonical_json(value) == text


@pytest.mark.parametrize("value", [b"x", {1, 2}, object(), {1: 2}, [{"a": b""}]])
def test_canonical_json_refuses_what_json_cannot_hold(value: object) -> None:
    with pytest.raises(errors.ContractViolation):
        identity.canonical_json(value)


def test_canonical_json_reaches_as_deep_as_the_json_parser_does() -> None:
    arrays, objects = "[" * 600 + "]" * 600, '{"a":' * 600 + "1" + "}" * 600
    for text in (arrays, objects):
        assert identity.canonical_json(json.loads(text)) == text


def test_canonical_json_refuses_nesting_without_end() -> None:
    value: list = []
    value.append(value)
    with pytest.raises(errors.ContractViolation, match="nested"):
        identity.canonical_json(value)


@given(any_text)
def test_canonical_json_of_any_text_is_utf8_and_reads_back(text: str) -> None:
    quoted = identity.canonical_json(text)
    quoted.encode("utf-8")
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    assert json.loads(quoted) == joined


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_canonical_numbers_read_back_as_the_same_double(number: float) -> None:
    text = identity.canonical_json(number)
    assert float(text) == number
    assert "E" not in text and "+0" not in text and not text.endswith(".0")


@given(any_text, st.integers(0, 12))
def test_bounded_text_is_never_longer_than_its_bound_and_the_ellipsis(text: str, bound: int) -> None:
    result = identity.bounded_text(text, bound)
    assert identity.utf16_length(result) <= bound + 1
    assert "\0" not in result
    assert identity.bounded_text(result, bound) == result or bound == 0 or result[:-1] != result[:-1].rstrip()


@pytest.mark.parametrize(
    ("given_time", "normal"),
    [
        ("2026-08-18T00:00:00Z", "2026-08-18T00:00:00.000Z"),
        ("2026-08-18T00:00:00.1Z", "2026-08-18T00:00:00.100Z"),
        ("2026-08-18T00:00:00.1239999Z", "2026-08-18T00:00:00.123Z"),
        ("2026-08-18T00:00:00,5z", "2026-08-18T00:00:00.500Z"),
        ("2026-08-18t02:00:00+02:00", "2026-08-18T00:00:00.000Z"),
        ("2026-08-18 02:00:00 +0200", "2026-08-18T00:00:00.000Z"),
        ("20260818T020000+02", "2026-08-18T00:00:00.000Z"),
        ("2026-08-18T00:00Z", "2026-08-18T00:00:00.000Z"),
        ("2024-02-29T23:30:00-01:30", "2024-03-01T01:00:00.000Z"),
        ("1969-12-31T23:59:59.999Z", "1969-12-31T23:59:59.999Z"),
        ("2000-02-29T00:00:00Z", "2000-02-29T00:00:00.000Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000Z"),
        ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59.000Z"),
    ],
)
def test_times_of_any_form_become_one_form(given_time: str, normal: str) -> None:
    assert identity.normal_time(given_time) == normal
    assert identity.normal_time(normal) == normal


@pytest.mark.parametrize(
    "text",
    [
        *("", "now", "2026-08-18", "2026-08-18T00:00:00", "2026-13-01T00:00:00Z", "2026-02-29T00:00:00Z"),
        *("1900-02-29T00:00:00Z", "2026-08-18T24:00:00Z", "2026-08-18T00:60:00Z", "2026-08-18T00:00:61Z"),
        *("2026-08-18T00:00:00+24:00", "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00"),
        *("2026-0818T00:00:00Z", "٢٠٢٦-08-18T00:00:00Z", "2026-08-18T00:00:00Z\n", "x" * 10_000, "\ud83d", None, 5),
    ],
)
def test_what_is_no_time_on_the_clock_is_refused(text: object) -> None:
    with pytest.raises(errors.ContractViolation):
        identity.normal_time(text)  # type: ignore[arg-type]


@given(st.datetimes(), st.integers(-23 * 60, 23 * 60))
def test_times_agree_with_pythons_calendar(moment: datetime, offset_minutes: int) -> None:
    local = moment.replace(tzinfo=timezone(timedelta(minutes=offset_minutes)))
    try:
        utc = local.astimezone(UTC)
    except OverflowError:
        with pytest.raises(errors.ContractViolation):
            identity.normal_time(local.isoformat())
        return
    expected = f"{utc.strftime('%Y').zfill(4)}-{utc:%m-%dT%H:%M:%S}.{utc.microsecond // 1000:03d}Z"
    assert identity.normal_time(local.isoformat()) == expected


def test_all_names_that_are_exported_exist() -> None:
    assert all(hasattr(identity, name) for name in identity.__all__)


def test_the_modules_of_a_hook_load_the_standard_library_only() -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "import producer.capture, producer.identity, producer.keys, producer.recall.formatting, producer.redaction\n"
        "import producer.scope, producer.journal.line\n"
        "loaded = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(loaded - set(sys.stdlib_module_names)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["producer"]
