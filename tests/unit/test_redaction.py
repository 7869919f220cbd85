"""Secrets and local paths leave the text, whatever stands around them; everything else stays."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producer import redaction

LABELLED = json.loads((Path(__file__).parent.parent / "data" / "redaction_labelled.json").read_text("utf-8"))
MEGABYTE = 1_000_000


def test_the_labelled_set_is_redacted_with_full_recall_and_precision(capsys: pytest.CaptureFixture[str]) -> None:
    hits = misses = false_alarms = 0
    failed = []
    for case in LABELLED:
        redacted, counts = redaction.redact(case["text"])
        left = [secret for secret in case["secrets"] if secret in redacted]
        wrong = 0 if case["secrets"] else sum(counts.values())
        hits, misses, false_alarms = hits + len(case["secrets"]) - len(left), misses + len(left), false_alarms + wrong
        if left or wrong:
            failed.append(case["text"])
    with capsys.disabled():
        print(
            f"\nredaction: recall {hits / (hits + misses):.3f}, precision {hits / (hits + false_alarms):.3f} ", end=""
        )
    assert not failed


@pytest.mark.parametrize("case", [case for case in LABELLED if not case["secrets"]], ids=lambda case: case["text"][:30])
def test_what_is_no_secret_survives_unchanged(case: dict) -> None:
    assert redaction.redact(case["text"]) == (case["text"], {})


def test_redactions_are_counted_by_kind() -> None:
    text = "AKIAIOSFODNN7EXAMPLE and AKIAIOSFODNN7EXAMPLF in /home/alice/x"
    assert redaction.redact(text) == (
        "[redacted:aws_key] and [redacted:aws_key] in [redacted:path]",
        {"aws_key": 2, "path": 1},
    )


def test_every_placeholder_has_a_known_kind() -> None:
    for case in LABELLED:
        assert set(redaction.redact(case["text"])[1]) <= set(redaction.KINDS)


@pytest.mark.parametrize("case", LABELLED, ids=lambda case: case["text"][:30])
def test_redacting_again_changes_nothing_and_counts_nothing(case: dict) -> None:
    once, _ = redaction.redact(case["text"])
    assert redaction.redact(once) == (once, {})


FRAGMENTS = st.sampled_from(
    [
        *("password", "token", "=", ": ", '"', "'", "`", "://", "@", ":", "eyJ", ".", "sk-", "AKIA", "/home/", "~/"),
        *("-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "C:\\Users\\", "Bearer ", "Basic ", "Cookie: "),
        *("hunter2", "aB3dE5gH7jK9mN1pQ3sT5vW7", "deadbeef" * 5, "[redacted:secret]", "<", ">", "xml>", "curl -u "),
        *("--", " is ", "\n", " "),
    ]
)


@settings(max_examples=300)
@given(st.lists(FRAGMENTS, max_size=12).map("".join))
def test_redaction_is_deterministic_and_idempotent(text: str) -> None:
    once, counts = redaction.redact(text)
    assert redaction.redact(text) == (once, counts)
    assert redaction.redact(once) == (once, {})


@pytest.mark.parametrize("before", ["", "x ", "\n", '{"a": "', "(", "key=", "\u2028", "偏好"])
@pytest.mark.parametrize("after", ["", " y", "\n", '"}', ").", ",", "\u2028"])
def test_a_key_is_found_in_any_surroundings(before: str, after: str) -> None:
    key = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
    assert key not in redaction.redact(f"{before}{key}{after}")[0]


@pytest.mark.parametrize(
    "piece",
    [
        *("a", " ", "://a:", "https://u:p", "password", "password=", 'password: "', "token ", "eyJ-", "eyJabcdefgh."),
        *("-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----\nAAAA\n", "/home/a", "C:\\Users\\a b ", "~/a"),
        *("curl -u ", "bearer ", "basic aaaaaaaaaa-", "authorization: ", "cookie: a=b", "--token ", "password is "),
        *("aws ", "x\\", "AKIA", "sk-", "12345678:AA", "a@", "[redacted:", "token>aaaa"),
    ],
)
def test_any_input_takes_time_in_proportion_to_its_length(piece: str) -> None:
    """Doubling the text may not quadruple the time; measured against the shorter one, whatever the machine."""
    short, long = ((piece * (size // len(piece))) for size in (MEGABYTE // 16, MEGABYTE // 4))
    redaction.redact(short)  # compile
    spent = []
    for text in (short, long):
        began = time.process_time()
        redaction.redact(text)
        spent.append(time.process_time() - began)
    assert spent[1] < 10 * max(spent[0], 0.02), "four times the text, well under sixteen times the time"


def test_giant_harmless_text_is_left_alone_quickly() -> None:
    text = "The quick brown fox jumps over the lazy dog. " * (2 * MEGABYTE // 45)
    began = time.process_time()
    assert redaction.redact(text) == (text, {})
    assert time.process_time() - began < 5
