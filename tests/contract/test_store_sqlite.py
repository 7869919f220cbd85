"""The SQLite store: the store contract, and what it promises beyond."""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from producer import errors
from producer.store import where as wheres
from producer.store import words
from producer.store.port import IndexSpec
from producer.store.sqlite import SqliteStore
from tests.contract.store_contract import StoreContract, cosine, link_spec, names, seen, two_texts

ROOT = Path(__file__).parents[2]
TEXT = IndexSpec(label="FACT", property="text")
VECTOR = IndexSpec(label="FACT", property="text", dimensions=3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(path)
    yield store
    store.close()


class TestSqliteStore(StoreContract):
    """The store contract on SQLite."""

    @pytest.fixture
    def store(self, path: Path) -> Iterator[SqliteStore]:
        store = SqliteStore(path)
        yield store
        store.close()


# -- concurrency -------------------------------------------------------------------------------------------------------


def test_16_threads_upserting_one_new_key_make_one_record(store: SqliteStore) -> None:
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda n: store.upsert("FACT", [{"key": "k", f"p{n}": n}], ["key"]), range(16)))
    (record,) = seen(store, "FACT", {"key": "k"})
    assert len(record.properties) == 17


WRITER = """
import sys
from producer.store.port import IndexSpec
from producer.store.sqlite import SqliteStore
store = SqliteStore(sys.argv[1])
store.ensure_indexes([IndexSpec(label="FACT", property="text")])
for n in range(20):
    store.upsert("FACT", [{"key": f"k{n}", f"p{sys.argv[2]}": n, "text": "tea"}], ["key"])
    print(n, flush=True)
store.close()
"""


def writer(path: Path, name: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", WRITER, str(path), str(name)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_processes_that_open_one_new_file_at_once_share_it(path: Path, store: SqliteStore) -> None:
    processes = [writer(path, name) for name in range(4)]
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    records = seen(store, "FACT", {})
    assert sorted(names(records, "key")) == sorted(f"k{n}" for n in range(20))
    for record in records:
        assert {f"p{name}" for name in range(4)} <= set(record.properties)
    assert len(store.search("FACT", "text", {"text": "tea"}, text="tea", limit=100)) == 20


def test_what_an_upsert_returned_from_survives_sigkill(path: Path, store: SqliteStore) -> None:
    process = writer(path, 0)
    assert process.stdout is not None
    acknowledged = [next(process.stdout) for _ in range(5)]
    process.send_signal(signal.SIGKILL)
    acknowledged += process.stdout.readlines()
    process.wait(timeout=10)
    process.stdout.close()
    assert {f"k{int(line)}" for line in acknowledged} <= set(names(seen(store, "FACT", {}), "key"))


def test_readers_do_not_wait_for_a_writer(path: Path, store: SqliteStore) -> None:
    store.upsert("FACT", [{"key": "k"}], ["key"])
    with raw(path) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("DELETE FROM cells")
        assert names(seen(store, "FACT", {"key": "k"}), "key") == ["k"]
        other.execute("ROLLBACK")


def test_a_write_behind_a_stuck_writer_fails_in_time_and_wrote_nothing(path: Path, store: SqliteStore) -> None:
    store.ping()
    hasty = SqliteStore(path, timeout_s=0.2)
    with raw(path) as other:
        other.execute("BEGIN IMMEDIATE")
        started = time.monotonic()
        with pytest.raises(errors.StoreUnavailable) as caught:
            hasty.upsert("FACT", [{"key": "k"}], ["key"])
        assert time.monotonic() - started < 2
        assert not caught.value.outcome_unknown
        other.execute("ROLLBACK")
    assert store.count() == 0
    hasty.upsert("FACT", [{"key": "k"}], ["key"])
    hasty.close()
    assert store.count() == 1


def test_a_find_that_takes_too_long_is_given_up(path: Path, store: SqliteStore) -> None:
    for start in range(0, 1000, 100):
        store.upsert("FACT", [{"key": n, "a": "x"} for n in range(start, start + 100)], ["key"])
    hasty = SqliteStore(path, timeout_s=0.05)
    slow = {"$and": [{"a": {"$ne": f"y{n}"}} for n in range(200)]}
    with pytest.raises(errors.StoreUnavailable, match="in time"):
        hasty.find("FACT", slow)
    hasty.close()
    assert store.find("FACT", slow, limit=1).total == 1000


def test_a_store_of_another_thread_can_be_closed_while_it_works(store: SqliteStore) -> None:
    started = threading.Event()

    def work() -> None:
        for n in itertools.count():
            try:
                store.upsert("FACT", [{"key": n}], ["key"])
            except errors.StoreUnavailable:
                return
            started.set()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert started.wait(10)
    store.close()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_a_forked_child_is_told_not_to_use_its_parents_store(store: SqliteStore) -> None:
    store.ping()
    reader, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            store.ping()
        except errors.Unsupported:
            os.write(writing, b"refused")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    assert os.read(reader, 100) == b"refused"
    os.close(reader)
    store.ping()


# -- the file ----------------------------------------------------------------------------------------------------------


def test_the_file_and_its_wal_are_readable_by_the_owner_only(path: Path, store: SqliteStore) -> None:
    old = os.umask(0)
    try:
        store.upsert("FACT", [{"key": "k"}], ["key"])
    finally:
        os.umask(old)
    files = sorted(path.parent.iterdir())
    assert [file.name for file in files] == ["store.db", "store.db-shm", "store.db-wal"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_file_that_others_may_read_is_closed_to_them(path: Path, store: SqliteStore) -> None:
    store.ping()
    store.close()
    path.chmod(0o644)
    again = SqliteStore(path)
    again.ping()
    again.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_second_store_of_the_process_leaves_the_locks_of_the_first(path: Path, store: SqliteStore) -> None:
    """Closing any descriptor of a file drops all POSIX locks of its process; another process would then see none."""
    store.ping()
    second = SqliteStore(path)
    second.ping()
    code = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('PRAGMA journal_mode = DELETE')"
    answer = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=30)
    assert "database is locked" in answer.stderr
    second.close()


def test_records_are_there_when_the_file_is_opened_again(path: Path, store: SqliteStore) -> None:
    store.ensure_indexes([VECTOR])
    ids = two_texts(store, "FACT")
    store.set_vectors("FACT", "text", {ids["k1"]: [1, 0, 0]})
    store.close()
    again = SqliteStore(path)
    assert names(seen(again, "FACT", {}), "key") == ["k1", "k2"]
    assert names(again.search("FACT", "text", {"scope": "s1"}, text="tea", vector=[1, 0, 0]), "key") == ["k1"]
    again.close()


def test_the_file_is_synced_and_in_wal_mode(path: Path, store: SqliteStore) -> None:
    with store._file.read() as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_a_newer_file_is_refused_with_what_to_do_and_left_alone(path: Path, store: SqliteStore) -> None:
    store.ping()
    store.close()
    with raw(path) as other:
        other.execute("PRAGMA user_version = 2")
    before = path.read_bytes()
    newer = SqliteStore(path)
    with pytest.raises(errors.StoreUnavailable, match=r"schema 2.*upgrade"):
        newer.ping()
    newer.close()
    assert path.read_bytes() == before


def test_another_programs_database_is_refused_and_left_alone(path: Path) -> None:
    path.parent.mkdir()
    with raw(path) as other:
        other.execute("CREATE TABLE theirs (a)")
    before = path.read_bytes()
    store = SqliteStore(path)
    with pytest.raises(errors.StoreUnavailable, match="another program"):
        store.upsert("FACT", [{"key": "k"}], ["key"])
    store.close()
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"no database " * 1000, b"SQLite format 3\0" + b"\xff" * 8000])
def test_a_damaged_file_is_named_as_such(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    store = SqliteStore(path)
    with pytest.raises(errors.StoreUnavailable, match="damaged"):
        store.find("FACT", {})
    store.close()


def test_a_directory_that_cannot_be_made_is_an_error_of_the_call(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    store = SqliteStore(tmp_path / "file" / "store.db")
    with pytest.raises(errors.StoreUnavailable, match=os.strerror(errno.ENOTDIR)):
        store.ping()
    store.close()


def test_a_full_disk_loses_nothing_and_heals(path: Path, store: SqliteStore) -> None:
    store.upsert("FACT", [{"key": "k"}], ["key"])
    with store._file.read() as connection:
        connection.execute("PRAGMA max_page_count = 40")  # of this connection, which is the only one
    with pytest.raises(errors.StoreUnavailable) as caught:
        for n in range(100):
            store.upsert("FACT", [{"key": f"k{n}-{i}", "text": "x" * 5000} for i in range(20)], ["key"])
    assert not caught.value.outcome_unknown
    assert store.count() % 20 == 1
    again = SqliteStore(path)
    again.upsert("FACT", [{"key": "k", "text": "x" * 50_000}], ["key"])
    again.close()


def test_no_message_quotes_sqlite(path: Path, store: SqliteStore) -> None:
    """SQLite's own messages may quote queries, and so user text."""
    store.ping()
    with raw(path) as other:
        other.execute("DROP TABLE edges")
    with pytest.raises(errors.StoreUnavailable) as caught:
        store.edges("FACT", {})
    assert str(caught.value) == "the SQLite store failed (SQLITE_ERROR)"
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)


def test_the_store_imports_nothing_heavy() -> None:
    code = "import sys, producer.store.sqlite; print(*sys.modules)"
    modules = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30
    ).stdout.split()
    assert not {"pydantic", "rushdb", "urllib3", "redis", "celery", "kombu", "asyncio", "uuid"} & set(modules)


# -- records -----------------------------------------------------------------------------------------------------------


def test_ids_rise_within_a_batch_and_when_the_clock_goes_back(path: Path) -> None:
    times = iter([1000.0] * 3 + [500.0] * 3 + [2000.0] * 3)
    store = SqliteStore(path, clock=lambda: next(times))
    for start in range(0, 9, 3):
        store.upsert("FACT", [{"key": n} for n in range(start, start + 3)], ["key"])
    found = seen(store, "FACT", {})
    store.close()
    assert names(found, "key") == list(range(9))
    ids = [record.id for record in found]
    assert ids == sorted(set(ids))
    assert {(len(one), one[14], one[19] in "89ab") for one in ids} == {(36, "7", True)}
    assert int(ids[0].replace("-", "")[:12], 16) == 1_000_000
    assert int(ids[8].replace("-", "")[:12], 16) == 2_000_000


def test_an_id_is_not_given_out_again(path: Path) -> None:
    store = SqliteStore(path, clock=lambda: 0.0)
    ids = []
    for n in range(20):
        (record,) = store.upsert("FACT", [{"key": n}], ["key"])
        ids.append(record.id)
        store.delete("FACT", record.id)
    store.close()
    assert len(set(ids)) == 20


def test_an_upsert_that_fails_half_way_leaves_nothing_of_itself(store: SqliteStore) -> None:
    store.ensure_indexes([TEXT])
    with store._file.write() as connection:
        connection.execute(
            "CREATE TRIGGER stop BEFORE INSERT ON cells WHEN NEW.value = 3.0 BEGIN SELECT RAISE(ABORT, 'x'); END"
        )
    with pytest.raises(errors.StoreRefused):
        store.upsert("FACT", [{"key": n, "text": "tea"} for n in range(5)], ["key"])
    assert store.count() == 0
    assert list(store.search("FACT", "text", {"text": "tea"}, text="tea")) == []


def test_lone_surrogates_come_back_and_are_found(store: SqliteStore) -> None:
    texts = ["\ud83d", "\udc4d", "a\ud800b", "\udc4d\ud83d", "\ud800" * 500]
    store.upsert("FACT", [{"key": text} for text in texts], ["key"])
    assert sorted(names(seen(store, "FACT", {}), "key")) == sorted(texts)
    for text in texts:
        assert names(seen(store, "FACT", {"key": text}), "key") == [text]


def test_two_surrogates_that_make_a_pair_equal_their_character(store: SqliteStore) -> None:
    store.upsert("FACT", [{"key": "\ud83d\udc4d"}], ["key"])
    assert names(seen(store, "FACT", {"key": "👍"}), "key") == ["👍"]


def test_nul_characters_come_back_and_are_found(store: SqliteStore) -> None:
    store.upsert("FACT", [{"key": "a\x00b"}, {"key": "a"}, {"key": "a\x00c"}], ["key"])
    assert names(seen(store, "FACT", {"key": "a\x00b"}), "key") == ["a\x00b"]
    assert names(seen(store, "FACT", {"key": "a"}), "key") == ["a"]


def test_properties_are_stored_as_plain_ascii_json(path: Path, store: SqliteStore) -> None:
    store.upsert("FACT", [{"key": "東", "n": 1, "on": True}], ["key"])
    with raw(path) as other:
        (text,) = other.execute("SELECT properties FROM records").fetchone()
    assert text == '{"key":"\\u6771","n":1,"on":true}'
    assert json.loads(text) == {"key": "東", "n": 1, "on": True}


def test_get_and_count_and_create_stand_beside_the_port(store: SqliteStore) -> None:
    first, second = store.create("FACT", [{"key": "k"}, {"key": "k"}])
    store.create("EPISODE", [{}])
    assert store.get(first.id) == first
    assert store.get("nobody") is None
    assert store.get("\ud800\x00") is None
    assert (store.count("FACT"), store.count("NOBODY"), store.count()) == (2, 0, 3)
    assert first.id < second.id


def test_delete_leaves_no_row_behind(path: Path, store: SqliteStore) -> None:
    store.ensure_indexes([VECTOR])
    ids = two_texts(store, "FACT")
    store.set_vectors("FACT", "text", {record_id: [1, 0, 0] for record_id in ids.values()})
    store.link(link_spec("FACT", source_key="scope", target_key="scope"))
    for record_id in ids.values():
        store.delete("FACT", record_id)
    with raw(path) as other:
        for table in ("records", "cells", "edges", "vectors", "words_1"):
            assert other.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table


def test_finds_by_key_and_by_scope_use_an_index(store: SqliteStore) -> None:
    for where in (
        {"eventId": "x"},
        {"agentId": "a", "sandboxEligible": False, "factId": {"$in": ["x", "y"]}},
        {"$or": [{"sourceEventId": "x"}, {"supersedesFactId": {"$in": ["y"]}}]},
        {"$and": [{"$or": [{"target": "x"}, {"target": "y"}]}, {"active": {"$ne": False}}]},
        {"$id": {"$in": ["x", "y"]}, "agentId": "a"},
    ):
        plan = explained(store, where)
        assert "SEARCH r USING" in plan, (where, plan)
        assert "records_by_label" not in plan, (where, plan)
        assert "SCAN" not in plan, (where, plan)


def test_a_find_goes_by_the_rarest_of_its_values(store: SqliteStore) -> None:
    for start in range(0, 800, 100):
        store.upsert("FACT", [{"scope": "s", "key": n} for n in range(start, start + 100)], ["key"])
    statements: list[str] = []
    with store._file.read() as connection:
        connection.set_trace_callback(statements.append)
    assert store.find("FACT", {"scope": "s", "key": 5}).total == 1
    (find,) = [one for one in statements if one.startswith("SELECT r.seq")]
    assert "IN (SELECT record FROM cells WHERE label = 'FACT' AND name = 'key'" in find


def explained(store: SqliteStore, where: Any) -> str:
    from producer.store.sqlite_query import rows_of

    with store._file.read() as connection:
        rows = rows_of(connection, "FACT", wheres.parse(where))
        plan = connection.execute(f"EXPLAIN QUERY PLAN SELECT r.seq {rows.sql}", rows.values).fetchall()
    return "\n".join(str(step[-1]) for step in plan)


VALUES = st.one_of(
    st.sampled_from(["", "a", "b", "1", "true", "2026-01-01T00:00:00.000Z", "2026-01-02T00:00:00.000Z", "\ud800"]),
    st.integers(-2, 2),
    st.sampled_from([0.5, 1.0, -0.0]),
    st.booleans(),
)
NAMES = st.sampled_from(["a", "b", "c"])
NUMBERS_OR_TIMES = st.one_of(st.integers(-2, 2), st.just("2026-01-02T00:00:00.000Z"))


def same_type(values: list[Any]) -> bool:
    return len({wheres.key(value)[0] for value in values}) == 1


LISTS = st.lists(VALUES, min_size=1, max_size=3).filter(same_type)
TESTS = st.one_of(
    VALUES,
    st.dictionaries(st.sampled_from(["$eq", "$ne"]), VALUES, min_size=1, max_size=1),
    st.dictionaries(st.sampled_from(["$gt", "$gte", "$lt", "$lte"]), NUMBERS_OR_TIMES, min_size=1, max_size=2),
    st.dictionaries(st.sampled_from(["$in", "$nin"]), LISTS, min_size=1, max_size=1),
    st.builds(lambda value: {"$exists": value}, st.booleans()),
)
WHERES = st.recursive(
    st.dictionaries(NAMES, TESTS, min_size=1, max_size=2),
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from(["$and", "$or"]), st.lists(inner, min_size=1, max_size=3), min_size=1),
        st.builds(lambda part: {"$not": part}, inner),
        st.builds(lambda part, name, test: {name: test, "$and": [part]}, inner, NAMES, TESTS),
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteStore]:
    """Records of every sort of value, and none."""
    rng = random.Random(3)
    values = ["", "a", "b", "1", "true", "2026-01-01T00:00:00.000Z", "2026-01-03T00:00:00.000Z", "2026-01-02", "\ud800"]
    choices = [*values, -1, 0, 1, 2, 0.5, 1.0, True, False]
    store = SqliteStore(tmp_path_factory.mktemp("mixed") / "store.db")
    store.create("MIXED", [{name: rng.choice(choices) for name in "abc" if rng.random() < 0.8} for _ in range(80)])
    yield store
    store.close()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(where=WHERES)
def test_find_and_matches_agree_on_every_where(mixed: SqliteStore, where: dict[str, Any]) -> None:
    everyone = seen(mixed, "MIXED", {})
    assert seen(mixed, "MIXED", where) == [record for record in everyone if wheres.matches(where, record)]


def test_a_where_of_too_many_values_or_levels_is_refused(store: SqliteStore) -> None:
    assert store.find("FACT", {"key": {"$in": list(range(wheres.MAX_VALUES - 1))}}).total == 0
    with pytest.raises(errors.Unsupported):
        store.find("FACT", {"key": {"$in": list(range(wheres.MAX_VALUES))}})
    deep: dict[str, Any] = {"key": "k"}
    for _ in range(wheres.MAX_DEPTH + 1):
        deep = {"$not": deep}
    with pytest.raises(errors.Unsupported):
        store.find("FACT", deep)


# -- search ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("The deployments were failing", "deploy failed"),
        ("Straße und Café", "strasse"),
        ("Straße und Café", "CAFE"),
        ("Straße und Café", "cafe\u0301"),
        ("東京都に住んでいます", "東京"),
        ("東京都に住んでいます", "京都に"),
        ("ｆｕｌｌ ｗｉｄｔｈ", "full width"),
        ("고양이를 좋아해요", "고양이"),
        ("ผู้ใช้ชอบชา", "ชา"),
        ("उपयोगकर्ता को चाय पसंद है", "चाय"),
        ("snake_case_name", "case"),
        ("mixed日本語text", "日本"),
        ("a single 名 here", "名"),
        ("what is this", "what is"),
        ("C++ and email@example.com", "example"),
        ("emoji🎉between", "between"),
        ("nul\x00between", "between"),
    ],
)
def test_words_are_found_in_every_script(store: SqliteStore, text: str, query: str) -> None:
    store.ensure_indexes([TEXT])
    store.upsert("FACT", [{"key": "k", "text": text}, {"key": "other", "text": "zzz"}], ["key"])
    assert names(store.search("FACT", "text", {"key": {"$exists": True}}, text=query), "key") == ["k"]


def test_unspaced_scripts_are_asked_for_neighbours(store: SqliteStore) -> None:
    store.ensure_indexes([TEXT])
    store.upsert("FACT", [{"key": "k1", "text": "京の東"}, {"key": "k2", "text": "東京"}], ["key"])
    assert names(store.search("FACT", "text", {"key": {"$exists": True}}, text="東京"), "key") == ["k2"]


@settings(max_examples=200, deadline=None)
@given(text=st.text(), question=st.text())
def test_any_text_can_be_indexed_and_searched_for(indexed: SqliteStore, text: str, question: str) -> None:
    indexed.upsert("FACT", [{"key": "k", "text": text}], ["key"])
    found = indexed.search("FACT", "text", {"key": "k"}, text=question)
    assert all(0 < (record.score or 0) <= 1 for record in found)
    if words.query(text) and text.isascii():
        assert names(indexed.search("FACT", "text", {"key": "k"}, text=text), "text") == [text]


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path_factory.mktemp("indexed") / "store.db")
    store.ensure_indexes([TEXT])
    yield store
    store.close()


def test_scores_of_words_lie_between_0_and_1(store: SqliteStore) -> None:
    store.ensure_indexes([TEXT])
    texts = ["tea", "tea tea tea", "tea and coffee", *("nothing " * n for n in range(1, 50))]
    store.upsert("FACT", [{"key": n, "text": text} for n, text in enumerate(texts)], ["key"])
    scores = [record.score or 0 for record in store.search("FACT", "text", {"key": {"$exists": True}}, text="tea")]
    assert len(scores) == 3
    assert all(0 < score <= 1 for score in scores)
    assert max(scores) > 0.5


def test_scores_of_vectors_are_on_rushdbs_scale(store: SqliteStore) -> None:
    store.ensure_indexes([VECTOR])
    vectors = [[1, 0, 0], [3, 4, 0], [0, 1e-200, 0], [-1e200, 0, 0]]
    rows = store.create("FACT", [{"key": n, "text": "x"} for n in range(len(vectors))])
    store.set_vectors("FACT", "text", {row.id: vector for row, vector in zip(rows, vectors, strict=True)})
    found = store.search("FACT", "text", {"key": {"$exists": True}}, vector=[2, 0, 0])
    assert [record.score for record in found] == pytest.approx([1, 0.8, 0.5, 0])


def test_vector_scores_equal_brute_force(store: SqliteStore) -> None:
    store.ensure_indexes([IndexSpec(label="FACT", property="text", dimensions=64)])
    rng = random.Random(5)
    vectors = [[rng.gauss(0, 1) for _ in range(64)] for _ in range(100)]
    rows = store.create("FACT", [{"key": n} for n in range(100)])
    store.set_vectors("FACT", "text", {row.id: vector for row, vector in zip(rows, vectors, strict=True)})
    wanted = [rng.gauss(0, 1) for _ in range(64)]
    found = store.search("FACT", "text", {"key": {"$gte": 0}}, vector=wanted, limit=100)
    exact = sorted(((1 + cosine(wanted, vector)) / 2 for vector in vectors), reverse=True)
    assert [record.score for record in found] == pytest.approx(exact, abs=1e-6)


def test_indexes_of_two_dimensions_stand_side_by_side(store: SqliteStore) -> None:
    store.ensure_indexes([VECTOR, IndexSpec(label="FACT", property="text", dimensions=2)])
    one, two = store.create("FACT", [{"key": 1}, {"key": 2}])
    store.set_vectors("FACT", "text", {one.id: [1, 0, 0], two.id: [1, 0]})
    where = {"key": {"$exists": True}}
    assert names(store.search("FACT", "text", where, vector=[1, 0, 0]), "key") == [1]
    assert names(store.search("FACT", "text", where, vector=[1, 0]), "key") == [2]
    assert store.with_vectors("FACT", "text", [one.id, two.id]) == {one.id, two.id}


class raw:
    """The store's file, opened beside the store."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None)

    def __enter__(self) -> sqlite3.Connection:
        return self.connection

    def __exit__(self, *_: object) -> None:
        self.connection.close()
