"""Keyword relevance, computed here: for stores without keyword search, and to compare records from different places.

BM25 over the given texts, divided by the best a text could reach, so that 0 is "no word in common" and 1 is "every
word, often". The words are those that the embedded store would index and ask for (`producer.store.words`), with English
endings cut off. Which words tell something (their rarity) is judged within the given texts: scores compare within one
call only.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from producer.store import words

__all__ = ["relevance"]

_K = 1.2  # how soon more of the same word stops counting
_B = 0.6  # how much a long text must say to count as much as a short one
_TERM = re.compile(r'"([^"]*)"')  # `words.query`: quoted strings joined by OR
_ENDING = re.compile(r"(?<=...)(?:ings?|edly|ed|ies|es|s|ly|y|e)$")

_Term = tuple[str, ...]  # one word, or two neighbours of a script without spaces


def relevance(query: str, texts: Sequence[str]) -> list[float]:
    """How well each text answers `query`, 0 to 1. All 0 when the query has no word."""
    terms = list(dict.fromkeys(_term(quoted) for quoted in _TERM.findall(words.query(query))))
    counts = [_counts(text) for text in texts]
    if not terms or not counts:
        return [0.0] * len(texts)
    average = sum(length for _, length in counts) / len(counts) or 1.0
    rarity = {term: _rarity(sum(term in found for found, _ in counts), len(counts)) for term in terms}
    best = sum(rarity.values()) * (_K + 1)
    return [
        sum(rarity[term] * _saturated(found[term], length / average) for term in terms if term in found) / best
        for found, length in counts
    ]


def _rarity(holding: int, total: int) -> float:
    return math.log(1 + (total - holding + 0.5) / (holding + 0.5))


def _saturated(count: int, relative_length: float) -> float:
    return count * (_K + 1) / (count + _K * (1 - _B + _B * relative_length))


def _term(quoted: str) -> _Term:
    return tuple(_stem(word) for word in quoted.split())


def _counts(text: str) -> tuple[Counter[_Term], int]:
    found = [_stem(word) for word in words.document(text).split()]
    counts: Counter[_Term] = Counter((word,) for word in found)
    counts.update(pairwise(found))
    return counts, len(found)


def _stem(word: str) -> str:
    return _ENDING.sub("", word)
