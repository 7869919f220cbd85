"""Tenants: which keys workers accept, and what each key may do.

A message is signed with a key; the tenant follows from the key's id, never from the message. Without
`MEMORY_TENANTS_FILE` there is one key, that of this environment, which may do everything. With it, a JSON list (0600,
the secrets stand in it), one object per key; several keys may belong to one tenant:

    [{"keyId": "host-a", "secret": "<32 characters or more>", "tenant": "acme",
      "agents": ["support"], "profiles": ["default"],      // or "*", the default: all
      "operator": false,                                   // may order forgetting in every scope
      "storeUrl": "rushdb+https://…", "storeToken": "…"}]  // the environment's store when missing

Keys of one tenant share one store, and no two tenants do: two stores for one tenant would split its memory, and
records carry no tenant that could keep two apart in one store. Both are refused, and so is one secret for two tenants:
a message says itself which key signed it.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from producer import config, errors, message

__all__ = ["Grant", "Tenants"]

_VARIABLE = "MEMORY_TENANTS_FILE"
_FIELDS = frozenset({"keyId", "secret", "tenant", "agents", "profiles", "operator", "storeUrl", "storeToken"})
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")  # tenant and key id stand in Redis key names and logs
_MIN_SECRET = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    """One key and what it may do. `agents` and `profiles`: None allows all. `operator`: orders for every scope."""

    key: message.Key
    tenant: str
    store_url: str
    store_token: str = field(default="", repr=False)
    agents: frozenset[str] | None = None
    profiles: frozenset[str] | None = None
    operator: bool = False

    def allows(self, agent_id: Any, profile_id: Any) -> bool:
        """Whether this key may write in the scopes of this agent and profile."""
        return (self.agents is None or agent_id in self.agents) and (
            self.profiles is None or profile_id in self.profiles
        )


class Tenants:
    """The keys of one deployment. Immutable; a worker reads the file at its start."""

    def __init__(self, grants: Iterable[Grant]) -> None:
        self._grants: dict[str, Grant] = {}
        stores: dict[str, tuple[str, str]] = {}
        for grant in grants:
            if grant.key.id in self._grants:
                raise errors.SettingsRefused(_VARIABLE, f"key id {grant.key.id} stands in it twice")
            store = (grant.store_url, grant.store_token)
            if stores.setdefault(grant.tenant, store) != store:
                raise errors.SettingsRefused(_VARIABLE, f"tenant {grant.tenant} has two stores; it must have one")
            for other in self._grants.values():
                if other.tenant != grant.tenant and other.key.secret == grant.key.secret:
                    raise errors.SettingsRefused(
                        _VARIABLE, f"tenants {other.tenant} and {grant.tenant} have a secret in common"
                    )
            self._grants[grant.key.id] = grant
        by_store = {store: tenant for tenant, store in stores.items()}
        for tenant, store in stores.items():
            if by_store[store] != tenant:
                raise errors.SettingsRefused(
                    _VARIABLE, f"tenants {tenant} and {by_store[store]} have one store in common: give each its own"
                )
        if not self._grants:
            raise errors.SettingsRefused(_VARIABLE, "names no key: no message could be accepted")

    @classmethod
    def load(cls, producer: config.ProducerConfig, path: Path | None) -> Tenants:
        """The keys of `path`, or the single key of this environment. Raises `errors.SettingsRefused`."""
        if path is not None:
            return cls(_read(path, producer))
        grant = Grant(
            key=producer.key,
            tenant=producer.tenant,
            store_url=producer.store_url,
            store_token=producer.store_token,
            operator=True,
        )
        return cls([grant])

    def secret_of(self, key_id: str) -> bytes | None:
        """The secret of a key, or None; the form that `message.verify` asks."""
        grant = self._grants.get(key_id)
        return None if grant is None else grant.key.secret

    def grant_of(self, key_id: str) -> Grant:
        """What a verified key may do. Raises `errors.SignatureRefused` for an unknown one."""
        try:
            return self._grants[key_id]
        except KeyError:
            raise errors.SignatureRefused("unknown_key") from None

    def tenant_of(self, key_id: str) -> str:
        """Name of the tenant that a verified key belongs to."""
        return self.grant_of(key_id).tenant

    def keys(self) -> list[message.Key]:
        """All keys that are accepted."""
        return [grant.key for grant in self._grants.values()]

    def stores(self) -> dict[str, tuple[str, str]]:
        """Store URL and token of every tenant, by its name."""
        return {grant.tenant: (grant.store_url, grant.store_token) for grant in self._grants.values()}


def _read(path: Path, producer: config.ProducerConfig) -> list[Grant]:
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read()
    except OSError as problem:
        raise errors.SettingsRefused(_VARIABLE, f"cannot be read ({problem.strerror})") from None
    if mode & 0o077:
        raise errors.SettingsRefused(_VARIABLE, f"holds secrets and has mode {mode:04o}: set it to 0600")
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        raise errors.SettingsRefused(_VARIABLE, "is not JSON") from None
    if not isinstance(entries, list):
        raise errors.SettingsRefused(_VARIABLE, "must hold a list")
    return [_grant(number, entry, producer) for number, entry in enumerate(entries, 1)]


def _grant(number: int, entry: Any, producer: config.ProducerConfig) -> Grant:
    def refuse(what: str) -> errors.SettingsRefused:
        return errors.SettingsRefused(_VARIABLE, f"entry {number}: {what}")

    if not isinstance(entry, Mapping):
        raise refuse("is not an object")
    if unknown := sorted(set(entry) - _FIELDS):
        raise refuse(f"unknown fields {', '.join(unknown)}")
    for name in ("keyId", "tenant"):
        if not isinstance(entry.get(name), str) or not _NAME.fullmatch(entry[name]):
            raise refuse(f"{name} must be 1 to 64 letters, digits, dots, underscores or hyphens")
    secret = entry.get("secret")
    if not isinstance(secret, str) or len(secret) < _MIN_SECRET:
        raise refuse(f"secret must have at least {_MIN_SECRET} characters")
    url, token = entry.get("storeUrl", producer.store_url), entry.get("storeToken", "")
    if not isinstance(url, str) or not isinstance(token, str) or not isinstance(entry.get("operator", False), bool):
        raise refuse("storeUrl and storeToken must be text, operator true or false")
    return Grant(
        key=message.Key(id=entry["keyId"], secret=secret.encode("utf-8")),
        tenant=entry["tenant"],
        store_url=url,
        store_token=token or (producer.store_token if url == producer.store_url else ""),
        agents=_names(entry.get("agents", "*"), refuse("agents must be a list of names or *")),
        profiles=_names(entry.get("profiles", "*"), refuse("profiles must be a list of names or *")),
        operator=entry.get("operator", False),
    )


def _names(value: Any, refusal: errors.SettingsRefused) -> frozenset[str] | None:
    if value == "*":
        return None
    if not isinstance(value, list) or not value or not all(isinstance(name, str) and name for name in value):
        raise refusal
    return frozenset(value)
