"""Each rule of design's table taken out of the real code: `without(rule)` replaces the function that holds it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from producer.convergence import content, deliver, forget, graph, links, marks, reader, requests, rivals, settle
from producer.convergence.requests import CacheDrop, Find, Steps, Upsert
from producer.store import port

Patch = tuple[Any, str, Any]
_rng = random.Random(0)


def _nothing(*_: Any, **__: Any) -> Steps[None]:
    return
    yield ()


def _look_only(label: str, id_: str, watch: Sequence[str] = (), first: Any = None) -> Steps[settle.Seen]:
    return first or (yield from settle.look(label, id_, watch))


_copies = content.copies
_row_of = content.row_of
_rank = requests.rank


def _shuffled(records: Iterable[port.Record]) -> list[list[port.Record]]:
    groups = _copies(records)
    for group in groups:
        _rng.shuffle(group)
    return groups


def _active_row(event: Any, **given: Any) -> dict[str, Any]:
    return {**_row_of(event, **given), "active": True}


def _stub(label: str, record: port.Record, verdict: Any) -> dict[str, Any]:
    return {name: record.properties[name] for name in content.merge_by(label)} | verdict


def _marked_last(new: deliver.Incoming) -> Steps[None]:
    if new.over:
        yield from deliver._supersede(new)
        yield from rivals.compete(new.label, new.over, new.scope_key)


def _believed(mark: marks.Mark, *, cached: bool = True) -> Steps[None]:
    (found,) = yield (Find(label="MEMORY_MARK", key="target", value=mark.target),)
    if not marks.is_there(marks.read(found), mark):
        yield (Upsert(label="MEMORY_MARK", merge_by=("markKey",), row=mark.row()),)
    if cached:
        yield (CacheDrop(scope_key=mark.scope_key, id=mark.target),)


def _every_claim(found: Iterable[marks.Mark], scope_key: str) -> frozenset[marks.Claim]:
    return frozenset((m.at, m.by) for m in found if m.what == marks.SUPERSEDED and marks.counts(m, scope_key))


def _unmended(*_: Any) -> Steps[bool]:
    return False
    yield ()


def _one_end(*_: Any) -> Steps[list[Any]]:
    return []
    yield ()


_asked = links._asked
_mend_pair = links.mend_pair
_thing = deliver._thing


def _out_alone(ends: links.Ends, at: str) -> Steps[None]:
    what = f"link:{ends.type}:out:{ends.target_label}"
    yield from marks.write(
        marks.Mark(what=what, target=ends.source, by=ends.target, scope_key=ends.scope_key, at=at), cached=False
    )


def _of_any_scope(label: str, record: port.Record, mark: marks.Mark) -> links.Ends | None:
    return _asked(label, record, replace(mark, scope_key=str(record.get("scopeKey"))))


def _once(ends: links.Ends) -> Steps[bool]:
    """Believed when it was sent."""
    yield from _mend_pair(ends)
    return False


def _at_peace(delivery: Any) -> deliver.Incoming:
    return replace(_thing(delivery), over="")


RULES: dict[str, list[Patch]] = {
    "look": [(settle, "settle", _look_only)],
    "fold": [(settle, "spare", lambda same: [])],
    "smallest": [(content, "copies", _shuffled)],
    "activate": [(content, "row_of", _active_row)],
    "first": [(deliver, "_before", _nothing), (deliver, "_after", _marked_last)],
    "readback": [(marks, "write", _believed)],
    "forgotten": [(marks, "forgotten", lambda found, scope_key: False)],
    "ended": [(deliver, "_ended", _nothing)],
    "scope": [(marks, "counts", lambda mark, scope_key: True)],
    "hash": [(content, "merge_by", lambda label: (content.ID[label],))],
    "whole": [(content, "whole", _stub)],
    "reader": [(reader, "has_ended", lambda record: False)],
    "rivals": [(rivals, "compete", _nothing)],
    "before": [(deliver, "_compete_before", _nothing)],
    "chain": [(rivals, "chained", lambda losers: [])],
    "links": [(graph, "mend", _unmended)],
    "clock": [
        (marks, "claims", _every_claim),
        (marks, "is_there", lambda found, mark: mark in list(found)),
    ],
    "later": [],  # the schedule's own: a killed delivery gets no later look
    # What the model does not have.
    "order": [(requests, "rank", lambda request: 4.5 if _rank(request) == 6 else _rank(request))],  # marks first
    "ends": [(graph, "_unlinked", _one_end)],
    "sessions": [(graph, "fold_sessions", _unmended)],
    "group": [(forget, "covering", lambda *_: None)],
    "retract": [(marks, "retracted_at", lambda found, scope_key: None)],
}
# Of things and ordered links.
THING_RULES: dict[str, list[Patch]] = {
    "links_mended": [(links, "mend", _unmended)],
    "link_in": [(links, "write", _out_alone)],
    "link_scope": [(links, "_asked", _of_any_scope)],
    "link_again": [(links, "mend_pair", _once)],
    "versions": [(deliver, "_thing", _at_peace)],
    "thing_group": [(forget, "covering", lambda *_: None)],
}


@contextmanager
def without(rule: str) -> Iterator[None]:
    """The code without this rule."""
    patches: list[Callable[..., Any]] = [mock.patch.object(*patch) for patch in (RULES | THING_RULES)[rule]]
    for patch in patches:
        patch.start()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for patch in reversed(patches):
            patch.stop()  # type: ignore[attr-defined]
