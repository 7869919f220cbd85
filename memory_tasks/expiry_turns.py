"""Whose turn it is to remove expired facts: one worker per tenant, once in `MEMORY_EXPIRY_EVERY_S`. No Celery.

    memory:expiry:<tenant>   who took the turn; expires when the next one is due

Every worker looks once a minute (`LOOK_S`) and takes the turns it finds free; the next turn is free when the key is
gone, whatever became of the worker that took the last one. A run that was not done frees its tenant's next turn soon. A
turn that is taken twice, as after Redis lost its data, costs a look at the store and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from memory_tasks import redis_errors
from producer import message

__all__ = ["LOOK_S", "Turns", "key_name"]

LOOK_S = 60.0


def key_name(tenant: str) -> str:
    return f"memory:expiry:{tenant}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Turns:
    """The turns of the tenants that `keys` sign for. `client` is redis-py; calls raise `errors.RedisUnavailable`."""

    keys: Mapping[str, message.Key]  # by tenant
    every_s: float

    @property
    def look_s(self) -> float:
        """How often to look; 0: never."""
        return min(self.every_s, LOOK_S)

    def take(self, client: Any, name: str) -> Iterator[tuple[str, message.Key]]:
        """The tenants whose turn this worker has now, each with a key to sign with."""
        tenants = list(self.keys)
        with redis_errors.translated(), client.pipeline(transaction=False) as pipeline:
            for tenant in tenants:
                pipeline.set(key_name(tenant), name, nx=True, px=max(1, int(self.every_s * 1000)))
            taken = pipeline.execute()
        for tenant, is_taken in zip(tenants, taken, strict=True):
            if is_taken:
                yield tenant, self.keys[tenant]

    def again_soon(self, client: Any, tenant: str) -> None:
        """Free the next turn at the next look."""
        with redis_errors.translated():
            client.pexpire(key_name(tenant), int(self.look_s * 1000))

    def give_back(self, client: Any, tenant: str) -> None:
        """Free a turn whose message could not be sent."""
        with redis_errors.translated():
            client.delete(key_name(tenant))
