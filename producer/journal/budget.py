"""The journal's disk budget, and the reserve inside it.

    0 ── events ───────────────▶ ── `sent` ──▶ ── orders, receipts, compaction ──▶ max_bytes
                                  (headroom)    (reserve_bytes)

What counts are the bytes of segments, drafts and quarantine. The file `reserve` holds preallocated blocks, so that
orders, receipts and compaction find room on a disk that others have filled: they shorten it by what they need. Segments
and the file together stay within `max_bytes`: it also gets shorter when the budget itself is eaten into. The drainer
makes it long again when there is room.

How much is used is measured by listing; what other processes wrote is noticed after a quarter second, or at once when
less than 64 MiB (or an eighth) are left.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from producer.journal import segments
from producer.journal.filesystem import FileSystem
from producer.journal.groups import Waiting

__all__ = ["QUARANTINE", "RESERVE", "Budget"]

RESERVE = "reserve"
QUARANTINE = "quarantine"

_MEASURE_AGAIN_S = 0.25
_HEADROOM_MAX = 1 << 20
_NEAR_BYTES = 64 << 20  # more than others write in _MEASURE_AGAIN_S
_STEP = 256 << 10


class Budget:
    """What may still be written. `admit` is called by one thread at a time."""

    def __init__(
        self, fs: FileSystem, directory: str, *, max_bytes: int, reserve_bytes: int, monotonic: Callable[[], float]
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._monotonic = monotonic
        self._reserve_bytes = reserve_bytes
        self._used = 0
        self._measured_s: float | None = None
        self.max_bytes = max_bytes
        self.marks_limit = max(0, max_bytes - reserve_bytes)
        self.events_limit = self.marks_limit - min(self.marks_limit // 16, _HEADROOM_MAX)

    def admit(self, waiting: Sequence[Waiting]) -> list[Waiting]:
        """Those that still fit, and count as written from now on. Raises `OSError` when the disk cannot be asked."""
        used = self._measure(sum(len(one.data) for one in waiting))
        fitting = []
        for one in waiting:
            limit = self.max_bytes if one.is_privileged else self.events_limit if one.is_event else self.marks_limit
            if used + len(one.data) <= limit:
                used += len(one.data)
                fitting.append(one)
        self._used = used
        if used > self.marks_limit:
            self._shorten(self.max_bytes - used)
        return fitting

    def _measure(self, coming: int) -> int:
        now_s = self._monotonic()
        is_near = self._used + coming > self.events_limit - max(self.events_limit // 8, _NEAR_BYTES)
        if is_near or self._measured_s is None or now_s - self._measured_s > _MEASURE_AGAIN_S:
            self._used = self.used_bytes()
            self._measured_s = now_s
        return self._used

    def used_bytes(self) -> int:
        """Bytes of segments, drafts and quarantine, now."""
        listed = self._fs.listing(self._directory)
        used = sum(size for name, size in listed if segments.is_segment(name) or name.endswith(".tmp"))
        try:
            return used + sum(size for _, size in self._fs.listing(f"{self._directory}/{QUARANTINE}"))
        except FileNotFoundError:
            return used

    def refill(self) -> bool:
        """Whether the reserve is as long as the budget lets it be. Of one process at a time: the drainer."""
        draft = f"{self._directory}/{RESERVE}.{os.urandom(4).hex()}.tmp"
        try:
            length = min(self._reserve_bytes, self.max_bytes - self.used_bytes())
            if self.reserve_length() >= length:
                return True
            if self._fs.free_bytes(self._directory) < 2 * length:
                return False
            descriptor = self._fs.create(draft)
        except OSError:
            return False
        try:
            self._fs.allocate(descriptor, length)
            self._fs.rename(draft, f"{self._directory}/{RESERVE}")
        except OSError:
            self._remove(draft)
            return False
        finally:
            self._fs.close(descriptor)
        return True

    def spend(self, needed: int) -> bool:
        """Whether a part of the reserve was given back to the disk; False when it is spent."""
        length = self.reserve_length()
        return length > 0 and self._shorten(max(0, length - max(2 * needed, _STEP)))

    def reserve_length(self) -> int:
        try:
            return dict(self._fs.listing(self._directory)).get(RESERVE, 0)
        except OSError:
            return 0

    def _shorten(self, length: int) -> bool:
        """Whether the reserve was longer and is now as short as this."""
        try:
            descriptor = self._fs.open(f"{self._directory}/{RESERVE}")
        except OSError:
            return False
        try:
            if self._fs.size_and_links(descriptor)[0] <= length:
                return False
            self._fs.truncate(descriptor, length)
        except OSError:
            return False
        finally:
            self._fs.close(descriptor)
        return True

    def _remove(self, path: str) -> None:
        try:
            self._fs.unlink(path)
        except OSError:
            pass
