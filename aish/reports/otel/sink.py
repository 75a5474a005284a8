"""`--otel`: the traces of a run, sent while it runs, or made from its journal afterwards (B11)."""

from collections.abc import Callable

from aish.core.events import Stamped
from aish.core.text import counted
from aish.reports.otel.sdk import Converter
from aish.reports.otel.shipping import PATIENCE, Exporter, Shipping
from aish.reports.otel.span import Span
from aish.reports.otel.spans import Spans


class Traces:
    """Sends the spans of a run; `warn` is told once of what could not be sent.

    Raises:
        UsageError: the extra `otel` is not installed.
    """

    name = "the traces"
    deltas = False

    def __init__(
        self,
        run: str,
        exporter: Exporter,
        warn: Callable[[str], None],
        *,
        content: bool = False,
        patience: float = PATIENCE,
    ) -> None:
        self._converter = Converter()
        self._spans = Spans(run, content=content)
        self._warn = warn
        self._patience = patience
        self._shipping = Shipping(exporter)

    def __call__(self, stamped: Stamped) -> None:
        """Send what has ended."""
        for span in self._spans.take(stamped):
            self._send(span)

    def close(self) -> None:
        """Send the rest, for a bounded time."""
        for span in self._spans.end():
            self._send(span)
        lost = self._shipping.close(self._patience)
        if lost:
            self._warn(f"`--otel`: {counted(lost, 'span')} not sent: {self._shipping.reason}")

    def _send(self, span: Span) -> None:
        made = self._converter.convert(span)
        if made is not None:
            self._shipping.put(made)
