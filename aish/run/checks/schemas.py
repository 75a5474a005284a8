"""JSON Schemas that stand in the file: are they any, and do defaults fit them (F11)."""

from collections.abc import Iterator, Mapping, Sequence

from aish.config.inputs import fits
from aish.config.pipeline import Pipeline
from aish.config.steps import PromptStep
from aish.core.errors import did_you_mean
from aish.core.json import JsonObject, JsonValue
from aish.run.checks.complaint import Complaint, step_path, within
from aish.system.schema.check import SchemaProblem, check_schema, spell_path
from aish.system.schema.subset import TYPES


def schema_complaints(pipeline: Pipeline) -> Iterator[Complaint]:
    """About the schemas of inputs, answers and rules."""
    for name, schema in pipeline.inputs.items():
        broken = list(broken_schema(schema, f"inputs.{name}", "the input's schema"))
        yield from broken
        if not broken and "default" in schema:
            path = f"inputs.{name}.default"
            for found in fits(schema, schema["default"]):
                place = f" at `{spell_path(found.path)}`" if found.path else ""
                yield Complaint(
                    path, f"the default does not fit its schema{place}: {found.message}"
                )
    listed = "steps" in pipeline.data
    for index, step in enumerate(pipeline.steps):
        if isinstance(step, PromptStep) and step.output is not None:
            path = within(step_path(index, listed=listed), "output.schema")
            yield from broken_schema(step.output.schema, path, "the answer's schema")
    for rule in pipeline.rules.all:
        if rule.schema is not None:
            yield from broken_schema(rule.schema, f"{rule.path}.schema", "the rule's schema")


def broken_schema(schema: JsonObject, path: str, what: str) -> Iterator[Complaint]:
    """A schema that is none; `what` names it in the message."""
    for found in check_schema(schema):
        place = _place(path, found)
        name = _type_at(schema, found.path)
        if name is None:
            yield Complaint(place, f"{what} is not a JSON Schema: {found.message}")
        else:
            hint = did_you_mean(name, TYPES) or f"types: {', '.join(sorted(TYPES))}"
            yield Complaint(place, f"{what} is not a JSON Schema: there is no type `{name}`", hint)


def _place(path: str, found: SchemaProblem) -> str:
    inner = spell_path(found.path)
    return f"{path}{'' if inner.startswith('[') or not inner else '.'}{inner}"


def _type_at(schema: JsonValue, path: Sequence[str | int]) -> str | None:
    """The misspelt type that a path leads to, if it is one."""
    if not path or path[-1] != "type":
        return None
    value = schema
    for part in path:
        if isinstance(value, Mapping) and isinstance(part, str):
            value = value.get(part)
        elif isinstance(value, Sequence) and isinstance(part, int):
            value = value[part]
    return value if isinstance(value, str) else None
