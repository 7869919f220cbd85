"""What one Claude Code hook costs as a whole process, against `python3 -c pass` of the same interpreter."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from producer.hosts import claude_code
from tests.benchmarks.table import Row, median


def measure(*, quick: bool) -> list[Row]:
    rounds = 2 if quick else 25
    with tempfile.TemporaryDirectory(dir=str(Path.cwd())) as folder:
        config = Path(folder) / "hook.json"
        config.write_text(
            json.dumps(
                {
                    "journal_dir": f"{folder}/journal",
                    "agent_socket": f"{folder}/agent.sock",
                    "agent_id": "claude-code",
                    "profile_id": "default",
                    "participant_scope_hash": "a" * 64,
                }
            )
        )
        setting, *command = shlex.split(claude_code.command(str(config)))  # a shell's assignment, then the words
        name, _, value = setting.partition("=")
        env = {**os.environ, name: value, "CLAUDE_CODE_ENTRYPOINT": "cli"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed hook is byte-compiled
        bare, prompt, stop = [], [], []
        for number in range(rounds + 1):
            base = {
                "session_id": "s",
                "prompt_id": f"p-{number}",
                "cwd": folder,
                "transcript_path": f"{folder}/none.jsonl",
            }
            asked = {**base, "hook_event_name": "UserPromptSubmit", "prompt": "why did the build fail? " * 20}
            ended = {
                **base,
                "hook_event_name": "Stop",
                "stop_hook_active": False,
                "last_assistant_message": "the cache key " * 100,
            }
            times = [
                _run([sys.executable, "-c", "pass"], b"", env),
                _run(command, asked, env),
                _run(command, ended, env),
            ]
            if number:  # the first round only warms the caches
                for kept, seconds in zip((bare, prompt, stop), times, strict=True):
                    kept.append(seconds * 1000)
        captured = len(
            [
                line
                for f in Path(folder, "journal").glob("segment-*")
                for line in f.read_text().splitlines()
                if '"kind":"event"' in line
            ]
        )
        if captured != rounds + 1:
            raise SystemExit(f"the hook captured {captured} of {rounds + 1} turns: the figures would mean nothing")
    return [
        Row(
            name="hook UserPromptSubmit, no agent",
            figure=median(prompt),
            baseline=median(bare),
            baseline_name="python3 -c pass",
            unit="ms",
        ),
        Row(
            name="hook Stop, durable capture",
            figure=median(stop),
            baseline=median(bare),
            baseline_name="python3 -c pass",
            unit="ms",
        ),
    ]


def _run(command: list[str], payload: object, env: dict[str, str]) -> float:
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    began = time.perf_counter()
    subprocess.run(command, input=data, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began
