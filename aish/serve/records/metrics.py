"""Metrics of the MCP server, as text for Prometheus.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OTHER = "other"
"""Stands for a tool that nobody offers: what clients make up is no label."""
NONE = "none"
"""Stands for a decision that there was none."""
_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})

Labels = tuple[tuple[str, str], ...]
Read = Callable[[], Mapping[Labels, float]]


class Metrics:
    """Counts finished calls; other values are read on request.

    `gauges` and `counters` have a name, a description, and a function that reads the values.
    """

    def __init__(self) -> None:
        self.gauges: dict[str, tuple[str, Read]] = {}
        self.counters: dict[str, tuple[str, Read]] = {}
        self._calls: Counter[tuple[str, str, str]] = Counter()
        self._buckets = [0] * (len(_BOUNDS) + 1)
        self._seconds = 0.0

    def count_call(self, tool: str, decision: str, kind: str, seconds: float | None = None) -> None:
        """Count a finished call; a call without `seconds` was never decided."""
        self._calls[tool, decision, kind] += 1
        if seconds is None:
            return
        self._buckets[bisect_left(_BOUNDS, seconds)] += 1
        self._seconds += seconds

    def text(self) -> str:
        """Return all metrics in the format of Prometheus."""
        return "\n".join([*self._lines(), ""])

    def _lines(self) -> Iterator[str]:
        calls: dict[Labels, float] = {
            (("tool", tool), ("decision", decision), ("kind", kind)): count
            for (tool, decision, kind), count in sorted(self._calls.items())
        }
        name = "aish_calls_total"
        yield from _family(name, "counter", "Tool calls of clients.", calls)
        name, total = "aish_call_seconds", 0
        yield from _head(name, "histogram", "How long calls took, from the decision on.")
        for bound, count in zip((*_BOUNDS, "+Inf"), self._buckets, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self._seconds}"
        yield f"{name}_count {total}"
        for kind, families in (("counter", self.counters), ("gauge", self.gauges)):
            for name, (meaning, read) in families.items():
                yield from _family(name, kind, meaning, read())


def _family(name: str, kind: str, meaning: str, values: Mapping[Labels, float]) -> Iterator[str]:
    yield from _head(name, kind, meaning)
    for labels, value in values.items():
        pairs = ",".join(f'{label}="{text.translate(_ESCAPES)}"' for label, text in labels)
        yield f"{name}{{{pairs}}} {value}" if pairs else f"{name} {value}"


def _head(name: str, kind: str, meaning: str) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"
