"""What workers wrote in the last minutes, shared by all hosts of a scope through Redis.

It bridges the time in which a search index does not show a new record yet. One hash per scope:

    memory:recent:<tenant>:<scopeKey>    field: event or fact id    value: <64 hex signature><body>
    body                                 {"at": unix ms, "entry": {"id", "label", "record": {flat properties}}}

Only workers write. The signature is HMAC-SHA256 with the deployment's cache key over tenant, scope key, id and the
exact body, so that nobody who can merely write to Redis can put words into a recall, move an entry to another scope or
give it a longer life. `at` and age go by Redis' clock, which all hosts share.

Bounds, kept by every write: entries per scope, bytes per scope, age; the key itself always has a time to live. Texts
that recall does not show (both sides of a turn beside its summary) are not kept. While Redis uses more than three
quarters of its memory nothing is added: the cache never pushes the queue out.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from producer import errors

__all__ = ["RecentWrites", "key_name"]

MAX_SCOPE_BYTES = 256 * 1024
_FULL_SHARE = 0.75
_MEMORY_CHECK_S = 5.0
_SIGNATURE_LENGTH = 64
_NOT_SHOWN = frozenset({"userText", "assistantText"})

# Add entries and drop what is over a bound, oldest first, in one step: KEYS the scope's hash; ARGV now, life in ms,
# entries, bytes, then id and value of each. A value carries its `at` behind the signature, so that no second structure
# can disagree.
_PUT = """
for i = 5, #ARGV, 2 do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
end
local all, kept, bytes = redis.call('HGETALL', KEYS[1]), {}, 0
for i = 1, #all, 2 do
  local at = tonumber(string.match(string.sub(all[i + 1], 65), '^{"at":(%d+),')) or 0
  if at + tonumber(ARGV[2]) < tonumber(ARGV[1]) then
    redis.call('HDEL', KEYS[1], all[i])
  else
    bytes = bytes + #all[i + 1]
    kept[#kept + 1] = {at, all[i], #all[i + 1]}
  end
end
table.sort(kept, function(a, b) if a[1] == b[1] then return a[2] < b[2] end return a[1] < b[1] end)
local first = 1
while first <= #kept and (#kept - first + 1 > tonumber(ARGV[3]) or bytes > tonumber(ARGV[4])) do
  redis.call('HDEL', KEYS[1], kept[first][2])
  bytes = bytes - kept[first][3]
  first = first + 1
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return #kept - first + 1
"""


def key_name(tenant: str, scope_key: str) -> str:
    return f"memory:recent:{tenant}:{scope_key}"


class RecentWrites:
    """Recent writes of one tenant. Threads and forked children may share it. Every call raises
    `errors.RedisUnavailable` when Redis does not answer in time: writers count it and go on, readers do without.

    `redis` is a URL, or a callable that makes the client on first use.
    """

    def __init__(
        self,
        redis: str | Callable[[], Any],
        *,
        tenant: str,
        cache_key: str | bytes,
        ttl_s: float = 900,
        max_entries: int = 64,
        max_bytes: int = MAX_SCOPE_BYTES,
        timeout_s: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = redis if callable(redis) else lambda: _connect(redis, timeout_s)
        self._client: Any = None
        self._tenant = tenant
        self._secret = cache_key.encode("utf-8") if isinstance(cache_key, str) else cache_key
        self._life_ms = int(ttl_s * 1000)
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._clock = clock
        self._full, self._checked_at = False, float("-inf")
        self.refused_entries = 0  # values without a valid signature, seen by `read`

    def put(self, scope_key: str, entry: Mapping[str, Any]) -> None:
        """`put_all` of one."""
        self.put_all([(scope_key, entry)])

    def put_all(self, entries: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """Add or replace the entries with these scope keys and ids, the last of them as the newest, in two round trips.
        One over the byte bound is not kept. When this raises, some may be there."""
        if not entries:
            return
        with self._translated() as client:
            self._check_room(client)
            now = _milliseconds(client.time())
            fields: dict[str, list[str]] = {}
            # A millisecond apart, so that they stay in order.
            for at, (scope_key, entry) in enumerate(entries, now - len(entries) + 1):
                fields.setdefault(scope_key, []).extend((entry["id"], self._value(scope_key, entry, at)))
            bounds = (now, self._life_ms, self._max_entries, self._max_bytes)
            with client.pipeline(transaction=False) as pipeline:
                for scope_key, of_scope in fields.items():
                    pipeline.eval(_PUT, 1, key_name(self._tenant, scope_key), *bounds, *of_scope)
                _execute(pipeline)

    def drop_all(self, entries: Iterable[tuple[str, str]]) -> None:
        """Remove the entries with these scope keys and ids, in one round trip. Raises as `put_all` does: the entries
        then go by age, and recall drops what the store shows inactive or has a mark on."""
        ids: dict[str, list[str]] = {}
        for scope_key, id_ in entries:
            ids.setdefault(scope_key, []).append(id_)
        if not ids:
            return
        with self._translated() as client, client.pipeline(transaction=False) as pipeline:
            for scope_key, of_scope in ids.items():
                pipeline.hdel(key_name(self._tenant, scope_key), *of_scope)
            _execute(pipeline)

    def read(self, scope_key: str) -> list[dict[str, Any]]:
        """The entries of this scope, newest first. What is expired or not signed by this deployment is left out."""
        with self._translated() as client, client.pipeline(transaction=False) as pipeline:
            now, found = pipeline.time().hgetall(key_name(self._tenant, scope_key)).execute()
        oldest = _milliseconds(now) - self._life_ms
        entries = []
        for field, value in found.items():
            opened = self._open(scope_key, field, value)
            if opened is None:
                self.refused_entries += 1
            elif opened["at"] >= oldest:
                entries.append(opened)
        entries.sort(key=lambda opened: (-opened["at"], opened["entry"]["id"]))
        return [opened["entry"] for opened in entries[: self._max_entries]]

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _value(self, scope_key: str, entry: Mapping[str, Any], at: int) -> str:
        record = {name: value for name, value in entry["record"].items() if name not in _NOT_SHOWN}
        kept = {"id": entry["id"], "label": entry["label"], "record": record}
        body = f'{{"at":{at},"entry":{json.dumps(kept, ensure_ascii=True, separators=(",", ":"))}}}'
        return self._sign(scope_key, entry["id"], body) + body

    def _sign(self, scope_key: str, id_: str, body: str) -> str:
        signed = "\n".join(("memory:recent", self._tenant, scope_key, id_, body))
        return hmac.new(self._secret, signed.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()

    def _open(self, scope_key: str, field: bytes, value: bytes) -> dict[str, Any] | None:
        try:
            id_, text = field.decode("ascii"), value.decode("ascii")
            signature, body = text[:_SIGNATURE_LENGTH], text[_SIGNATURE_LENGTH:]
            if not hmac.compare_digest(signature, self._sign(scope_key, id_, body)):
                return None
            opened: dict[str, Any] = json.loads(body)
        except ValueError:
            return None
        return opened

    def _check_room(self, client: Any) -> None:
        now = self._clock()
        if now - self._checked_at >= _MEMORY_CHECK_S:
            memory = client.info("memory")
            limit = int(memory.get("maxmemory", 0))
            self._full = limit > 0 and int(memory.get("used_memory", 0)) > _FULL_SHARE * limit
            self._checked_at = now
        if self._full:
            raise errors.RedisUnavailable("Redis is nearly full: recent writes pause so that the queue keeps its room")

    def _translated(self) -> _Translated:
        return _Translated(self)


class _Translated:
    """The client, made on first use; its errors become ours at this one place."""

    def __init__(self, owner: RecentWrites) -> None:
        self._owner = owner

    def __enter__(self) -> Any:
        if self._owner._client is None:
            self._owner._client = self._owner._make()
        return self._owner._client

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, _trace: object) -> None:
        if problem is None or kind is None:
            return
        import redis  # lazy, as below

        from producer import redis_client

        if isinstance(problem, redis.RedisError | OSError):
            raise errors.RedisUnavailable(f"recent writes: Redis {redis_client.trouble(problem)}") from problem


def _connect(url: str, timeout_s: float) -> Any:
    from producer import redis_client  # lazy: the hook path and `import producer.recall` pay for the standard library

    return redis_client.connect(url, connect_timeout_s=timeout_s, socket_timeout_s=timeout_s)


def _execute(pipeline: Any) -> None:
    """Send all commands of a pipeline; raise the first refusal. Redis' client would add the command to its words."""
    for answer in pipeline.execute(raise_on_error=False):
        if isinstance(answer, Exception):
            raise answer


def _milliseconds(redis_time: tuple[int, int]) -> int:
    seconds, microseconds = redis_time
    return seconds * 1000 + microseconds // 1000
