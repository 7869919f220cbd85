"""Certificates for a test, made by openssl when wanted and kept nowhere: an authority, a server's, a client's.

    made = certificates.make(tmp_path / "tls")
    made.ca, made.server, made.client, made.stranger   # the last: an authority that signed none of them

The server's holds for 127.0.0.1 and localhost. Made in a second; good for a day.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Certificates", "make"]

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True, kw_only=True)
class Certificates:
    ca: Path
    server: tuple[Path, Path]  # certificate, key
    client: tuple[Path, Path]
    stranger: Path


def make(directory: Path) -> Certificates:
    """Raises `FileNotFoundError` where openssl is not installed."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    ca = _authority(directory, "ca")
    return Certificates(
        ca=ca,
        server=_signed(directory, "server", "subjectAltName=IP:127.0.0.1,DNS:localhost"),
        client=_signed(directory, "client", "extendedKeyUsage=clientAuth"),
        stranger=_authority(directory, "stranger"),
    )


def _authority(directory: Path, name: str) -> Path:
    _openssl("req", "-x509", *_KEY, "-days", "1", "-subj", f"/CN={name}", *_files(directory, name))
    return directory / f"{name}.pem"


def _signed(directory: Path, name: str, extension: str) -> tuple[Path, Path]:
    _openssl(
        *("req", "-x509", *_KEY, "-days", "1", "-subj", f"/CN={name}", *_files(directory, name)),
        *("-CA", str(directory / "ca.pem"), "-CAkey", str(directory / "ca.key")),
        *("-addext", extension, "-addext", "basicConstraints=critical,CA:FALSE"),
    )
    return directory / f"{name}.pem", directory / f"{name}.key"


def _files(directory: Path, name: str) -> list[str]:
    return ["-out", str(directory / f"{name}.pem"), "-keyout", str(directory / f"{name}.key")]


def _openssl(*words: str) -> None:
    done = subprocess.run(["openssl", *words], capture_output=True, text=True)
    assert done.returncode == 0, f"openssl: {done.stderr[-500:]}"
