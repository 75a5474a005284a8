"""What expectations look at: a step that has ended, or a whole run (F12)."""

from collections.abc import Mapping

from aish.agent.runtime import UsedCall
from aish.core.deltas import Usage
from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.run.expectations.result_path import find, parse_path
from aish.run.expectations.words import Mask
from aish.run.records import (
    Records,
    StepRecord,
    calls_view,
    template_view,
    total_cost,
    total_usage,
    usage_view,
)
from aish.templates.context import ProjectNames


@frozen
class Subject:
    """Everything that an expectation may be about.

    `names` is what paths and expressions lead into. `text` and `value` are what is meant where no
    path is given, the latter for `schema`. `usage` of `None` means that no model was asked,
    `cost_usd` of `None` is unknown. `mask` takes the secrets out of what is shown of it.
    """

    names: Mapping[str, JsonValue]
    text: str | None
    value: JsonValue
    calls: tuple[UsedCall, ...]
    usage: Usage | None
    seconds: float
    cost_usd: float | None = None
    mask: Mask = str

    def at(self, path: str | None) -> JsonValue:
        """What `path` leads to; the text without one.

        Raises:
            NotThereError: it leads to nothing.
        """
        return self.text if path is None else find(parse_path(path), self.names)


def step_subject(context: Mapping[str, JsonValue], record: StepRecord) -> Subject:
    """A step that has ended; `context` is what templates saw before it (`Stage.context`)."""
    view = template_view(record)
    fields = view if isinstance(view, dict) else {}
    before = context["steps"]
    assert isinstance(before, dict)
    told = {"seconds": record.seconds, "cost_usd": record.cost_usd}
    own = {**fields, **told, "steps": {**before, record.id: view}}
    return Subject(
        names=with_names(context, own),
        text=record.text,
        value=record.output,
        calls=record.calls,
        usage=record.usage if record.kind == "prompt" else None,
        seconds=record.seconds,
        cost_usd=record.cost_usd,
    )


def run_subject(
    context: Mapping[str, JsonValue],
    records: Records,
    outputs: JsonValue,
    *,
    seconds: float,
    status: str = "ok",
) -> Subject:
    """A run that has ended: `context` is what templates see now, `records` are in their order.

    Its text and `output` are those of its last step; what `schema` looks at without a path are
    the outputs, where the file has any.
    """
    rows = tuple(records.values())
    last = rows[-1] if rows else None
    asked = any(row.kind == "prompt" and row.status != "skipped" for row in rows)
    usage, cost = total_usage(rows), total_cost(rows)
    own: dict[str, JsonValue] = {
        "outputs": outputs,
        "text": last.text if last else None,
        "output": last.output if last else None,
        "status": status,
        "tool_calls": [call for row in rows for call in calls_view(row)],
        "usage": usage_view(usage),
        "cost_usd": cost,
        "seconds": seconds,
    }
    return Subject(
        names=with_names(context, own),
        text=last.text if last else None,
        value=outputs if outputs is not None or last is None else last.output,
        calls=tuple(call for row in rows for call in row.calls),
        usage=usage if asked else None,
        seconds=seconds,
        cost_usd=cost,
    )


def with_names(
    context: Mapping[str, JsonValue], own: Mapping[str, JsonValue]
) -> Mapping[str, JsonValue]:
    """The names with more, and the same folder for `readfile`."""
    names = {**context, **own}
    return ProjectNames(names, context.root) if isinstance(context, ProjectNames) else names
