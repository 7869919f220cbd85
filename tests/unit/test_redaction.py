"""Secrets and local paths leave the text, whatever stands around them; everything else stays."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producer import redaction
from tests import redaction_cases, redaction_figures

CASES = {half: redaction_cases.cases(half) for half in ("development", "held_out")}
MEGABYTE = 1_000_000


@pytest.mark.parametrize("half", ["development", "held_out"])
def test_most_secrets_of_the_labelled_set_go_and_little_else(half: str, capsys: pytest.CaptureFixture[str]) -> None:
    figures = redaction_figures.measure(half)
    with capsys.disabled():
        print(f"\nredaction, {half}: recall {figures.recall:.3f}, precision {figures.precision:.3f} ", end="")
    assert figures.recall > 0.5
    assert figures.precision > 0.95


def test_redactions_are_counted_by_kind() -> None:
    text = "AKIAIOSFODNN7EXAMPLE and AKIAIOSFODNN7EXAMPLF in /home/alice/x"
    assert redaction.redact(text) == (
        "[redacted:aws_key] and [redacted:aws_key] in [redacted:path]",
        {"aws_key": 2, "path": 1},
    )


def test_every_placeholder_has_a_known_kind() -> None:
    for case in CASES["development"]:
        assert set(redaction.redact(case.text)[1]) <= set(redaction.KINDS)


def test_redacting_again_changes_nothing_and_counts_nothing() -> None:
    for case in (*CASES["development"], *CASES["held_out"]):
        once, _ = redaction.redact(case.text)
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
