"""The forms of a Redis URL, one spelling for broker and receipts. Standard library only; parsed here and nowhere else.

    redis://[user[:password]@]host[:port][/db]
    rediss://[user[:password]@]host[:port][/db][?ssl_…]              TLS; the certificate is verified
    redis+socket://[user[:password]@]/path[?virtual_host=db]         unix socket; `unix://` with `db=` is the same
    sentinel://[user[:password]@]host[:port];sentinel://host[:port][/db]?master_name=name[&sentinel_…][&ssl_…]

User, password and paths are percent-encoded. The login, the database and the parameters may stand in any one of several
sentinels' URLs; the login is that of the data nodes.

    ssl_ca_certs                          file with the authorities to trust; without it the system's
    ssl_certfile, ssl_keyfile             our own certificate, where the server asks for one
    ssl_check_hostname                    true (default) or false: whether the certificate must name the host
    ssl_cert_reqs                         required (default) or none: `none` trusts everybody on the way
    master_name                           what the sentinels call the master; needed
    sentinel_username, sentinel_password  login of the sentinels themselves

Any `ssl_` parameter in a sentinel URL means TLS for sentinels and data nodes alike. Everything else is refused: what is
not known here would mean different things to kombu and redis-py. Redis Cluster is not supported: queues need
transactions over several keys.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field

from producer import errors

__all__ = ["SCHEMES", "RedisUrl", "is_redis", "parse"]

SCHEMES = ("redis", "rediss", "redis+socket", "unix", "sentinel")
_PORTS = {"sentinel": 26379}
_TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
_KNOWN = {
    "redis": frozenset[str](),
    "rediss": frozenset(_TLS),
    "redis+socket": frozenset({"virtual_host", "db"}),
    "sentinel": frozenset({*_TLS, "master_name", "sentinel_username", "sentinel_password"}),
}


@dataclass(frozen=True, kw_only=True)
class RedisUrl:
    """One Redis, or one group watched by sentinels. Logins are left out of the representation."""

    scheme: str  # redis, rediss, redis+socket or sentinel
    hosts: tuple[tuple[str, int], ...] = ()  # sentinels, where there is a master name
    path: str = ""  # of a unix socket
    db: int = 0
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    tls: Mapping[str, str | bool] | None = None  # `ssl_…` as redis-py and kombu both take them
    master_name: str = ""
    sentinel_username: str = field(default="", repr=False)
    sentinel_password: str = field(default="", repr=False)

    @property
    def shown(self) -> str:
        """Fit for a terminal: without passwords, and of the parameters the master's name alone."""
        login = f"{self.username}:***@" if self.username or self.password else ""
        places = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts]
        if self.path:
            return f"{self.scheme}://{login}{self.path}" + (f"?virtual_host={self.db}" if self.db else "")
        name = f"?master_name={self.master_name}" if self.master_name else ""
        return f"{self.scheme}://{login}" + f";{self.scheme}://".join(places) + f"/{self.db}{name}"

    @property
    def verified(self) -> bool:
        """False for TLS that trusts everybody."""
        return self.tls is None or self.tls["ssl_cert_reqs"] == "required"


def is_redis(url: str) -> bool:
    """Whether this is meant to be a Redis, also one in a form that is refused."""
    return url.partition("://")[0] in (*SCHEMES, "redis+cluster", "rediss+cluster")


def parse(url: str, *, setting: str = "MEMORY_REDIS_URL") -> RedisUrl:
    """What the URL says. Raises `errors.SettingsRefused`, or `errors.Unsupported` for a cluster; neither quotes it."""
    scheme = url.partition("://")[0]
    if "cluster" in scheme:
        raise errors.Unsupported(f"{setting}: Redis Cluster; use one Redis, or Sentinel for failover")
    if scheme not in SCHEMES:
        raise errors.SettingsRefused(setting, f"unknown form; use one of {', '.join(s + '://' for s in SCHEMES)}")
    try:
        return _parsed(url, "redis+socket" if scheme == "unix" else scheme, setting)
    except ValueError:  # of urlsplit, its port or the database; its words quote the URL
        raise errors.SettingsRefused(
            setting, "cannot be read as a URL; percent-encode what is not a letter or digit in user and password"
        ) from None


def _parsed(url: str, scheme: str, setting: str) -> RedisUrl:
    several = url.split(";") if scheme == "sentinel" else [url]
    parts = [urllib.parse.urlsplit(one if "://" in one else f"{scheme}://{one}") for one in several if one]
    if any(part.scheme not in (scheme, "unix") or part.fragment or "@" in part.path for part in parts):
        raise ValueError
    query: dict[str, str] = {}
    for part in parts:
        pairs = part.query.replace("+", "%2B")  # a plus is one, in passwords and in paths
        query.update(urllib.parse.parse_qsl(pairs, keep_blank_values=True, strict_parsing=bool(pairs)))
    unknown = sorted(query.keys() - _KNOWN[scheme])
    if unknown:
        raise errors.SettingsRefused(setting, _why_unknown(unknown[0], scheme))
    path = urllib.parse.unquote(parts[0].path) if scheme == "redis+socket" else ""
    login = next((part for part in parts if part.username or part.password), parts[0])
    form = RedisUrl(
        scheme=scheme,
        hosts=() if path else tuple((part.hostname or "", part.port or _PORTS.get(scheme, 6379)) for part in parts),
        path=path,
        db=_db(query.get("virtual_host") or query.get("db") or "", parts, bool(path)),
        username=urllib.parse.unquote(login.username or ""),
        password=urllib.parse.unquote(login.password or ""),
        tls=_tls(query, setting) if scheme == "rediss" or any(name in query for name in _TLS) else None,
        master_name=query.get("master_name", ""),
        sentinel_username=query.get("sentinel_username", ""),
        sentinel_password=query.get("sentinel_password", ""),
    )
    if scheme == "redis+socket" and (not path or parts[0].hostname):
        raise errors.SettingsRefused(setting, f"{scheme}:// needs the socket's absolute path, behind three slashes")
    if not all(host for host, _ in form.hosts):
        raise errors.SettingsRefused(setting, "names no host")
    if scheme == "sentinel" and not form.master_name:
        raise errors.SettingsRefused(setting, "sentinel:// needs ?master_name=, the name that the sentinels watch")
    return form


def _why_unknown(name: str, scheme: str) -> str:
    if name in _TLS:
        return f"{name} needs rediss:// (TLS) in place of {scheme}://"
    known = ", ".join(sorted(_KNOWN[scheme])) or "none"
    return f"a parameter that {scheme}:// does not have; known are: {known}"


def _db(given: str, parts: list[urllib.parse.SplitResult], is_socket: bool) -> int:
    text = given or ("" if is_socket else next((p.path.strip("/") for p in parts if p.path.strip("/")), ""))
    if text and not (text.isascii() and text.isdigit()):
        raise ValueError
    return int(text or 0)


def _tls(query: Mapping[str, str], setting: str) -> dict[str, str | bool]:
    reqs, check = query.get("ssl_cert_reqs", "required"), query.get("ssl_check_hostname", "true")
    if reqs not in ("required", "none"):
        raise errors.SettingsRefused(setting, "ssl_cert_reqs is required (the default) or none")
    if check not in ("true", "false"):
        raise errors.SettingsRefused(setting, "ssl_check_hostname is true (the default) or false")
    files = {name: query[name] for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile") if query.get(name)}
    if ("ssl_certfile" in files) != ("ssl_keyfile" in files):
        raise errors.SettingsRefused(setting, "ssl_certfile and ssl_keyfile go together")
    # Without a certificate that must hold, there is no name in it that could.
    return {**files, "ssl_cert_reqs": reqs, "ssl_check_hostname": check == "true" and reqs == "required"}
