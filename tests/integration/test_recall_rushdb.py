"""Recall over the RushDB adapter and the test server, in every form that RushDB has."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from producer.convergence.content import TEXT
from producer.recall import engine
from producer.recall.engine import Recall, Session
from producer.store import open_store
from producer.store.port import IndexSpec
from tests.integration.test_recall import ANN, episode, fact, id_of, label_of, scope_of, stored, texts
from tests.rushdb_server import RunningServer, rushdb_server

FORMS = {
    "platform": {},
    "platform that embeds": {"embeds": True},
    "engine": {"profile": "direct"},
}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(form: str, tmp_path: Path) -> Iterator[RunningServer]:
    with rushdb_server(tmp_path / "data.sqlite", **FORMS[form]) as running:
        yield running


@pytest.fixture
def url(form: str, server: RunningServer) -> str:
    return f"rushdb+direct+{server.url}" if form == "engine" else f"rushdb+{server.url}"


def fill(url: str, token: str) -> None:
    store = open_store(url, token=token)
    store.ensure_indexes([IndexSpec(label=label, property=name) for label, name in TEXT.items()])
    here = Session(runtime="custom", external_session_id="here").key(ANN)
    events = [
        fact("prefers the Helix editor"),
        fact("preferred the Vim editor", active=False),
        fact("an editor named here", sessionKey=here),
        fact("their editor is Emacs", scope=scope_of("bob")),
        episode("we talked about an editor"),
        episode("an editor talk here", session="here"),
    ]
    for event in events:
        name = "factId" if event["eventType"] == "fact" else "eventId"
        assert id_of(event)
        store.upsert(label_of(event), [stored(event)], [name, "contentHash"], wake=True)
    store.close()


def test_recall_brings_the_same_whatever_search_the_server_has(server, url):
    fill(url, server.token)
    store = open_store(url, token=server.token)
    recall = Recall(store, deadline_ms=20_000)
    here = Session(runtime="custom", external_session_id="here")
    found = recall.recall(ANN, "which editor?", session=here)
    assert set(texts(found)) == {"prefers the Helix editor", "we talked about an editor"}
    assert not found.partial
    recall.close()
    store.close()


@pytest.mark.slow
def test_a_server_that_hangs_and_then_answers_gives_real_results_at_once(server, url):
    fill(url, server.token)
    deadline_ms = 600
    store = open_store(url, token=server.token, timeout_s=engine.store_timeout_s(deadline_ms))
    recall = Recall(store, deadline_ms=deadline_ms)
    assert recall.recall(ANN, "editor", deadline_ms=20_000).memories  # connected, as a host's first turns are
    server.fail("delay", delay_s=15)
    for _ in range(20):
        started = time.monotonic()
        assert recall.recall(ANN, "editor").memories == ()
        assert time.monotonic() - started < deadline_ms / 1000 + 0.2
    assert recall.status()["breakerOpen"]
    server.clear_faults()
    assert recall.recall(ANN, "editor").memories
    recall.close()
    store.close()
