"""A fresh embedded store per test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from producer.store.sqlite import SqliteStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(tmp_path / "store.sqlite3")
    yield opened
    opened.close()
