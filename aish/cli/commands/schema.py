"""`aish schema NAME`."""

from enum import StrEnum
from typing import Annotated

from aish.cli.options import Argument
from aish.cli.printer import write_text
from aish.system.files import schema_text


class SchemaName(StrEnum):
    PIPELINE = "pipeline"
    EVENTS = "events"
    RESULT = "result"
    LOCK = "lock"
    STAGED = "staged"


def command(
    name: Annotated[SchemaName, Argument("NAME", "pipeline, events, result, lock or staged")],
) -> int:
    """Print a JSON Schema: pipeline, events, result, lock, staged.

    Example: aish schema pipeline > pipeline.schema.json
    """
    write_text(schema_text(f"{name.value}.schema.json").rstrip("\n") + "\n")
    return 0
