"""The SQLite store's file: its schema, its connections, its transactions and its errors.

A file in WAL mode, readable by its owner only, on a local file system. A write is one transaction, synced to disk
before it returns.

    records         seq, id, label, properties        properties as ASCII JSON: any text comes back, lone surrogates too
    cells           record, label, name, value        every property once more, typed: every where finds an index
    edges           source, type, target
    text_indexes    id, label, property               each with an FTS5 table words_<id>, kept in the same transaction
    vector_indexes  id, label, property, dimensions
    vectors         record, vector_index, vector      of length 1, float32, little-endian

`PRAGMA user_version` is the version of this schema, `PRAGMA application_id` says that the file is ours.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from producer import errors

__all__ = ["SCHEMA_VERSION", "SqliteFile"]

APPLICATION_ID = 0x4D454D54  # "MEMT"
SCHEMA_VERSION = 1
KEPT_CONNECTIONS = 16
CHECK_EVERY_OPS = 20_000  # how often a running statement looks at its deadline; some milliseconds of work

_SCHEMA = """
CREATE TABLE records (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, label TEXT NOT NULL, properties TEXT NOT NULL
);
CREATE INDEX records_by_label ON records (label, id);
CREATE TABLE cells (
    record INTEGER NOT NULL, name TEXT NOT NULL, label TEXT NOT NULL, value NOT NULL, PRIMARY KEY (record, name)
) WITHOUT ROWID;
CREATE INDEX cells_by_value ON cells (label, name, value);
CREATE TABLE edges (
    source INTEGER NOT NULL, type TEXT NOT NULL, target INTEGER NOT NULL, PRIMARY KEY (source, type, target)
) WITHOUT ROWID;
CREATE INDEX edges_by_target ON edges (target);
CREATE TABLE text_indexes (
    id INTEGER PRIMARY KEY, label TEXT NOT NULL, property TEXT NOT NULL, UNIQUE (label, property)
);
CREATE TABLE vector_indexes (
    id INTEGER PRIMARY KEY, label TEXT NOT NULL, property TEXT NOT NULL, dimensions INTEGER NOT NULL,
    UNIQUE (label, property, dimensions)
);
CREATE TABLE vectors (
    record INTEGER NOT NULL, vector_index INTEGER NOT NULL, vector BLOB NOT NULL, PRIMARY KEY (record, vector_index)
) WITHOUT ROWID;
"""


class SqliteFile:
    """Transactions on one file, from any thread. `timeout_s` bounds each, waiting for other writers included.

    Connections are opened when needed and kept for the next call; the file is made (0600) by the first. A forked child
    may not use its parent's: SQLite's locks do not survive a fork.
    """

    def __init__(self, path: Path, timeout_s: float) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._pid = os.getpid()
        self._idle: deque[sqlite3.Connection] = deque()  # append and pop are atomic: no lock needed
        self._writing = threading.Lock()  # SQLite's own lock is polled and unfair; this one queues our threads
        self._closed = False

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """One snapshot: everything inside sees the same records."""
        deadline = time.monotonic() + self._timeout_s
        with _translated(), self._connection(deadline) as connection:
            connection.execute("BEGIN")
            yield connection
            connection.execute("COMMIT")

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One transaction, on disk when this returns; nothing of it otherwise."""
        deadline = time.monotonic() + self._timeout_s
        if not self._writing.acquire(timeout=self._timeout_s):
            raise errors.StoreUnavailable("the SQLite store is busy with other writes of this process")
        try:
            with _translated(), self._connection(deadline) as connection:
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                with _translated(outcome_unknown=True):
                    connection.execute("COMMIT")
        finally:
            self._writing.release()

    @contextmanager
    def _connection(self, deadline: float) -> Iterator[sqlite3.Connection]:
        """A connection for the time of one call. Rolls back what was not committed."""
        self.check_usable()
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = _open(self._path, deadline)
        healthy = False
        try:
            connection.execute(f"PRAGMA busy_timeout = {_remaining_ms(deadline):d}")
            connection.set_progress_handler(lambda: time.monotonic() > deadline, CHECK_EVERY_OPS)
            try:
                yield connection
            finally:
                connection.set_progress_handler(None, 0)
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            healthy = True
        except errors.IngestError:
            healthy = True
            raise
        finally:
            if healthy and len(self._idle) < KEPT_CONNECTIONS:
                self._idle.append(connection)
            else:
                connection.close()
            if self._closed:
                self._drain()

    def close(self) -> None:
        """Connections that are in use are closed when their call ends."""
        self._closed = True
        self._drain()

    def check_usable(self) -> None:
        if self._closed:
            raise errors.StoreUnavailable("the SQLite store is closed")
        if os.getpid() != self._pid:
            raise errors.Unsupported("a SQLite store does not survive a fork: open it in the child, started by spawn")

    def _drain(self) -> None:
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread took it between the two lines
                return
            connection.close()


_creating = threading.Lock()


def _open(path: Path, deadline: float) -> sqlite3.Connection:
    _create(path)
    connection = sqlite3.connect(
        path, timeout=_remaining_ms(deadline) / 1000, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA journal_size_limit = 67108864")
        _ensure_schema(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _create(path: Path) -> None:
    """Make the file, or close an open one to others; the WAL's files get its mode from SQLite.

    A file that is there is never opened here: closing it again would drop the locks of every SQLite connection that
    this process has on it (POSIX). For the same reason two threads do not create at once.
    """
    try:
        with _creating:
            with suppress(FileExistsError):
                path.parent.mkdir(mode=0o700, parents=True)
            try:
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            except FileExistsError:
                if path.stat().st_mode & 0o077:
                    path.chmod(0o600)
    except PermissionError as error:
        raise errors.StoreDenied(
            "the SQLite store's file belongs to another user or lies in a closed directory"
        ) from error
    except OSError as error:
        raise errors.StoreUnavailable(f"the SQLite store's file cannot be opened ({error.strerror})") from error


def _ensure_schema(connection: sqlite3.Connection) -> None:
    """Look before changing anything: the file may be newer than this version, or not ours at all."""
    if _is_empty(connection):
        if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
            raise errors.StoreUnavailable(
                "the SQLite store's file system has no shared memory: keep it on a local disk"
            )
        connection.execute("BEGIN IMMEDIATE")
        try:
            if _is_empty(connection):  # nobody was faster
                for statement in _SCHEMA.split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID:d}")
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION:d}")
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise errors.StoreUnavailable("the store's file is another program's database: set MEMORY_STORE_URL to ours")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != SCHEMA_VERSION:
        raise errors.StoreUnavailable(
            f"the SQLite store has schema {version}, this memory-tasks knows {SCHEMA_VERSION}: upgrade it, or set"
            " MEMORY_STORE_URL to another file"
        )


def _is_empty(connection: sqlite3.Connection) -> bool:
    return not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]


def _remaining_ms(deadline: float) -> int:
    return max(1, int((deadline - time.monotonic()) * 1000))


_UNWRITABLE = frozenset({sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_AUTH})
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_REFUSED = frozenset({sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE})


@contextmanager
def _translated(*, outcome_unknown: bool = False) -> Iterator[None]:
    """SQLite's errors as ours. Their text may quote a query, so only the code is told."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise errors.StoreUnavailable(f"the SQLite store is locked by another process ({name})") from error
        if code == sqlite3.SQLITE_INTERRUPT:
            raise errors.StoreUnavailable("the SQLite store did not answer in time") from error
        if code in _UNWRITABLE:
            raise errors.StoreDenied(
                f"the SQLite store's file cannot be written: mend its permissions ({name})"
            ) from error
        if code in _DAMAGED:
            raise errors.StoreUnavailable(
                f"the SQLite store's file is damaged: restore it from a backup, or move it away ({name})"
            ) from error
        if code in _REFUSED:
            raise errors.StoreRefused(f"the SQLite store refused the request ({name})") from error
        raise errors.StoreUnavailable(f"the SQLite store failed ({name})", outcome_unknown=outcome_unknown) from error
