"""Receipts, counts and dead letters on a real Redis."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import redis as redis_py

from memory_tasks import counts, dead_letters, firsts, receipts, troubles, verdicts
from producer import errors, message, receipt
from producer.receipt import Receipt, State
from tests.redis_server import RedisServer, redis_server

KEY = message.Key(id="key", secret=b"s" * 32)
JOURNAL, OTHER_JOURNAL = "a" * 32, "b" * 32


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture
def client(server) -> Iterator[redis_py.Redis]:
    made = redis_py.Redis.from_url(server.url)
    made.flushall()
    yield made
    made.close()


def sender(client: Any, **changes: Any) -> receipts.Receipts:
    return receipts.Receipts(
        client, **{"ttl_s": 1000, "dead_letters_kept": 3, "wall_s": lambda: 1_800_000_000.0, **changes}
    )


def send(
    to: receipts.Receipts,
    sent: Sequence[tuple[str, Receipt]],
    *,
    tenant: str = "local",
    counted: Mapping[str, int] | None = None,
    **more: Any,
) -> None:
    answer = verdicts.Answer(receipts=sent, again=None, counted=counted or {}, **more)
    to.send(answer, key=KEY, tenant=tenant)


def one(number: int, state: State = State.STORED, **more: Any) -> Receipt:
    return Receipt(line_hash=f"{number:064x}", id=f"{number:064x}", state=state, **more)


def dead(number: int) -> Receipt:
    return one(number, State.DEAD, reason=f"reason_{number}")


def test_receipts_go_to_the_list_of_their_journal_signed_and_in_order(client):
    sent = [(JOURNAL, one(1)), (OTHER_JOURNAL, one(2)), (JOURNAL, one(3, State.DEFERRED, reason="x", delay_s=9.5))]
    send(sender(client), sent, tenant="local", counted={})
    for journal_id in (JOURNAL, OTHER_JOURNAL):
        entries = client.lrange(receipt.list_name(journal_id), 0, -1)
        got = [receipt.decode(e, journal_id=journal_id, secret_of={"key": KEY.secret}.get) for e in entries]
        assert got == [of for to, of in sent if to == journal_id]
        assert 0 < client.ttl(receipt.list_name(journal_id)) <= 1000


def test_the_list_keeps_the_newest_receipts_up_to_its_bound(client, monkeypatch):
    monkeypatch.setattr(receipt, "MAX_LISTED", 5)
    for start in (0, 4):
        send(sender(client), [(JOURNAL, one(n)) for n in range(start, start + 4)], tenant="t", counted={})
    entries = client.lrange(receipt.list_name(JOURNAL), 0, -1)
    got = [receipt.decode(e, journal_id=JOURNAL, secret_of=lambda _: KEY.secret) for e in entries]
    assert got == [one(n) for n in range(3, 8)]


def test_counts_add_up_per_tenant_and_tell_when_something_was_stored_last(client):
    made = sender(client)
    send(made, [(JOURNAL, one(1))], tenant="a", counted={"stored": 1, "cache_errors": 0})
    send(made, [(JOURNAL, one(2))], tenant="a", counted={"stored": 2})
    send(made, [], tenant="b", counted={"retried": 1})
    now_ms = 1_800_000_000_000
    assert counts.read(client, "a") == {"stored": 3, counts.LAST_STORED: now_ms, counts.SINCE: now_ms}
    assert counts.read(client, "b") == {"retried": 1, counts.SINCE: now_ms}
    assert counts.read(client, "c") == {}
    made.refused("unsigned")
    made.refused("unsigned")
    assert counts.read_refused(client) == {"unsigned": 2}


def test_counts_say_since_when_they_count_and_begin_anew_after_a_wipe(client):
    now = [1_800_000_000.0]
    made = sender(client, wall_s=lambda: now[0])
    send(made, [], counted={"retried": 1})
    now[0] += 60
    send(made, [], counted={"retried": 1})
    assert counts.read(client, "local")[counts.SINCE] == 1_800_000_000_000
    client.flushall()
    send(made, [], counted={"retried": 1})
    assert counts.read(client, "local")[counts.SINCE] == 1_800_000_060_000


def stored_as_first(number: int) -> dict[str, Any]:
    return {"counted": {"stored": 1}, "stored": [f"{number:064x}"[::-1]]}


def found_settled(number: int) -> dict[str, Any]:
    return {"counted": {"duplicates": 1}, "found": {f"{number:064x}": f"{number:064x}"[::-1]}}


def stored_and_duplicates(client: Any) -> tuple[int, int]:
    counted = counts.read(client, "local")
    return counted.get("stored", 0), counted.get("duplicates", 0)


def test_of_deliveries_of_one_id_that_all_wrote_one_counts_as_stored_and_the_rest_as_duplicates(server, client):
    """F11: they ran beside each other, so each found nothing."""
    barrier = threading.Barrier(8)

    def deliver() -> None:
        with redis_py.Redis.from_url(server.url) as own:
            barrier.wait()
            for number in range(4):
                send(sender(own), [(JOURNAL, one(number))], **stored_as_first(number))

    threads = [threading.Thread(target=deliver) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stored_and_duplicates(client) == (4, 28)


def test_two_copies_in_one_message_count_as_one_stored_and_one_duplicate(client):
    ids = stored_as_first(1)["stored"] * 2
    send(sender(client), [(JOURNAL, one(1)), (JOURNAL, one(2))], counted={"stored": 2}, stored=ids)
    assert stored_and_duplicates(client) == (1, 1)


def test_what_a_delivery_wrote_that_then_failed_counts_as_stored_when_it_is_found(client):
    made = sender(client)
    send(made, [], troubles=[trouble(1, "store_unavailable")])
    send(made, [(JOURNAL, one(1))], **found_settled(1))
    assert stored_and_duplicates(client) == (1, 0)
    send(made, [(JOURNAL, one(1))], **found_settled(1))
    assert stored_and_duplicates(client) == (1, 1)


def test_what_was_found_without_trouble_is_a_duplicate_and_leaves_the_count_to_who_wrote_it(client):
    made = sender(client)
    send(made, [(JOURNAL, one(1))], **found_settled(1))
    assert stored_and_duplicates(client) == (0, 1)
    send(made, [(JOURNAL, one(2))], **stored_as_first(1))
    assert stored_and_duplicates(client) == (1, 1)


def test_after_a_wipe_what_is_delivered_again_is_counted_again(client):
    made = sender(client)
    for _ in range(2):
        send(made, [(JOURNAL, one(1))], **stored_as_first(1))
        assert stored_and_duplicates(client) == (1, 0)
        client.flushall()


def test_what_is_known_of_stored_ids_is_bounded_and_expires(client, monkeypatch):
    monkeypatch.setattr(firsts, "KEPT", 3)
    now = [1_800_000_000.0]
    made = sender(client, wall_s=lambda: now[0])
    for number in range(5):
        now[0] += 1
        send(made, [(JOURNAL, one(number))], **stored_as_first(number))
    name = firsts.key_name("local")
    assert client.zcard(name) == 3
    assert 0 < client.ttl(name) <= firsts.TTL_S
    send(made, [(JOURNAL, one(4))], **stored_as_first(4))
    assert stored_and_duplicates(client) == (5, 1)
    send(made, [(JOURNAL, one(0))], **stored_as_first(0))
    assert stored_and_duplicates(client) == (6, 1), "forgotten here: it counts again, as the docstring says"


def test_a_redis_user_without_scripts_can_send_receipts(server, client):
    client.acl_setuser("worker", enabled=True, passwords=["+p"], keys=["memory:*"], categories=["+@all", "-@scripting"])
    url = server.url.replace("://", "://worker:p@", 1)
    with redis_py.Redis.from_url(url) as limited:
        for _ in range(2):
            send(sender(limited), [(JOURNAL, one(1))], **stored_as_first(1))
    assert stored_and_duplicates(client) == (1, 1)


def test_dead_letters_are_listed_newest_first_and_bounded(client):
    now = [1_800_000_000.0]
    made = sender(client, wall_s=lambda: now[0])
    for number in range(5):
        now[0] += 1
        send(made, [(JOURNAL, dead(number))], tenant="local", counted={})
    listed = dead_letters.read(client, "local")
    assert [letter.reason for letter in listed] == ["reason_4", "reason_3", "reason_2"]
    assert dead_letters.total(client, "local") == 3
    assert client.hlen(dead_letters.key_name("local")) == 3
    assert listed[0] == dead_letters.DeadLetter(
        id=f"{4:064x}", line_hash=f"{4:064x}", journal_id=JOURNAL, reason="reason_4", at_ms=int(now[0] * 1000)
    )
    assert len(dead_letters.read(client, "local", limit=2)) == 2
    assert dead_letters.read(client, "other") == []


@pytest.mark.parametrize("state", [State.STORED, State.FORGOTTEN])
def test_a_line_that_ended_well_after_all_leaves_the_listing(client, state):
    made = sender(client)
    send(made, [(JOURNAL, dead(1)), (JOURNAL, dead(2))], tenant="local", counted={})
    send(made, [(JOURNAL, one(1, state))], tenant="local", counted={})
    assert [letter.id for letter in dead_letters.read(client, "local")] == [f"{2:064x}"]


def test_the_same_dead_line_twice_is_listed_once(client):
    made = sender(client)
    for _ in range(2):
        send(made, [(JOURNAL, dead(1))], tenant="local", counted={})
    assert dead_letters.total(client, "local") == 1


def test_a_line_that_is_dead_as_before_is_listed_again_after_a_wipe_and_not_changed_otherwise(client):
    now = [1_800_000_000.0]
    made = sender(client, wall_s=lambda: now[0])
    send(made, [(JOURNAL, dead(1))])
    now[0] += 86_400
    said_again = one(1, State.DEAD, reason="another", deaths=2)
    for _ in range(2):
        send(made, [(JOURNAL, said_again), (JOURNAL, dead(2))], known_dead=frozenset({said_again.line_hash}))
    first, second = dead_letters.read(client, "local")
    assert (first.reason, second.reason) == ("reason_2", "reason_1")
    assert second.at_ms == 1_800_000_000_000
    client.flushall()
    send(made, [(JOURNAL, said_again)], known_dead=frozenset({said_again.line_hash}))
    (listed,) = dead_letters.read(client, "local")
    assert (listed.reason, listed.deaths, listed.journal_id) == ("another", 2, JOURNAL)
    assert troubles.read(client, "local") == []


def trouble(number: int, error: str) -> verdicts.Trouble:
    return verdicts.Trouble(line_hash=f"{number:064x}", id=f"{number:064x}", error=error)


def test_a_line_that_failed_three_times_and_was_stored_shows_four_attempts_and_its_last_error(client):
    made = sender(client)
    for error in ("store_unavailable:503", "store_unavailable:503", "store_throttled:429"):
        send(made, [], troubles=[trouble(1, error)])
    (before,) = troubles.read(client, "local")
    assert (before.attempts, before.error, before.state) == (3, "store_throttled:429", "")
    send(made, [(JOURNAL, one(1)), (JOURNAL, one(2))], counted={"stored": 2})
    (after,) = troubles.read(client, "local")
    assert (after.id, after.attempts, after.error, after.state) == (
        f"{1:064x}",
        4,
        "store_throttled:429",
        "stored",
    )
    counted = counts.read(client, "local")
    assert counted["attempts:4"] == 1
    assert {name for name in counted if name.startswith("attempts")} == {"attempts:4"}


def test_an_attempt_that_failed_for_good_is_counted_once(client):
    made = sender(client)
    send(made, [(JOURNAL, dead(1))], troubles=[trouble(1, "store_refused:422")])
    (listed,) = troubles.read(client, "local")
    assert (listed.attempts, listed.error, listed.state) == (1, "store_refused:422", "dead")
    assert not any(name.startswith("attempts") for name in counts.read(client, "local"))


def test_troubles_are_bounded_and_expire(client):
    made = sender(client)
    for number in range(5):
        send(made, [], troubles=[trouble(number, "x")])
    troubles.trim(client, "local", keep=2)
    assert len(troubles.read(client, "local")) == 2
    for name in troubles.key_names("local"):
        assert 0 < client.ttl(name) <= troubles.TTL_S
        assert client.type(name) == b"zset" or client.hlen(name) == 2


def test_only_the_named_keys_have_no_time_to_live(client):
    made = sender(client)
    send(made, [(JOURNAL, one(1)), (JOURNAL, dead(2))], tenant="local", counted={"stored": 1})
    made.refused("unsigned")
    lasting = [name.decode() for name in client.scan_iter() if client.ttl(name) == -1]
    assert len(lasting) == 4
    assert all(name.startswith(receipts.KEYS_WITHOUT_TTL) for name in lasting)


def test_a_redis_that_is_away_or_frozen_raises_in_time_and_says_nothing_of_the_command(tmp_path):
    with redis_server(tmp_path / "away") as server:
        client = redis_py.Redis.from_url(server.url, socket_timeout=0.2)
        made = sender(client)
        server.freeze()
        with pytest.raises(errors.RedisUnavailable):
            send(made, [(JOURNAL, one(1))], tenant="local", counted={})
        server.thaw()
        server.kill()
        for call in (
            lambda: send(made, [(JOURNAL, dead(1))], tenant="local", counted={}),
            lambda: made.refused("unsigned"),
            lambda: counts.read(client, "local"),
            lambda: dead_letters.read(client, "local"),
        ):
            with pytest.raises(errors.RedisUnavailable) as caught:
                call()
            assert "memory:" not in str(caught.value)
        client.close()
