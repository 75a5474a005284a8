"""What expectations look at: a step that has ended, or a whole run (F12)."""

from collections.abc import Mapping
from typing import cast

from aish.config.pipeline import Pipeline
from aish.loop.equipment import UsedCall
from aish.run.context import template_context
from aish.run.options import RunOptions
from aish.run.records import Records, StepRecord, template_view, total_usage
from aish.run.result_path import find, parse_path
from aish.templates.context import ProjectNames
from aish.vocab.deltas import Usage
from aish.vocab.frozen import frozen
from aish.vocab.json import JsonValue


@frozen
class Subject:
    """Everything that an expectation may be about.

    `names` is what paths and expressions lead into. `text` and `value` are what is meant where no
    path is given, the latter for `schema`. `usage` of `None` means that no model was asked.
    """

    names: Mapping[str, JsonValue]
    text: str | None
    value: JsonValue
    calls: tuple[UsedCall, ...]
    usage: Usage | None
    seconds: float

    def at(self, path: str | None) -> JsonValue:
        """What `path` leads to; the text without one.

        Raises:
            NotThereError: it leads to nothing.
        """
        return self.text if path is None else find(parse_path(path), self.names)


def step_subject(
    pipeline: Pipeline, options: RunOptions, records: Records, record: StepRecord
) -> Subject:
    """A step that has ended; `records` are those of the steps before it."""
    context = template_context(pipeline, options, {**records, record.id: record})
    names = {**context, **template_view(record), "seconds": record.seconds}
    return Subject(
        names=ProjectNames(names, pipeline.file.parent),
        text=record.text,
        value=record.output,
        calls=record.calls,
        usage=record.usage if record.kind == "prompt" else None,
        seconds=record.seconds,
    )


def run_subject(
    pipeline: Pipeline,
    options: RunOptions,
    records: Records,
    outputs: JsonValue,
    *,
    seconds: float,
    status: str = "ok",
) -> Subject:
    """A run that has ended: its steps in the order in which they ran, its outputs.

    Its text and `output` are those of its last step; what `schema` looks at without a path are
    the outputs, where the file has any.
    """
    rows = tuple(records.values())
    last = rows[-1] if rows else None
    asked = any(row.kind == "prompt" and row.status != "skipped" for row in rows)
    views = [template_view(row) for row in rows]
    usage = total_usage(rows)
    names: dict[str, JsonValue] = {
        **template_context(pipeline, options, records),
        "outputs": outputs,
        "text": last.text if last else None,
        "output": last.output if last else None,
        "status": status,
        "tool_calls": [
            call for view in views for call in cast("list[JsonValue]", view["tool_calls"])
        ],
        "usage": {
            "input": usage.input,
            "output": usage.output,
            "cached": usage.cached,
            "reasoning": usage.reasoning,
        },
        "seconds": seconds,
    }
    return Subject(
        names=ProjectNames(names, pipeline.file.parent),
        text=last.text if last else None,
        value=outputs if outputs is not None or last is None else last.output,
        calls=tuple(call for row in rows for call in row.calls),
        usage=usage if asked else None,
        seconds=seconds,
    )
