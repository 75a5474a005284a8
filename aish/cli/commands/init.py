"""`aish init [TEMPLATE]`."""

import os
from collections.abc import Iterable
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from aish.cli.boundary import say
from aish.cli.options import OWN_FILE, Argument, Option
from aish.core.errors import UsageError
from aish.core.text import for_line
from aish.engine.run_folder import hidden_folder
from aish.system.files import schema_text, write_private

SCHEMA = Path(".aish") / "pipeline.schema.json"
NOTE = "note.md"
_HEAD = f"# yaml-language-server: $schema={SCHEMA.as_posix()}\n"


class Template(StrEnum):
    """The included templates."""

    MINIMAL = "minimal"
    TOOLS = "tools"
    CI = "ci"
    BATCH = "batch"
    GRAPH = "graph"


def command(
    template: Annotated[
        Template | None,
        Argument(metavar="[TEMPLATE]", help="minimal (the default), tools, ci, batch or graph"),
    ] = None,
    *,
    source: Annotated[
        Path | None,
        Option(
            "--from",
            metavar="FILE",
            help="Convert another program's file to a pipeline: .mcp.json, .vscode/mcp.json, "
            "Codex's "
            "config.toml, a goose recipe, a promptfoo configuration.",
        ),
    ] = None,
    output: Annotated[
        Path, Option("-o", "--output", metavar="FILE", help="The file to write.")
    ] = OWN_FILE,
    force: Annotated[bool, Option("--force", help="Overwrite the file.")] = False,
) -> int:
    """Write a working starter pipeline.

    Beside it go the schema for editors, in `.aish/`, and the note that `tools` and `graph` read.

    Example: aish init tools && aish validate aish.yaml
    """
    if source is None:
        text = starter(template or Template.MINIMAL, output)
        _write(output, text, force=force)
        if NOTE in text:
            _write_note(output.parent / NOTE)
        say(f"wrote {output}; next: aish validate {output}")
    elif template is not None:
        message = f"`--from` converts a file, and `{template}` is a template"
        raise UsageError(message, hint="use one of the two")
    else:
        from aish.cli.importing.pipeline import imported_pipeline, pipeline_name

        made = imported_pipeline(source, output, pipeline_name(output, source), _HEAD)
        _write(output, made.text, force=force)
        say(f"wrote {output}, from {made.kind} in {source}")
        _list("export before a run", (f"{name}: {what}" for name, what in made.exports.items()))
        _list("not mapped", (f"{one.position}: {one.path}: {one.instead}" for one in made.skipped))
        _list("approved, as in the original", made.approved)
        if made.servers and not made.approved:
            say(
                f"nothing is approved yet: `aish tools {output}` lists the tools, and a rule under "
                "`mcp.auto_approve` approves one"
            )
        say(f"next: aish validate {output}")
    _write_schema(output)
    return 0


def starter(template: Template, output: Path) -> str:
    """The text of a starter pipeline, with its future name."""
    text = _shipped(f"{template}.yaml")
    if output.name != OWN_FILE.name:
        from aish.cli.importing.pipeline import pipeline_name

        text = text.replace(f"\nname: {template}\n", f"\nname: {pipeline_name(output)}\n", 1)
    return _HEAD + text.replace(OWN_FILE.name, for_line(str(output)))


def _shipped(name: str) -> str:
    return (files("aish.cli") / "starters" / name).read_text(encoding="utf-8")


def _write(output: Path, text: str, *, force: bool) -> None:
    try:
        with output.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(
            "the file exists", where=str(output), hint="`--force` overwrites it, `-o` names another"
        ) from None
    except OSError as error:
        raise UsageError(f"cannot write: {error.strerror}", where=str(output)) from error


def _write_note(path: Path) -> None:
    """Write the file that a starter reads, unless there is one of that name."""
    if not os.path.lexists(path):
        _write(path, _shipped(NOTE), force=False)
        say(f"wrote {path}")


def _write_schema(output: Path) -> None:
    """Write the schema that the first line of the file names; a failure is not an error."""
    if not output.is_file():
        return
    path = output.parent / SCHEMA
    try:
        hidden_folder(output.parent)
        path.unlink(missing_ok=True)
        write_private(path, schema_text(path.name).encode("utf-8"))
    except (UsageError, OSError) as error:
        reason = error.message if isinstance(error, UsageError) else error.strerror or str(error)
        say(f"warning: editors will not find the schema `{path}`: {reason}")


def _list(title: str, rows: Iterable[str]) -> None:
    listed = [for_line(row) for row in rows]
    if listed:
        say(f"{title}:")
        for row in listed:
            say(f"  {row}")
