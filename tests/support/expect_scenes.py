"""Expectations as a file has them, and finished steps and runs to hold them against."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio

from aish.agent.runtime import UsedCall
from aish.config.loader import load_pipeline
from aish.config.model import Expectation
from aish.core.events import Verdict
from aish.core.json import JsonObject, JsonValue
from aish.core.messages import Usage
from aish.core.tools import ResultKind
from aish.engine.expectations.check import CheckedExpectation, check
from aish.engine.expectations.subject import Subject, run_subject
from aish.engine.records import StepRecord
from aish.system.schema.check import SchemaProblem, check_any
from aish.system.schema.client import SchemaWorker

CONTEXT: Mapping[str, JsonValue] = {
    "inputs": {"since": "v1"},
    "env": {},
    "steps": {},
    "stdin": "",
}


def expectation(text: str, folder: Path) -> Expectation:
    """One expectation out of a pipeline file that has nothing else of interest."""
    file = folder / "p.yaml"
    file.write_text(f"aish: 1\nrun: ls\nexpect:\n  - {text}\n", "utf-8")
    (found,) = load_pipeline(file).steps[0].expect
    return found


def call(
    tool: str, arguments: JsonValue = None, kind: ResultKind = "ok", content: str = "done"
) -> UsedCall:
    """A call that was used."""
    verdict: Verdict = "deny" if kind == "denied" else "auto"
    given = {} if arguments is None else arguments
    return UsedCall(tool, given, verdict, "", kind, content, None, 0.1)


def record(id: str = "ask", **changes: Any) -> StepRecord:
    """A prompt step that has succeeded."""
    given: dict[str, Any] = {"kind": "prompt", "status": "ok", "usage": Usage(400, 90)}
    return StepRecord(id, **given | changes)


def run(*records: StepRecord, outputs: JsonValue = None, seconds: float = 2.0) -> Subject:
    """A run of these steps."""
    named = {row.id: row for row in records}
    views: JsonObject = {row.id: {"text": row.text, "output": row.output} for row in records}
    return run_subject({**CONTEXT, "steps": views}, named, outputs, seconds=seconds)


def checked(wanted: Expectation, subject: Subject) -> CheckedExpectation:
    """The expectation held against it, with a worker for what is not simple."""

    async def checking() -> CheckedExpectation:
        worker = SchemaWorker()

        async def fits(schema: JsonObject, value: JsonValue) -> tuple[SchemaProblem, ...]:
            return await check_any(schema, value, worker.check)

        try:
            return await check(wanted, subject, fits)
        finally:
            await worker.close()

    return anyio.run(checking)
