"""A RabbitMQ by URL: how to connect to it, what its refusals mean, and what it says of our queues. Loads kombu lazily.

    amqp://user:password@host:5672/vhost
    amqps://user:password@host:5671/vhost?ssl_ca_certs=/path/ca.pem

An empty virtual host is `/`. Several nodes of a cluster stand one after the other, with `;` in between. Parameters of
`amqps://` are those of `rediss://` (producer.redis_url): `ssl_ca_certs`, `ssl_certfile`, `ssl_keyfile`,
`ssl_check_hostname`, `ssl_cert_reqs`; certificate and name are verified unless they say otherwise. Others are refused.

Every wait for the broker ends after `socket_timeout_s`; it may need that long for each answer.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from producer import errors, message

__all__ = [
    "NO_ROUTE",
    "OTHER_KIND",
    "REFUSALS",
    "QueueState",
    "connect",
    "drop",
    "examine",
    "is_rabbitmq",
    "is_verified",
    "opened",
    "plain_url",
    "queues",
    "tls_options",
    "words",
]

_SETTING = "MEMORY_BROKER_URL"
_SCHEMES = ("amqp", "amqps")
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_KNOWN = (*_FILES, "ssl_cert_reqs", "ssl_check_hostname")
_NEXT_NODE = re.compile(r";(?=[a-z+]+://)")
OTHER_KIND = 406  # PRECONDITION_FAILED: what is declared is there, and is not what is declared
REFUSALS = (403, 530)  # ACCESS_REFUSED, NOT_ALLOWED: this user, this virtual host
NO_ROUTE = 312  # to a queue that is not there
_NOT_FOUND = 404
_OURS = re.compile(r"(queue|exchange) '(memory|memory\.backlog|celery_delayed_\w+)'")
_QUORUM = {"x-queue-type": "quorum"}


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueState:
    """`waiting`: messages that no worker has; those that wait for a retry are elsewhere."""

    name: str
    exists: bool
    is_quorum: bool
    waiting: int
    consumers: int


def is_rabbitmq(url: str) -> bool:
    return url.partition("://")[0] in _SCHEMES


def plain_url(url: str) -> str:
    """The URL as kombu wants it: without parameters. Raises as `tls_options` does."""
    tls_options(url)
    return ";".join(node.partition("?")[0] for node in _NEXT_NODE.split(url))


def tls_options(url: str) -> dict[str, Any] | None:
    """What kombu and Celery take as `ssl`; None for a connection without TLS. Raises `errors.SettingsRefused` for what
    it cannot read, `errors.Unsupported` for several nodes with TLS: each would be asked for the name of the first."""
    try:
        nodes = [urllib.parse.urlsplit(node) for node in _NEXT_NODE.split(url)]
        given = {name: value for node in nodes for name, value in _parameters(node.query)}
        _ = [node.port for node in nodes]
    except ValueError:  # its words quote the URL
        raise errors.SettingsRefused(
            _SETTING, "cannot be read as a URL; percent-encode what is not a letter or digit in user and password"
        ) from None
    unknown = sorted(given.keys() - set(_KNOWN))
    if unknown or any(node.scheme not in _SCHEMES for node in nodes):
        raise errors.SettingsRefused(_SETTING, f"of RabbitMQ, amqp:// and amqps:// with {', '.join(_KNOWN)} are known")
    if all(node.scheme == "amqp" for node in nodes):
        if given:
            raise errors.SettingsRefused(_SETTING, "amqp:// has no TLS; use amqps://")
        return None
    if len(nodes) > 1:
        raise errors.Unsupported(f"{_SETTING}: several nodes with TLS; give them one name")
    return _tls_of(nodes[0].hostname or "localhost", given)


def _parameters(query: str) -> list[tuple[str, str]]:
    """A plus is one, in paths."""
    return urllib.parse.parse_qsl(query.replace("+", "%2B"), keep_blank_values=True, strict_parsing=bool(query))


def _tls_of(host: str, given: dict[str, str]) -> dict[str, Any]:
    import ssl

    wanted, checked = given.pop("ssl_cert_reqs", "required"), given.pop("ssl_check_hostname", "true").lower()
    if wanted not in ("required", "none") or checked not in ("true", "false"):
        raise errors.SettingsRefused(_SETTING, "ssl_cert_reqs is required or none, ssl_check_hostname true or false")
    options: dict[str, Any] = {name.removeprefix("ssl_"): path for name, path in given.items()}
    options["cert_reqs"] = ssl.CERT_REQUIRED if wanted == "required" else ssl.CERT_NONE
    if wanted == "required" and checked == "true":
        options["server_hostname"] = host  # py-amqp checks the name only when it is given one
    return options


def is_verified(url: str) -> bool:
    """False for TLS that trusts everybody."""
    return "cert_reqs" not in (tls := tls_options(url) or {}) or bool(tls["cert_reqs"])


def queues() -> list[Any]:
    """Both queues as kombu objects, the same for whoever declares them: quorum queues, replicated and on disk.

    Their exchanges are of type topic: through them Celery brings retries back, a delay in front of the routing key.
    """
    import kombu

    return [
        kombu.Queue(name, kombu.Exchange(name, type="topic"), routing_key=name, queue_arguments=dict(_QUORUM))
        for name in (message.QUEUE, message.BACKLOG_QUEUE)
    ]


def connect(url: str, *, connect_timeout_s: float, socket_timeout_s: float, **options: Any) -> Any:
    """An open kombu connection, publisher confirms on. `options` are py-amqp's. What it raises, `words` explains."""
    import kombu

    connection = kombu.Connection(
        plain_url(url),
        ssl=tls_options(url) or False,
        connect_timeout=connect_timeout_s,
        # Without confirms a publish to a dead RabbitMQ would look like success. The rest: try once, sleep never.
        transport_options={
            "confirm_publish": True,
            "max_retries": 0,
            "interval_start": 0,
            "interval_step": 0,
            "interval_max": 0,
            **options,
        },
    )
    try:
        # `channel()` would try twice and sleep two seconds in between, whatever the options say.
        _ = connection.default_channel
        connection.connection.sock.settimeout(socket_timeout_s)
    except BaseException:
        drop(connection)
        raise
    return connection


def drop(connection: Any) -> None:
    """Close it without a word to the broker, which may be frozen."""
    try:
        connection.collect(socket_timeout=0.1)
    except Exception:  # noqa: BLE001, S110 - it is being thrown away, whatever it says
        pass


@contextmanager
def opened(url: str, *, connect_timeout_s: float, socket_timeout_s: float) -> Iterator[Any]:
    """A connection for a question or two. Raises `errors.BrokerUnavailable` for whatever goes wrong, with `words`."""
    connection = None
    try:
        connection = connect(url, connect_timeout_s=connect_timeout_s, socket_timeout_s=socket_timeout_s)
        yield connection
    except errors.IngestError:
        raise
    except Exception as problem:  # noqa: BLE001 the edge to kombu, whose transports raise what they like
        raise errors.BrokerUnavailable(words(problem)) from None
    finally:
        if connection is not None:
            drop(connection)


def examine(connection: Any) -> list[QueueState]:
    """What this RabbitMQ has of our queues; creates nothing."""
    return [_examine(connection, queue) for queue in queues()]


def _examine(connection: Any, queue: Any) -> QueueState:
    try:
        with connection.channel() as channel:
            told = queue(channel).queue_declare(passive=True)
    except connection.channel_errors as problem:
        if problem.code != _NOT_FOUND:
            raise
        return QueueState(name=queue.name, exists=False, is_quorum=False, waiting=0, consumers=0)
    is_quorum = True
    try:
        with connection.channel() as channel:
            queue(channel).queue_declare()  # it is there: this only compares
    except connection.channel_errors as problem:
        if problem.code != OTHER_KIND:
            raise
        is_quorum = False
    return QueueState(
        name=queue.name, exists=True, is_quorum=is_quorum, waiting=told.message_count, consumers=told.consumer_count
    )


def words(problem: BaseException) -> str:
    """What went wrong and what to do, in words of ours: the broker's may quote a login, kombu's a message."""
    problem = problem.__cause__ or problem  # kombu wraps what happened while it connected
    code = getattr(problem, "code", 0) or getattr(problem, "reply_code", 0)
    match code:
        case 403:
            return "RabbitMQ refuses this user: check name, password and permissions (rabbitmqctl set_permissions)"
        case _ if code == OTHER_KIND:
            return (
                f"RabbitMQ has {_named(problem)} of another kind; ours are quorum queues and topic exchanges: "
                "drain and delete it, or use a virtual host of its own"
            )
        case 530:
            return "RabbitMQ has no such virtual host, or this user may not use it (rabbitmqctl add_vhost)"
        case _ if code == NO_ROUTE:
            return "RabbitMQ has lost our queues; they are declared again in two seconds"
        case _ if type(problem).__name__ == "SSLCertVerificationError":  # ssl is not loaded without need
            return "the certificate of this RabbitMQ is not trusted, or not for this name: see ssl_ca_certs"
        case _:
            return f"RabbitMQ did not answer, or not as it should ({type(problem).__name__})"


def _named(problem: BaseException) -> str:
    found = _OURS.search(str(problem))
    return f"the {found[1]} {found[2]}, but" if found else "something named like ours, but"
