"""A process of the world: started, killed, frozen and started again by its own pid; it never outlives this process."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

__all__ = ["ROOT", "Process"]

ROOT = Path(__file__).resolve().parents[2]
STOP_DEADLINE_S = 20.0

_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Process:
    """Start it from the main thread: the kernel ends it with the thread that forked it."""

    def __init__(self, name: str, command: Sequence[str], *, env: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.command = list(command)
        self.env = dict(env)
        self.log = log
        self.starts = 0
        self._heard: dict[str, tuple[int, int]] = {}  # word: how often in the log, up to which byte
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        assert not self.running, f"{self.name} runs"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                preexec_fn=_die_with_parent,
            )
        self.starts += 1

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self._signal(signal.SIGKILL)
        self._wait()

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self, deadline_s: float = STOP_DEADLINE_S) -> bool:
        """SIGTERM; whether it ended by itself in time."""
        if not self.running:
            return True
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        try:
            assert self._process is not None
            self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        return True

    def wait(self, deadline_s: float) -> int | None:
        """Its exit code, or None when it still runs then."""
        assert self._process is not None
        try:
            return self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            return None

    def rss_bytes(self) -> int:
        """Resident memory now, 0 when it does not run."""
        try:
            return int(psutil.Process(self.pid).memory_info().rss) if self.running else 0
        except psutil.NoSuchProcess:
            return 0

    def words(self) -> str:
        """What it has logged."""
        return self.log.read_text("utf-8", "replace") if self.log.exists() else ""

    def times_said(self, word: str) -> int:
        """How often its log holds this word, over all starts. Reads only what is new since the last call."""
        times, offset = self._heard.get(word, (0, 0))
        if self.log.exists():
            with self.log.open("rb") as log:
                log.seek(offset)
                whole = log.read().rpartition(b"\n")
            times += whole[0].count(word.encode())
            offset += len(whole[0]) + len(whole[1])
            self._heard[word] = times, offset
        return times

    def _signal(self, number: signal.Signals) -> None:
        if self.running:
            os.kill(self.pid, number)

    def _wait(self) -> None:
        if self._process is not None:
            self._process.wait(STOP_DEADLINE_S)
