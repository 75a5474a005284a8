"""Write the reference pages from what the program is made of: schemas, command line, tables.

`python docs/generate.py` writes docs/reference/*.md, `--check` fails if one is out of date.
"""

import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from aish.cli.catalogue import COMMANDS
from aish.cli.main import build_app
from aish.errors import ExitCode
from aish.run.final import NAMES
from aish.vocab.event_types import EVENT_TYPES

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
SCHEMAS = ROOT / "schemas"
GENERATED = "<!-- Written by docs/generate.py; change what it is made of, not this page. -->"

EXIT_MEANINGS = {
    ExitCode.OK: "every step succeeded, every expectation held",
    ExitCode.FAILED: "a step failed, or an answer did not fit its schema",
    ExitCode.USAGE: "bad flag, bad input value, invalid pipeline file; nothing was contacted",
    ExitCode.DENIED: "a needed tool call was denied and the file says `on_denied: fail`",
    ExitCode.BUDGET: "a limit was reached: tool rounds or time",
    ExitCode.UNAVAILABLE: "a model endpoint or a required server could not be reached, or refused "
    "credentials, after retries",
    ExitCode.CASSETTE: "reserved for replay",
    ExitCode.LOCK: "reserved for lock files",
    ExitCode.INTERNAL: "a bug: the message names the log file and asks for a report",
    ExitCode.INTERRUPTED: "SIGINT (Ctrl-C): children are gone, the journal is closed",
    ExitCode.TERMINATED: "SIGTERM: the same",
}


def exit_codes() -> Iterator[str]:
    yield "# Exit codes"
    yield ""
    yield "If several apply, the first of 130/143, 70, 2, 6, 7, 3, 4, 5, 1 is taken."
    yield ""
    yield "| code | name | when |"
    yield "| ---: | --- | --- |"
    for code in ExitCode:
        yield f"| {int(code)} | {NAMES[code]} | {EXIT_MEANINGS[code]} |"


def command_line() -> Iterator[str]:
    import typer

    yield "# Command line"
    yield ""
    yield "Results go to stdout, everything for people to stderr."
    app = typer.main.get_command(build_app(COMMANDS))
    rows = [row for row in COMMANDS if not row.hidden]
    for row in rows:
        words = [row.group, row.name] if row.group else [row.name]
        command: Any = app
        for word in words:
            command = command.commands[word]
        yield ""
        yield f"## aish {' '.join(words)}"
        yield from _command(command)


def _command(command: Any) -> Iterator[str]:
    text = inspect.cleandoc(command.help or "")
    about, _, example = text.partition("\n\nExample: ")
    yield ""
    yield about
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    if example:
        yield from ("", "```console", f"$ {example.strip()}", "```")
    if arguments:
        yield from ("", "| argument | |", "| --- | --- |")
        for parameter in arguments:
            name = parameter.metavar or parameter.name.upper()
            yield f"| `{name}` | {parameter.help or ''} |"
    if options:
        yield from ("", "| option | |", "| --- | --- |")
        for parameter in options:
            names = ", ".join(f"`{name}`" for name in parameter.opts)
            value = f" `{parameter.metavar}`" if parameter.metavar else ""
            yield f"| {names}{value} | {parameter.help or ''} |"


def pipeline() -> Iterator[str]:
    schema = _schema("pipeline")
    yield "# Pipeline file"
    yield ""
    yield schema.get("description", "")
    yield ""
    yield "`aish schema pipeline` prints the JSON Schema that this page is made from."
    yield from _object("", schema, schema)
    for name, definition in schema.get("$defs", {}).items():
        if _properties(definition):
            yield from _object(name, definition, schema)


def _object(title: str, node: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield f"## {title}" if title else "## At the top"
    if title and node.get("description"):
        yield ""
        yield node["description"]
    yield from ("", "| key | type | |", "| --- | --- | --- |")
    required = set(node.get("required", ()))
    for key, value in _properties(node).items():
        mark = " (required)" if key in required else ""
        text = _described(value, root).replace("|", "\\|").replace("\n", " ")
        yield f"| `{key}`{mark} | {_type(value)} | {text}{_example(value)} |"


def _properties(node: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = node.get("properties", {})
    return found


def _described(value: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    if "description" in value:
        return str(value["description"])
    reference = str(value.get("$ref", ""))
    target = root.get("$defs", {}).get(reference.removeprefix("#/$defs/"), {})
    return str(target.get("description", ""))


def _type(value: Mapping[str, Any]) -> str:
    if "$ref" in value:
        name = str(value["$ref"]).removeprefix("#/$defs/")
        return f"[{name}](#{name})"
    if "enum" in value:
        return ", ".join(f"`{json.dumps(item)}`" for item in value["enum"])
    if "const" in value:
        return f"`{json.dumps(value['const'])}`"
    for key in ("anyOf", "oneOf"):
        if key in value:
            return " or ".join(dict.fromkeys(_type(branch) for branch in value[key]))
    kind = value.get("type", "any")
    if kind == "array" and isinstance(value.get("items"), Mapping):
        return f"list of {_type(value['items'])}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _example(value: Mapping[str, Any]) -> str:
    examples = value.get("examples", ())
    if not examples:
        return ""
    shown = json.dumps(examples[0], ensure_ascii=False).replace("|", "\\|")
    return f" Example: `{shown}`"


def event_page() -> Iterator[str]:
    yield "# Events"
    yield ""
    yield "Each line of `--format jsonl` and of a run's `events.jsonl` is one JSON object with `v`,"
    yield "`seq`, `time`, `type`, and, where they apply, `step`, `item`, `turn`, `call`. Keys are"
    yield "only ever added. `aish schema events` prints the JSON Schema."
    yield from ("", "| type | what it says | keys |", "| --- | --- | --- |")
    for kind, name in EVENT_TYPES.items():
        keys = ", ".join(f"`{_key(field)}`" for field in _fields(kind) if field != "place")
        about = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
        yield f"| `{name}` | {about} | {keys} |"


def _fields(kind: type) -> tuple[str, ...]:
    return tuple(kind.__dataclass_fields__)


def _key(field: str) -> str:
    return {"source": "from", "target": "to"}.get(field, field)


def _schema(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    return loaded


PAGES: Mapping[str, Callable[[], Iterator[str]]] = {
    "cli.md": command_line,
    "exit-codes.md": exit_codes,
    "pipeline.md": pipeline,
    "events.md": event_page,
}


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = []
    for name, page in PAGES.items():
        text = "\n".join([GENERATED, "", *page()]).rstrip() + "\n"
        path = REFERENCE / name
        if check and (not path.exists() or path.read_text() != text):
            stale.append(name)
        elif not check:
            path.write_text(text)
    if stale:
        sys.stderr.write(f"out of date: {', '.join(stale)}; `make docs` writes them anew\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
