"""What redaction costs against `json.dumps` and sha256 of the same text, which every event pays as well."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable

from producer import redaction
from tests.benchmarks.table import Row, median

UNITS = 6000  # the bound of a text
PROSE = "The quick brown fox jumps over the lazy dog, and we talked about deploying the new service. "
CODE = "def read(path: str) -> bytes:\n    with open(path, 'rb') as file:\n        return file.read()\n\n"
ANCHORED = "Set the token, the key of the API and the password as the rules say; see https://example.com/a/b. "
SECRETS = "export API_TOKEN=q7Hs9Kd2Lm4Np6Rt8Vx0Zb3C; postgres://app:s3cr3t-Pa55@db/app in /home/alice/x. "


def measure(*, quick: bool) -> list[Row]:
    rounds, count = (2, 5) if quick else (9, 50)
    rows = []
    for name, piece in (("prose", PROSE), ("code", CODE), ("names of secrets", ANCHORED), ("secrets", SECRETS)):
        text = (piece * (UNITS // len(piece) + 1))[:UNITS]
        redaction.redact(text)  # compile
        pairs = [
            (_spent(lambda t=text: redaction.redact(t), count), _spent(lambda t=text: _base(t), count))
            for _ in range(rounds)
        ]
        rows.append(_row(f"redact 6,000 of {name}", pairs, "json + sha256", "us CPU"))
    starts = [(_started("producer.redaction"), _started("json, hashlib")) for _ in range(2 if quick else 7)]
    rows.append(_row("import redaction", starts, "import json, hashlib", "us CPU"))
    return rows


def _row(name: str, pairs: list[tuple[float, float]], baseline: str, unit: str) -> Row:
    figures, baselines = zip(*pairs, strict=True)
    return Row(name=name, figure=median(figures), baseline=median(baselines), baseline_name=baseline, unit=unit)


def _base(text: str) -> str:
    return hashlib.sha256(json.dumps(text).encode()).hexdigest()


def _spent(work: Callable[[], object], count: int) -> float:
    began = time.process_time()
    for _ in range(count):
        work()
    return (time.process_time() - began) / count * 1e6


def _started(modules: str) -> float:
    """CPU time of the import alone, in a new process that has what every hook has."""
    script = (
        f"import re, time, typing, producer; t = time.process_time(); import {modules}; print(time.process_time() - t)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return float(done.stdout) * 1e6
