"""The guarantees of `producer.forgotten_lines`: what a settled order to forget means for the lines that are here."""

from __future__ import annotations

from typing import Any

import pytest

from producer import capture, identity
from producer.journal import segments
from producer.journal.line import Line
from producer.receipt import State
from producer.scope import Scope
from tests.unit.journal.support import texts
from tests.unit.test_dispatcher import Host


def scope_of(name: str) -> Scope:
    return Scope(
        agent_id="agent",
        profile_id="default",
        privacy_scope="private",
        participant_scope_hash=identity.sha256_hex(name),
        sandbox_eligible=False,
    )


ANN, BOB = scope_of("ann"), scope_of("bob")


@pytest.fixture
def host() -> Any:
    made = Host()
    made.rounds(1)
    yield made
    made.dispatcher.close()
    made.journal.close()


def turn(host: Host, text: str, scope: Scope = ANN) -> Line:
    captured = capture.build_episode(
        scope=scope,
        runtime="custom",
        external_session_id="s-1",
        source_event_id=text,
        turn_index=0,
        user_text=text,
        assistant_text="noted",
        observed_at=segments.iso_of_ms(host.journal.now_ms()),
        conversation_kind="local",
        visibility="participant",
        trust_class="mixed",
        origin_class="conversation",
        provenance="test",
    )
    return host.journal.append_event(captured.event)


def thing(host: Host, scope: Scope = ANN) -> Line:
    return host.journal.append_order(
        capture.build_entity_order(
            scope=scope,
            runtime="custom",
            label="ENTITY",
            kind="boat",
            name="Merle",
            properties={"berth": "12"},
            source_event_id=None,
            trust_class="trusted",
            provenance="test",
            at=segments.iso_of_ms(host.journal.now_ms()),
        )
    )


def forget(host: Host, scope: Scope | None = ANN, **names: Any) -> Line:
    at = segments.iso_of_ms(host.journal.now_ms())
    names = names or {"group": {"participant": ANN.participant_scope_hash}}
    return host.journal.append_order(capture.build_forget_order(scope=scope, runtime="custom", at=at, **names))


def states(host: Host) -> dict[str, str]:
    """The states that the journal's receipts give, by line."""
    receipts = [located.line.body for located in host.journal.scan() if located.line.kind == "receipt"]
    return {body["lineHash"]: body["state"] for body in receipts}


def settled(host: Host, *lines: Line, state: State = State.STORED, **fields: Any) -> None:
    for line in lines:
        host.receipt(line, state, **fields)
    host.rounds(2, every_s=6)


def test_what_was_stored_and_is_forgotten_leaves_the_disk_after_five_minutes_and_others_stay(host: Host) -> None:
    gone, kept = turn(host, "the key is in the boathouse"), turn(host, "the oars are here", BOB)
    host.rounds()
    settled(host, gone)
    order = forget(host)
    host.rounds()
    assert states(host) == {gone.hash: "stored"}
    settled(host, order)
    host.rounds(2, every_s=6)
    assert states(host)[gone.hash] == "forgotten"
    host.rounds(60, every_s=6)
    assert texts(host.journal) == [kept.text]
    contents = [host.fs.contents(f"{host.journal.directory}/{name}") for name in host.journal.segment_names()]
    assert not any(b"boathouse" in content for content in contents)


def test_an_order_that_is_not_settled_or_was_refused_gives_up_nothing(host: Host) -> None:
    stored = turn(host, "one")
    host.rounds()
    settled(host, stored)
    order = forget(host, scope=None, group={"participant": ANN.participant_scope_hash})
    host.rounds(5, every_s=6)
    settled(host, order, state=State.DEAD, reason="everywhere_not_allowed")
    host.rounds(5, every_s=6)
    assert states(host)[stored.hash] == "stored"


def test_dead_lines_are_asked_about_as_soon_as_the_order_is_settled(host: Host) -> None:
    dead = turn(host, "one")
    host.rounds()
    settled(host, dead, state=State.DEAD, reason="store_refused:422")
    host.rounds(5, every_s=6)
    host.broker.take()
    order = forget(host)
    settled(host, order)
    asked = [item for item in host.broker.items() if item["check"]]
    assert [item["line"] for item in asked] == [dead.text]
    assert states(host)[dead.hash] == "dead"


def test_a_dead_order_of_a_thing_is_given_up_here(host: Host) -> None:
    dead, others = thing(host), thing(host, BOB)
    host.rounds()
    settled(host, dead, others, state=State.DEAD, reason="store_refused:422")
    settled(host, forget(host))
    host.rounds(2, every_s=6)
    assert states(host)[dead.hash] == "forgotten" and states(host)[others.hash] == "dead"


def test_a_dead_order_of_a_thing_from_after_the_order_to_forget_stays_with_its_content(host: Host) -> None:
    order = forget(host)
    host.rounds(20, every_s=6)  # its receipt is late, and the margin for clocks is over
    later = thing(host)
    host.rounds()
    settled(host, later, state=State.DEAD, reason="store_refused:422")
    settled(host, order)
    host.rounds(5, every_s=6)
    assert states(host)[later.hash] == "dead"


def test_a_drainer_that_died_before_it_was_done_is_followed_by_one_that_is(host: Host) -> None:
    gone = turn(host, "one")
    host.rounds()
    settled(host, gone)
    order = forget(host)
    host.rounds()
    host.receipt(order)
    host.dispatcher._take_receipts(host.clock())  # it journals the receipt, and dies
    assert states(host)[gone.hash] == "stored"
    host.restart()
    host.rounds(3, every_s=6)
    assert states(host)[gone.hash] == "forgotten"


def test_what_was_captured_later_stays(host: Host) -> None:
    order = forget(host)
    host.rounds()
    settled(host, order)
    host.clock.advance(120)
    later = turn(host, "one")
    host.rounds()
    settled(host, later)
    host.restart()  # the next drainer finds the order, and begins again
    host.rounds(3, every_s=6)
    assert states(host) == {order.hash: "stored", later.hash: "stored"}


def test_what_was_captured_later_and_stored_before_the_order_was_settled_leaves_with_its_group(host: Host) -> None:
    order = forget(host)
    host.rounds()
    host.clock.advance(120)
    later = turn(host, "one")
    host.rounds()
    settled(host, later)
    settled(host, order)
    host.rounds(2, every_s=6)
    assert states(host)[later.hash] == "forgotten"
