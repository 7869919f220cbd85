"""Clients of Redis, made in this one place for every form of `producer.redis_url`, for redis-py and for kombu.

What holds for all of them: one answer is waited for at most `socket_timeout_s`, one connection at most
`connect_timeout_s` and its login one answer more; each sentinel that is asked in vain before costs a connection more. A
command is tried once more only when its connection turned out to be broken, and without a pause. A server that says
that it is a replica is left: the connection is closed, and the next one asks the name, or the sentinels, anew. Clients
may be shared by threads, and a forked child opens connections of its own.

Imports redis, which takes longer than a hook has: whoever runs on a host's path imports this module on first use.
"""

from __future__ import annotations

import ssl
import urllib.parse
from dataclasses import dataclass
from typing import Any

import redis
from redis import sentinel
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from producer import redis_url

__all__ = ["CLUSTER_ERRORS", "KombuForm", "connect", "kombu_form", "trouble"]

# What a member of a Redis Cluster answers to clients that do not know of it.
CLUSTER_ERRORS = (redis.exceptions.ClusterError, redis.exceptions.AskError, redis.exceptions.ClusterCrossSlotError)
_MAX_CONNECTIONS = 32


class _LeavesReplicas:
    """A connection that ends when the server turns out to be a replica: whoever is master now stands elsewhere."""

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().read_response(*args, **kwargs)  # type: ignore[misc]
        except redis.ReadOnlyError:
            self.disconnect()  # type: ignore[attr-defined]
            raise redis.ConnectionError("this Redis is a replica now") from None


class _Tcp(_LeavesReplicas, redis.Connection):
    pass


class _Tls(_LeavesReplicas, redis.SSLConnection):
    pass


class _Socket(_LeavesReplicas, redis.UnixDomainSocketConnection):
    pass


class _Client(redis.Redis):
    """Closes what it asked the sentinels with, too."""

    def close(self) -> None:
        super().close()
        asked = getattr(self.connection_pool, "sentinel_manager", None)
        if asked is not None:
            asked.close()


def connect(url: str, *, connect_timeout_s: float, socket_timeout_s: float) -> redis.Redis:
    """A client of this Redis, or of the master that its sentinels name; connects on first use. Raises what
    `redis_url.parse` raises. Close it after use."""
    form = redis_url.parse(url)
    options: dict[str, Any] = {
        "db": form.db,
        "username": form.username or None,
        "password": form.password or None,
        "socket_timeout": socket_timeout_s,
        "retry": Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
        "max_connections": _MAX_CONNECTIONS,
        # Off: it may stretch the timeouts, and costs each connection a question that an access list may forbid.
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }
    if form.path:
        return _Client.from_pool(redis.ConnectionPool(connection_class=_Socket, path=form.path, **options))
    options["socket_connect_timeout"] = connect_timeout_s
    if form.master_name:
        asked = sentinel.Sentinel(form.hosts, sentinel_kwargs=_sentinel_options(form, connect_timeout_s))
        tls = {"ssl": True, **form.tls} if form.tls is not None else {}
        return asked.master_for(form.master_name, redis_class=_Client, **options, **tls)
    host, port = form.hosts[0]
    secured = {"connection_class": _Tcp} if form.tls is None else {"connection_class": _Tls, **form.tls}
    return _Client.from_pool(redis.ConnectionPool(host=host, port=port, **secured, **options))


def _sentinel_options(form: redis_url.RedisUrl, timeout_s: float) -> dict[str, Any]:
    """How the sentinels themselves are asked: soon or not at all, since the next one may know."""
    tls = {"ssl": True, **form.tls} if form.tls is not None else {}
    return {
        "username": form.sentinel_username or None,
        "password": form.sentinel_password or None,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
        **tls,
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class KombuForm:
    """What kombu and Celery take in place of our URL. Holds the password, so it prints nothing."""

    url: str
    ssl: dict[str, Any] | bool
    transport_options: dict[str, Any]

    def __repr__(self) -> str:
        return "KombuForm()"


def kombu_form(url: str, *, connect_timeout_s: float, setting: str = "MEMORY_BROKER_URL") -> KombuForm:
    """This Redis for kombu. `connect_timeout_s` bounds the asking of one sentinel."""
    form = redis_url.parse(url, setting=setting)
    name, word = (urllib.parse.quote(text, safe="") for text in (form.username, form.password))
    login = f"{name}:{word}@" if name or word else ""
    if form.path:
        place = urllib.parse.quote(form.path)
        return KombuForm(url=f"redis+socket://{login}{place}?virtual_host={form.db}", ssl=False, transport_options={})
    # Each of several holds everything: kombu goes on with the next one alone when the first does not answer.
    addresses = [f"{form.scheme}://{login}{_bracketed(host)}:{port}/{form.db}" for host, port in form.hosts]
    options: dict[str, Any] = {}
    if form.master_name:
        options = {"master_name": form.master_name, "sentinel_kwargs": _sentinel_options(form, connect_timeout_s)}
    return KombuForm(
        url=";".join(addresses), ssl=dict(form.tls) if form.tls is not None else False, transport_options=options
    )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def trouble(problem: BaseException) -> str:
    """What is wrong with Redis and what to do, in one line. Quotes nothing of the exception: its words may hold a
    command or an address."""
    chain = _chain(problem)
    if any(isinstance(one, sentinel.MasterNotFoundError) and ":AuthenticationError" in str(one) for one in chain):
        return "its sentinels refuse the login: check sentinel_username and sentinel_password in the URL"
    for kind, words in _TROUBLES:
        if any(isinstance(one, kind) for one in chain):
            return words
    for start, words in _ANSWERS:
        if any(isinstance(one, redis.RedisError) and str(one).startswith(start) for one in chain):
            return words
    if any(isinstance(one, redis.TimeoutError | TimeoutError) for one in chain):
        return "does not answer in time: it is frozen, overloaded or behind a firewall"
    if any(isinstance(one, redis.ConnectionError | OSError) for one in chain):
        return "cannot be reached: see that it runs, and that address and scheme are right (rediss:// for a TLS port)"
    return f"failed ({type(problem).__name__})"


def _chain(problem: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    at: BaseException | None = problem
    while at is not None and at not in found:
        found.append(at)
        at = at.__cause__ or at.__context__
    return found


_TROUBLES: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], str], ...] = (
    (redis.AuthenticationError, "refuses the login: check user and password in the URL (percent-encoded)"),
    (redis.exceptions.NoPermissionError, "forbids this user a command or key: compare its ACL with the runbook's"),
    (
        ssl.SSLCertVerificationError,
        "its certificate is not trusted: name its authority in ssl_ca_certs, and its host as the certificate does",
    ),
    (ssl.SSLError, "speaks no TLS that we do: rediss:// needs its TLS port, and a client certificate where it asks"),
    (
        sentinel.MasterNotFoundError,
        "no sentinel names a healthy master: check master_name, the sentinels' addresses and sentinel_password",
    ),
    (
        CLUSTER_ERRORS,
        "is a cluster, which is not supported: use one Redis, or Sentinel",
    ),
    (redis.ReadOnlyError, "is a replica: name its master, or use sentinel://"),
    (redis.BusyLoadingError, "still loads its data: wait"),
    (redis.exceptions.OutOfMemoryError, "is full: raise its maxmemory, or start workers to empty the queue"),
)
_ANSWERS = (
    ("max number of clients", "has no room for another client: raise its maxclients"),
    ("MISCONF", "cannot save to its own disk and takes no writes: free its disk, see its log"),
    ("NOREPLICAS", "has too few replicas and takes no writes: see min-replicas-to-write"),
    ("unknown command", "does not know what a Redis 6.2 knows: it is older, or a sentinel where its master is wanted"),
)
