"""What the rules of one delivery ask for: frozen requests, yielded in tuples, answered in lists of the same order.

The rules do no I/O. Each is a generator that yields a tuple of requests and is sent their answers; who runs it (the
batch driver, a test that runs one request at a time) decides when and together with what they are sent. Within one
tuple the order of sending is that of `rank`, whatever their order in the tuple: writes before looks, content before
marks, marks before edges. Rules rely on it: a mark that is missing in a look was not there when the content was seen.

    request     answer
    Find        list of port.Record, ordered by record id
    Scan        port.Page
    Edges       list of port.Edge
    HasVector   bool (True when nobody wants vectors)
    SetVector   True; False: the store refused it (look again, the record may be gone); None: there is no vector for it
    the others  None, which is no proof that it was done
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from producer.store import port

__all__ = [
    "CacheDrop",
    "CachePut",
    "Delete",
    "Edges",
    "Find",
    "HasVector",
    "Link",
    "Request",
    "Scan",
    "SetVector",
    "Steps",
    "Upsert",
    "rank",
    "together",
]

MARK = "MEMORY_MARK"


@dataclass(frozen=True, kw_only=True, slots=True)
class Upsert:
    label: str
    merge_by: tuple[str, ...]
    row: Mapping[str, port.Value]


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """Edges from every `source_label` record whose `by` is `value` to every record whose `target_key` equals its
    `source_key`, and whose `target_by` is `target_value` where that is named. `scope_key`: only between records of
    this scope ("" when the keys themselves hold the scope)."""

    type: str
    source_label: str
    source_key: str
    target_label: str
    target_key: str
    by: str
    value: str
    scope_key: str = ""
    target_by: str = ""
    target_value: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SetVector:
    label: str
    property: str
    record_id: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Delete:
    label: str
    record_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CachePut:
    scope_key: str
    entry: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Find:
    """All records of `label` whose property `key` is `value`."""

    label: str
    key: str
    value: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Scan:
    """One page of the records under any `where`, ordered by record id."""

    label: str
    where: port.Where
    skip: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Edges:
    """The edges out of one record, or those into it."""

    label: str
    record_id: str
    into: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class HasVector:
    label: str
    property: str
    record_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheDrop:
    scope_key: str
    id: str


Request = Upsert | Link | SetVector | Delete | CachePut | Find | Scan | Edges | HasVector | CacheDrop

T = TypeVar("T")
Steps = Generator[tuple[Request, ...], list[Any], T]

_RANKS: dict[type, int] = {
    Upsert: 0,
    Link: 1,
    SetVector: 2,
    Delete: 3,
    CachePut: 4,  # before the look that may confirm it
    Find: 5,
    Scan: 5,
    Edges: 7,
    HasVector: 7,
    CacheDrop: 8,
}


def rank(request: Request) -> int:
    """Place in the order of sending within one tuple."""
    return 6 if isinstance(request, Find) and request.label == MARK else _RANKS[type(request)]


def together(lines: Iterable[Steps[T]]) -> Steps[list[T]]:
    """Run several lines of steps in lockstep, so that their requests can share store calls; their results in order."""
    running = list(lines)
    if len(running) == 1:
        return [(yield from running[0])]
    results: list[Any] = [None] * len(running)
    wanted: dict[int, tuple[Request, ...]] = {}
    for number, line in enumerate(running):
        try:
            wanted[number] = next(line)
        except StopIteration as end:
            results[number] = end.value
    while wanted:
        answers = iter((yield tuple(request for requests in wanted.values() for request in requests)))
        for number, requests in list(wanted.items()):
            try:
                wanted[number] = running[number].send([next(answers) for _ in requests])
            except StopIteration as end:
                results[number] = end.value
                del wanted[number]
    return results
