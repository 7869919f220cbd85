"""The Celery tasks: `memory.ingest`, a shell around `ingest.Ingest`, and `memory.expire`, one around `expiry.Expiry`.
The only place where faults of ours end.

Retries are published with their signature and their masks anew: Celery's `retry` keeps neither. What Celery says of a
message, in logs, events, `inspect` and Flower, never holds its arguments: `QuietRequest` knows their number only. Nor
can a task be revoked: what is durable ends by a receipt.

Where the broker does not hold countdowns back, the worker that receives a later look holds it, for the whole wait and
from its receipt on. Celery's ETA says when it is due by the clock of the worker that published it; by the clock of one
that is ahead it would be due too early, and a look that is made before a late request lands confirms what then changes.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import celery
from celery.exceptions import Reject, Retry
from celery.worker import state
from celery.worker.request import Request

from memory_tasks import clock, expiry, ingest, verdicts
from producer import errors, message

__all__ = ["QuietRequest", "order_expiry", "register", "register_expiry"]

logger = logging.getLogger(__name__)

RECEIVED = "memoryReceivedS"
_UNFIT_PAUSE_S = 2.0  # else a worker without its parts would turn its queue over as fast as it can


class QuietRequest(Request):
    """A request that says when the worker got it, and nothing of what is in it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        batch = self._kwargs.get("batch") if isinstance(self._kwargs, Mapping) else None
        masks = message.masks(len(batch) if isinstance(batch, list) else 0)
        self.name = self._type  # a publisher's `shadow` may be any text
        self._argsrepr, self._kwargsrepr = masks["argsrepr"], masks["kwargsrepr"]
        self._request_dict.update(masks, shadow=None)
        # Before a countdown and before the wait for a free thread: the broker's clock has been running since.
        self._request_dict[RECEIVED] = clock.now_s()
        look_wait_s = getattr(self._task, "look_wait_s", None)
        if self.eta is not None and look_wait_s is not None and self._is_look():
            self._eta = datetime.now(UTC) + timedelta(seconds=look_wait_s)  # Celery counts it down monotonically

    def _is_look(self) -> bool:
        return isinstance(self._kwargs, Mapping) and self._kwargs.get("unsureUntil") is not None

    def revoked(self) -> bool:
        """Never: it would drop a delivery or its later look, and for hours whatever its journal publishes again."""
        if self.id in state.revoked:
            logger.warning("action=revoke_ignored id=%s; to end an event, forget it by an order", self.id)
        return False

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """Not either; and threads cannot be killed."""

    def info(self, safe: bool = False) -> dict[str, Any]:
        """For `inspect`, which asks for the arguments themselves unless it is told otherwise."""
        return super().info(safe=True)


def register(
    app: celery.Celery,
    ingest_of: Callable[[], ingest.Ingest],
    *,
    whole_countdowns: bool = False,
    look_wait_s: float,
) -> celery.Task:
    """Add the task to this app. `ingest_of` gives what handles messages, once the worker runs. `whole_countdowns`: the
    broker itself holds retries back, for whole seconds. Where it does not, later looks wait here for `look_wait_s`."""

    @app.task(
        bind=True,
        shared=False,  # each app has its own parts
        name=message.TASK_NAME,
        Request=f"{__name__}:{QuietRequest.__name__}",
        max_retries=None,
        typing=False,
        look_wait_s=None if whole_countdowns else look_wait_s,
    )
    def memory_ingest(self: celery.Task, /, *args: Any, **arguments: Any) -> None:
        request = self.request
        again = _receive(
            _made(ingest_of),
            {"": args, **arguments} if args else arguments,  # signed messages have keyword arguments only
            vars(request),
            redelivered=bool((request.delivery_info or {}).get("redelivered")),
            received_s=vars(request)[RECEIVED],
        )
        if again is not None:
            _come_again(self, again, whole_countdowns=whole_countdowns)

    return memory_ingest


def register_expiry(app: celery.Celery, expiry_of: Callable[[], expiry.Expiry]) -> None:
    """Add `memory.expire` to this app. `expiry_of` gives what removes expired facts, once the worker runs."""

    @app.task(
        bind=True,
        shared=False,  # each app has its own parts
        name=expiry.TASK_NAME,
        Request=f"{__name__}:{QuietRequest.__name__}",
        max_retries=None,
        typing=False,
    )
    def memory_expire(self: celery.Task, /, *args: Any, **arguments: Any) -> None:
        given = {"": args, **arguments} if args else arguments
        headers = vars(self.request)
        try:
            expiry_of().receive(given, headers, received_s=headers[RECEIVED])
        except Exception as fault:  # noqa: BLE001 (the edge of the process: nothing is lost, another turn comes)
            logger.error("action=fault task=expire kind=%s at=%s", type(fault).__name__, _place_of(fault))


def order_expiry(app: celery.Celery, tenant: str, key: message.Key) -> None:
    """Publish the order to remove what has expired of this tenant, beside the backlog: it holds up no fresh event.
    Raises kombu's `OperationalError`."""
    arguments = expiry.arguments(tenant, at_ms=int(time.time() * 1000))
    app.send_task(
        expiry.TASK_NAME,
        args=(),
        kwargs=arguments,
        headers=message.sign(arguments, key),
        queue=message.BACKLOG_QUEUE,
        **message.masks(0),
    )


def _made(ingest_of: Callable[[], ingest.Ingest]) -> ingest.Ingest:
    """What handles messages. A worker made it at its start; should it fail here all the same, the message goes back to
    the broker: Celery would acknowledge it, and without a receipt."""
    try:
        return ingest_of()
    except Exception as fault:  # noqa: BLE001 (the edge of the process; its words may quote a secret)
        logger.error("action=worker_unfit kind=%s at=%s; end this worker", type(fault).__name__, _place_of(fault))
        time.sleep(_UNFIT_PAUSE_S)
        raise Reject(type(fault).__name__, requeue=True) from None


def _receive(
    handler: ingest.Ingest,
    arguments: Mapping[str, Any],
    headers: Mapping[str, Any],
    *,
    redelivered: bool,
    received_s: float,
) -> verdicts.Again | None:
    try:
        return handler.receive(arguments, headers, redelivered=redelivered, received_s=received_s)
    except Exception as fault:  # noqa: BLE001 (the edge of the process: counted by class, and no event is given up)
        logger.error("action=fault kind=%s at=%s; deferred as unsure", type(fault).__name__, _place_of(fault))
        try:
            handler.answer_fault(arguments, headers, fault)
        except Exception as problem:  # noqa: BLE001 (the edge again: Celery would log the words of what leaves here)
            logger.error("action=receipts_lost problem=%s; journals publish these again", type(problem).__name__)
        return None


def _come_again(task: celery.Task, again: verdicts.Again, *, whole_countdowns: bool = False) -> None:
    """Raise Celery's Retry. When it cannot be published, the message goes back to the broker as it came."""
    arguments = again.arguments()
    countdown_s = max(1, math.ceil(again.countdown_s)) if whole_countdowns else again.countdown_s
    try:
        raise task.retry(
            args=(),
            kwargs=arguments,
            countdown=countdown_s,
            exc=errors.Retryable(again.reason),
            headers=message.sign(arguments, again.key),
            queue=_queue_of(task.request.delivery_info["routing_key"]),
            **message.masks(len(again.items)),
        )
    except Retry:
        raise
    except Reject as refused:
        raise Reject(type(refused.reason).__name__, requeue=True) from None
    except Exception as fault:  # noqa: BLE001 (the edge: Celery would log its words, which may quote an event)
        logger.error(
            "action=retry_lost kind=%s at=%s; journals publish these again", type(fault).__name__, _place_of(fault)
        )


def _queue_of(routing_key: str) -> str:
    """The queue that it came from. RabbitMQ brings a retry back with its delay in front of the name."""
    return message.BACKLOG_QUEUE if routing_key.endswith(message.BACKLOG_QUEUE) else message.QUEUE


def _place_of(fault: Exception) -> str:
    """Where a fault arose: the innermost line. Its own words may quote an event."""
    trace = fault.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_globals.get('__name__')}:{trace.tb_lineno}" if trace is not None else "-"
