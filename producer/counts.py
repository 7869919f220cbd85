"""What became of turns and recalls, per host: counted over all processes of a journal, kept beside its segments.

    <journal directory>/counts.json
    {"v": 1, "hosts": {"claude-code": {"seen": 3, "captured": 2, "refused.no_prompt": 1}}}

Small numbers for `status` ("turns seen, turns captured, refused by reason"), not accounts: every change is made under a
lock and renamed into place, so a reader sees a whole file and a killed process spoils nothing, but nothing is synced,
and a count that cannot be written soon is dropped. Bounded: new names beyond `MAX_NAMES` per host go to "other".
Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Mapping

__all__ = ["MAX_HOSTS", "MAX_NAMES", "add", "read"]

MAX_HOSTS = 32
MAX_NAMES = 64
MAX_BYTES = 1 << 20
_POLL_S = 0.002
_FILE = "counts.json"

Counts = dict[str, dict[str, int]]


def add(directory: str | os.PathLike[str], host: str, changes: Mapping[str, int], *, wait_s: float = 0.05) -> bool:
    """Add to the counts of `host`; whether they were written. Waits `wait_s` at most, raises nothing."""
    folder = os.fspath(directory)
    try:
        descriptor = _open_lock(folder)
    except OSError:
        return False
    try:
        if not _locked(descriptor, wait_s):
            return False
        counts = read(folder)
        known = counts.get(host)
        if known is None:
            if len(counts) >= MAX_HOSTS:
                return False
            known = counts[host] = {}
        for name, count in changes.items():
            kept = name if name in known or len(known) < MAX_NAMES else "other"
            known[kept] = known.get(kept, 0) + count
        draft = f"{folder}/{_FILE}.tmp"
        target = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            rest = memoryview(json.dumps({"v": 1, "hosts": counts}, separators=(",", ":")).encode("ascii"))
            while rest:  # a disk that is nearly full takes a part, and refuses the next
                rest = rest[os.write(target, rest) :]
        finally:
            os.close(target)
        os.rename(draft, f"{folder}/{_FILE}")  # noqa: PTH104 pathlib costs a hook more than all of this
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)  # and with it the lock


def read(directory: str | os.PathLike[str]) -> Counts:
    """The counts per host; empty when there are none or the file is damaged."""
    try:
        descriptor = os.open(f"{os.fspath(directory)}/{_FILE}", os.O_RDONLY)
        try:
            value = json.loads(os.read(descriptor, MAX_BYTES))
        finally:
            os.close(descriptor)
        return {
            str(host): {str(name): int(count) for name, count in counts.items()}
            for host, counts in value["hosts"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _open_lock(folder: str) -> int:
    path = f"{folder}/counts.lock"
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except FileNotFoundError:  # where every turn is refused, nothing but counts makes the directory
        with contextlib.suppress(FileExistsError):  # another process was first
            os.mkdir(folder, 0o700)  # noqa: PTH102
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def _locked(descriptor: int, wait_s: float) -> bool:
    """A frozen process may hold it: not waited for."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
