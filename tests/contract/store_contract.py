"""The contract of the store port: one suite, run on every adapter.

A test module subclasses `StoreContract` as `Test...` and gives it a `store` fixture. Every test works under a label of
its own, so that the suite can run on a shared real server (with `clean_up = True`). What a store cannot do, by its
`capabilities()`, it must refuse with `errors.Unsupported`: nothing is skipped.

Where the port names no class for a bad request, any `errors.Permanent` is right.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from producer import errors
from producer.store import where as wheres
from producer.store.port import FIND_LIMIT, UPSERT_ROWS, IndexSpec, LinkSpec, Record, Store

LATE_S = 180.0  # a real server embeds once a minute
RETRY_S = 30.0

TRICKY_TEXTS = {
    "single quote": "it's",
    "double quote": 'say "hi"',
    "both quotes": """'"'""",
    "backslash": "C:\\temp\\new",
    "trailing backslash": "end\\",
    "newlines": "a\nb\r\nc\td",
    "line separators": "a\u2028b\u2029c\x85d",
    "backticks and braces": "`{x}` ${y} {{z}}",
    "statement": "'; DROP TABLE records; --",
    "cypher": "\\' OR 1=1 // */ MATCH (n) DETACH DELETE n",
    "emoji": "👍🏽 👩‍👩‍👧",
    "han": "東京都に住む",
    "combining": "e\u0301 vs é",
    "right to left": "שלום \u202eabc",
    "spaces": "  padded  ",
    "empty": "",
    "percent": "100%_done*?",
    "json": '{"a": [1, null]}',
    "number": "1",
    "boolean": "true",
    "time": "2026-12-01T12:00:00.000Z",
    "date": "2026-12-01",
}

HOSTILE_QUERIES = [
    'deploy"',
    "deploy'",
    "deploy OR",
    "AND deploy NOT",
    "NEAR(deploy, 2)",
    "deploy*",
    "^deploy",
    "text : deploy",
    "-deploy +deploy",
    '"deploy',
    "(deploy",
    "deploy)",
    "{deploy} [deploy]",
    "deploy \\",
    "deploy\x00deploy",
    "deploy \ud800",
    "deploy 🎉",
    "デプロイ deploy 東京",
    "deploy; DROP TABLE records; --",
    "deploy\u2028deploy",
    "deploy " + "x" * 5000,
    " ".join(f"word{number}" for number in range(200)) + " deploy",
]
WORDLESS_QUERIES = ["", " ", "\n", '"', "''", '""""', "*", "OR", "(", "\x00", "\ud800", "🎉", "-", "---", "\\", "%"]

LOW, MIDDLE, HIGH = "2026-01-01T00:00:00.000Z", "2026-06-01T00:00:00.000Z", "2026-12-31T23:59:59.999Z"

# name -> the record of that name; the wheres below are asked of all of them.
PEOPLE: dict[str, dict[str, Any]] = {
    "ann": {"name": "ann", "team": "red", "age": 30, "on": True, "seen": LOW},
    "bob": {"name": "bob", "team": "red", "age": 30.5, "on": False, "seen": MIDDLE},
    "cid": {"name": "cid", "team": "blue", "age": 41, "seen": HIGH},
    "dot": {"name": "dot", "team": "1", "age": 1, "on": True},
    "eve": {"name": "eve", "age": -2},
}

WHERES: list[tuple[str, Mapping[str, Any], str]] = [
    ("empty matches all", {}, "ann bob cid dot eve"),
    ("equal string", {"team": "red"}, "ann bob"),
    ("equal is exact", {"team": "Red"}, ""),
    ("equal number", {"age": 30}, "ann"),
    ("equal number as float", {"age": 30.0}, "ann"),
    ("equal fraction", {"age": 30.5}, "bob"),
    ("equal true", {"on": True}, "ann dot"),
    ("equal false", {"on": False}, "bob"),
    ("string of digits is no number", {"team": 1}, ""),
    ("number is no string", {"age": "30"}, ""),
    ("true is no number", {"on": 1}, ""),
    ("number is no true", {"age": True}, ""),
    ("true is no string", {"on": "true"}, ""),
    ("unknown property", {"nowhere": "x"}, ""),
    ("$eq", {"team": {"$eq": "blue"}}, "cid"),
    ("$ne skips records that lack it", {"team": {"$ne": "red"}}, "cid dot"),
    ("$ne of a boolean", {"on": {"$ne": True}}, "bob"),
    ("$ne of another type is unequal", {"team": {"$ne": 1}}, "ann bob cid dot"),
    ("$in strings", {"team": {"$in": ["red", "1", "nobody"]}}, "ann bob dot"),
    ("$in numbers", {"age": {"$in": [1, 41.0]}}, "cid dot"),
    ("$in booleans", {"on": {"$in": [False]}}, "bob"),
    ("$nin skips records that lack it", {"team": {"$nin": ["red"]}}, "cid dot"),
    ("$nin of all", {"team": {"$nin": ["red", "blue", "1"]}}, ""),
    ("$exists true", {"on": {"$exists": True}}, "ann bob dot"),
    ("$exists false", {"on": {"$exists": False}}, "cid eve"),
    ("$gt number", {"age": {"$gt": 30}}, "bob cid"),
    ("$gte number", {"age": {"$gte": 30}}, "ann bob cid"),
    ("$lt number", {"age": {"$lt": 30}}, "dot eve"),
    ("$lte number", {"age": {"$lte": 30}}, "ann dot eve"),
    ("$lt negative", {"age": {"$lt": 0}}, "eve"),
    ("$gt time", {"seen": {"$gt": LOW}}, "bob cid"),
    ("$gte time", {"seen": {"$gte": MIDDLE}}, "bob cid"),
    ("$lt time", {"seen": {"$lt": MIDDLE}}, "ann"),
    ("$lte time", {"seen": {"$lte": MIDDLE}}, "ann bob"),
    ("a range from both sides", {"seen": {"$gte": LOW, "$lt": HIGH}}, "ann bob"),
    ("a range of numbers passes strings over", {"team": {"$gt": 0}}, ""),
    ("a range of times passes other strings over", {"team": {"$gte": LOW}}, ""),
    ("siblings are AND-ed", {"team": "red", "on": True}, "ann"),
    ("$and", {"$and": [{"team": "red"}, {"age": {"$gt": 30}}]}, "bob"),
    ("$or", {"$or": [{"team": "blue"}, {"on": False}]}, "bob cid"),
    ("$or beside a sibling", {"team": "red", "$or": [{"on": True}, {"age": 41}]}, "ann"),
    ("$or of one missing side", {"$or": [{"team": "nobody"}, {"age": -2}]}, "eve"),
    ("$not", {"$not": {"team": "red"}}, "cid dot"),
    ("$not of $ne", {"$not": {"team": {"$ne": "red"}}}, "ann bob"),
    ("$not of $in", {"$not": {"team": {"$in": ["red"]}}}, "cid dot"),
    ("$not of $exists", {"$not": {"on": {"$exists": True}}}, "cid eve"),
    ("$not of a range", {"$not": {"age": {"$gt": 30}}}, "ann dot eve"),
    ("nested", {"$and": [{"$or": [{"team": "red"}, {"team": "blue"}]}, {"$not": {"age": 41}}]}, "ann bob"),
]

UNSUPPORTED: list[Any] = [
    {"team": None},
    {"team": ["red"]},
    {"team": {}},
    {"team": {"colour": "red"}},
    {"team": {"$contains": "re"}},
    {"team": {"$startsWith": "re"}},
    {"team": {"$regex": ".*"}},
    {"team": {"$type": "string"}},
    {"team": {"$in": []}},
    {"team": {"$in": "red"}},
    {"team": {"$in": ["red", 1]}},
    {"team": {"$in": [1, True]}},
    {"team": {"$in": ["red", None]}},
    {"team": {"$nin": []}},
    {"team": {"$ne": None}},
    {"team": {"$exists": 1}},
    {"age": {"$gt": "high"}},
    {"age": {"$gt": True}},
    {"age": {"$lt": None}},
    {"age": {"$gt": math.nan}},
    {"age": math.inf},
    {"seen": {"$gt": "2026-01-01"}},
    {"seen": {"$gt": "2026-01-01T00:00:00Z"}},
    {"seen": {"$gt": "2026-01-01T00:00:00.000+00:00"}},
    {"$xor": [{"team": "red"}]},
    {"$nor": [{"team": "red"}]},
    {"$where": "1"},
    {"$and": []},
    {"$and": {"team": "red"}},
    {"$or": [{}]},
    {"$not": {}},
    {"$not": [{"team": "red"}]},
    {"$id": 1},
    {"$id": {"$in": []}},
    {"$id": {"$ne": "x"}},
    {"__id": "x"},
    {"__label": "x"},
    {"": "x"},
]


class StoreContract:
    """Subclass it and give it a fixture `store`, open and empty or shared. `clean_up` is for servers that stay."""

    clean_up = False

    @pytest.fixture
    def label(self, store: Store) -> Iterator[str]:
        """A label that no other test uses."""
        name = fresh("LABEL")
        yield name
        if not self.clean_up:
            return
        with contextlib.suppress(errors.StoreUnavailable):  # the test closed the store
            while found := store.find(name, {}).records:
                for record in found:
                    store.delete(name, record.id)

    # -- upsert ------------------------------------------------------------------------------------------------------

    def test_upsert_creates_a_record_that_find_returns_whole(self, store: Store, label: str) -> None:
        row = {"key": "k1", "text": "tea", "count": 3, "share": 0.25, "on": True, "off": False, "empty": ""}
        store.upsert(label, [row], ["key"])
        (record,) = seen(store, label, {"key": "k1"})
        assert record.label == label
        assert dict(record.properties) == row
        assert (record.properties["on"] is True, record.properties["off"] is False) == (True, True)
        assert record.score is None
        assert record.get("text") == "tea"
        assert record.get("nowhere") is None

    def test_upsert_of_an_existing_key_keeps_the_record_and_what_the_row_does_not_name(
        self, store: Store, label: str
    ) -> None:
        store.upsert(label, [{"key": "k1", "a": 1, "b": "old"}], ["key"])
        (before,) = seen(store, label, {"key": "k1"})
        store.upsert(label, [{"key": "k1", "b": "new", "c": True}], ["key"])
        (after,) = seen(store, label, {"key": "k1"})
        assert after.id == before.id
        assert dict(after.properties) == {"key": "k1", "a": 1, "b": "new", "c": True}

    def test_upsert_finds_a_changed_property_by_its_new_value_only(self, store: Store, label: str) -> None:
        store.upsert(label, [{"key": "k1", "state": "open"}], ["key"])
        store.upsert(label, [{"key": "k1", "state": "closed"}], ["key"])
        assert names(seen(store, label, {"state": "closed"}), "key") == ["k1"]
        assert seen(store, label, {"state": "open"}) == []

    def test_upsert_may_change_the_type_of_a_property(self, store: Store, label: str) -> None:
        store.upsert(label, [{"key": "k1", "state": "1"}], ["key"])
        store.upsert(label, [{"key": "k1", "state": 1}], ["key"])
        assert names(seen(store, label, {"state": 1}), "key") == ["k1"]
        assert seen(store, label, {"state": "1"}) == []

    def test_upsert_by_two_keys_merges_only_when_both_are_equal(self, store: Store, label: str) -> None:
        for row in (
            {"key": "k1", "hash": "h1", "n": 1},
            {"key": "k1", "hash": "h2", "n": 2},
            {"key": "k2", "hash": "h1", "n": 3},
            {"key": "k1", "hash": "h1", "m": 4},
        ):
            store.upsert(label, [row], ["key", "hash"])
        rows = [dict(record.properties) for record in seen(store, label, {})]
        assert sorted(rows, key=str) == sorted(
            [
                {"key": "k1", "hash": "h1", "n": 1, "m": 4},
                {"key": "k1", "hash": "h2", "n": 2},
                {"key": "k2", "hash": "h1", "n": 3},
            ],
            key=str,
        )

    def test_upsert_compares_merge_keys_with_their_type(self, store: Store, label: str) -> None:
        for value in ("1", 1, True, "true", 0, False, 1.5):
            store.upsert(label, [{"key": value, "was": repr(value)}], ["key"])
        assert sorted(names(seen(store, label, {}), "was")) == sorted(map(repr, ("1", 1, True, "true", 0, False, 1.5)))
        store.upsert(label, [{"key": 1.0, "again": True}], ["key"])
        assert names(seen(store, label, {"again": True}), "was") == ["1"]

    def test_upsert_merges_within_its_label_only(self, store: Store, label: str) -> None:
        other = label + "_OTHER"
        store.upsert(label, [{"key": "k1", "a": 1}], ["key"])
        store.upsert(other, [{"key": "k1", "b": 2}], ["key"])
        (there,) = seen(store, other, {})
        assert dict(there.properties) == {"key": "k1", "b": 2}
        assert names(seen(store, label, {}), "b") == [None]
        store.delete(other, there.id)

    def test_upsert_updates_every_record_that_matches(self, store: Store, label: str) -> None:
        store.upsert(label, [{"key": "k1", "copy": 1}, {"key": "k1", "copy": 2}, {"key": "k2", "copy": 3}], ["copy"])
        store.upsert(label, [{"key": "k1", "verdict": "old"}], ["key"])
        assert sorted((r.get("copy"), r.get("verdict")) for r in seen(store, label, {"key": "k1"})) == [
            (1, "old"),
            (2, "old"),
        ]
        assert names(seen(store, label, {"key": "k2"}), "verdict") == [None]

    def test_upsert_takes_rows_with_different_properties(self, store: Store, label: str) -> None:
        store.upsert(label, [{"key": "k1", "a": 1}, {"key": "k2", "b": "x"}, {"key": "k3"}], ["key"])
        assert [dict(r.properties) for r in seen(store, label, {}, order_by=[("key", "asc")])] == [
            {"key": "k1", "a": 1},
            {"key": "k2", "b": "x"},
            {"key": "k3"},
        ]

    def test_upsert_takes_as_many_rows_as_the_port_says_and_refuses_one_more(self, store: Store, label: str) -> None:
        rows = [{"key": f"k{number:03}"} for number in range(UPSERT_ROWS + 1)]
        with pytest.raises(errors.StoreRefused):
            store.upsert(label, rows, ["key"])
        assert store.find(label, {}, limit=1).total == 0
        store.upsert(label, rows[:-1], ["key"])
        assert store.find(label, {}, limit=1).total == UPSERT_ROWS

    def test_upsert_of_no_rows_does_nothing(self, store: Store, label: str) -> None:
        assert list(store.upsert(label, [], ["key"])) == []
        assert store.find(label, {}).total == 0

    def test_upsert_answers_one_record_per_row_or_nothing(self, store: Store, label: str) -> None:
        store.upsert(label, [{"key": "k1", "a": 1}], ["key"])
        answer = store.upsert(label, [{"key": "k1", "b": 2}, {"key": "k2", "b": 3}], ["key"])
        if answer:
            assert sorted(names(answer, "key")) == ["k1", "k2"]
            assert {record.id for record in answer} == {record.id for record in seen(store, label, {})}

    @pytest.mark.parametrize(
        "rows",
        [
            pytest.param([{"key": "k1"}, {"key": "k1", "a": 1}], id="same string"),
            pytest.param([{"key": 1}, {"key": 1.0}], id="same number"),
        ],
    )
    def test_upsert_refuses_two_rows_with_the_same_keys(self, store: Store, label: str, rows: Any) -> None:
        with pytest.raises(errors.StoreRefused):
            store.upsert(label, rows, ["key"])
        assert store.find(label, {}).total == 0

    def test_upsert_takes_two_rows_that_differ_in_one_of_two_keys(self, store: Store, label: str) -> None:
        store.upsert(label, [{"key": "k1", "hash": "a"}, {"key": "k1", "hash": "b"}], ["key", "hash"])
        assert store.find(label, {"key": "k1"}).total == 2

    @pytest.mark.parametrize(
        "bad",
        [
            pytest.param({"a": 1}, id="merge key missing"),
            pytest.param({"key": None}, id="merge key none"),
            pytest.param({"key": "bad", "a": None}, id="none"),
            pytest.param({"key": "bad", "a": [1]}, id="list"),
            pytest.param({"key": "bad", "a": {"b": 1}}, id="object"),
            pytest.param({"key": "bad", "a": math.nan}, id="not a number"),
            pytest.param({"key": "bad", "a": math.inf}, id="infinity"),
            pytest.param({"key": "bad", "a": b"x"}, id="bytes"),
            pytest.param({"key": "bad", "$eq": 1}, id="operator as name"),
            pytest.param({"key": "bad", "__id": "x"}, id="reserved name"),
            pytest.param({"key": "bad", "": 1}, id="empty name"),
        ],
    )
    def test_upsert_writes_all_rows_or_none(self, store: Store, label: str, bad: Any) -> None:
        with pytest.raises(errors.Permanent):
            store.upsert(label, [{"key": "good"}, bad], ["key"])
        assert store.find(label, {}).total == 0

    def test_upsert_without_merge_keys_is_refused(self, store: Store, label: str) -> None:
        store.upsert(label, [{"key": "k1", "a": 1}], ["key"])
        with pytest.raises(errors.Permanent):
            store.upsert(label, [{"a": 2}], [])
        assert names(seen(store, label, {}), "a") == [1]

    def test_upsert_with_wake_writes_its_one_row_and_refuses_more(self, store: Store, label: str) -> None:
        store.upsert(label, [{"key": "k1", "a": 1}], ["key"], wake=True)
        store.upsert(label, [{"key": "k1", "b": "x", "on": True}], ["key"], wake=True)
        (record,) = seen(store, label, {"key": "k1"})
        assert dict(record.properties) == {"key": "k1", "a": 1, "b": "x", "on": True}
        with pytest.raises(errors.Permanent):
            store.upsert(label, [{"key": "k2"}, {"key": "k3"}], ["key"], wake=True)
        assert store.find(label, {}).total == 1

    @pytest.mark.parametrize("text", TRICKY_TEXTS.values(), ids=TRICKY_TEXTS)
    def test_any_text_is_kept_found_and_merged_by(self, store: Store, label: str, text: str) -> None:
        store.upsert(label, [{"key": text, "text": text}, {"key": text + "x", "text": "other"}], ["key"])
        store.upsert(label, [{"key": text, "again": True}], ["key"])
        for where in ({"key": text}, {"text": text}, {"key": {"$in": [text, "nobody"]}}):
            (record,) = seen(store, label, where)
            assert dict(record.properties) == {"key": text, "text": text, "again": True}

    def test_a_lone_surrogate_does_not_hurt_its_record(self, store: Store, label: str) -> None:
        """A server that holds UTF-8 may bring U+FFFD back; nothing else of the text may change."""
        text = "half \ud83d of a pair, and \udc4d"
        store.upsert(label, [{"key": "k1", "text": text}], ["key"])
        (record,) = seen(store, label, {"key": "k1"})
        assert record.get("text") in (text, text.replace("\ud83d", "\ufffd").replace("\udc4d", "\ufffd"))

    def test_long_texts_are_told_apart_by_their_last_character(self, store: Store, label: str) -> None:
        long = "long " * 2000
        store.upsert(label, [{"key": long + "a"}, {"key": long + "b"}], ["key"])
        store.upsert(label, [{"key": long + "b", "again": True}], ["key"])
        assert [len(str(record.get("key"))) for record in seen(store, label, {"key": long + "b"})] == [10_001]
        assert names(seen(store, label, {"key": {"$ne": long + "b"}}), "again") == [None]

    def test_numbers_come_back_equal(self, store: Store, label: str) -> None:
        numbers = [0, -1, 1.5, -0.1, 2**53, -(2**53), 1e-300, 1e300]
        store.upsert(label, [{"key": f"k{place}", "n": number} for place, number in enumerate(numbers)], ["key"])
        assert [r.get("n") for r in seen(store, label, {}, order_by=[("key", "asc")])] == numbers
        for number in numbers:
            assert names(seen(store, label, {"n": number}), "n") == [number]

    def test_times_are_kept_as_they_were_written(self, store: Store, label: str) -> None:
        times = ["2026-12-01T12:00:00.000Z", "2026-12-01T12:00:00Z", "2026-12-01T12:00:00.000+00:00", "2026-12-01"]
        store.upsert(label, [{"key": text} for text in times], ["key"])
        assert sorted(names(seen(store, label, {}), "key")) == sorted(times)
        assert names(seen(store, label, {"key": times[0]}), "key") == [times[0]]

    def test_16_threads_upserting_one_key_lose_no_property(self, store: Store, label: str) -> None:
        """A store may double a new record (the copies are folded above the port); it may not lose what was written."""
        store.upsert(label, [{"key": "old"}], ["key"])

        def write(number: int) -> None:
            for key in ("old", "new"):
                insist(lambda: store.upsert(label, [{"key": key, f"p{number}": number}], ["key"]))  # noqa: B023

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(write, range(16)))
        for key in ("old", "new"):
            copies = seen(store, label, {"key": key})
            together = {name: value for copy in copies for name, value in copy.properties.items()}
            assert together == {"key": key} | {f"p{number}": number for number in range(16)}
        assert store.find(label, {"key": "old"}).total == 1

    # -- find --------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(("where", "expected"), [case[1:] for case in WHERES], ids=[case[0] for case in WHERES])
    def test_find_means_what_the_port_says(
        self, store: Store, label: str, where: Mapping[str, Any], expected: str
    ) -> None:
        store.upsert(label, list(PEOPLE.values()), ["name"])
        page = store.find(label, where, order_by=[("name", "asc")])
        assert names(page.records, "name") == expected.split()
        assert page.total == len(expected.split())
        everyone = seen(store, label, {}, order_by=[("name", "asc")])
        assert [record.get("name") for record in everyone if wheres.matches(where, record)] == expected.split()

    @pytest.mark.parametrize("where", UNSUPPORTED, ids=map(str, UNSUPPORTED))
    def test_a_where_outside_the_port_is_refused(self, store: Store, label: str, where: Any) -> None:
        with pytest.raises(errors.Unsupported):
            store.find(label, where)
        with pytest.raises(errors.Unsupported):
            store.find(label, {"$or": [{"team": "red"}, where]})

    def test_every_call_with_a_where_refuses_what_the_port_does_not_have(self, store: Store, label: str) -> None:
        bad = {"team": {"$contains": "re"}}
        for call in (
            lambda: store.search(label, "text", bad, text="x"),
            lambda: store.edges(label, bad),
            lambda: store.edges_into(label, bad),
            lambda: store.link(link_spec(label, source_where=bad)),
            lambda: store.link(link_spec(label, target_where=bad)),
        ):
            with pytest.raises(errors.Unsupported):
                call()

    def test_find_by_record_ids(self, store: Store, label: str) -> None:
        store.upsert(label, [{"key": "k1"}, {"key": "k2"}, {"key": "k3"}], ["key"])
        ids = {record.get("key"): record.id for record in seen(store, label, {})}
        unknown = str(uuid.uuid4())
        assert names(seen(store, label, {"$id": ids["k2"]}), "key") == ["k2"]
        assert sorted(names(seen(store, label, {"$id": {"$in": [ids["k1"], ids["k3"], unknown]}}), "key")) == [
            "k1",
            "k3",
        ]
        assert names(seen(store, label, {"$id": {"$in": list(ids.values())}, "key": "k3"}), "key") == ["k3"]
        assert sorted(names(seen(store, label, {"$not": {"$id": ids["k1"]}}), "key")) == ["k2", "k3"]
        assert seen(store, label, {"$id": unknown}) == []

    def test_find_returns_records_of_its_label_only(self, store: Store, label: str) -> None:
        store.upsert(label, [{"key": "k1"}], ["key"])
        (record,) = seen(store, label, {})
        assert store.find(label + "_OTHER", {"key": "k1"}).records == ()
        assert store.find(label + "_OTHER", {"$id": record.id}).total == 0

    def test_find_sees_what_was_written_before_it(self, store: Store, label: str) -> None:
        for number in range(5):
            store.upsert(label, [{"key": "k1", "n": number}], ["key"])
            assert names(seen(store, label, {"key": "k1"}), "n") == [number]

    def test_find_without_matches_is_an_empty_page(self, store: Store, label: str) -> None:
        page = store.find(label, {"key": "nobody"})
        assert (list(page.records), page.total) == ([], 0)

    def test_ids_order_by_creation_and_are_the_default_order(self, store: Store, label: str) -> None:
        for number in (3, 1, 2):
            store.upsert(label, [{"key": f"k{number}"}], ["key"])
        found = store.find(label, {}).records
        assert names(found, "key") == ["k3", "k1", "k2"]
        assert [record.id for record in found] == sorted(record.id for record in found)
        assert names(store.find(label, {}, order_by=[("__id", "desc")]).records, "key") == ["k2", "k1", "k3"]

    def test_find_orders_by_properties_then_by_id(self, store: Store, label: str) -> None:
        rows = [("k1", "b", 2), ("k2", "a", 10), ("k3", "b", 1), ("k4", "a", 10)]
        for key, group, number in rows:
            store.upsert(label, [{"key": key, "group": group, "n": number}], ["key"])

        def ordered(*order_by: tuple[str, str]) -> str:
            return " ".join(names(store.find(label, {}, order_by=order_by).records, "key"))

        assert ordered(("n", "asc")) == "k3 k1 k2 k4"
        assert ordered(("n", "desc"), ("__id", "desc")) == "k4 k2 k1 k3"
        assert ordered(("group", "asc"), ("n", "asc")) == "k2 k4 k3 k1"
        assert ordered(("group", "desc"), ("n", "desc")) == "k1 k3 k2 k4"

    def test_pages_of_a_tied_order_never_overlap_and_miss_nothing(self, store: Store, label: str) -> None:
        rows = [{"key": f"k{number:02}", "tie": number % 2} for number in range(60)]
        store.upsert(label, rows, ["key"])
        keys: list[Any] = []
        for skip in range(0, 60, 7):
            page = store.find(label, {}, limit=7, skip=skip, order_by=[("tie", "asc")])
            assert page.total == 60
            keys += names(page.records, "key")
        assert sorted(keys) == [row["key"] for row in rows]

    def test_find_counts_all_matches_whatever_it_returns(self, store: Store, label: str) -> None:
        store.upsert(label, [{"key": f"k{number}", "even": number % 2 == 0} for number in range(10)], ["key"])
        page = store.find(label, {"even": True}, limit=2)
        assert (len(page.records), page.total) == (2, 5)
        page = store.find(label, {"even": True}, limit=2, skip=4)
        assert (len(page.records), page.total) == (1, 5)
        page = store.find(label, {"even": True}, limit=2, skip=50)
        assert (len(page.records), page.total) == (0, 5)

    @pytest.mark.parametrize("limit", [0, -1, FIND_LIMIT + 1, 1.5])
    def test_find_refuses_a_limit_out_of_bounds(self, store: Store, label: str, limit: Any) -> None:
        with pytest.raises(errors.Permanent):
            store.find(label, {}, limit=limit)

    def test_find_refuses_an_order_that_is_none(self, store: Store, label: str) -> None:
        with pytest.raises(errors.Permanent):
            store.find(label, {}, order_by=[("key", "upwards")])

    def test_more_than_one_find_can_return_is_paged_and_linked_whole(self, store: Store, label: str) -> None:
        """Servers cap answers in silence at 1,000 and at 100."""
        number, hub = FIND_LIMIT + 50, label + "_HUB"
        store.upsert(hub, [{"group": "g"}], ["group"])
        for start in range(0, number, UPSERT_ROWS):
            rows = [{"key": f"k{n:04}", "group": "g"} for n in range(start, min(start + UPSERT_ROWS, number))]
            store.upsert(label, rows, ["key"])
        first = store.find(label, {})
        rest = store.find(label, {}, skip=FIND_LIMIT)
        assert (len(first.records), first.total, len(rest.records), rest.total) == (FIND_LIMIT, number, 50, number)
        assert len({record.id for record in [*first.records, *rest.records]}) == number
        store.link(link_spec(label, source_key="group", target_label=hub, target_key="group"))
        assert len(store.edges(label, {"group": "g"})) == number
        assert len(store.edges_into(hub, {"group": "g"})) == number
        store.delete(hub, seen(store, hub, {})[0].id)

    # -- delete ------------------------------------------------------------------------------------------------------

    def test_delete_removes_one_record_and_nothing_else(self, store: Store, label: str) -> None:
        store.upsert(label, [{"key": "k1"}, {"key": "k2"}], ["key"])
        store.delete(label, seen(store, label, {"key": "k1"})[0].id)
        assert names(seen(store, label, {}), "key") == ["k2"]
        assert seen(store, label, {"key": "k1"}) == []

    def test_delete_of_an_unknown_id_is_no_error(self, store: Store, label: str) -> None:
        store.upsert(label, [{"key": "k1"}, {"key": "k2"}], ["key"])
        gone = seen(store, label, {"key": "k1"})[0].id
        store.delete(label, gone)
        store.delete(label, gone)
        store.delete(label, str(uuid.uuid4()))
        assert names(seen(store, label, {}), "key") == ["k2"]

    def test_a_record_that_was_deleted_is_created_anew(self, store: Store, label: str) -> None:
        store.upsert(label, [{"key": "k1", "a": 1}], ["key"])
        before = seen(store, label, {"key": "k1"})[0].id
        store.delete(label, before)
        store.upsert(label, [{"key": "k1", "b": 2}], ["key"])
        (after,) = seen(store, label, {"key": "k1"})
        assert after.id > before
        assert dict(after.properties) == {"key": "k1", "b": 2}

    # -- link --------------------------------------------------------------------------------------------------------

    def test_link_joins_records_by_equal_values(self, store: Store, label: str) -> None:
        store.upsert(label, [{"key": "a1", "to": "b1"}, {"key": "a2", "to": "b2"}, {"key": "a3", "to": "b1"}], ["key"])
        store.upsert(label, [{"key": "b1"}, {"key": "b2"}, {"key": "b3"}], ["key"])
        store.link(link_spec(label))
        assert edge_names(store, label, {}) == ["a1-NAMES->b1", "a2-NAMES->b2", "a3-NAMES->b1"]
        (edge,) = store.edges(label, {"key": "a2"})
        ids = {record.get("key"): record.id for record in seen(store, label, {})}
        assert (edge.type, edge.source_id, edge.target_id) == ("NAMES", ids["a2"], ids["b2"])
        assert (edge.source_label, edge.target_label) == (label, label)

    def test_link_joins_records_of_two_labels(self, store: Store, label: str) -> None:
        other = label + "_OTHER"
        store.upsert(label, [{"key": "a1", "to": "b1"}], ["key"])
        store.upsert(other, [{"key": "b1"}], ["key"])
        store.link(link_spec(label, target_label=other))
        (edge,) = store.edges(label, {})
        assert (edge.source_label, edge.target_label) == (label, other)
        assert [edge] == list(store.edges_into(other, {"key": "b1"}))
        assert list(store.edges(other, {})) == []
        assert list(store.edges_into(label, {})) == []
        store.delete(other, seen(store, other, {})[0].id)

    def test_link_again_doubles_nothing_and_keeps_what_is_there(self, store: Store, label: str) -> None:
        store.upsert(label, [{"key": "a1", "to": "b1"}, {"key": "b1"}], ["key"])
        store.link(link_spec(label))
        store.upsert(label, [{"key": "a2", "to": "b1"}], ["key"])
        store.link(link_spec(label))
        store.link(link_spec(label))
        assert edge_names(store, label, {}) == ["a1-NAMES->b1", "a2-NAMES->b1"]

    def test_link_of_another_type_is_another_edge(self, store: Store, label: str) -> None:
        store.upsert(label, [{"key": "a1", "to": "b1"}, {"key": "b1"}], ["key"])
        store.link(link_spec(label))
        store.link(link_spec(label, type="KNOWS"))
        assert edge_names(store, label, {}) == ["a1-KNOWS->b1", "a1-NAMES->b1"]

    def test_link_takes_sources_under_its_where_only(self, store: Store, label: str) -> None:
        rows = [{"key": f"a{n}", "to": "b1", "scope": scope} for n, scope in enumerate(("s1", "s2", "s1"))]
        store.upsert(label, [*rows, {"key": "b1"}], ["key"])
        store.link(link_spec(label, source_where={"scope": "s1"}))
        assert edge_names(store, label, {}) == ["a0-NAMES->b1", "a2-NAMES->b1"]

    def test_link_takes_targets_under_its_where_only(self, store: Store, label: str) -> None:
        copies = [{"key": "b1", "copy": n, "scope": scope} for n, scope in enumerate(("s1", "s2", "s1"))]
        store.upsert(label, copies, ["copy"])
        store.upsert(label, [{"key": "a1", "to": "b1"}], ["key"])
        store.link(link_spec(label, target_where={"scope": "s1"}))
        targets = {edge.target_id for edge in store.edges(label, {"key": "a1"})}
        assert targets == {record.id for record in seen(store, label, {"scope": "s1"})}

    def test_link_reaches_every_copy_on_both_sides(self, store: Store, label: str) -> None:
        store.upsert(label, [{"key": "a", "to": "b", "copy": 1}, {"key": "a", "to": "b", "copy": 2}], ["copy"])
        store.upsert(label, [{"key": "b", "copy": 3}, {"key": "b", "copy": 4}], ["copy"])
        store.link(link_spec(label))
        copies = {record.id: record.get("copy") for record in seen(store, label, {})}
        pairs = sorted((copies[edge.source_id], copies[edge.target_id]) for edge in store.edges(label, {}))
        assert pairs == [(1, 3), (1, 4), (2, 3), (2, 4)]

    def test_link_without_an_end_is_no_error(self, store: Store, label: str) -> None:
        store.link(link_spec(label))
        store.upsert(label, [{"key": "a1", "to": "nobody"}, {"key": "a2"}], ["key"])
        store.link(link_spec(label))
        store.link(link_spec(label, target_label=label + "_NOBODY"))
        assert list(store.edges(label, {})) == []

    def test_link_compares_keys_with_their_type(self, store: Store, label: str) -> None:
        store.upsert(label, [{"key": "a1", "to": "1"}, {"key": "a2", "to": 1}, {"key": "a3", "to": True}], ["key"])
        store.upsert(label, [{"key": 1}, {"key": "1"}], ["key"])
        store.link(link_spec(label))
        assert edge_names(store, label, {}) == ["a1-NAMES->'1'", "a2-NAMES->1"]

    @pytest.mark.parametrize("text", TRICKY_TEXTS.values(), ids=TRICKY_TEXTS)
    def test_link_joins_by_and_under_any_text(self, store: Store, label: str, text: str) -> None:
        store.upsert(label, [{"key": "a1", "to": text, "scope": text}, {"key": text, "scope": text}], ["key"])
        store.link(link_spec(label, source_where={"scope": text}, target_where={"scope": text, "key": {"$in": [text]}}))
        assert len(store.edges(label, {"scope": text})) == 1
        assert len(store.edges_into(label, {"scope": text})) == 1

    def test_edges_are_those_of_the_records_under_the_where(self, store: Store, label: str) -> None:
        rows = [{"key": "a1", "to": "b1"}, {"key": "a2", "to": "b1"}, {"key": "b1", "to": "c1"}, {"key": "c1"}]
        store.upsert(label, rows, ["key"])
        store.link(link_spec(label))
        ids = {record.get("key"): record.id for record in seen(store, label, {})}
        assert edge_names(store, label, {"key": "b1"}) == ["b1-NAMES->c1"]
        assert edge_names(store, label, {"$id": {"$in": [ids["a1"], ids["b1"]]}}) == ["a1-NAMES->b1", "b1-NAMES->c1"]
        assert edge_names(store, label, {"key": "b1"}, into=True) == ["a1-NAMES->b1", "a2-NAMES->b1"]
        assert edge_names(store, label, {"$id": ids["c1"]}, into=True) == ["b1-NAMES->c1"]
        assert edge_names(store, label, {"key": "nobody"}) == []
        assert edge_names(store, label, {"key": "nobody"}, into=True) == []

    def test_delete_takes_the_edges_of_a_record_along(self, store: Store, label: str) -> None:
        rows = [{"key": "a1", "to": "b1"}, {"key": "b1", "to": "c1"}, {"key": "c1"}]
        store.upsert(label, rows, ["key"])
        store.link(link_spec(label))
        store.delete(label, seen(store, label, {"key": "b1"})[0].id)
        assert list(store.edges(label, {})) == []
        assert list(store.edges_into(label, {})) == []

    def test_8_threads_linking_one_hub_leave_each_edge_once(self, store: Store, label: str) -> None:
        store.upsert(label, [{"key": "hub"}, *({"key": f"a{n}", "to": "hub"} for n in range(8))], ["key"])

        def link(number: int) -> None:
            insist(lambda: store.link(link_spec(label, source_where={"key": f"a{number}"})))
            insist(lambda: store.link(link_spec(label)))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(link, range(8)))
        assert edge_names(store, label, {}) == [f"a{n}-NAMES->hub" for n in range(8)]

    # -- vectors -----------------------------------------------------------------------------------------------------

    def test_vector_search_is_exact(self, store: Store, label: str) -> None:
        if not vectors_ready(store, label, 8):
            return
        rng = random.Random(7)
        vectors = {f"k{n:02}": [rng.gauss(0, 1) for _ in range(8)] for n in range(60)}
        store.upsert(label, [{"key": key, "scope": "s1", "text": key} for key in vectors], ["key"])
        ids = {record.get("key"): record.id for record in seen(store, label, {})}
        store.set_vectors(label, "text", {ids[key]: vector for key, vector in vectors.items()})
        wanted = [rng.gauss(0, 1) for _ in range(8)]
        found = store.search(label, "text", {"scope": "s1"}, vector=wanted, limit=20)
        nearest = sorted(vectors, key=lambda key: -cosine(wanted, vectors[key]))
        assert names(found, "key") == nearest[:20]
        scores = [record.score for record in found if record.score is not None]
        assert len(scores) == 20
        assert scores == sorted(scores, reverse=True)
        assert dict(found[0].properties) == {"key": nearest[0], "scope": "s1", "text": nearest[0]}

    def test_vector_search_filters_before_it_ranks(self, store: Store, label: str) -> None:
        if not vectors_ready(store, label, 3):
            return
        rows = [
            {"key": f"k{n}", "scope": "theirs" if n < 20 else "ours", "text": "x", "active": n != 22} for n in range(24)
        ]
        store.upsert(label, rows, ["key"])
        vectors = {
            record.id: [1, 0, 0] if record.get("scope") == "theirs" else [0, 1, int(str(record.get("key"))[1:])]
            for record in seen(store, label, {})
        }
        store.set_vectors(label, "text", vectors)
        ours = {"scope": "ours", "active": True}
        assert names(store.search(label, "text", ours, vector=[1, 1, 0], limit=5), "key") == ["k20", "k21", "k23"]
        assert names(store.search(label, "text", ours, vector=[1, 1, 0], limit=2), "key") == ["k20", "k21"]
        assert list(store.search(label, "text", {"scope": "nobody"}, vector=[1, 1, 0])) == []

    def test_records_without_a_vector_are_not_in_a_vector_search(self, store: Store, label: str) -> None:
        if not vectors_ready(store, label, 3):
            return
        ids = two_texts(store, label)
        store.set_vectors(label, "text", {ids["k1"]: [0, 0, 1]})
        assert names(store.search(label, "text", {"scope": "s1"}, vector=[1, 1, 1]), "key") == ["k1"]
        assert store.with_vectors(label, "text", list(ids.values())) == {ids["k1"]}
        assert store.with_vectors(label, "text", [ids["k2"], str(uuid.uuid4())]) == frozenset()
        assert store.with_vectors(label, "text", []) == frozenset()

    def test_a_vector_set_again_is_replaced(self, store: Store, label: str) -> None:
        if not vectors_ready(store, label, 3):
            return
        ids = two_texts(store, label)
        store.set_vectors(label, "text", {ids["k1"]: [1, 0, 0], ids["k2"]: [0, 1, 0]})
        store.set_vectors(label, "text", {ids["k1"]: [0, 1, 0.1], ids["k2"]: [1, 0, 0.1]})
        assert names(store.search(label, "text", {"scope": "s1"}, vector=[1, 0, 0]), "key") == ["k2", "k1"]

    def test_a_record_keeps_its_vector_when_other_properties_change(self, store: Store, label: str) -> None:
        if not vectors_ready(store, label, 3):
            return
        ids = two_texts(store, label)
        store.set_vectors(label, "text", {ids["k1"]: [1, 0, 0]})
        store.upsert(label, [{"key": "k1", "active": False, "text": "green tea"}], ["key"])
        assert store.with_vectors(label, "text", list(ids.values())) == {ids["k1"]}
        assert names(store.search(label, "text", {"active": False}, vector=[1, 0, 0]), "key") == ["k1"]

    def test_delete_takes_the_vector_along(self, store: Store, label: str) -> None:
        if not vectors_ready(store, label, 3):
            return
        ids = two_texts(store, label)
        store.set_vectors(label, "text", {ids["k1"]: [1, 0, 0], ids["k2"]: [0, 1, 0]})
        store.delete(label, ids["k1"])
        assert store.with_vectors(label, "text", list(ids.values())) == {ids["k2"]}
        assert names(store.search(label, "text", {"scope": "s1"}, vector=[1, 0, 0]), "key") == ["k2"]

    @pytest.mark.parametrize("vector", [[0, 0, 0], [0.0, -0.0, 0.0], [math.nan, 0, 1], [math.inf, 0, 1], [], [1, 0]])
    def test_a_vector_that_cannot_be_compared_is_refused(self, store: Store, label: str, vector: list[float]) -> None:
        if not vectors_ready(store, label, 3):
            return
        ids = two_texts(store, label)
        with pytest.raises(errors.Permanent):
            store.set_vectors(label, "text", {ids["k1"]: [1, 0, 0], ids["k2"]: vector})
        assert store.with_vectors(label, "text", list(ids.values())) == frozenset()
        with pytest.raises(errors.Permanent):
            store.search(label, "text", {"scope": "s1"}, vector=vector)

    def test_vectors_with_an_unknown_id_are_refused_and_none_is_written(self, store: Store, label: str) -> None:
        if not vectors_ready(store, label, 3):
            return
        ids = two_texts(store, label)
        with pytest.raises(errors.StoreRefused):
            store.set_vectors(label, "text", {ids["k1"]: [1, 0, 0], str(uuid.uuid4()): [0, 1, 0]})
        assert store.with_vectors(label, "text", list(ids.values())) == frozenset()

    def test_vectors_without_an_index_are_refused(self, store: Store, label: str) -> None:
        ids = two_texts(store, label)
        with pytest.raises(errors.Permanent):
            store.set_vectors(label, "text", {ids["k1"]: [1, 0, 0]})
        with pytest.raises(errors.Permanent):
            store.search(label, "text", {"scope": "s1"}, vector=[1, 0, 0])
        assert store.with_vectors(label, "text", [ids["k1"]]) == frozenset()

    def test_vectors_of_no_records_are_no_error(self, store: Store, label: str) -> None:
        if vectors_ready(store, label, 3):
            store.set_vectors(label, "text", {})

    # -- text --------------------------------------------------------------------------------------------------------

    def test_text_search_finds_the_records_that_hold_a_word(self, store: Store, label: str) -> None:
        if not text_ready(store, label):
            return
        two_texts(store, label)
        eventually(lambda: names(store.search(label, "text", {"scope": "s1"}, text="tea"), "key")[:1] == ["k1"])
        found = store.search(label, "text", {"scope": "s1"}, text="Which TEA do I like?", limit=1)
        assert names(found, "key") == ["k1"]
        assert dict(found[0].properties) == {"key": "k1", "scope": "s1", "text": "the user likes green tea"}
        assert found[0].score is not None
        assert found[0].score > 0

    def test_text_search_ranks_the_better_match_first(self, store: Store, label: str) -> None:
        if not text_ready(store, label):
            return
        texts = ["the build uses make", "deploy on friday", "deploy the build with make on monday", "something else"]
        store.upsert(label, [{"key": f"k{n}", "scope": "s1", "text": text} for n, text in enumerate(texts)], ["key"])
        wake(store, label)

        def found() -> Sequence[Record]:
            return store.search(label, "text", {"scope": "s1"}, text="deploy build make", limit=3)

        eventually(lambda: names(found(), "key")[:1] == ["k2"] and len(found()) == 3)
        scores = [record.score for record in found() if record.score is not None]
        assert len(scores) == 3
        assert scores == sorted(scores, reverse=True)

    def test_text_search_filters_before_it_ranks(self, store: Store, label: str) -> None:
        if not text_ready(store, label):
            return
        rows = [{"key": f"k{n:02}", "scope": "theirs", "text": "deploy deploy deploy"} for n in range(30)]
        rows.append({"key": "ours", "scope": "ours", "text": "a long story about many things, one of them a deploy"})
        store.upsert(label, rows, ["key"])
        wake(store, label, scope="ours")
        eventually(
            lambda: names(store.search(label, "text", {"scope": "ours"}, text="deploy", limit=1), "key") == ["ours"]
        )
        assert list(store.search(label, "text", {"scope": "nobody"}, text="deploy")) == []

    def test_text_search_obeys_every_part_of_the_where(self, store: Store, label: str) -> None:
        if not text_ready(store, label):
            return
        rows = [{**row, "text": "deploy"} for row in PEOPLE.values()]
        store.upsert(label, rows, ["name"])
        wake(store, label, key="name", value="eve")
        eventually(lambda: len(store.search(label, "text", {"name": {"$exists": True}}, text="deploy")) == len(PEOPLE))
        for _, where, expected in WHERES:
            if where:
                found = store.search(label, "text", where, text="deploy", limit=10)
                assert sorted(names(found, "name")) == expected.split(), where

    @pytest.mark.parametrize("text", HOSTILE_QUERIES, ids=range(len(HOSTILE_QUERIES)))
    def test_text_search_takes_any_text_as_words(self, store: Store, label: str, text: str) -> None:
        if not text_ready(store, label):
            return
        two_texts(store, label, second="deploy on friday")
        eventually(lambda: len(store.search(label, "text", {"scope": "s1"}, text="deploy")) > 0)
        found = store.search(label, "text", {"scope": "s1"}, text=text)
        if store.capabilities().keyword_search:
            assert names(found, "key") == ["k2"]

    @pytest.mark.parametrize("text", WORDLESS_QUERIES, ids=range(len(WORDLESS_QUERIES)))
    def test_text_search_without_words_finds_nothing_and_raises_nothing(
        self, store: Store, label: str, text: str
    ) -> None:
        if not text_ready(store, label):
            return
        two_texts(store, label)
        found = store.search(label, "text", {"scope": "s1"}, text=text)
        if store.capabilities().keyword_search:
            assert list(found) == []

    def test_text_search_follows_changes_and_deletions(self, store: Store, label: str) -> None:
        if not text_ready(store, label):
            return
        if not store.capabilities().keyword_search:
            return  # embeddings of old texts stay: texts that change are new records (design: content never changes)
        ids = two_texts(store, label)

        def found(text: str) -> list[Any]:
            return names(store.search(label, "text", {"scope": "s1"}, text=text), "key")

        store.upsert(label, [{"key": "k1", "text": "the user likes coffee"}], ["key"])
        eventually(lambda: (found("coffee"), found("green")) == (["k1"], []))
        store.upsert(label, [{"key": "k1", "active": False}], ["key"])
        assert found("coffee") == ["k1"]
        store.delete(label, ids["k1"])
        eventually(lambda: found("coffee") == [])

    def test_an_index_that_is_made_later_covers_what_is_there(self, store: Store, label: str) -> None:
        two_texts(store, label)
        if not text_ready(store, label):
            return
        wake(store, label)
        eventually(lambda: names(store.search(label, "text", {"scope": "s1"}, text="tea"), "key")[:1] == ["k1"])

    def test_hybrid_search_finds_by_word_and_by_vector(self, store: Store, label: str) -> None:
        capabilities = store.ensure_indexes([IndexSpec(label=label, property="text", dimensions=3)])
        texts = {"word": "deploy on friday", "near": "shipping software", "both": "deploy again", "far": "likes tea"}
        store.upsert(label, [{"key": key, "scope": "s1", "text": text} for key, text in texts.items()], ["key"])
        if not (capabilities.keyword_search and capabilities.vector_search):
            with pytest.raises(errors.Unsupported):
                store.search(label, "text", {"scope": "s1"}, text="deploy", vector=[1, 0, 0])
            return
        ids = {record.get("key"): record.id for record in seen(store, label, {})}
        store.set_vectors(label, "text", {ids["near"]: [1, 0, 0.1], ids["both"]: [1, 0, 0.2], ids["far"]: [-1, 1, 0]})

        def found(where: Mapping[str, Any], limit: int) -> list[Any]:
            return names(store.search(label, "text", where, text="deploy", vector=[1, 0, 0], limit=limit), "key")

        eventually(lambda: found({"scope": "s1"}, 1) == ["both"])
        assert set(found({"scope": "s1"}, 3)) == {"both", "word", "near"}
        assert found({"scope": "nobody"}, 3) == []

    def test_search_needs_a_where_and_something_to_search_for(self, store: Store, label: str) -> None:
        store.ensure_indexes([IndexSpec(label=label, property="text", dimensions=3)])
        with pytest.raises(errors.Permanent):
            store.search(label, "text", {}, text="x")
        with pytest.raises(errors.Permanent):
            store.search(label, "text", {}, vector=[1, 0, 0])
        with pytest.raises(errors.Permanent):
            store.search(label, "text", {"scope": "s1"})

    def test_text_search_without_an_index_is_refused(self, store: Store, label: str) -> None:
        two_texts(store, label)
        with pytest.raises(errors.Permanent):
            store.search(label, "text", {"scope": "s1"}, text="tea")

    # -- indexes, ping, close ----------------------------------------------------------------------------------------

    def test_ensure_indexes_again_changes_nothing(self, store: Store, label: str) -> None:
        specs = [
            IndexSpec(label=label, property="text", dimensions=3),
            IndexSpec(label=label, property="summary", dimensions=3),
        ]
        first = store.ensure_indexes(specs)
        assert store.ensure_indexes(specs) == first
        assert store.ensure_indexes(specs + specs) == first
        assert store.ensure_indexes([]) == first
        assert store.capabilities() == first

    def test_8_threads_ensuring_the_same_indexes_all_get_them(self, store: Store, label: str) -> None:
        specs = [IndexSpec(label=label, property="text", dimensions=3)]
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: insist(lambda: store.ensure_indexes(specs)), range(8)))
        assert len(set(answers)) == 1
        if answers[0].vector_search:
            ids = two_texts(store, label)
            store.set_vectors(label, "text", {ids["k1"]: [1, 0, 0]})
            assert names(store.search(label, "text", {"scope": "s1"}, vector=[1, 0, 0]), "key") == ["k1"]

    def test_capabilities_need_no_ensured_indexes(self, store: Store, label: str) -> None:
        capabilities = store.capabilities()
        assert capabilities.name in ("sqlite", "rushdb", "rushdb-direct")
        assert capabilities.read_lag_s >= 0
        assert store.capabilities() == capabilities

    def test_ping_returns_while_the_store_works(self, store: Store, label: str) -> None:
        store.ping()
        store.upsert(label, [{"key": "k1"}], ["key"])
        store.ping()

    def test_a_label_that_is_none_is_refused(self, store: Store, label: str) -> None:
        for name in ("", "A B", "A'B", "A`B", "1A", "Ä"):
            with pytest.raises(errors.Permanent):
                store.upsert(name, [{"key": "k1"}], ["key"])
            with pytest.raises(errors.Permanent):
                store.find(name, {})
            with pytest.raises(errors.Permanent):
                store.link(link_spec(label, type=name))

    def test_no_message_of_an_error_tells_a_value(self, store: Store, label: str) -> None:
        secret = "hunter2"
        calls: list[Callable[[], Any]] = [
            lambda: store.upsert(label, [{"key": secret}, {"key": secret}], ["key"]),
            lambda: store.upsert(label, [{"key": secret, "a": [secret]}], ["key"]),
            lambda: store.upsert(label, [{"a": secret}], ["key"]),
            lambda: store.find(label, {"key": {"$in": [secret, 1]}}),
            lambda: store.find(label, {"key": {"$gt": secret}}),
            lambda: store.find(label, {"key": {"$contains": secret}}),
        ]
        for call in calls:
            with pytest.raises(errors.Permanent) as caught:
                call()
            assert secret not in str(caught.value)

    def test_calls_after_close_are_refused(self, store: Store, label: str) -> None:
        store.upsert(label, [{"key": "k1"}], ["key"])
        (record,) = seen(store, label, {})
        store.delete(label, record.id)
        store.close()
        store.close()
        calls: list[Callable[[], Any]] = [
            lambda: store.find(label, {}),
            lambda: store.upsert(label, [{"key": "k1"}], ["key"]),
            lambda: store.delete(label, record.id),
            lambda: store.link(link_spec(label)),
            lambda: store.edges(label, {}),
            lambda: store.edges_into(label, {}),
            lambda: store.with_vectors(label, "text", [record.id]),
            lambda: store.ensure_indexes([IndexSpec(label=label, property="text")]),
            store.ping,
        ]
        for call in calls:
            with pytest.raises(errors.StoreUnavailable):
                call()


# -- helpers ---------------------------------------------------------------------------------------------------------


def fresh(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex[:16].upper()}"


def names(records: Sequence[Record], name: str) -> list[Any]:
    return [record.get(name) for record in records]


def seen(store: Store, label: str, where: Mapping[str, Any], **options: Any) -> list[Record]:
    return list(store.find(label, where, **options).records)


def link_spec(label: str, **changed: Any) -> LinkSpec:
    """`to` of a record names the `key` of another."""
    spec: dict[str, Any] = {
        "type": "NAMES",
        "source_label": label,
        "source_key": "to",
        "source_where": {},
        "target_label": label,
        "target_key": "key",
    }
    return LinkSpec(**(spec | changed))


def edge_names(store: Store, label: str, where: Mapping[str, Any], *, into: bool = False) -> list[str]:
    """Edges as `source-TYPE->target`, by the `key` of their ends."""
    keys = {record.id: record.get("key") for record in seen(store, label, {})}
    edges = store.edges_into(label, where) if into else store.edges(label, where)

    def key(record_id: str) -> str:
        value = keys[record_id]
        return value if isinstance(value, str) and not value.isdigit() else repr(value)

    return sorted(f"{key(edge.source_id)}-{edge.type}->{key(edge.target_id)}" for edge in edges)


def two_texts(store: Store, label: str, second: str = "the user moved to Lisbon") -> dict[Any, str]:
    """Two records with a `text`; their ids by key."""
    rows = [
        {"key": "k1", "scope": "s1", "text": "the user likes green tea"},
        {"key": "k2", "scope": "s1", "text": second},
    ]
    store.upsert(label, rows, ["key"])
    wake(store, label)
    return {record.get("key"): record.id for record in seen(store, label, {"scope": "s1"})}


def wake(store: Store, label: str, *, key: str = "key", value: str | None = None, scope: str = "s1") -> None:
    """Managed indexes sleep through batches: send one of the label's rows once more, alone."""
    where = {key: value} if value is not None else {"scope": scope}
    record = store.find(label, where, limit=1).records[0]
    store.upsert(label, [record.properties], [key], wake=True)


def vectors_ready(store: Store, label: str, dimensions: int) -> bool:
    """Ensure a vector index on `text`; a store without vectors must refuse to search by one."""
    if store.ensure_indexes([IndexSpec(label=label, property="text", dimensions=dimensions)]).vector_search:
        return True
    with pytest.raises(errors.Unsupported):
        store.search(label, "text", {"scope": "s1"}, vector=[1.0] * dimensions)
    return False


def text_ready(store: Store, label: str) -> bool:
    """Ensure a text index on `text`; a store that cannot search by text must refuse it."""
    capabilities = store.ensure_indexes([IndexSpec(label=label, property="text")])
    if capabilities.keyword_search or capabilities.embeds:
        return True
    with pytest.raises(errors.Unsupported):
        store.search(label, "text", {"scope": "s1"}, text="tea")
    return False


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True)) / (math.hypot(*one) * math.hypot(*other))


def eventually(claim: Callable[[], bool]) -> None:
    """Return when `claim` is true; at once where searches see every write."""
    deadline = time.monotonic() + LATE_S
    while not claim():
        assert time.monotonic() < deadline, "the store did not get there in time"
        time.sleep(0.2)


def insist(call: Callable[[], Any]) -> Any:
    """The answer of `call`, made again while the store asks for it: callers retry, adapters do not."""
    deadline = time.monotonic() + RETRY_S
    while True:
        try:
            return call()
        except errors.Retryable as error:
            if time.monotonic() > deadline:
                raise
            time.sleep(max(0.05, error.retry_after_s))
