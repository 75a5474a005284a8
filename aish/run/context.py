"""What templates see: `inputs`, `env`, `steps`, `stdin` (F6, F7, F14)."""

from collections.abc import Mapping

from aish.config.pipeline import Pipeline
from aish.run.options import RunOptions
from aish.run.records import Records, template_view
from aish.templates.context import ProjectNames
from aish.vocab.json import JsonValue


def template_context(
    pipeline: Pipeline, options: RunOptions, records: Records
) -> Mapping[str, JsonValue]:
    """The names a template may use at this point of the run."""
    names: dict[str, JsonValue] = {
        "inputs": dict(options.inputs),
        "env": {name: options.environ[name] for name in pipeline.env if name in options.environ},
        "steps": {id: template_view(record) for id, record in records.items()},
        "stdin": options.stdin or "",
    }
    return ProjectNames(names, pipeline.file.parent)
