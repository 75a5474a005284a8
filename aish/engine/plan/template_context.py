"""The template context: `inputs`, `env`, `steps`, `stdin`."""

from collections.abc import Mapping

from aish.config.model import Pipeline
from aish.core.json import JsonValue
from aish.engine.plan.options import RunOptions
from aish.engine.records import Records, template_view
from aish.templates.values import ProjectNames


def template_context(
    pipeline: Pipeline,
    options: RunOptions,
    records: Records,
    variables: Mapping[str, str] | None = None,
    more: Mapping[str, JsonValue] | None = None,
) -> Mapping[str, JsonValue]:
    """The names a template may use at this point of the run.

    `variables` replace the process environment: in a replay, the recorded ones. `more` are the
    names of an item.
    """
    environ = options.environ if variables is None else variables
    names: dict[str, JsonValue] = {
        "inputs": dict(options.inputs),
        "env": {name: environ[name] for name in pipeline.env if name in environ},
        "steps": {id: template_view(record) for id, record in records.items()},
        "stdin": options.stdin or "",
    }
    if more is not None:
        names.update(more)
    return ProjectNames(names, pipeline.file.parent)
