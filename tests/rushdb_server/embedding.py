"""Text to vector without a model: a bag of hashed words, the same on every machine and in every run."""

from __future__ import annotations

import re
import zlib

DIMENSIONS = 64
_WORD = re.compile(r"\w+")


def embed(text: str) -> list[float]:
    """Texts of the same words have one vector, texts without a word in common (nearly) orthogonal ones. Never zero."""
    vector = [0.0] * DIMENSIONS
    for word in _WORD.findall(text.lower()) or [""]:
        vector[zlib.crc32(word.encode("utf-8", "replace")) % DIMENSIONS] += 1.0
    return vector
