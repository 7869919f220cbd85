"""Frozen settings of everything that runs on an agent host: facade, dispatcher, recall, hook. Standard library only.

Entry points call `load(os.environ)` once and pass the result down; nothing here reads the environment by itself. Each
field carries its variable, unit and reason in its metadata, from which the README's table and `doctor` are made.

With nothing set, everything lives in one state directory (0700) and is local: SQLite store, an embedded
Redis-compatible server on a unix socket, a salt and keys made once (0600). With a store or broker that is not local a
missing salt or key is refused.
"""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
import urllib.parse
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any

from producer import errors, expiry, message, redis_url
from producer.hosts.hook_config import HookConfig

__all__ = ["HookConfig", "ProducerConfig", "env_name", "is_local_url", "load", "state_dir"]

PREFIX = "MEMORY_"
MIB = 1 << 20


def _setting(
    default: Any, doc: str, *, unit: str = "", secret: bool = False, shown: str = "", zero: bool = False
) -> Any:
    """`shown`: what the settings table says of a default that is worked out. `zero`: whether a number may be 0."""
    metadata = {"doc": doc, "unit": unit, "secret": secret, "shown": shown, "zero": zero}
    return field(default=default, metadata=metadata, repr=not secret)


@dataclass(frozen=True, kw_only=True)
class ProducerConfig:
    """Settings of an agent host. Secrets are left out of the representation."""

    state_dir: Path = _setting(MISSING, "Where everything local lives (journal, servers, keys); 0700.", unit="path")
    journal_dir: Path = _setting(
        MISSING, "The journal's directory; on a local file system.", unit="path", shown="<state>/journal"
    )
    store_url: str = _setting(
        MISSING,
        "`sqlite:///path`, `rushdb+https://host` or `rushdb+http://host` (Cloud, platform), "
        "`rushdb+direct+http://host` (engine).",
        unit="URL",
        shown="sqlite:///<state>/store.sqlite3",
    )
    broker_url: str = _setting(
        MISSING,
        "Celery broker: `redis://`, `rediss://`, `redis+socket://`, `sentinel://`, `amqp://`, `amqps://` "
        "(forms below).",
        unit="URL",
        shown="redis+socket://<state>/redis/redis.sock",
    )
    redis_url: str = _setting(
        MISSING, "Receipts and recent writes; must be set when the broker is not Redis.", unit="URL", shown="the broker"
    )
    agent_socket: Path = _setting(MISSING, "Unix socket of the local agent.", unit="path", shown="<state>/agent.sock")
    store_token: str = _setting("", "RushDB API key or engine token. A host needs a read key only.", secret=True)
    scope_salt: str = _setting(
        "", "Salt of participant hashes, one per deployment.", secret=True, shown="made once, if local"
    )
    key_id: str = _setting("local", "Id of the key that signs messages; the tenant follows from it on the worker.")
    producer_key: str = _setting(
        "", "Secret of that key, at least 32 characters.", secret=True, shown="made once, if local"
    )
    cache_key: str = _setting(
        "", "Secret that signs recent writes, one per deployment.", secret=True, shown="made once, if local"
    )
    tenant: str = _setting("local", "Name of the tenant, as workers know it; part of Redis key names.")
    agent_id: str = _setting("", "Default agentId of a host that does not name its own.")
    profile_id: str = _setting("default", "Default profileId of a host that does not name its own.")
    journal_max_bytes: int = _setting(
        1024 * MIB, "Disk budget of the journal; beyond it capture refuses and counts.", unit="bytes"
    )
    journal_reserve_bytes: int = _setting(
        4 * MIB, "Part of it kept for orders, receipts and compaction, so that a full disk heals.", unit="bytes"
    )
    segment_max_bytes: int = _setting(8 * MIB, "A segment is sealed at this size.", unit="bytes")
    sync_budget_s: float = _setting(
        2.0, "How long capture waits for the disk before it answers `sync_unknown`.", unit="seconds"
    )
    in_flight_events: int = _setting(1000, "Events of one journal in the broker at once.", unit="events")
    in_flight_bytes: int = _setting(8 * MIB, "Bytes of one journal in the broker at once.", unit="bytes")
    republish_after_s: float = _setting(300.0, "When a line without a receipt may be published again.", unit="seconds")
    store_late_s: float = _setting(
        60.0, "How long a request may still be applied after its caller gave up.", unit="seconds", zero=True
    )
    single_valued_kinds: tuple[str, ...] = _setting(
        (), "Fact kinds of which a later value replaces an earlier one (comma-separated)."
    )
    time_to_live: expiry.TimeToLive = _setting(
        expiry.TimeToLive(),
        "How long facts hold that name no end: `kind=30d`, `agentId/profileId:kind=12h`, `*` for any kind, `never`; "
        "comma-separated, the most specific rule wins.",
    )
    recall_deadline_ms: int = _setting(300, "Budget of one recall, all searches together.", unit="ms")
    recall_limit: int = _setting(6, "Memories per recall.", unit="memories")
    recall_max_chars: int = _setting(8000, "Length of the recalled block.", unit="characters")
    max_turn_units: int = _setting(6000, "Bound of each side of a turn and of a summary.", unit="UTF-16 units")
    recent_ttl_s: int = _setting(900, "Life of a recent write.", unit="seconds")
    recent_max_entries: int = _setting(64, "Recent writes kept per scope.", unit="entries")
    store_timeout_s: float = _setting(
        20.0, "Timeout of one store request by a worker; recall uses its own deadline.", unit="seconds"
    )
    embed_url: str = _setting("", "OpenAI-compatible embeddings endpoint; empty: no vectors of ours.", unit="URL")
    embed_model: str = _setting("", "Model name sent to it.")
    embed_dimensions: int = _setting(0, "Length of its vectors.", unit="numbers", zero=True)
    embed_token: str = _setting("", "Bearer token for it.", secret=True)

    @property
    def key(self) -> message.Key:
        return message.Key(id=self.key_id, secret=self.producer_key.encode("utf-8"))

    @property
    def local(self) -> bool:
        """Whether store and broker are both on this machine."""
        return is_local_url(self.store_url) and is_local_url(self.broker_url) and is_local_url(self.redis_url)


def env_name(field_name: str) -> str:
    return PREFIX + field_name.upper()


def state_dir(environ: Mapping[str, str]) -> Path:
    """`MEMORY_STATE_DIR`, else `$XDG_STATE_HOME/memory-tasks`, else `~/.local/state/memory-tasks`."""
    if given := environ.get("MEMORY_STATE_DIR"):
        return Path(given).expanduser().absolute()
    base = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME") or "~").expanduser() / ".local" / "state")
    return Path(base).absolute() / "memory-tasks"


def is_local_url(url: str) -> bool:
    """Whether this store, broker or Redis URL stays on this machine."""
    scheme, _, rest = url.partition("://")
    if scheme in ("sqlite", "redis+socket", "unix", "memory"):
        return True
    place = re.split(r"[/?#\\]", rest, maxsplit=1)[0]  # what comes after it names no host, whatever it looks like
    try:
        hosts = [urllib.parse.urlsplit(f"//{part.rpartition('@')[2]}").hostname for part in place.split(",")]
        hosts += [urllib.parse.urlsplit(part).hostname for part in url.split(";")[1:]]
    except ValueError:  # brackets that are no IPv6 address
        return False
    return all(host in ("localhost", "127.0.0.1", "::1") for host in hosts)


def load(environ: Mapping[str, str], *, make_secrets: bool = True) -> ProducerConfig:
    """The settings of this environment. Raises `errors.SettingsRefused` with what to set.

    `make_secrets`: for a local default, make state directory, salt and keys when they are missing (once, 0600).
    """
    base = state_dir(environ)
    sock = base / "redis" / "redis.sock"
    given = {
        f.name: environ[env_name(f.name)] for f in dataclasses.fields(ProducerConfig) if environ.get(env_name(f.name))
    }
    values: dict[str, Any] = {
        "journal_dir": base / "journal",
        "store_url": f"sqlite:///{base}/store.sqlite3",
        "broker_url": f"redis+socket://{sock}",
        "agent_socket": base / "agent.sock",
    }
    for name, text in given.items():
        values[name] = _parse(name, text)
    values["state_dir"] = base
    _check_urls(values)
    values.setdefault("redis_url", _redis_of(values["broker_url"]))
    if not values["redis_url"]:
        raise errors.SettingsRefused(
            "MEMORY_REDIS_URL", "the broker is not Redis: name a Redis for receipts and recent writes"
        )
    config = ProducerConfig(**values)
    return _with_secrets(config, make_secrets)


def _parse(name: str, text: str) -> Any:
    setting = {f.name: f for f in dataclasses.fields(ProducerConfig)}[name]
    try:
        match setting.type:
            case "Path":
                return Path(text).expanduser().absolute()
            case "int":
                number: float = int(text)
            case "float":
                number = float(text)
            case "expiry.TimeToLive":
                return expiry.parse(text)
            case "tuple[str, ...]":
                return tuple(part.strip() for part in text.split(",") if part.strip())
            case _:
                return text
    except ValueError:
        raise errors.SettingsRefused(env_name(name), "is not a number") from None
    if not 0 <= number < float("inf") or (number == 0 and not setting.metadata["zero"]):
        least = "of 0 or more" if setting.metadata["zero"] else "above 0"
        raise errors.SettingsRefused(env_name(name), f"must be a number {least}")
    return number


def _redis_of(broker_url: str) -> str:
    if not redis_url.is_redis(broker_url):
        return ""
    return broker_url.replace("redis+socket://", "unix://", 1)


def _check_urls(values: Mapping[str, Any]) -> None:
    store_scheme = values["store_url"].partition("://")[0]
    known = ("sqlite", "rushdb+https", "rushdb+http", "rushdb+direct+http", "rushdb+direct+https")
    if store_scheme not in known:
        raise errors.SettingsRefused(
            "MEMORY_STORE_URL", f"unknown form; use one of {', '.join(s + '://' for s in known)}"
        )
    if store_scheme.startswith("rushdb") and not values.get("store_token"):
        raise errors.SettingsRefused("MEMORY_STORE_TOKEN", "a RushDB store needs its API key or engine token")
    if redis_url.is_redis(values["broker_url"]):
        redis_url.parse(values["broker_url"], setting="MEMORY_BROKER_URL")
    elif values["broker_url"].partition("://")[0] not in ("amqp", "amqps"):
        schemes = (*redis_url.SCHEMES, "amqp", "amqps")
        raise errors.SettingsRefused(
            "MEMORY_BROKER_URL", f"unknown form; use one of {', '.join(s + '://' for s in schemes)}"
        )
    else:
        from producer import rabbitmq  # few have one, and a hook reads settings

        rabbitmq.plain_url(values["broker_url"])
    if values.get("redis_url"):
        redis_url.parse(values["redis_url"])


def _with_secrets(config: ProducerConfig, make: bool) -> ProducerConfig:
    """Fill salt and keys from the state directory of a local deployment; refuse their absence in any other."""
    missing = [name for name in ("scope_salt", "producer_key", "cache_key") if not getattr(config, name)]
    if missing and not config.local:
        name = env_name(missing[0])
        raise errors.SettingsRefused(
            name, "must be set when store or broker is not on this machine (any random text of 32 characters or more)"
        )
    for name in ("producer_key", "cache_key"):
        if name not in missing and len(getattr(config, name)) < 32:
            raise errors.SettingsRefused(env_name(name), "must have at least 32 characters")
    found: dict[str, Any] = {name: _secret(config.state_dir / f"{name.replace('_', '-')}", make) for name in missing}
    return dataclasses.replace(config, **found)


def _secret(path: Path, make: bool) -> str:
    """The secret in this file; made when it is missing. Two processes that start at once agree on one."""
    try:
        return path.read_text("ascii").strip()
    except FileNotFoundError:
        if not make:
            return ""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, secrets.token_hex(32).encode("ascii"))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        os.link(draft, path)  # fails when another process was first: its secret counts
    except FileExistsError:
        pass
    finally:
        draft.unlink()
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return path.read_text("ascii").strip()
