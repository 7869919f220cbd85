"""Which workers use this broker's keys now, so that one that would harm the others is refused at its start.

    memory:workers   hash: worker's name -> JSON {visibilityTimeoutS, keys, at}; expires with the last of them

Refused is a worker

- whose visibility timeout differs from that of a worker that is there: the shorter one hands out what the longer one is
  still working on
- that accepts none of the keys that one accepts: another deployment, which would take its messages and drop them

`keys` are hashes of key ids with their secrets, a part of them where there are many. A worker says it is there every 20
seconds; one that was killed is forgotten after a minute, by the clock of Redis.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from producer import errors, message

__all__ = ["EVERY_S", "KEY", "Lease"]

KEY = "memory:workers"
EVERY_S = 20.0
_FORGOTTEN_AFTER_S = 60
_KEYS_SHOWN = 64
_PRINT_LENGTH = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """What a worker has to say of itself. `client` is redis-py, of the broker; its errors are raised as they are, since
    trouble with the broker is Celery's to handle."""

    visibility_timeout_s: float
    prints: frozenset[str]

    @classmethod
    def of(cls, keys: Iterable[message.Key], *, visibility_timeout_s: float) -> Lease:
        made = sorted(hashlib.sha256(key.id.encode() + b"\0" + key.secret).hexdigest()[:_PRINT_LENGTH] for key in keys)
        return cls(visibility_timeout_s=visibility_timeout_s, prints=frozenset(made[:_KEYS_SHOWN]))

    def take(self, client: Any, name: str) -> None:
        """Say that this worker is there. Raises `errors.SettingsRefused` when it may not be."""
        now_s = self.renew(client, name)  # before looking, so that of two that start at once one sees the other
        said = client.hgetall(KEY)
        for other, text in said.items():
            if _text(other) == name:
                continue
            problem = self._problem_with(json.loads(text), now_s)
            if problem is not None:
                self.drop(client, name)
                raise problem

    def renew(self, client: Any, name: str) -> float:
        """Say so again; the time of Redis."""
        now_s = float(client.time()[0])
        body = {"visibilityTimeoutS": self.visibility_timeout_s, "keys": sorted(self.prints), "at": now_s}
        client.hset(KEY, name, json.dumps(body, separators=(",", ":")))
        client.expire(KEY, _FORGOTTEN_AFTER_S)
        return now_s

    def drop(self, client: Any, name: str) -> None:
        """This worker ends."""
        client.hdel(KEY, name)

    def _problem_with(self, other: dict[str, Any], now_s: float) -> errors.SettingsRefused | None:
        if now_s - other["at"] > _FORGOTTEN_AFTER_S:
            return None
        if other["visibilityTimeoutS"] != self.visibility_timeout_s:
            return errors.SettingsRefused(
                "MEMORY_VISIBILITY_TIMEOUT_S",
                f"a worker with {other['visibilityTimeoutS']:g} s uses the same broker, this one has "
                f"{self.visibility_timeout_s:g} s: stop those with the other value first (one that was killed is "
                f"forgotten after {_FORGOTTEN_AFTER_S} s)",
            )
        if self.prints.isdisjoint(other["keys"]):
            return errors.SettingsRefused(
                "MEMORY_BROKER_URL",
                "workers of another deployment use the same broker and accept none of the keys that this one accepts: "
                "give each deployment a Redis database of its own",
            )
        return None


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
