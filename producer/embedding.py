"""Vectors from an OpenAI-compatible `/embeddings` endpoint, for stores that do not embed by themselves.

    POST <url>  {"model", "input": [texts], "encoding_format": "float"}
    200         {"data": [{"index", "embedding": [numbers]}, ...]}

Every vector is checked before anybody stores or searches with it: the length that the index has, finite numbers, not
all zero (a zero vector makes every later exact search of a RushDB project fail). Foreign errors are translated once:

    refused, timed out, 408, 429, 5xx      errors.StoreUnavailable, errors.StoreThrottled   try again
    400, 413, 422, other 4xx               errors.StoreRefused                              these texts, never
    401, 403, 404, another length          errors.SettingsRefused                           set it right
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from typing import Any

from producer import errors

__all__ = ["MAX_BATCH", "Embedder", "open_embedder"]

MAX_BATCH = 64  # texts per request
_MAX_ANSWER_BYTES = 64 << 20
_PIECE_BYTES = 1 << 16


class Embedder:
    """One model at one endpoint. Threads may share it; connections are kept open. Nothing is retried here."""

    def __init__(self, url: str, *, model: str, dimensions: int, token: str = "", timeout_s: float = 10.0) -> None:
        if dimensions < 1:
            raise errors.SettingsRefused("MEMORY_EMBED_DIMENSIONS", "must be the length of the model's vectors")
        self.dimensions = dimensions
        self._url = url
        self._model = model
        self._timeout_s = timeout_s
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._pool: Any = None

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector per text, in their order. Each request takes at most `timeout_s`. A text that the model can place
        nowhere gets zeros: no store takes such a vector, callers leave it out."""
        vectors: list[list[float]] = []
        for first in range(0, len(texts), MAX_BATCH):
            vectors += self._request(texts[first : first + MAX_BATCH])
        return vectors

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.clear()

    def _request(self, texts: Sequence[str]) -> list[list[float]]:
        cleaned = [
            text.encode("utf-8", "replace").decode("utf-8") for text in texts
        ]  # no endpoint takes lone surrogates
        body = json.dumps({"model": self._model, "input": cleaned, "encoding_format": "float"}).encode("ascii")
        status, retry_after_s, answer = self._post(body)
        if status != 200:
            raise _refusal(status, retry_after_s)
        try:
            data = json.loads(answer)["data"]
            ordered = sorted(data, key=lambda item: item["index"])
            if [item["index"] for item in ordered] != list(range(len(texts))):
                raise errors.StoreUnavailable("the embeddings endpoint left a text out")
            return [self._checked(item["embedding"]) for item in ordered]
        except (ValueError, TypeError, KeyError, RecursionError) as problem:
            raise errors.StoreUnavailable("the embeddings endpoint answered in no known form") from problem

    def _post(self, body: bytes) -> tuple[int, float, bytes]:
        import urllib3  # lazy: hosts without an embedder never load it

        if self._pool is None:
            self._pool = urllib3.PoolManager(maxsize=4, retries=False)
        deadline = time.monotonic() + self._timeout_s
        timeout = urllib3.Timeout(total=self._timeout_s)
        try:
            response = self._pool.request(
                "POST",
                self._url,
                body=body,
                headers=self._headers,
                timeout=timeout,
                redirect=False,
                preload_content=False,
            )
            try:
                pieces, length = [], 0
                for piece in response.stream(_PIECE_BYTES):
                    length += len(piece)
                    if length > _MAX_ANSWER_BYTES or time.monotonic() > deadline:
                        response.close()  # do not read the rest, do not use the connection again
                        raise errors.StoreUnavailable("the embeddings endpoint answered too slowly or too much")
                    pieces.append(piece)
            finally:
                response.release_conn()
        except urllib3.exceptions.HTTPError as problem:
            raise errors.StoreUnavailable(
                f"no answer from the embeddings endpoint ({type(problem).__name__})"
            ) from problem
        return response.status, _seconds(response.headers.get("Retry-After")), b"".join(pieces)

    def _checked(self, values: Sequence[float]) -> list[float]:
        vector = [float(value) for value in values]
        if len(vector) != self.dimensions:
            raise errors.SettingsRefused(
                "MEMORY_EMBED_DIMENSIONS", f"the model answers with {len(vector)} numbers, not {self.dimensions}"
            )
        if not math.isfinite(math.hypot(*vector)):
            raise errors.StoreRefused("the embeddings endpoint answered with numbers that are not finite")
        return vector


def open_embedder(
    *, url: str, model: str, dimensions: int, token: str = "", timeout_s: float = 10.0
) -> Embedder | None:
    """The embedder of these settings; None when no endpoint is named."""
    if not url:
        return None
    return Embedder(url, model=model, dimensions=dimensions, token=token, timeout_s=timeout_s)


def _refusal(status: int, retry_after_s: float) -> errors.IngestError:
    if status == 429:
        return errors.StoreThrottled(
            "the embeddings endpoint asked for a pause", retry_after_s=retry_after_s, status=status
        )
    if status == 408 or status >= 500 or status < 400:
        return errors.StoreUnavailable(f"the embeddings endpoint answered {status}", status=status)
    if status in (401, 403):
        return errors.SettingsRefused("MEMORY_EMBED_TOKEN", f"the embeddings endpoint answered {status}")
    if status == 404:
        return errors.SettingsRefused("MEMORY_EMBED_URL", "the embeddings endpoint or its model is not there (404)")
    return errors.StoreRefused(f"the embeddings endpoint answered {status}", status=status)


def _seconds(retry_after: str | None) -> float:
    try:
        return min(max(float(retry_after or 1), 0.0), 3600.0)
    except ValueError:
        return 1.0
