"""`aish init [TEMPLATE]`."""

import json
import os
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from aish.cli.boundary import say
from aish.cli.options import OWN_FILE, Argument, Option
from aish.core.errors import ExitCode, UsageError, did_you_mean
from aish.core.patterns import lazy_pattern
from aish.core.phrases import backticked
from aish.core.text import for_line
from aish.engine.run_folder import hidden_folder
from aish.system.files import schema_text, write_private

SCHEMA = Path(".aish") / "pipeline.schema.json"
NOTE = "note.md"
VENDORS = "models.toml"
_COST_LIMIT = ", cost_usd: 5"
_MODELS = lazy_pattern(r"^models:\n(?:  .*\n)+", re.MULTILINE)
_MODEL = lazy_pattern(r"^  model: (.*)$", re.MULTILINE)
_VARIABLE = lazy_pattern(r"\$\{(\w+)\}|^  key_env: (\w+)$", re.MULTILINE)
_PLAIN = lazy_pattern(r"(?!(?i:true|false|null)$)[A-Za-z][\w./@-]*(?::[\w./@-]+)*")
_HEAD = f"# yaml-language-server: $schema={SCHEMA.as_posix()}\n"


class Template(StrEnum):
    MINIMAL = "minimal"
    TOOLS = "tools"
    CI = "ci"
    BATCH = "batch"
    GRAPH = "graph"


def command(
    template: Annotated[
        Template | None, Argument("[TEMPLATE]", "minimal (the default), tools, ci, batch or graph")
    ] = None,
    *,
    model: Annotated[
        str | None,
        Option(
            "--model VENDOR[/MODEL]",
            "Write the model entry of a vendor: anthropic, openai, azure, bedrock, vertex, gemini, "
            "openrouter, mistral, groq, deepseek, ollama, vllm, llama.cpp, lmstudio and others.",
            completes="vendor_names",
        ),
    ] = None,
    source: Annotated[
        Path | None,
        Option(
            "--from FILE",
            "Convert another program's file to a pipeline: .mcp.json, .vscode/mcp.json, "
            "Codex's "
            "config.toml, a goose recipe, a promptfoo configuration.",
        ),
    ] = None,
    output: Annotated[Path, Option("-o --output FILE", "The file to write.")] = OWN_FILE,
    force: Annotated[bool, Option("--force", "Overwrite the file.")] = False,
) -> int:
    """Write a working starter pipeline.

    Beside it go the schema for editors, in `.aish/`, and the note that `tools` and `graph` read.

    Example: aish init tools --model anthropic && aish validate aish.yaml
    """
    code = ExitCode.OK
    if source is None:
        text = starter(template or Template.MINIMAL, output)
        entry = "" if model is None else vendor_entry(model)
        if entry:
            text = with_models(text, entry)
        _write(output, text, force=force)
        if NOTE in text:
            path = output.parent / NOTE
            if not os.path.lexists(path):
                _write(path, _read_starter(NOTE), force=False)
                say(f"wrote {path}")
        _list("export before a run", variables_of(entry))
        say(f"wrote {output}; next: aish validate {output}")
    elif template is not None or model is not None:
        other = f"`{template}` is a template" if template else "`--model` is for a template"
        message = f"`--from` converts a file, and {other}"
        raise UsageError(message, hint="use one of the two")
    else:
        from aish.cli.commands.validate import problems_of
        from aish.cli.importing.pipeline import import_pipeline, pipeline_name

        draft = import_pipeline(source, output, pipeline_name(output, source), _HEAD)
        _write(output, draft.text, force=force)
        say(f"wrote {output}, from {draft.kind} in {source}")
        _list("export before a run", (f"{name}: {what}" for name, what in draft.exports.items()))
        _list("not mapped", map(str, draft.skipped))
        _list("approved, as in the original", draft.approved)
        if draft.servers and not draft.approved:
            say(
                f"nothing is approved yet: `aish tools {output}` lists the tools, and a rule under "
                "`mcp.auto_approve` approves one"
            )
        problems = problems_of(output, (), os.environ, strict=False, env=False)
        wrong = [str(problem) for problem in problems if not problem.warning]
        _list("invalid, to be corrected by hand", wrong)
        code = ExitCode.USAGE if wrong else ExitCode.OK
        say(f"next: aish validate {output}")
    _write_schema(output)
    return code


def starter(template: Template, output: Path) -> str:
    text = _read_starter(f"{template}.yaml")
    if output.name != OWN_FILE.name:
        from aish.cli.importing.pipeline import pipeline_name

        text = text.replace(f"\nname: {template}\n", f"\nname: {pipeline_name(output)}\n", 1)
    return _HEAD + text.replace(OWN_FILE.name, for_line(str(output)))


def vendors() -> Mapping[str, Mapping[str, str]]:
    """The model entries by vendor, each with `title`, `set`, `leave` and `entry`."""
    import tomllib

    return tomllib.loads(_read_starter(VENDORS))


def vendor_entry(name: str) -> str:
    """The model entry of `VENDOR` or `VENDOR/MODEL`, as YAML with its alias.

    Raises:
        UsageError: the vendor is not known, or the model has no name.
    """
    known = vendors()
    vendor, slash, model = name.partition("/")
    if vendor not in known:
        hint = f"known: {backticked(known, most=len(known))}"
        if near := did_you_mean(vendor, known):
            hint = f"{near}? {hint}"
        raise UsageError(f"`{for_line(vendor)}` is not a known vendor of models", hint=hint)
    entry = known[vendor]["entry"].lstrip()
    if not slash:
        return entry
    if not model.strip():
        raise UsageError("the name of the model is missing", hint=f"`--model {vendor}/NAME`")
    written = model if _PLAIN.fullmatch(model) else json.dumps(model)
    return _MODEL.sub(lambda _: f"  model: {written}", entry, 1)


def with_models(text: str, entry: str) -> str:
    """A pipeline with this entry as its only model, and without a limit in money.

    That would need the price of the model and a bound of its answers.
    """
    indented = "".join(f"  {line}" for line in entry.splitlines(keepends=True))
    text = text.replace(_COST_LIMIT, "", 1)
    return _MODELS.sub(lambda _: f"models:\n{indented}", text, 1)


def variables_of(entry: str) -> Iterable[str]:
    """The environment variables that an entry reads, each once."""
    return dict.fromkeys(first or second for first, second in _VARIABLE.findall(entry))


def _read_starter(name: str) -> str:
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
