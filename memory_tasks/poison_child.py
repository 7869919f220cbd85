"""Entry point of a worker's child: `python -m memory_tasks.poison_child <socket> <worker's pid>`, see `children`.

It reads no settings and no environment: what it needs comes over the socket. It ends with the stream, and with its
worker. Signals meant for a group of processes pass it by, since the worker tells it when to end. When memory runs out
it is the one for the kernel to take, not the worker.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from memory_tasks import frames, handling, parts
from producer import store

__all__ = ["main", "serve"]

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_OOM_SCORE = "500"
_FAULT_EXIT = 70
_LOG_FORMAT = "%(asctime)s %(levelname)s child-%(process)d %(name)s %(message)s"


def main(arguments: list[str], *, open_store: parts.OpenStore = store.open_store) -> None:
    """Handle requests until the worker is done. `open_store`: for the tests of what a store may do to its process."""
    _end_with(worker=int(arguments[1]))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _offer_for_memory()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format=_LOG_FORMAT)
    with socket.socket(fileno=int(arguments[0])) as worker:
        try:
            serve(worker, open_store=open_store)
        except frames.EndOfStream:
            pass
        except BaseException as fault:  # noqa: BLE001 (the edge of the process; a traceback may quote an event)
            logger.error("action=child_ends kind=%s", type(fault).__name__)
            os._exit(_FAULT_EXIT)


def serve(worker: socket.socket, *, open_store: parts.OpenStore) -> None:
    """Answer requests. Raises `frames.EndOfStream` when there are no more."""
    given = frames.receive(worker)
    settler = parts.make_settler(parts.Plan.of_plain(given["plan"]), open_store=open_store)
    handler = handling.Handling(settler, poison_deaths=given["poisonDeaths"])
    try:
        while True:
            request = frames.receive(worker)
            frames.send(worker, {"began": True})
            frames.send(worker, _answer(handler, request))
    finally:
        settler.close()


def _answer(handler: handling.Handles, request: dict[str, Any]) -> dict[str, Any]:
    try:
        items, grant, received_s, until = frames.request_of(request)
        return frames.answer_of(handler.handle(items, grant, received_s=received_s, until=until))
    except Exception as fault:  # noqa: BLE001 (as at the edge of a task: counted by class, no event is given up)
        logger.error("action=fault kind=%s; deferred as unsure", type(fault).__name__)
        return {"fault": type(fault).__name__}


def _end_with(worker: int) -> None:
    """Have the kernel end this process with its worker, also in the middle of a request."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != worker:
        os._exit(0)


def _offer_for_memory() -> None:
    try:
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE, "ascii")
    except OSError:
        pass  # another system, or a score that is higher already


if __name__ == "__main__":
    main(sys.argv[1:])
