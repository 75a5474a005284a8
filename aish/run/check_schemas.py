"""JSON Schemas that stand in the file: are they any, and do defaults fit them (F11)."""

from collections.abc import Iterator

from aish.config.inputs import fits
from aish.config.pipeline import Pipeline, PromptStep
from aish.run.complaint import Complaint, step_path, within
from aish.system.schema import SchemaProblem, check_schema, spell_path
from aish.vocab.json import JsonObject


def schema_complaints(pipeline: Pipeline) -> Iterator[Complaint]:
    """About the schemas of inputs, answers and rules."""
    for name, schema in pipeline.inputs.items():
        broken = list(_broken(schema, f"inputs.{name}", "the input's schema"))
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
            yield from _broken(step.output.schema, path, "the answer's schema")
    rules = pipeline.rules
    for entries in (rules.auto_approve, rules.ask, rules.deny, rules.parallel, rules.idempotent):
        for rule in entries:
            if rule.schema is not None:
                yield from _broken(rule.schema, f"{rule.path}.schema", "the rule's schema")


def _broken(schema: JsonObject, path: str, what: str) -> Iterator[Complaint]:
    for found in check_schema(schema):
        place = _place(path, found)
        yield Complaint(place, f"{what} is not a JSON Schema: {found.message}")


def _place(path: str, found: SchemaProblem) -> str:
    inner = spell_path(found.path)
    return f"{path}{'' if inner.startswith('[') or not inner else '.'}{inner}"
