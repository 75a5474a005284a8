"""Spans on their way to a collector: in a thread of their own, bounded in number and in time.

A run never waits for a collector and never fails because of one: what cannot be sent is counted.
"""

import logging
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

MOST_WAITING = 20_000
BATCH = 512
PATIENCE = 5.0


class Exporter(Protocol):
    """What sends a batch, `OTLPSpanExporter` say."""

    def export(self, spans: Sequence[Any]) -> Any:
        """Send the spans; the answer's `name` is `SUCCESS` if that went well."""
        ...

    def shutdown(self) -> None:
        """Give up what is being tried."""
        ...


class Shipping:
    """Takes spans and exports them in batches; `close` says how many were lost."""

    def __init__(self, exporter: Exporter) -> None:
        self._exporter = exporter
        self._waiting: deque[Any] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._taken = 0
        self._sent = 0
        self._said = _Said()
        self._thread = threading.Thread(target=self._work, name="aish-otel", daemon=True)
        self._thread.start()

    @property
    def reason(self) -> str:
        """What the exporter complained of first."""
        return self._said.first or "the collector did not answer in time"

    def put(self, span: Any) -> None:
        """Queue a span, unless too many wait already."""
        with self._changed:
            self._taken += 1
            if len(self._waiting) < MOST_WAITING:
                self._waiting.append(span)
                self._changed.notify()

    def close(self, patience: float = PATIENCE) -> int:
        """Send what is left, for at most `patience` seconds; how many spans were lost."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(patience)
        if self._thread.is_alive():
            self._exporter.shutdown()
        with self._changed:
            self._waiting.clear()
            lost = self._taken - self._sent
        self._said.detach()
        return lost

    def _work(self) -> None:
        while batch := self._next():
            # Whatever a library raises there, the run goes on.
            with suppress(Exception):
                answer = self._exporter.export(batch)
                if getattr(answer, "name", None) == "SUCCESS":
                    with self._changed:
                        self._sent += len(batch)
        with suppress(Exception):
            self._exporter.shutdown()

    def _next(self) -> list[Any]:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            return [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]


class _Said(logging.Handler):
    """Keeps the libraries from printing to stderr, and remembers their first complaint."""

    _LOGGERS = ("opentelemetry", "urllib3", "requests")

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.first: str | None = None
        self._before = {}
        for name in self._LOGGERS:
            logger = logging.getLogger(name)
            self._before[name] = logger.propagate
            logger.propagate = False
            logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Remember the first."""
        if self.first is None:
            self.first = record.getMessage()

    def detach(self) -> None:
        """Leave the loggers as they were."""
        for name, propagate in self._before.items():
            logging.getLogger(name).removeHandler(self)
            logging.getLogger(name).propagate = propagate
