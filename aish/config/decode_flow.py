"""When, how often, over what and for how long a step runs (F4, F5), and its bounds (B8, L19)."""

from typing import cast

from aish.config.reading import Table
from aish.config.steps import (
    Context,
    Flow,
    Foreach,
    Limits,
    MaxFailures,
    OnError,
    RetryOn,
    StepRetry,
)
from aish.core.events import OnDuplicate

_OF_ITEMS = ("as", "key", "on_duplicate", "concurrency", "max_failures")
CONTEXTS = frozenset({"inputs", "env", "steps", "stdin", "index"})
"""What templates call something else than an item."""


def decode_flow(table: Table, *, at_top: bool = False) -> Flow:
    """What every kind of step may have; the `limits` at the top of a file are the run's."""
    return Flow(
        when=table.text("when"),
        foreach=_foreach(table),
        retry=_retry(table),
        timeout=table.seconds("timeout", 0.0) or None,
        on_error=cast("OnError", table.text("on_error") or "fail"),
        limits=Limits() if at_top else decode_limits(table.part("limits")),
    )


def decode_limits(limits: Table) -> Limits:
    """The bounds under `limits`."""
    cost = limits.data("cost_usd")
    return Limits(
        time=limits.seconds("time", 0.0) or None,
        tokens=limits.whole("tokens", 0) or None,
        cost_usd=float(cost) if isinstance(cost, (int, float)) else None,
        tool_calls=limits.whole("tool_calls", 0) if limits.has("tool_calls") else None,
        turns=limits.whole("turns", 0) or None,
    )


def decode_context(table: Table, default: Context) -> Context:
    """The bounds of a conversation in `table`, over those around it."""
    context = table.part("context")
    return Context(
        max_tokens=context.whole("max_tokens", default.max_tokens or 0) or None,
        keep=context.whole("keep", default.keep),
        summary_model=context.text("summary_model") or default.summary_model,
    )


def _retry(table: Table) -> StepRetry:
    retry = table.part("retry")
    on = cast("tuple[RetryOn, ...]", retry.texts("on"))
    return StepRetry(retry.whole("attempts", StepRetry().attempts), on)


def _foreach(table: Table) -> Foreach | None:
    if not table.has("foreach"):
        for key in () if table.is_broken("foreach") else _OF_ITEMS:
            if table.has(key):
                table.problem(key, f"`{key}` is for steps with `foreach`")
        return None
    name = table.text("as") or "item"
    if name in CONTEXTS:
        table.problem("as", f"`{name}` is what templates call something else")
    source = table.child("foreach")
    broken = source is not None and (source.is_broken("file") or source.is_broken("glob"))
    if source is not None and source.has("file") == source.has("glob") and not broken:
        table.problem("foreach", "`foreach` needs an expression, `{file: …}` or `{glob: …}`")
    if source is not None and source.has("delimiter") and not source.has("file"):
        source.problem("delimiter", "`delimiter` goes with `file`")
    if table.has("on_duplicate") and not table.has("key"):
        said = "`on_duplicate` is for items with a `key`: by their numbers all differ"
        table.problem("on_duplicate", said)
    return Foreach(
        expression=table.text("foreach"),
        file=None if source is None else source.text("file"),
        delimiter=None if source is None else source.text("delimiter"),
        glob=None if source is None else source.text("glob"),
        folder=table.folder_of("foreach"),
        name=name,
        key=table.text("key"),
        on_duplicate=cast("OnDuplicate", table.text("on_duplicate") or "fail"),
        concurrency=table.whole("concurrency", Foreach().concurrency),
        max_failures=_max_failures(table),
    )


def _max_failures(table: Table) -> MaxFailures | None:
    text = table.text("max_failures")
    if text is None:
        has = table.has("max_failures")
        return MaxFailures(count=table.whole("max_failures", 0)) if has else None
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = 2.0
    if share > 1:
        table.problem("max_failures", f"`{text}` is no share such as `5%`")
    return MaxFailures(share=share)
