"""Secrets and local paths, replaced by placeholders `[redacted:<kind>]` before anything is bounded, hashed or written.

`redact` is deterministic, does nothing to what it has already redacted, raises on no text, and takes time and memory in
proportion to the text: a rule is asked only where a literal text stands that it needs, looks a bounded way around it,
and its pattern is compiled at first use. It must be given the whole text: what a bound has split is recognised in its
commonest forms only (half a private key, a token at the end of the text).

What survives on purpose: commit hashes, UUIDs, digests, ordinary code (`password = get_password()`, `max_tokens: 4096`,
`token: str`), URLs without credentials, paths that name nobody, prose. ops/redaction.md has the kinds, what is known to
be missed, and the figures. Standard library only: this runs in hooks.
"""

from __future__ import annotations

import re

from producer.redaction import values
from producer.redaction.rules import RULES, Rule

__all__ = ["KINDS", "redact", "unhidden"]

KINDS = tuple(sorted({kind for rule in RULES for kind in rule.kinds}))

# A rule and one of its anchors, in the order they are asked. `_EXACT` and `_BY_SIGN` say at which steps an anchor is
# asked for; those of `_BY_SIGN` stand under a sign that is rare in prose and without which there is no such anchor.
_STEPS = [(rule, anchor) for rule in RULES for anchor in rule.anchors]
_EXACT: dict[str, list[int]] = {}
_BY_SIGN: dict[str, dict[str, list[int]]] = {"": {}}
for _step, (_rule, _anchor) in enumerate(_STEPS):
    _steps = (
        _EXACT if _rule.exact else _BY_SIGN.setdefault(_anchor.strip("abcdefghijklmnopqrstuvwxyz ")[:1], {})
    ).setdefault(_anchor, [])
    _steps.append(_step)
_ASCII_SIGNS = [sign for sign in _BY_SIGN if sign.isascii()]
_MAX_PASSES = 16  # a placeholder may let another rule see more, rarely more than once
_MARK = "[redacted:"
_WORD = 12  # no token of a known form is shorter
_SLICE = 1 << 16
_LENGTHY = 200  # what is redacted and longer goes on to the end of its word: the reach of a pattern is bounded
_HIDING = "[\0\u00ad\u200b-\u200f\u2060-\u2064\ufeff]"
_FULL_WIDTH = {ord("！") + code: ord("!") + code for code in range(94)}


def redact(text: str) -> tuple[str, dict[str, int]]:
    """The text with placeholders, and how many of each kind were put in.

    Invisible characters and full-width letters are looked through; they leave the text only where they hid something.
    """
    counts: dict[str, int] = {}
    text = _settle(text, counts)
    if text.isascii() and "\0" not in text:
        return text, counts
    seen = unhidden(text)
    if seen != text:
        hidden: dict[str, int] = {}
        seen = _settle(seen, hidden)
        if hidden:
            for kind, number in hidden.items():
                counts[kind] = counts.get(kind, 0) + number
            return seen, counts
    return text, counts


def unhidden(text: str) -> str:
    """The text without the invisible characters and full-width forms that may stand within a secret."""
    if values.holds(_HIDING, text):
        text = re.sub(rf"(?<=[!-~]){_HIDING}+(?=[!-~])", "", text)
    if values.holds("[０-９Ａ-Ｚａ-ｚ]", text):
        text = text.translate(_FULL_WIDTH)
    return text


def _settle(text: str, counts: dict[str, int]) -> str:
    for _ in range(_MAX_PASSES):
        before, lowered = text, _lowered(text)
        dense = _long_words(text)
        exact = [step for anchor, steps in _EXACT.items() if anchor in dense for step in steps] if dense else []
        steps = _steps_of(lowered, exact)
        while steps:
            step = steps.pop()
            rule, anchor = _STEPS[step]
            changed = _apply(rule, anchor, text, text if rule.exact else lowered, counts)
            if changed is not text:  # a placeholder brings anchors of its own
                text, lowered = changed, _lowered(changed)
                steps = [later for later in _steps_of(lowered, exact) if later > step]
        if text == before:
            break
    return text


def _steps_of(lowered: str, exact: list[int]) -> list[int]:
    """The steps to take in a text, the first one last: these, and those whose anchors stand in it."""
    found = exact.copy()
    for sign in _ASCII_SIGNS if lowered.isascii() else _BY_SIGN:
        if sign in lowered:
            for anchor, steps in _BY_SIGN[sign].items():
                if anchor in lowered:
                    found += steps
    found.sort(reverse=True)
    return found


def _long_words(text: str) -> str:
    """All words that a token may stand in, of prose next to none. Taken from slices, for the sake of memory; they
    overlap, so that each shows the beginnings of all its words."""
    slices = (text[max(0, start - 64) : start + _SLICE] for start in range(0, len(text), _SLICE))
    return "\n".join([word for part in slices for word in part.split() if len(word) >= _WORD])


def _apply(rule: Rule, anchor: str, text: str, searched: str, counts: dict[str, int]) -> str:
    pieces: list[str] = []
    done = 0
    next_at = 0
    while True:
        try:
            at = searched.index(anchor, next_at)
        except ValueError:
            break
        found = rule.look(text, at, anchor)
        next_at = at + 1
        if found and found[0] >= done and found[1] > found[0] and not text.startswith(_MARK, found[0]):
            start, end, kind = found
            if end - start >= _LENGTHY:
                end = re.compile(r"[A-Za-z0-9+/=_.~%-]*+").match(text, end).end()  # type: ignore[union-attr]
            pieces += (text[done:start], f"{_MARK}{kind}]")
            done = end
            counts[kind] = counts.get(kind, 0) + 1
            next_at = max(next_at, end)
    return "".join((*pieces, text[done:])) if pieces else text


def _lowered(text: str) -> str:
    """In lower case and of the same length: only to look for anchors."""
    lowered = text.lower()
    return lowered if len(lowered) == len(text) else text.replace("\u0130", "I").lower()
