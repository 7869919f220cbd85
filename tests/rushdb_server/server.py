"""The test server: a project behind a wire form, with fault switches, a log of what was asked, and counts.

`POST /__control` (with the server's token) sets the switches from other processes; see `_control`.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from producer import errors
from producer.store import sqlite

from . import answers, values
from .answers import Answer, Call, Refusal
from .direct import Direct
from .faults import Fault, Faults
from .indexes import Indexes
from .listener import Connection, Listener, Request
from .project import Project
from .rest import Rest

CONTROL_PATH = "/__control"
PROFILES = ("2.11", "direct")
_LOG_LIMIT = 20_000

_log = logging.getLogger(__name__)


class Logged(NamedTuple):
    """One request as it came. `body` is the parsed JSON (direct: the operation), `fault` the switch that took it."""

    method: str
    path: str
    body: Any
    request_class: str
    label: str | None
    fault: str | None


class Server:
    """Serves from the constructor on until `close`. Its data is on disk when it answers."""

    def __init__(
        self,
        data: Path,
        *,
        token: str,
        profile: str = "2.11",
        port: int = 0,
        embeds: bool = False,
        embed_delay_s: float = 0.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if profile not in PROFILES:
            raise ValueError(f"no profile is named {profile!r}; there are {', '.join(PROFILES)}")
        self.faults = Faults()
        self.crashes = 0
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._requests: deque[Logged] = deque(maxlen=_LOG_LIMIT)
        self._late: list[threading.Thread] = []
        self._authorization = f"Bearer {token}"
        self._store = sqlite.SqliteStore(data, clock=clock)
        project = Project(self._store)
        self._indexes = Indexes(
            project, embeds=embeds and profile != "direct", embed_delay_s=embed_delay_s, clock=clock
        )
        if profile == "direct":
            self._form: Direct | Rest = Direct(project, self._indexes, token=token)
        else:
            self._form = Rest(project, self._indexes, token=token, url=lambda: self.url)
        self._listener = Listener(self._respond, port=port)
        self.url = self._listener.url
        self.port = self._listener.port

    def close(self) -> None:
        self._listener.close()
        for thread in self._late:
            thread.join()
        self._store.close()

    # -- what tests ask ----------------------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Requests by class, and `connections`."""
        with self._lock:
            return {**self._counts, "connections": self._listener.accepted}

    def requests(self) -> list[Logged]:
        """The latest requests, in the order in which they came."""
        with self._lock:
            return list(self._requests)

    def forget_requests(self) -> None:
        with self._lock:
            self._requests.clear()
            self._counts.clear()

    def lose_indexes(self) -> None:
        self._indexes.lose()

    # -- answering ---------------------------------------------------------------------------------------------------

    def _respond(self, request: Request, connection: Connection) -> None:
        if request.path == CONTROL_PATH:
            connection.send(self._control(request))
            return
        try:
            call = self._form.call(request)
        except Refusal as refusal:
            self._note(request, Call(request_class="other", body=None, run=_nothing), None)
            connection.send(self._form.refused(refusal))
            return
        fault = self.faults.take(call.request_class, call.label)
        self._note(request, call, fault)
        if fault is None:
            connection.send(self._answer(call, "now"))
        else:
            self._misbehave(fault, call, connection)

    def _note(self, request: Request, call: Call, fault: Fault | None) -> None:
        kind = None if fault is None else fault.kind
        logged = Logged(request.method, request.path, call.body, call.request_class, call.label, kind)
        with self._lock:
            self._counts[call.request_class] += 1
            self._requests.append(logged)

    def _answer(self, call: Call, effect: str) -> Answer:
        try:
            return call.run(effect)
        except Refusal as refusal:
            return self._form.refused(refusal)
        except errors.Permanent as error:
            # What the adapter below does not take; RushDB may. Loud, like everything that is not served.
            return self._form.refused(answers.not_served(f"this: {error}"))
        except errors.Retryable:
            return self._form.refused(answers.database_error())
        except Exception:  # noqa: BLE001 (the edge of the process: a request that nothing foresaw gets 2.11's own answer)
            _log.exception("a request crashed; it was answered with 500")
            self.crashes += 1
            return self._form.refused(answers.crash())

    def _misbehave(self, fault: Fault, call: Call, connection: Connection) -> None:
        effect = fault.takes_effect
        is_late = effect in ("late", "late_double")
        answer = self._answer(call, "never" if is_late else effect)
        if fault.delay_s:
            connection.wait(fault.delay_s)
        match fault.answer:
            case "ok":
                connection.send(answer)
            case "half":
                connection.send_half(answer)
            case "hang":
                connection.wait_until_left(self.faults.released)
                connection.reset()
            case "reset":
                connection.reset()
            case _:
                connection.send(self._failure(fault, call))
        if is_late:
            self._apply_later(call, fault.late_s, connection.stopping, "now" if effect == "late" else "double")

    def _failure(self, fault: Fault, call: Call) -> Answer:
        match fault.answer:
            case "throttle":
                return self._form.refused(answers.throttled())
            case "timeout":
                return self._form.refused(answers.time_budget_spent())
            case "busy":
                answer = self._form.refused(Refusal(429, "Too Many Requests"))
                return replace(answer, headers={"retry-after": str(fault.retry_after_s)})
            case "error":
                return self._form.refused(answers.crash())
            case "quote":
                return self._form.refused(Refusal(422, f"cannot take {json.dumps(call.body)}"))
            case "database_error":
                return self._form.refused(answers.database_error())
        return Answer(status=502, text=answers.BAD_GATEWAY_PAGE)

    def _apply_later(self, call: Call, seconds: float, stopping: threading.Event, effect: str) -> None:
        def apply() -> None:
            if not stopping.wait(seconds):
                self._answer(call, effect)

        thread = threading.Thread(target=apply, name="rushdb-server-late", daemon=True)
        with self._lock:
            self._late = [one for one in self._late if one.is_alive()]
            self._late.append(thread)
            thread.start()

    # -- control -----------------------------------------------------------------------------------------------------

    def _control(self, request: Request) -> Answer:
        """`{"do": …}`: fail (with `fault`), clear, release, lose_indexes, report, requests, forget_requests."""
        if request.headers.get("authorization") != self._authorization:
            return Answer(status=403, body={"message": "the control endpoint takes the server's token"})
        try:
            order = values.parse_body(request.body)
            return Answer(status=200, body=self._obey(order))
        except (Refusal, ValueError, TypeError, KeyError) as error:
            return Answer(status=400, body={"message": str(error)})

    def _obey(self, order: Any) -> Any:
        match order.get("do"):
            case "fail":
                self.faults.add(Fault.of_json(order["fault"]))
            case "clear":
                self.faults.clear()
            case "release":
                self.faults.release()
            case "lose_indexes":
                self.lose_indexes()
            case "forget_requests":
                self.forget_requests()
            case "requests":
                return list(self.requests())
            case "report":
                return {"counts": self.counts(), "faults": self.faults.taken, "crashes": self.crashes}
            case unknown:
                raise ValueError(f"the control endpoint does not know {unknown!r}")
        return {}


def _nothing(_effect: str) -> Answer:
    return Answer(status=200)
