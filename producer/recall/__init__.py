"""Recall: scoped, bounded, and quoted as data. Importing this package loads the formats only; the engine is
`producer.recall.engine`."""

from __future__ import annotations

from producer.recall.formatting import format_context, format_recalled_memories

__all__ = ["format_context", "format_recalled_memories"]
