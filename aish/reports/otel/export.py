"""`--otel`: the traces of a run, sent while it runs, or made from its journal afterwards.

The only module that imports OpenTelemetry: our spans are converted to the SDK's, and sent by its
OTLP/HTTP exporter. Spans are sent by a separate thread, bounded in number and in time: a run never
waits for a collector and never fails because of one, and what cannot be sent is counted.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from aish import __version__
from aish.core.errors import UsageError
from aish.core.events import Stamped
from aish.core.phrases import counted
from aish.reports.otel import conventions
from aish.reports.otel.spans import Span, Spans

MOST_WAITING = 20_000
BATCH = 512
DELAY = 5_000
PATIENCE = 5.0


class Exporter(Protocol):
    def export(self, spans: Sequence[Any]) -> Any:
        """Export the spans; the result's `name` is `SUCCESS` on success."""

    def shutdown(self) -> None: ...


class Shipping:
    """Takes spans and exports them in batches; `close` returns how many were lost.

    A batch is sent when it is full, when its first span has waited long enough, and at the end.
    """

    def __init__(self, exporter: Exporter, environ: Mapping[str, str]) -> None:
        self._exporter = exporter
        self._batch = min(_variable(environ, "MAX_EXPORT_BATCH_SIZE", BATCH), MOST_WAITING)
        self._delay = _variable(environ, "SCHEDULE_DELAY", DELAY) / 1000
        self._waiting: deque[Any] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._taken = 0
        self._sent = 0
        self._silence = _Silence()
        self._thread = threading.Thread(target=self._work, name="aish-otel", daemon=True)
        self._thread.start()

    def put(self, span: Any) -> None:
        with self._changed:
            self._taken += 1
            if len(self._waiting) < MOST_WAITING:
                self._waiting.append(span)
                if len(self._waiting) in {1, self._batch}:
                    self._changed.notify()

    def close(self, patience: float = PATIENCE) -> int:
        """Send the rest, for at most `patience` seconds; returns how many spans were lost."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(patience)
        if self._thread.is_alive():
            self._exporter.shutdown()
        with self._changed:
            self._waiting.clear()
            lost = self._taken - self._sent
        self._silence.end()
        return lost

    def _work(self) -> None:
        while batch := self._next():
            # Whatever a library raises there, the run continues.
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
            self._changed.wait_for(
                lambda: len(self._waiting) >= self._batch or self._closed, self._delay
            )
            return [self._waiting.popleft() for _ in range(min(self._batch, len(self._waiting)))]


def _variable(environ: Mapping[str, str], name: str, default: int) -> int:
    """A standard variable of the SDK's batches; what is no positive number is ignored."""
    value = environ.get(f"OTEL_BSP_{name}", "").strip()
    return int(value) if value.isascii() and value.isdigit() and int(value) else default


class _Silence:
    """Keeps the libraries from printing to stderr, until `end`."""

    def __init__(self) -> None:
        self._loggers = [logging.getLogger(one) for one in ("opentelemetry", "urllib3", "requests")]
        self._handler = logging.NullHandler()
        self._before = [logger.propagate for logger in self._loggers]
        for logger in self._loggers:
            logger.propagate = False
            logger.addHandler(self._handler)

    def end(self) -> None:
        for logger, propagate in zip(self._loggers, self._before, strict=True):
            logger.removeHandler(self._handler)
            logger.propagate = propagate


_INSTALL = "pip install 'aish-pipelines[otel]'"
_HEADERS = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PATH = "/v1/traces"
_KINDS = {
    "TooManyRedirects": "{} redirects to another address, which is not followed",
    "Timeout": "{} did not answer in time",
    "SSLError": "no secure connection to {}",
}
_ADVICE = {
    401: f": check the key in `{_HEADERS[1]}`",
    403: f": check the key in `{_HEADERS[1]}`",
    404: ": check the path of the address",
    413: ": make the batches smaller with `OTEL_BSP_MAX_EXPORT_BATCH_SIZE`",
}
_NANOSECONDS = 1_000_000_000


class Converter:
    """Converts our spans to the SDK's by its public API: a tracer with given ids and times.

    Raises:
        UsageError: the extra `otel` is not installed.
    """

    def __init__(self) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
            from opentelemetry.sdk.trace.id_generator import IdGenerator
            from opentelemetry.sdk.trace.sampling import ALWAYS_ON
        except ImportError as error:
            raise _package_error(error) from error

        class TraceIds(IdGenerator):
            span = trace = 1

            def generate_span_id(self) -> int:
                return self.span

            def generate_trace_id(self) -> int:
                return self.trace

        class Ended(SpanProcessor):
            """Keeps the span that has just ended."""

            span: Any = None

            def on_end(self, span: Any) -> None:
                self.span = span

        self._api = trace
        self._ids, self._ended = TraceIds(), Ended()
        provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource.create({"service.name": "aish", "service.version": __version__}),
            shutdown_on_exit=False,
            id_generator=self._ids,
        )
        provider.add_span_processor(self._ended)
        scope = conventions.SCOPE
        self._tracer = provider.get_tracer(scope, __version__, schema_url=conventions.SCHEMA_URL)

    def convert(self, span: Span) -> Any:
        """The SDK's span; `None` if the environment disabled the SDK."""
        api = self._api
        self._ids.span, self._ids.trace = span.id, span.trace
        kind = api.SpanKind.CLIENT if span.kind == "client" else api.SpanKind.INTERNAL
        sdk_span = self._tracer.start_span(
            span.name,
            context=self._parent(span),
            kind=kind,
            attributes=dict(span.attributes),
            start_time=_nanoseconds(span.start),
        )
        for event in span.events:
            sdk_span.add_event(event.name, dict(event.attributes), _nanoseconds(event.time))
        if span.error is not None:
            sdk_span.set_status(api.Status(api.StatusCode.ERROR, span.error or None))
        self._ended.span = None
        sdk_span.end(_nanoseconds(span.end))
        return self._ended.span

    def _parent(self, span: Span) -> Any:
        from opentelemetry.context import Context

        if span.parent is None:
            return Context()
        api = self._api
        flags = api.TraceFlags(api.TraceFlags.SAMPLED)
        above = api.SpanContext(span.trace, span.parent, is_remote=False, trace_flags=flags)
        return api.set_span_in_context(api.NonRecordingSpan(above), Context())


def open_exporter(
    endpoint: str | None, environ: Mapping[str, str], failed: Callable[[str], object] = str
) -> Exporter:
    """The exporter for `endpoint`, or for that of the standard variables.

    It follows no redirects and reads neither proxies nor `.netrc` from its environment.
    `failed` is told why a request has failed.

    Raises:
        UsageError: the extra is not installed, or the address is invalid.
    """
    for name, url in (("--otel-endpoint", endpoint), *((n, environ.get(n)) for n in _ENDPOINTS)):
        if url:
            try:
                parts = urlsplit(url)
                good = parts.scheme in {"http", "https"} and parts.hostname
            except ValueError:
                good = None
            if not good:
                raise UsageError(
                    "is no http or https address", where=name, hint="http://localhost:4318"
                )
            if "@" in parts.netloc:
                raise UsageError(
                    "has a password in it", where=name, hint=f"put it into `{_HEADERS[1]}` instead"
                )
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise _package_error(error) from error
    if endpoint and urlsplit(endpoint).path in {"", "/"}:
        endpoint = f"{endpoint.rstrip('/')}{_PATH}"
    try:
        return OTLPSpanExporter(endpoint=endpoint or None, session=_session(failed))
    except (ValueError, OSError) as error:
        raise UsageError(f"`--otel`: {error}") from error


def _session(failed: Callable[[str], object]) -> Any:
    import requests

    class ReportingSession(requests.Session):
        """A session that reports the result of each request: logs of the SDK differ by version."""

        def send(self, request: Any, **options: Any) -> Any:
            where = f"`{urlsplit(request.url or '').netloc}`"
            try:
                response = super().send(request, **options)
            except requests.RequestException as error:
                kinds = (_KINDS.get(kind.__name__) for kind in type(error).__mro__)
                failed(next(filter(None, kinds), "no connection to {}").format(where))
                raise
            if not response.ok:
                code = response.status_code
                failed(f"{where} answered HTTP {code}{_ADVICE.get(code, '')}")
            return response

    session = ReportingSession()
    session.trust_env = False
    session.max_redirects = 0
    return session


def credentials(environ: Mapping[str, str]) -> dict[str, str]:
    values = {}
    for variable in _HEADERS:
        for pair in environ.get(variable, "").split(","):
            name, _, value = pair.partition("=")
            if value.strip():
                values[f"{variable}.{name.strip()}"] = unquote(value.strip())
    return values


def _package_error(error: ImportError) -> UsageError:
    return UsageError(f"`--otel` needs a package that is missing: {error.name}", hint=_INSTALL)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * _NANOSECONDS)


class Traces:
    """Sends the spans of a run; `warn` is called once about what could not be sent.

    `endpoint` and `environ` are those of `open_exporter`.

    Raises:
        UsageError: the extra `otel` is not installed, or the address is invalid.
    """

    name = "the traces"
    deltas = False

    def __init__(
        self,
        run: str,
        endpoint: str | None,
        environ: Mapping[str, str],
        warn: Callable[[str], None],
        *,
        content: bool = False,
        patience: float = PATIENCE,
    ) -> None:
        self._converter = Converter()
        self._spans = Spans(run, content=content)
        self._warn = warn
        self._patience = patience
        self._failures: list[str] = []
        exporter = open_exporter(endpoint, environ, self._failures.append)
        self._shipping = Shipping(exporter, environ)

    def __call__(self, stamped: Stamped) -> None:
        for span in self._spans.take(stamped):
            self._send(span)

    def close(self) -> None:
        for span in self._spans.end():
            self._send(span)
        lost = self._shipping.close(self._patience)
        if lost:
            why = self._failures[0] if self._failures else "the collector did not answer in time"
            self._warn(f"`--otel`: {counted(lost, 'span')} not sent: {why}")

    def _send(self, span: Span) -> None:
        sdk_span = self._converter.convert(span)
        if sdk_span is not None:
            self._shipping.put(sdk_span)
