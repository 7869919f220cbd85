"""Quarantine: damaged bytes of segments, kept aside (0600) until somebody looks at them.

One file per damaged piece, named by the sha256 of its bytes: keeping the same damage again changes nothing. At most
`MAX_BYTES` in all; beyond that damage is counted and dropped. Nothing here ever fails or blocks: it is best effort.
"""

from __future__ import annotations

import hashlib

from producer.journal.budget import QUARANTINE
from producer.journal.filesystem import FileSystem

__all__ = ["MAX_BYTES", "keep", "kept", "name_of"]

MAX_BYTES = 4 << 20


def name_of(data: bytes) -> str:
    return f"{hashlib.sha256(data).hexdigest()[:32]}.damaged"


def kept(fs: FileSystem, directory: str) -> dict[str, int]:
    """Name and length of each piece in the quarantine of this journal directory."""
    try:
        return {name: size for name, size in fs.listing(f"{directory}/{QUARANTINE}") if name.endswith(".damaged")}
    except OSError:
        return {}


def keep(fs: FileSystem, directory: str, data: bytes) -> bool:
    """Whether these bytes are in the quarantine now."""
    name, there = name_of(data), kept(fs, directory)
    if there.get(name) == len(data):
        return True
    if sum(there.values()) + len(data) > MAX_BYTES:
        return False
    path = f"{directory}/{QUARANTINE}/{name}"
    try:
        fs.make_directory(f"{directory}/{QUARANTINE}")
        if name in there:
            fs.unlink(path)  # a part of it, left by a crash
        descriptor = fs.create(path)
        try:
            fs.write_all(descriptor, data)
            fs.sync(descriptor)
        finally:
            fs.close(descriptor)
    except OSError:
        return False
    return True
