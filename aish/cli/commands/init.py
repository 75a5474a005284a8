"""`aish init [TEMPLATE]`."""

from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from aish.cli.boundary import say
from aish.cli.imported import pipeline_from_mcp_json
from aish.errors import UsageError


class Template(StrEnum):
    """The starters that are shipped."""

    MINIMAL = "minimal"
    TOOLS = "tools"
    CI = "ci"
    BATCH = "batch"
    GRAPH = "graph"


def command(
    template: Annotated[
        Template, typer.Argument(metavar="[TEMPLATE]", help="minimal, tools, ci, batch or graph")
    ] = Template.MINIMAL,
    *,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="Turn an `mcpServers` block into a pipeline."),
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Where it is written.")
    ] = Path("aish.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> int:
    """Write a working starter pipeline.

    Example: aish init tools && aish validate aish.yaml
    """
    text = starter(template) if source is None else pipeline_from_mcp_json(source)
    try:
        with output.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(
            "the file exists", where=str(output), hint="`--force` overwrites it, `-o` names another"
        ) from None
    except OSError as error:
        raise UsageError(f"cannot write: {error.strerror}", where=str(output)) from error
    say(f"wrote {output}; next: aish validate {output}")
    return 0


def starter(template: Template) -> str:
    """The text of a starter pipeline."""
    return (files("aish.cli") / "starters" / f"{template}.yaml").read_text(encoding="utf-8")
