"""What is in a message: its form, its lines, the contract, what a key may do."""

from __future__ import annotations

from typing import Any

import pytest

from memory_tasks import incoming, tenants
from producer import capture, errors, message
from producer.journal import line as lines
from tests import worker_messages as make

KEY = message.Key(id="key", secret=b"s" * 32)


def grant(**limits: Any) -> tenants.Grant:
    return tenants.Grant(key=KEY, tenant="local", store_url="sqlite:////x", **limits)


def opened(of: Any, *, key: tenants.Grant | None = None, **changes: Any) -> incoming.Entry:
    return incoming.open_item(make.item(of, **changes), key or grant(), poison_deaths=3, received_s=7.0)


def test_an_event_line_is_opened_as_a_delivery_with_what_the_journal_says_beside_it():
    line = make.line(make.fact(), lineKey="l" * 64, sessionKey="s" * 64)
    entry = opened(line)
    assert entry.refusal == ""
    assert entry.delivery is not None
    assert (entry.line_hash, entry.id) == (line.hash, line.id)
    assert (entry.delivery.kind, entry.delivery.event) == ("event", line.body["event"])
    assert (entry.delivery.line_key, entry.delivery.session_key) == ("l" * 64, "s" * 64)
    assert (entry.delivery.appended_at, entry.delivery.received) == (make.AT, 7.0)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"schemaVersion": 2}, "contract:schemaVersion:is_not_a_version_that_this_software_knows"),
        ({"eventType": "dream"}, "contract:eventType:is_not_episode_or_fact"),
        ({"userText": "another"}, "contract:eventId:is_not_the_id_of_this_content"),
        ({"eventId": "0" * 64}, "contract:eventId:is_not_the_id_of_this_content"),
        ({"agentId": ""}, "contract:agentId:is_empty"),
        ({"turnIndex": "0"}, "contract:turnIndex:is_not_a_whole_number"),
        ({"hunter2secretword": 1}, "contract:event:is_not_a_field_of_this_event"),
        ({"assistantText": "\ud83d"}, "contract:assistantText:is_not_unicode_text"),
    ],
)
def test_an_event_that_breaks_the_contract_is_refused_with_a_code_that_quotes_nothing(change, code):
    entry = opened(make.line({**make.episode(), **change}))
    assert (entry.delivery, entry.refusal) == (None, code)


def test_a_line_whose_id_is_not_its_events_is_refused():
    text = lines.encode(kind="event", id="f" * 64, appended_at=make.AT, body={"event": make.episode()})
    assert opened(text).refusal == "id_differs"


@pytest.mark.parametrize("text", ["", "{}", "not a line", '{"v":1}', "x" * 100])
def test_text_that_is_no_line_is_refused_under_its_hash(text):
    entry = opened(text)
    assert entry.refusal == "damaged_line"
    assert entry.line_hash == lines.line_hash(text)


def test_text_that_cannot_be_hashed_has_no_hash():
    entry = opened(make.line(make.episode()).text.replace("turn", "tür"))
    assert (entry.refusal, entry.line_hash) == ("damaged_line", "")


@pytest.mark.parametrize("kind", ["sent", "receipt"])
def test_lines_that_journals_keep_for_themselves_are_refused(kind):
    text = lines.encode(kind=kind, id="a" * 64, appended_at=make.AT, body={"lineHash": "b" * 64})
    assert opened(text).refusal == "kind_not_deliverable"


@pytest.mark.parametrize("limits", [{"agents": frozenset({"other"})}, {"profiles": frozenset({"other"})}])
def test_an_event_of_a_scope_the_key_may_not_write_is_refused(limits):
    assert opened(make.line(make.episode()), key=grant(**limits)).refusal == "scope_not_allowed"
    within = grant(agents=frozenset({"agent"}), profiles=frozenset({"default"}))
    assert opened(make.line(make.episode()), key=within).refusal == ""


def test_orders_are_checked_as_events_are():
    retract = capture.build_retract_order(scope=make.SCOPE, runtime="custom", target="a" * 64, at=make.AT)
    entry = opened(make.order(retract))
    assert entry.delivery is not None
    assert (entry.delivery.kind, entry.delivery.event) == ("order", retract)
    assert opened(make.order(retract), key=grant(agents=frozenset({"other"}))).refusal == "scope_not_allowed"
    forged = lines.encode(
        kind="order", id=capture.order_id(retract), appended_at=make.AT, body={"order": {**retract, "target": "b" * 64}}
    )
    assert opened(forged).refusal == "id_differs"
    no_scope = {name: value for name, value in retract.items() if name != "scope"}
    assert opened(make.order(no_scope)).refusal == "scope:scope_invalid"
    odd = {**retract, "target": "constructor"}
    assert opened(make.order(odd)).refusal == "contract:order:target_is_no_id"
    no_object = lines.encode(kind="order", id="a" * 64, appended_at=make.AT, body={"order": [1]})
    assert opened(no_object).refusal == "contract:order:is_not_an_object"


def test_only_an_operators_key_may_order_forgetting_everywhere():
    order = capture.build_forget_order(scope=None, runtime="custom", at=make.AT, target="a" * 64)
    assert opened(make.order(order)).refusal == "everywhere_not_allowed"
    assert opened(make.order(order), key=grant(operator=True)).refusal == ""


def test_an_event_that_killed_too_many_children_is_refused_before_it_is_touched():
    line = make.line(make.episode())
    assert opened(line, deaths=2).refusal == ""
    assert opened(line, deaths=3).refusal == "poison"


def test_a_message_is_taken_only_in_its_exact_form():
    good = message.arguments([make.item("x", deaths=1, unsure=True)], tries=2, unsure_until=5.0)
    asked = incoming.Message.of(good, redelivered=True, received_s=1.0)
    assert asked.items == (make.item("x", deaths=1, unsure=True),)
    assert (asked.tries, asked.unsure_until, asked.is_look) == (2, 5.0, True)
    item = good["batch"][0]
    for bad in (
        {},
        {**good, "extra": 1},
        {**good, "batch": []},
        {**good, "batch": "x"},
        {**good, "batch": [item] * 101},
        {**good, "tries": -1},
        {**good, "tries": True},
        {**good, "unsureUntil": "soon"},
        {**good, "batch": [{**item, "line": None}]},
        {**good, "batch": [{**item, "unsure": 1}]},
        {**good, "batch": [{**item, "deaths": -1}]},
        {**good, "batch": [None]},
    ):
        with pytest.raises(errors.SignatureRefused, match="malformed"):
            incoming.Message.of(bad, redelivered=False, received_s=0.0)


def test_codes_tell_class_and_status():
    assert incoming.code_of(errors.StoreUnavailable("x", status=503)) == "store_unavailable:503"
    assert incoming.code_of(errors.StoreUnavailable("x")) == "store_unavailable"
    assert incoming.code_of(errors.DeliveryTooOld("x")) == "delivery_too_old"
    assert incoming.code_of(errors.ScopeRefused("cron")) == "scope:cron"
    assert incoming.code_of(errors.ContractViolation("says WHAT?", field="secretword")) == "contract:event:says_what"


@pytest.mark.parametrize("journal_id", ["", "../../x", None, "A" * 32, 7])
def test_a_message_without_a_journal_is_refused_for_that(journal_id):
    good = message.arguments([make.item("x")])
    item = good["batch"][0]
    missing = {name: value for name, value in item.items() if name != "journalId"}
    for bad in ({**item, "journalId": journal_id}, missing):
        with pytest.raises(errors.SignatureRefused, match="no_journal"):
            incoming.Message.of({**good, "batch": [bad]}, redelivered=False, received_s=0.0)


def test_a_check_and_its_reason_are_read_and_only_a_code_is_taken():
    good = message.arguments([make.item("x", check=True, reason="contract:event:is_empty")])
    asked = incoming.Message.of(good, redelivered=False, received_s=0.0)
    assert asked.items == (make.item("x", check=True, reason="contract:event:is_empty"),)
    item = good["batch"][0]
    for bad in ({"check": 1}, {"reason": None}, {"reason": "the heron nests"}, {"reason": "x" * 161}):
        with pytest.raises(errors.SignatureRefused, match="malformed"):
            incoming.Message.of({**good, "batch": [{**item, **bad}]}, redelivered=False, received_s=0.0)


def test_an_ordinary_item_says_nothing_of_checks():
    assert set(message.arguments([make.item("x")])["batch"][0]) == {"line", "journalId", "unsure", "deaths"}


def test_an_item_that_is_not_opened_has_the_hash_and_the_id_that_stand_in_its_text():
    line = make.line(make.episode())
    entry = incoming.unopened(make.item(line))
    assert (entry.line_hash, entry.id, entry.delivery, entry.refusal) == (line.hash, line.id, None, "")
    assert incoming.unopened(make.item("damaged")).id == ""
    assert incoming.unopened(make.item("dämaged")).line_hash == ""
