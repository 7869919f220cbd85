"""Secrets and local paths leave the text, whatever stands around them; everything else stays."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producer import redaction
from producer.redaction.rules import RULES
from tests import redaction_cases, redaction_figures
from tests.conftest import Tell

CASES = {half: redaction_cases.cases(half) for half in ("development", "held_out")}
MEGABYTE = 1_000_000
FLOORS = {"development": (1.0, 1.0), "held_out": (0.98, 0.98)}  # recall, precision


@pytest.mark.parametrize("half", ["development", "held_out"])
def test_the_secrets_of_the_labelled_set_go_and_little_else(half: str, tell: Tell) -> None:
    figures = redaction_figures.measure(half)
    tell(
        f"redaction, {half}: {figures.cases} texts, {figures.secrets.total()} secrets,"
        f" recall {figures.recall:.3f}, precision {figures.precision:.3f}"
    )
    recall, precision = FLOORS[half]
    assert figures.recall >= recall
    assert figures.precision >= precision


def test_the_labelled_set_is_large_and_the_same_in_every_run() -> None:
    assert sum(len(cases) for cases in CASES.values()) >= 600
    assert redaction_cases.cases("held_out") == CASES["held_out"]
    assert not {case.text for case in CASES["development"]} & {case.text for case in CASES["held_out"]}


def test_another_process_and_another_python_redact_the_same() -> None:
    """Ids are made of redacted text: whatever the seed of hashes, and with every Python that is at hand."""
    script = (
        "import hashlib, json, sys; sys.path.insert(0, sys.argv[1]); from producer import redaction;"
        "redacted = json.dumps([redaction.redact(text) for text in json.load(sys.stdin)]);"
        "print(hashlib.sha256(redacted.encode()).hexdigest())"
    )
    texts = json.dumps([case.text for half in CASES.values() for case in half])
    redacted = json.dumps([redaction.redact(text) for text in json.loads(texts)])
    pythons = [
        sys.executable,
        sys.executable,
        *filter(None, map(shutil.which, ("python3.12", "python3.13", "python3.14"))),
    ]
    for number, python in enumerate(pythons):
        done = subprocess.run(
            [python, "-B", "-c", script, str(Path(redaction.__file__).parents[2])],
            input=texts,
            capture_output=True,
            text=True,
            env={"PATH": os.environ["PATH"], "PYTHONHASHSEED": str(number)},
            timeout=60,
        )
        if done.returncode == 0 or number < 2:  # a name on the path may lead to no interpreter
            assert done.stdout.strip() == hashlib.sha256(redacted.encode()).hexdigest(), python


def test_redactions_are_counted_by_kind() -> None:
    text = "AKIAIOSFODNN7EXAMPLE and AKIAIOSFODNN7EXAMPLF in /home/alice/x"
    assert redaction.redact(text) == (
        "[redacted:aws_key] and [redacted:aws_key] in [redacted:path]",
        {"aws_key": 2, "path": 1},
    )


def test_redacting_again_changes_nothing_and_every_placeholder_has_a_known_kind() -> None:
    for case in (*CASES["development"], *CASES["held_out"]):
        once, counts = redaction.redact(case.text)
        assert set(counts) <= set(redaction.KINDS)
        assert redaction.redact(once) == (once, {})


FRAGMENTS = st.sampled_from(
    [
        *("password", "token", "=", ": ", '"', "'", "`", "://", "@", ":", "eyJ", ".", "sk-", "AKIA", "/home/", "~/"),
        *("-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "C:\\Users\\", "Bearer ", "Basic ", "Cookie: "),
        *("hunter2", "aB3dE5gH7jK9mN1pQ3sT5vW7", "deadbeef" * 5, "[redacted:secret]", "<", ">", "xml>", "curl -u "),
        *("--", " is ", "\n", " ", "\u200b", "\0", "：", "密码", "ｐ", "%3D", "\\n", "|", "&", "\\\\", "$6$", "İ"),
    ]
)


@settings(max_examples=100, deadline=None)
@given(st.lists(FRAGMENTS, max_size=14).map("".join))
def test_redaction_is_deterministic_and_idempotent(text: str) -> None:
    once, counts = redaction.redact(text)
    assert redaction.redact(text) == (once, counts)
    assert redaction.redact(once) == (once, {})


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(exclude_categories=())))
def test_no_text_makes_it_raise_or_grow_beyond_a_placeholder_for_every_few_characters(text: str) -> None:
    assert len(redaction.redact(text)[0]) <= 8 * len(text)


@settings(max_examples=100, deadline=None)
@given(
    st.text(st.characters(exclude_categories=("Ll", "Lu", "Nd", "Pc", "Pd")), max_size=60),
    st.text(st.characters(exclude_categories=("Ll", "Lu", "Nd", "Pc", "Pd", "Po")), max_size=60),
    st.sampled_from(sorted(redaction_cases.SHAPES)),
    st.integers(0, 2**32),
)
def test_a_planted_secret_never_survives_whatever_stands_around_it(
    before: str, after: str, name: str, seed: int
) -> None:
    secret = redaction_cases.value(name, random.Random(seed))
    assert secret not in redaction.redact(f"{before} {secret}{after}")[0]


@pytest.mark.parametrize("before", ["", "x ", "\n", '{"a": "', "(", "key=", "\u2028", "偏好", "%3D", "\\n", "\x1b[31m"])
@pytest.mark.parametrize("after", ["", " y", "\n", '"}', ").", ",", "\u2028", "%26"])
def test_a_key_is_found_in_any_surroundings(before: str, after: str) -> None:
    key = "ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a"
    assert key not in redaction.redact(f"{before}{key}{after}")[0]


@pytest.mark.parametrize("broken", ["\n", "\r\n    ", "\n> ", "\\\n", "=\n"])
def test_a_token_broken_into_lines_goes_with_both_its_parts(broken: str) -> None:
    first, second = "ghp_" + "16C7e42F292c6912", "E7710c838347Ae178B4a"
    assert redaction.redact(f"it is {first}{broken}{second} ok")[0] == "it is [redacted:github_token] ok"


@pytest.mark.parametrize("shape", ["github_classic", "anthropic", "jwt", "pem_rsa", "pem_pkcs8", "aws_id", "slack_bot"])
def test_what_a_bound_has_cut_off_is_still_known_for_what_it_is(shape: str) -> None:
    secret = redaction_cases.value(shape, random.Random(7))
    for share in (0.6, 0.8, 0.95):
        cut = secret[: int(len(secret) * share)]
        redacted, _ = redaction.redact(f"the value: {cut}")
        assert not redaction_figures.leaked(cut[4:], redacted) or shape == "aws_id", redacted


@pytest.mark.parametrize("hidden", ["\u200b", "\0", "\u00ad", "\ufeff"])
def test_invisible_characters_hide_no_secret_and_stay_where_they_hide_none(hidden: str) -> None:
    assert "hunter22" not in redaction.redact(f"pass{hidden}word=hunt{hidden}er22")[0].replace(hidden, "")
    assert redaction.redact(f"a{hidden}b, c") == (f"a{hidden}b, c", {})


@pytest.mark.parametrize("case", [case for case in CASES["development"] if not case.secrets], ids=lambda c: c.text[:30])
def test_what_is_no_secret_survives_unchanged(case: redaction_cases.Case) -> None:
    assert redaction.redact(case.text) == (case.text, {})


@pytest.mark.parametrize("text", ["def open(self, pwd):\n    key0 = 305419896", "[redacted:password] = 42abc"])
def test_neither_a_parameter_nor_a_placeholder_is_the_name_of_a_value(text: str) -> None:
    assert redaction.redact(text) == (text, {})


def test_a_value_of_any_length_goes_to_its_end() -> None:
    for length in (100, 5000):
        key = "".join(random.Random(1).choices("abcdefghijkmnpqrstuvwxyzABCDEFGH23456789+/", k=length))
        for text in (
            "client-key-data: {}",
            "TOKEN={}",
            "Authorization: Bearer {}",
            "the secret is {}",
            "PASSWORD='{}'",
        ):
            assert key[-8:] not in redaction.redact(text.format(key) + "\n")[0], (length, text)


@pytest.mark.parametrize(
    "piece",
    [
        *("a", " ", "://a:", "https://u:p", "password", "password=", 'password: "', "token ", "eyJ-", "eyJabcdefgh."),
        *("-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----\nAAAA\n", "/home/a", "C:\\Users\\a b ", "~/a"),
        *("curl -u ", "bearer ", "basic aaaaaaaaaa-", "authorization: ", "cookie: a=b", "--token ", "password is "),
        *("aws ", "x\\", "AKIA", "sk-", "12345678:AA", "a@", "[redacted:", "token>aaaa", "-----END PRIVATE KEY-----"),
        *(
            "AAAAAAAAAAAAAAAA\n-----END PRIVATE KEY-----",
            "seed phrase aaa ",
            "\\\\a1\\",
            "密码",
            "mysql ",
            "key: {",
            "pass|",
        ),
    ],
)
def test_any_input_takes_time_in_proportion_to_its_length(piece: str) -> None:
    """Four times the text may not take sixteen times as long, measured against the shorter one on any machine."""
    short, long = ((piece * (size // len(piece))) for size in (MEGABYTE // 512, MEGABYTE // 128))
    redaction.redact(short)  # compile
    spent = []
    for text in (short, long):
        began = time.process_time()
        redaction.redact(text)
        spent.append(time.process_time() - began)
    assert spent[1] < 10 * max(spent[0], 0.01), "four times the text, well under sixteen times the time"


def test_a_rule_looks_a_bounded_way_around_each_of_its_anchors() -> None:
    """So the cost of a text is bounded by the number of its anchors. Counted, not timed: characters a rule was shown
    beyond its reach change nothing of what it finds."""
    reach = 1 << 16
    for rule in RULES:
        for anchor in rule.anchors:
            near = "x " * 50 + anchor + " " * reach
            found = rule.look(near, 100, anchor)
            assert rule.look(near + "A1b2" * 64, 100, anchor) == found, anchor


def test_giant_harmless_text_is_left_alone() -> None:
    text = "The quick brown fox jumps over the lazy dog. " * (MEGABYTE // 45)
    assert redaction.redact(text) == (text, {})
