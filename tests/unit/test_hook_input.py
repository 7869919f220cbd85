"""The input of a one-shot hook, its configuration and its counts."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from producer import counts, errors
from producer.hosts import hook, hook_config

GIANT = 2 << 20


@pytest.mark.parametrize(
    "data",
    [b"", b"nonsense", b"[1]", b'"text"', b"null", b"{", b'{"a":', b"\xff\xfe{}", b"[" * 100_000, b'{"a":1} trailing'],
)
def test_what_is_no_json_object_is_empty_input(data):
    assert hook.parse_input(data) == {}
    padded = data + b" " * GIANT  # read by the scanner for large inputs
    assert hook.parse_input(padded) == {}


def test_broken_bytes_and_surrogates_are_text():
    assert hook.parse_input(b'\xef\xbb\xbf{"a": "x\xff", "b": "\\ud83d"}') == {"a": "x\ufffd", "b": "\ud83d"}


@pytest.mark.parametrize("seed", range(20))
def test_large_inputs_are_read_as_the_parser_would_without_what_is_nested(seed):
    rng = random.Random(seed)
    pieces = ['"', "\\", "\n", "é", "🙂", "\ud83d", "{", "}", "[", "]", ",", ":", " ", "x", "\u2028", "\x00"]
    value: dict[str, Any] = {"pad": "p" * GIANT}
    for number in range(12):
        text = "".join(rng.choice(pieces) for _ in range(rng.randrange(30)))
        value[f"k{number}{text}"] = rng.choice([text, number, 1.5, True, {"x": [text, {text: 1}]}, [[], {}], "", -3])
    expected = {k: v for k, v in value.items() if not isinstance(v, dict | list)}
    for ascii_only in (True, False):
        data = json.dumps(value, ensure_ascii=ascii_only, indent=rng.choice([None, 2])).encode("utf-8", "surrogatepass")
        found = hook.parse_input(data)
        assert len(found.pop("pad")) == hook.MAX_STRING_BYTES
        if ascii_only:  # else lone surrogates are no UTF-8
            assert found == {k: v for k, v in expected.items() if k != "pad"}


@pytest.mark.parametrize(
    ("unit", "written"), [("🙂", "🙂"), ("🙂", "\\ud83d\\ude42"), ("\n", "\\n"), ("é", "é"), ("x", "x")]
)
@pytest.mark.parametrize("shift", range(5))
def test_a_giant_text_is_cut_between_characters(unit, written, shift):
    literal = ("a" * shift + written * (GIANT // len(written.encode()))).encode()
    text = hook.parse_input(b'{"t":"' + literal + b'"}')["t"]
    assert text.startswith("a" * shift) and set(text[shift:]) == {unit}
    assert len(text) <= hook.MAX_STRING_BYTES


def test_twenty_megabytes_are_read_without_holding_them_several_times():
    data = json.dumps({"tool": ["🙂x" * 2_000_000], "t": "🙂" * 2_000_000}, ensure_ascii=False).encode()
    assert len(data) > 17_000_000
    tracemalloc.start()
    found = hook.parse_input(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert set(found) == {"t"} and peak < 40_000_000


def config_file(tmp_path: Path, value: Any) -> str:
    path = tmp_path / "hook.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(path)


GOOD = {
    "journal_dir": "/j",
    "agent_socket": "/a",
    "agent_id": "a",
    "profile_id": "p",
    "participant_scope_hash": "0" * 64,
}


def test_a_configuration_has_defaults_and_ignores_names_of_later_versions(tmp_path):
    read = hook_config.read(config_file(tmp_path, {**GOOD, "from_the_future": 1, "sync_budget_s": 1}))
    assert read == hook_config.HookConfig(**GOOD, sync_budget_s=1)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "[]",
        "not json",
        {},
        {**GOOD, "journal_dir": ""},
        {**GOOD, "journal_dir": 5},
        {**GOOD, "journal_dir": "a\x00b"},
        {**GOOD, "recall_deadline_ms": "300"},
        {**GOOD, "recall_deadline_ms": -1},
        {**GOOD, "recall_deadline_ms": True},
        {**GOOD, "sandbox_eligible": "no"},
        {k: v for k, v in GOOD.items() if k != "agent_id"},
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused_without_quoting_it(tmp_path, value):
    with pytest.raises(errors.SettingsRefused, match="MEMORY_HOOK_CONFIG"):
        hook_config.read(config_file(tmp_path, value))
    with pytest.raises(errors.SettingsRefused):
        hook_config.read(str(tmp_path / "missing"))
    with pytest.raises(errors.SettingsRefused):
        hook_config.read("")


def test_counts_of_many_processes_add_up(tmp_path):
    children = []
    for _ in range(8):
        child = os.fork()
        if child == 0:
            done = 0
            while done < 10:
                done += counts.add(tmp_path, "claude-code", {"seen": 1, "refused.x": 2})
            os._exit(0)
        children.append(child)
    assert all(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 for child in children)
    assert counts.read(tmp_path) == {"claude-code": {"seen": 80, "refused.x": 160}}


def test_counts_are_bounded_and_survive_damage(tmp_path):
    for number in range(counts.MAX_NAMES + 10):
        assert counts.add(tmp_path, "h", {f"n{number}": 1})
    assert len(counts.read(tmp_path)["h"]) == counts.MAX_NAMES + 1 and counts.read(tmp_path)["h"]["other"] == 10
    assert not all(counts.add(tmp_path, f"h{number}", {"n": 1}) for number in range(counts.MAX_HOSTS))
    (tmp_path / "counts.json").write_text("{damaged")
    assert counts.read(tmp_path) == {}
    assert counts.add(tmp_path, "h", {"n": 1}) and counts.read(tmp_path) == {"h": {"n": 1}}
    assert counts.add(tmp_path / "missing", "h", {"n": 1}) and counts.read(tmp_path / "missing") == {"h": {"n": 1}}
    assert not counts.add(tmp_path / "none" / "missing", "h", {"n": 1})


def test_counts_that_the_disk_takes_in_part_leave_the_earlier_ones(tmp_path):
    counts.add(tmp_path, "h", {"n": 1})
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        os._exit(counts.add(tmp_path, "h", {"n": 1}))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert counts.read(tmp_path) == {"h": {"n": 1}}


def test_a_count_is_dropped_rather_than_waited_for(tmp_path):
    import fcntl

    counts.add(tmp_path, "h", {"n": 1})
    with (tmp_path / "counts.lock").open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert not counts.add(tmp_path, "h", {"n": 1})
    assert counts.read(tmp_path) == {"h": {"n": 1}}
