"""The one module that imports OpenTelemetry: our spans as the SDK's, and its OTLP/HTTP exporter."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from aish import __version__
from aish.core.errors import UsageError
from aish.reports.otel import conventions
from aish.reports.otel.shipping import Exporter
from aish.reports.otel.span import Span

_INSTALL = "pip install 'aish-pipelines[otel]'"
_HEADERS = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PATH = "/v1/traces"
_NANOSECONDS = 1_000_000_000


class Converter:
    """Makes the SDK's spans out of ours, by its public way: a tracer that is given ids and times.

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
            raise _missing(error) from error

        class Ids(IdGenerator):
            """Ids of our own."""

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
        self._ids, self._ended = Ids(), Ended()
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
        """The SDK's span; `None` where the environment switched the SDK off."""
        api = self._api
        self._ids.span, self._ids.trace = span.id, span.trace
        kind = api.SpanKind.CLIENT if span.kind == "client" else api.SpanKind.INTERNAL
        made = self._tracer.start_span(
            span.name,
            context=self._parent(span),
            kind=kind,
            attributes=dict(span.attributes),
            start_time=_nanoseconds(span.start),
        )
        for event in span.events:
            made.add_event(event.name, dict(event.attributes), _nanoseconds(event.time))
        if span.error is not None:
            made.set_status(api.Status(api.StatusCode.ERROR, span.error or None))
        self._ended.span = None
        made.end(_nanoseconds(span.end))
        return self._ended.span

    def _parent(self, span: Span) -> Any:
        from opentelemetry.context import Context

        if span.parent is None:
            return Context()
        api = self._api
        flags = api.TraceFlags(api.TraceFlags.SAMPLED)
        above = api.SpanContext(span.trace, span.parent, is_remote=False, trace_flags=flags)
        return api.set_span_in_context(api.NonRecordingSpan(above), Context())


def open_exporter(endpoint: str | None, environ: Mapping[str, str]) -> Exporter:
    """The exporter for `endpoint`, or for that of the standard variables.

    It follows no redirects and reads neither proxies nor `.netrc` from its surroundings (X5).

    Raises:
        UsageError: the extra is not installed, or the address is none.
    """
    for name, url in (("--otel-endpoint", endpoint), *((n, environ.get(n)) for n in _ENDPOINTS)):
        if url:
            _check(name, url)
    try:
        import requests
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise _missing(error) from error
    session = requests.Session()
    session.trust_env = False
    session.max_redirects = 0
    whole = endpoint and (endpoint if _has_path(endpoint) else f"{endpoint.rstrip('/')}{_PATH}")
    try:
        return OTLPSpanExporter(endpoint=whole or None, session=session)
    except (ValueError, OSError) as error:
        raise UsageError(f"`--otel`: {error}") from error


def credentials(environ: Mapping[str, str]) -> dict[str, str]:
    """The values of the headers that the standard variables set: to be masked."""
    found = {}
    for variable in _HEADERS:
        for pair in environ.get(variable, "").split(","):
            name, _, value = pair.partition("=")
            if value.strip():
                found[f"{variable}.{name.strip()}"] = unquote(value.strip())
    return found


def _check(name: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        good = parts.scheme in {"http", "https"} and parts.hostname
    except ValueError:
        good = None
    if not good:
        raise UsageError("is no http or https address", where=name, hint="http://localhost:4318")
    if "@" in parts.netloc:
        raise UsageError(
            "has a password in it", where=name, hint=f"put it into `{_HEADERS[1]}` instead"
        )


def _has_path(url: str) -> bool:
    return urlsplit(url).path not in {"", "/"}


def _missing(error: ImportError) -> UsageError:
    return UsageError(f"`--otel` needs a package that is missing: {error.name}", hint=_INSTALL)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * _NANOSECONDS)
