"""Small charts as inline SVG: bars of counts, histograms, intervals, dots."""

from collections.abc import Callable, Iterable, Sequence

from aish.core.text import for_line
from aish.reports.distribution import Distribution, quantiles
from aish.reports.markup import Markup, concat, tag

_WIDTH, _HEIGHT = 240.0, 44.0
_LINE = 100.0
_MOST_BARS = 12
_SHARES = (0.5, 0.9, 0.99)
_MIDDLE = (0.05, 0.5, 0.95)


def _svg(label: str, size: tuple[float, float], shapes: Iterable[Markup], kind: str) -> Markup:
    return tag(
        "svg",
        *shapes,
        viewBox=f"0 0 {size[0]:g} {size[1]:g}",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
        class_=kind,
    )


def _rect(x: float, y: float, width: float, height: float, kind: str, title: str = "") -> Markup:
    return tag(
        "rect",
        tag("title", title) if title else None,
        x=f"{x:.2f}",
        y=f"{y:.2f}",
        width=f"{width:.2f}",
        height=f"{height:.2f}",
        class_=kind,
    )


def counts_chart(title: str, counts: Sequence[tuple[str, str, int]], column: str) -> Markup:
    """A bar for each value: its name, its class, its count; `column` is where it can be chosen."""
    most = max((count for _, _, count in counts), default=0) or 1
    rows = [
        tag(
            "li",
            tag("span", for_line(name), class_="name"),
            _svg(
                f"{count:,} of {for_line(name)}",
                (_LINE, 8),
                [_rect(0, 0, count / most * _LINE, 8, f"unit {kind}")],
                "share",
            ),
            tag("span", f"{count:,}", class_="count"),
            data_value=name,
        )
        for name, kind, count in counts[:_MOST_BARS]
    ]
    left = len(counts) - len(rows)
    more = tag("li", f"and {left:,} more values", class_="quiet") if left else None
    return _figure(title, tag("ul", *rows, more, class_="bars", data_column=column))


def numbers_chart(
    title: str, numbers: Distribution, text: Callable[[float], str], *, usual: bool = True
) -> Markup:
    """A histogram with its quantiles: of what runs cost p50, p90 and p99, else those of both ends.

    Equal widths are equal factors.
    """
    bars = numbers.bars()
    most = max((count for _, _, count in bars), default=1)
    step = _WIDTH / max(len(bars), 1)
    shapes = [
        _rect(
            n * step,
            _HEIGHT - max(count / most * _HEIGHT, 1.5),
            max(step - 1, 1),
            max(count / most * _HEIGHT, 1.5),
            "unit",
            f"{text(low)} to {text(high)}: {count:,}",
        )
        for n, (low, high, count) in enumerate(bars)
        if count
    ]
    words = " · ".join(
        f"{name} {text(value)}" for name, value in quantiles(numbers, _SHARES if usual else _MIDDLE)
    )
    low, high = numbers.quantile(0), numbers.quantile(1)
    return _figure(
        title,
        _svg(f"{title}: {words}", (_WIDTH, _HEIGHT), shapes, "histogram"),
        tag(
            "p",
            tag("span", text(low or 0.0)),
            tag("span", text(high or 0.0)),
            class_="ends",
            aria_hidden="true",
        ),
        tag("p", words, class_="facts"),
    )


def _figure(title: str, *children: Markup) -> Markup:
    return tag("div", tag("p", for_line(title), class_="title"), *children, class_="figure")


def interval_chart(
    rate: float, interval: tuple[float, float], before: float | None = None
) -> Markup:
    """A rate with its interval between 0 and 1, and a line from what it was before."""
    low, high = (edge * _LINE for edge in interval)
    at = rate * _LINE
    label = f"{rate:.0%}, between {interval[0]:.0%} and {interval[1]:.0%}"
    shapes = [
        _rect(0, 5.5, _LINE, 1, "scale"),
        _rect(low, 3, max(high - low, 1), 6, "between"),
        _rect(min(max(at - 1, 0), _LINE - 2), 0, 2, 12, "rate"),
    ]
    if before is not None:
        label += f", {before:.0%} before"
        was = before * _LINE
        shapes += [
            _rect(min(was, at), 10.5, max(abs(at - was), 0.5), 1.5, "change"),
            _rect(min(max(was - 1, 0), _LINE - 2), 8, 2, 4, "change"),
        ]
    return _svg(label, (_LINE, 12), shapes, "interval")


def dots(words: Sequence[str]) -> Markup:
    """A dot for each run, of the class that is its verdict."""
    label = ", ".join(words)
    marks = (tag("i", class_=word) for word in words)
    return tag("span", concat(marks), class_="dots", role="img", aria_label=label)
