"""Child processes that end with their parent: how `up` and `demo` start and stop what they run.

On Linux a child asks the kernel for a signal when its parent dies (PR_SET_PDEATHSIG), so that even a SIGKILL of the
parent leaves nothing behind; elsewhere only the ordinary stop does. Start children from the main thread: the kernel
watches the thread that forked.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

__all__ = ["Child", "bound_log", "start", "stop_all"]

_PR_SET_PDEATHSIG = 1
_LOG_MAX_BYTES = 16 << 20
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class Child:
    """One running child and what it is called in messages."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], started_at: float) -> None:
        self.name = name
        self.process = process
        self.started_at = started_at

    @property
    def pid(self) -> int:
        return self.process.pid

    def running(self) -> bool:
        return self.process.poll() is None

    def stop(self, deadline_s: float) -> bool:
        """SIGTERM, then SIGKILL after `deadline_s`. True when it ended by itself."""
        if self.running():
            self.process.terminate()
        try:
            self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return False
        return True


def _before_exec(parent: int, orphaned: signal.Signals) -> None:
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, orphaned, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the request was made
            os._exit(0)


def start(
    name: str,
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    log: Path | IO[bytes] | None = None,
    pass_fds: Sequence[int] = (),
    orphaned: signal.Signals = signal.SIGTERM,
) -> Child:
    """Start `command` in a session of its own (a Ctrl-C reaches only us; we stop it in order). `orphaned` is what it
    gets when we die: SIGKILL for one that bears it and would take its time."""
    parent = os.getpid()
    target: IO[bytes] | int | None
    if isinstance(log, Path):
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    else:
        target = log
    try:
        process = subprocess.Popen(  # noqa: S603 (fixed commands of ours)
            list(command),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=target,
            stderr=subprocess.STDOUT if target is not None else None,
            start_new_session=True,
            pass_fds=tuple(pass_fds),
            preexec_fn=lambda: _before_exec(parent, orphaned),
        )
    finally:
        if isinstance(log, Path):
            os.close(target)  # type: ignore[arg-type]
    return Child(name, process, time.monotonic())


def bound_log(path: Path, max_bytes: int = _LOG_MAX_BYTES) -> None:
    """Keep a child's log and one older part of it, each of about `max_bytes`. Its writer goes on at the new end, since
    `start` opened it for appending; what is written between copy and cut is lost."""
    try:
        if path.stat().st_size > max_bytes:
            shutil.copyfile(path, path.with_name(f"{path.name}.1"))
            os.truncate(path, 0)
    except OSError:
        pass  # a full disk: the log is the least of what is missing then


def stop_all(children: Sequence[Child], *, deadline_s: float = 10.0) -> list[str]:
    """Stop children in the order given, each bounded. Returns the names of those that had to be killed."""
    return [child.name for child in children if not child.stop(deadline_s)]
