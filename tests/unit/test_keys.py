"""Keys of stored records are pinned: other programs on the same store compute them too."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from producer import errors, keys
from producer.scope import Scope

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "keys.v1.json").read_text("utf-8"))
SCOPE = GOLDEN[0]["arguments"][0]
FACT = GOLDEN[-1]["arguments"][0]
EPISODE = GOLDEN[-2]["arguments"][0]


@pytest.mark.parametrize("vector", GOLDEN, ids=lambda vector: vector["function"])
def test_a_key_never_changes(vector: dict) -> None:
    function, arguments = getattr(keys, vector["function"]), vector["arguments"]
    key = function(**arguments) if isinstance(arguments, dict) else function(*arguments)
    assert key == vector["key"]
    if vector["canonical"] is not None:
        assert key == hashlib.sha256(vector["canonical"].encode("utf-8")).hexdigest()


def test_a_key_is_the_hash_of_exactly_the_named_object() -> None:
    expected = json.dumps(
        {"at": "t", "by": "b", "scopeKey": "s", "target": "x", "what": "retracted"}, separators=(",", ":")
    )
    key = keys.mark_key(what="retracted", target="x", by="b", scope_key="s", at="t")
    assert key == hashlib.sha256(expected.encode()).hexdigest()


def test_the_scope_key_is_that_of_the_five_fields_wherever_they_stand() -> None:
    scope = Scope.of_fields(SCOPE)
    assert keys.scope_key(scope) == keys.scope_key({**SCOPE, "text": "x"}) == scope.key == GOLDEN[0]["key"]


@pytest.mark.parametrize("field", keys.SCOPE_FIELDS)
def test_every_scope_field_is_part_of_the_scope_key(field: str) -> None:
    other = (not SCOPE[field]) if isinstance(SCOPE[field], bool) else SCOPE[field] + "x"
    assert keys.scope_key({**SCOPE, field: other}) != keys.scope_key(SCOPE)


@pytest.mark.parametrize("name", ["observedAt", "validFrom", "active", "confidence"])
def test_clock_verdict_and_confidence_are_outside_the_content(name: str) -> None:
    for event in (EPISODE, FACT):
        assert keys.content_hash({**event, name: "2030-01-01T00:00:00Z"}) == keys.content_hash(event)


@pytest.mark.parametrize("name", ["summary", "text", "visibility", "supersedesFactId", "validUntil", "agentId"])
def test_everything_else_is_content(name: str) -> None:
    assert keys.content_hash({**FACT, name: "2030-01-01T00:00:00Z"}) != keys.content_hash(FACT)


def test_the_form_of_a_time_is_not_content() -> None:
    assert keys.content_hash({**FACT, "validUntil": "2027-01-01T00:00:00.000Z"}) == keys.content_hash(FACT)


def test_a_time_that_is_none_is_refused() -> None:
    with pytest.raises(errors.ContractViolation):
        keys.content_hash({**FACT, "validUntil": "soon"})


def test_all_names_that_are_exported_exist() -> None:
    assert all(hasattr(keys, name) for name in keys.__all__)
