"""Child processes: how they end, and how their logs stay bounded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from memory_tasks import processes, supervisor
from producer import errors

ENV = {"PATH": os.environ.get("PATH", os.defpath)}
SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


def until(claim, deadline_s: float = 20.0) -> None:
    end = time.monotonic() + deadline_s
    while not claim():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_child_ends_when_it_is_asked_to_and_is_killed_when_it_does_not_heed(tmp_path):
    polite = processes.start("polite", SLEEP, env=ENV)
    assert polite.running() and polite.stop(10)
    log = tmp_path / "logs" / "stubborn.log"
    stubborn = processes.start("stubborn", [sys.executable, "-c", STUBBORN], env=ENV, log=log)
    until(lambda: "up" in log.read_text())
    assert not stubborn.stop(0.2) and not stubborn.running()
    assert log.stat().st_mode & 0o777 == 0o600 and log.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("orphaned", [signal.SIGTERM, signal.SIGKILL])
def test_a_child_ends_when_its_parent_is_killed(tmp_path, orphaned):
    script = (
        "import os, signal, sys, time\nfrom memory_tasks import processes\n"
        f"child = processes.start('child', {SLEEP!r}, env=dict(os.environ), orphaned=signal.Signals({int(orphaned)}))\n"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_a_log_is_bounded_while_its_writer_goes_on(tmp_path):
    log = tmp_path / "child.log"
    writer = "import time\nfor n in range(10**6): print('line', n, flush=True); time.sleep(0.001)"
    child = processes.start("writer", [sys.executable, "-c", writer], env=ENV, log=log)
    try:
        until(lambda: log.exists() and log.stat().st_size > 200)
        processes.bound_log(log, max_bytes=100)
        older = (tmp_path / "child.log.1").read_text()
        assert older.startswith("line 0\n")
        until(lambda: log.stat().st_size > 200)
        assert log.read_text().lstrip("\x00").startswith("line ")
        assert "\x00" not in log.read_text()  # it goes on at the new end, not where it was
    finally:
        child.stop(5)
    processes.bound_log(Path("/nowhere/child.log"))


def test_one_up_runs_per_directory(tmp_path):
    with (
        supervisor.only_one(tmp_path / "state"),
        pytest.raises(errors.SettingsRefused, match="another `memory-tasks up`"),
        supervisor.only_one(tmp_path / "state"),
    ):
        pass
    with supervisor.only_one(tmp_path / "state"):
        assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
