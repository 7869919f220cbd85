"""What a worker and its children say to each other survives the trip, every kind of result and of error."""

from __future__ import annotations

import inspect
import socket

import pytest

from memory_tasks import frames, incoming, tenants
from memory_tasks.results import Checked, Handled, Result
from producer import errors, message
from producer.convergence import delivery
from producer.receipt import State
from tests import worker_messages as make

MADE = {
    "ContractViolation": lambda: errors.ContractViolation("is not a time", field="observedAt"),
    "ScopeRefused": lambda: errors.ScopeRefused("scope_invalid", "agentId"),
    "SettingsRefused": lambda: errors.SettingsRefused("MEMORY_EMBED_URL", "is not there"),
    "SignatureRefused": lambda: errors.SignatureRefused("unsigned"),
    "StoreThrottled": lambda: errors.StoreThrottled("wait", retry_after_s=200.0, status=429),
    "StoreUnavailable": lambda: errors.StoreUnavailable("no answer", outcome_unknown=True, status=503),
    "StoreRefused": lambda: errors.StoreRefused("no", status=422),
}


def there_and_back(result: Result | None) -> Result | None:
    item = make.item(make.line(make.episode()))
    handled = [Handled(entry=incoming.Entry(item=item, line_hash="h", id="i", refusal="r"), result=result)]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        frames.send(ours, frames.answer_of(handled))
        (back,) = frames.handled_of(frames.receive(theirs), [item])
    assert back.entry == handled[0].entry
    return back.result


@pytest.mark.parametrize(
    "result",
    [
        None,
        Checked(forgotten=True),
        Checked(forgotten=False),
        delivery.Settled(state=State.STORED, conflict=True, unsure=True, cache_errors=2),
        delivery.Settled(state=State.STORED, duplicate=True),
        delivery.Settled(state=State.DEAD, reason="supersedes_itself"),
    ],
)
def test_a_result_comes_back_as_it_was(result):
    assert there_and_back(result) == result


@pytest.mark.parametrize("name", [n for n in errors.__all__ if inspect.isclass(getattr(errors, n))])
def test_an_error_comes_back_with_its_class_and_what_it_says(name):
    problem = MADE.get(name, lambda: getattr(errors, name)("why"))()
    back = there_and_back(delivery.Failed(error=problem, unsure=True, cache_errors=1))
    assert isinstance(back, delivery.Failed)
    assert (back.unsure, back.cache_errors) == (True, 1)
    assert type(back.error) is type(problem)
    assert vars(back.error) == vars(problem)
    assert str(back.error) == str(problem)
    assert incoming.code_of(back.error) == incoming.code_of(problem)


def test_a_request_carries_items_grant_and_deadline_and_not_the_key():
    key = message.Key(id="key-1", secret=b"the secret of a key")
    grant = tenants.Grant(
        key=key, tenant="acme", store_url="s", store_token="t", agents=frozenset({"a", "b"}), operator=True
    )
    items = [
        make.item("x", unsure=True, deaths=2),
        make.item("y", check=True, reason="poison"),
    ]
    frame = frames.request(items, grant, received_s=1.5, until=2.5)
    assert "the secret" not in repr(frame)
    got_items, got, received_s, until = frames.request_of(frame)
    assert got_items == items
    assert (got.tenant, got.agents, got.profiles, got.operator) == ("acme", frozenset({"a", "b"}), None, True)
    assert (received_s, until) == (1.5, 2.5)


def test_the_end_of_the_stream_is_told_also_in_the_middle_of_a_frame():
    for cut in (b"", b"\x00\x00", b"\x00\x00\x00\x05ab", b"\xff\xff\xff\xff"):
        ours, theirs = socket.socketpair()
        with theirs:
            with ours:
                ours.sendall(cut)
            with pytest.raises(frames.EndOfStream):
                frames.receive(theirs)
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        with pytest.raises(frames.EndOfStream):
            frames.send(ours, {"x": "y" * 1_000_000})
