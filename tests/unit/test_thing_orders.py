"""Orders for things and links as a host builds them: safe, bounded, and what a worker makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from producer import capture, config, errors
from producer.convergence import links, objects
from producer.memory import AgentMemory
from producer.outcomes import Durable, Refused
from producer.scope import Scope

SCOPE = Scope(
    agent_id="coder", profile_id="default", privacy_scope="private", participant_scope_hash="a" * 64,
    sandbox_eligible=False,
)  # fmt: skip
AT = "2026-01-01T12:00:00.000Z"
KEY = "1" * 64


def entity(**given: Any) -> dict[str, Any]:
    said: dict[str, Any] = {
        "scope": SCOPE,
        "runtime": "custom",
        "label": "ENTITY",
        "kind": "person",
        "name": "ann",
        "properties": {},
        "source_event_id": None,
        "trust_class": "trusted",
        "provenance": "test",
        "at": AT,
    }
    return capture.build_entity_order(**{**said, **given})


def link(**given: Any) -> dict[str, Any]:
    said: dict[str, Any] = {
        "scope": SCOPE,
        "runtime": "custom",
        "type": "ABOUT",
        "source": ("MEMORY_FACT", KEY),
        "target": ("ENTITY", "2" * 64),
        "at": AT,
    }
    return capture.build_link_order(**{**said, **given})


class TestEntityOrder:
    def test_a_worker_takes_what_a_host_builds(self) -> None:
        label, row = objects.row_of(entity(properties={"age": 7, "admin": True, "email": "ann@example.org"}))
        assert label == "ENTITY"
        assert (row["age"], row["admin"], row["email"], row["name"]) == (7, True, "ann@example.org", "ann")
        assert {name: row[name] for name in SCOPE.fields()} == SCOPE.fields()

    def test_two_calls_are_two_versions_and_one_source_id_is_one(self) -> None:
        versions = [objects.row_of(entity())[1]["contentHash"] for _ in range(2)]
        assert versions[0] != versions[1]
        same = {objects.row_of(entity(source_event_id="write-1"))[1]["contentHash"] for _ in range(2)}
        assert len(same) == 1

    def test_secrets_leave_its_texts_before_anything_is_written(self) -> None:
        secret = "ghp_" + "a1B2" * 9
        order = entity(name=f"bot {secret}", properties={"note": f"key {secret}"})
        assert secret not in repr(order)

    def test_a_long_text_is_bounded_and_a_surrogate_made_whole(self) -> None:
        order = entity(properties={"note": "x" * 7000, "bad": "a\ud83db\0"})
        assert order["properties"]["note"] == "x" * 6000 + "…"
        assert order["properties"]["bad"] == "a\ufffdb"
        objects.row_of(order)

    @pytest.mark.parametrize(
        ("field", "given"),
        [
            ("label", {"label": "SESSION"}),
            ("kind", {"kind": " "}),
            ("name", {"name": "x" * 600}),
            ("properties", {"properties": {"scopeKey": "x"}}),
            ("properties", {"properties": {"not camel": "x"}}),
            ("properties", {"properties": {"list": [1]}}),
            ("properties", {"properties": {"nan": float("nan")}}),
            ("properties", {"properties": {"beyondAllDoubles": 10**400}}),
            ("properties", {"properties": {f"p{n}": n for n in range(33)}}),
            ("trustClass", {"trust_class": "very"}),
        ],
    )
    def test_what_is_wrong_is_refused_by_its_field_before_it_is_durable(
        self, field: str, given: dict[str, Any]
    ) -> None:
        with pytest.raises(errors.ContractViolation) as refused:
            entity(**given)
        assert refused.value.field == field


class TestLinkOrder:
    def test_a_worker_takes_what_a_host_builds(self) -> None:
        ends = links.ends_of(link(), SCOPE.key)
        assert (ends.type, ends.source_label, ends.source, ends.target_label) == ("ABOUT", "MEMORY_FACT", KEY, "ENTITY")

    @pytest.mark.parametrize(
        ("field", "given"),
        [
            ("type", {"type": "about"}),
            ("type", {"type": "SUPERSEDES"}),
            ("source", {"source": ("MEMORY_MARK", KEY)}),
            ("target", {"target": ("ENTITY", "ann")}),
            ("target", {"target": ("MEMORY_FACT", KEY)}),
        ],
    )
    def test_what_is_wrong_is_refused_by_its_field(self, field: str, given: dict[str, Any]) -> None:
        with pytest.raises(errors.ContractViolation) as refused:
            link(**given)
        assert refused.value.field == field


class TestFacade:
    @pytest.fixture
    def memory(self, tmp_path: Path) -> Any:
        settings = config.load({"MEMORY_STATE_DIR": str(tmp_path / "state")})
        with AgentMemory(settings, scope=SCOPE, dispatches=False) as made:
            yield made

    def test_a_thing_is_durable_and_its_key_is_the_one_that_is_stored(self, memory: AgentMemory) -> None:
        assert isinstance(memory.entity(kind="person", name=" ann "), Durable)
        _, row = objects.row_of(entity(name=" ann "))
        assert memory.entity_key(kind="person", name=" ann ") == row["entityKey"]

    def test_a_link_is_durable_before_its_ends_are_there(self, memory: AgentMemory) -> None:
        target = ("ENTITY", memory.entity_key(kind="person", name="ann"))
        assert isinstance(memory.link("ABOUT", ("MEMORY_FACT", KEY), target), Durable)

    def test_what_is_wrong_is_refused_and_never_raised(self, memory: AgentMemory) -> None:
        wrong: Any = 7
        for outcome in (
            memory.entity(kind="", name="ann"),
            memory.entity(kind="person", name=wrong),
            memory.link("about", ("MEMORY_FACT", KEY), ("ENTITY", KEY)),
            memory.link("ABOUT", wrong, ("ENTITY", KEY)),
            memory.link("ABOUT", ("MEMORY_FACT", KEY), wrong),
        ):
            assert isinstance(outcome, Refused)
            assert outcome.reason in ("invalid", "internal")
