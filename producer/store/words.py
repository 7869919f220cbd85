"""Words: user text as SQLite's full-text search takes it, for documents and for queries alike.

FTS5's own tokenizer (`TOKENIZE`) drops accents and stems English. It knows no words in scripts that are written without
spaces, so each of their characters becomes a word here, and a query asks for its neighbours together. A query is only
ever quoted strings joined by OR: user text is never syntax. Characters that no tokenizer indexes (NUL, lone surrogates,
punctuation) separate words; a text of nothing else has no words and finds nothing.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

__all__ = ["TOKENIZE", "document", "query"]

TOKENIZE = "porter unicode61 remove_diacritics 2"
MAX_TERMS = 256  # a prompt may be long; its first words say what it is about

# Scripts without spaces, or with particles glued to words: Thai and Lao, Myanmar, Khmer, Kana, Han, Hangul.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u31ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
_EACH_UNSPACED = re.compile(f"([{_UNSPACED}])")
_RUNS = re.compile(f"[{_UNSPACED}]+|[^{_UNSPACED}]+")
# Marks inside a word stay: the tokenizer drops them or splits there, and the quotes keep the pieces together.
_SEPARATORS = re.compile("[\x00-\x2f:-@\\[-`{-\xa9\xab-\xb4\xb6-\xb9\xbb-\xbf\u2000-\u206f\u3000-\u303f\ud800-\udfff]+")

# Words that nearly every English text holds. Dropped from a query that has others: they cost time and tell nothing.
_COMMON = frozenset(
    """
    a about am an and are as at be been but by can could did do does for from had has have he her his how i if in is it
    its me my of on or our she so that the their them then there they this to us was we were what when where which who
    why will with would you your
    """.split()  # noqa: SIM905 (a text of words reads better)
)


def document(text: str) -> str:
    """What to index for `text`."""
    return _EACH_UNSPACED.sub(r" \1 ", _plain(text))


def query(text: str) -> str:
    """The MATCH expression that finds documents with any word of `text`; empty when it has none."""
    terms: dict[str, None] = {}
    for word in _plain(text).split():
        for run in _RUNS.findall(word):
            unspaced = _EACH_UNSPACED.match(run) is not None and len(run) > 1
            terms.update(dict.fromkeys(map(" ".join, pairwise(run)) if unspaced else [run]))
    telling = [term for term in terms if term not in _COMMON] or list(terms)
    return " OR ".join(f'"{term}"' for term in telling[:MAX_TERMS])


def _plain(text: str) -> str:
    return _SEPARATORS.sub(" ", unicodedata.normalize("NFKC", text).casefold())
