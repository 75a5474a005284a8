"""Write the generated pages from what the program is made of: schemas, command line, tables.

`python docs/generate.py` writes those pages of docs/reference/, `--check` fails if one is out of
date.
"""

import ast
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from aish.cli.catalogue import COMMANDS, CommandEntry
from aish.cli.commands.init import vendors
from aish.cli.typer_parser import load_command
from aish.core.errors import ExitCode
from aish.core.wires import CHAT, WIRES
from aish.engine.final import NAMES, PRECEDENCE, RETRYABLE
from aish.packs.catalogue import PACKS
from aish.packs.framework.pack import ALWAYS, Pack, PackTool
from aish.shell.commands.catalogue import LINES, ROWS
from aish.system.platform.differences import DIFFERENCES

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "compat"))
import compat_entries  # ruff: ignore[module-import-not-at-top-of-file] - beside docs/

REFERENCE = ROOT / "docs" / "reference"
SCHEMAS = ROOT / "schemas"
TESTS = ROOT / "tests"
REQUIREMENTS = ROOT / "docs" / "requirements.json"
GENERATED = "<!-- Written by docs/generate.py; change what it is made of, not this page. -->"

EXIT_MEANINGS = {
    ExitCode.OK: "every step succeeded",
    ExitCode.FAILED: "a step failed, a failed tool call was not mended, an expectation did not "
    "hold, an answer did not fit its schema, the result or the cassette could not be written, or "
    "`aish policy suggest` left a call out",
    ExitCode.USAGE: "bad flag, bad input value, invalid pipeline file; no model was asked",
    ExitCode.DENIED: "a needed tool call was denied, and `on_denied` is not `continue`",
    ExitCode.BUDGET: "a limit was reached: one of `limits` (time, tokens, cost, tool calls, "
    "turns) or `max_tool_depth`",
    ExitCode.UNAVAILABLE: "a model endpoint or a required server could not be reached, or refused "
    "the credentials, after retries",
    ExitCode.CASSETTE: "a replay met a request that the cassette does not hold, or, under "
    "`cassette.strict`, left recorded ones unused",
    ExitCode.LOCK: "a server, tool, prompt or model is not as the lock file pins it or as a call "
    "was staged for, or `aish lock` found a difference",
    ExitCode.PAUSED: "calls wait for an answer (`on_ask: pause`): `aish approve` gives it, and "
    "`--resume` continues",
    ExitCode.INTERNAL: "a bug: the message names the log file and asks for a report",
    ExitCode.INTERRUPTED: "SIGINT (Ctrl-C): children are gone, the journal is closed",
    ExitCode.TERMINATED: "SIGTERM: the same",
}
# What to read when a message names the code.
EXIT_PAGES = {
    ExitCode.FAILED: (
        "[expectations](expectations.md), [structured answers](../start/structured-output.md), "
        "[failed calls](../jobs/mcp-servers.md#when-a-call-fails)"
    ),
    ExitCode.USAGE: "[pipeline file](pipeline.md), [inputs](../start/inputs-and-templates.md)",
    ExitCode.DENIED: "[approvals](../start/tools-and-approvals.md), [rules](rules.md)",
    ExitCode.BUDGET: "[limits and cost](../jobs/limits-and-cost.md)",
    ExitCode.UNAVAILABLE: "[models](../start/models.md), [MCP servers](../jobs/mcp-servers.md)",
    ExitCode.CASSETTE: "[record and replay](../why/record-and-replay.md)",
    ExitCode.LOCK: (
        "[locking tools](../jobs/locking-tools.md), [staged calls](../jobs/staged-calls.md)"
    ),
    ExitCode.PAUSED: "[approvals that wait](../jobs/approvals-that-wait.md)",
    ExitCode.INTERRUPTED: "[resuming runs](../why/resuming-runs.md)",
    ExitCode.TERMINATED: "[resuming runs](../why/resuming-runs.md)",
}
ONE_STEP = "For a pipeline of one step, in the place of `steps`. "
_MARK = re.compile(r"mark\.requirement\(([^)]*)\).*?\bdef (test_\w+)", re.DOTALL)
_ROW = re.compile(r"\brow\(\s*\"([A-Z]\d+)\"")
_TABLE = re.compile(r"parametrize\(\"\w+\", ROWS\).*?\bdef (test_\w+)", re.DOTALL)
_NUMBER = re.compile(r"[\"']([\w-]+)[\"']")
Node = Mapping[str, Any]


# --- Exit codes ------------------------------------------------------------------------------


def exit_codes() -> Iterator[str]:
    yield "# Exit codes"
    yield ""
    yield "One final state decides the exit code, in one place. A run that did not do what its file"
    yield "asks for never ends with 0."
    yield from ("", "| code | name | when | read |", "| ---: | --- | --- | --- |")
    for code in ExitCode:
        pages = EXIT_PAGES.get(code, "")
        yield f"| {int(code)} | {NAMES[code]} | {EXIT_MEANINGS[code]} | {pages} |"
    order = ", ".join(str(int(code)) for code in PRECEDENCE)
    again = ", ".join(str(int(code)) for code in sorted(RETRYABLE))
    yield ""
    yield f"If several apply, the first of {order} is taken."
    yield ""
    yield "Messages whose cause is not in them: [troubleshooting](troubleshooting.md)."
    yield ""
    yield "`--format json` and the event `run.finished` carry the same as `exit`: `code`, `name`,"
    yield f"`reason`, `hint`, and `retryable`, which is true for {again}: the same run may succeed"
    yield "another time."


# --- Command line ----------------------------------------------------------------------------


def command_line() -> Iterator[str]:
    yield "# Command line"
    yield ""
    yield "Results go to stdout, everything for people to stderr. `-h` or `--help` after any"
    yield "command shows what is on this page. What the codes mean: [exit codes](exit-codes.md)."
    rows = [row for row in COMMANDS if not row.hidden]
    yield ""
    yield from (f"- [aish {_words(row)}](#{_slug(f'aish {_words(row)}')})" for row in rows)
    for row in rows:
        others = [other.name for other in COMMANDS if _is_alias(other, row)]
        yield from _command(f"aish {_words(row)}", load_command(row), others)


def _words(row: CommandEntry) -> str:
    return f"{row.group} {row.name}" if row.group else row.name


def _is_alias(other: CommandEntry, row: CommandEntry) -> bool:
    return other.hidden and other.module == row.module


def _command(title: str, command: Any, others: Sequence[str]) -> Iterator[str]:
    text = inspect.cleandoc(command.help or "")
    about, _, example = text.partition("\n\nExample: ")
    yield from ("", f"## {title}", "", about.replace("\n", " "))
    if others:
        yield f"Also called {', '.join(f'`aish {name}`' for name in others)}."
    if example:
        yield from ("", "```text", f"$ {' '.join(example.split())}", "```")
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    if arguments:
        yield from ("", "| argument | |", "| --- | --- |")
        for parameter in arguments:
            name = _cell(parameter.metavar or parameter.name.upper())
            yield f"| `{name}` | {_cell(parameter.help or '')} |"
    if options:
        yield from ("", "| option | |", "| --- | --- |")
        yield from (_option(parameter) for parameter in options)


def _option(parameter: Any) -> str:
    names = ", ".join(f"`{name}`" for name in parameter.opts)
    value = parameter.metavar
    choices = getattr(parameter.type, "choices", None)
    if not value and choices:
        value = "|".join(choices)
    shown = f" `{value}`" if value else ""
    default = parameter.default
    usual = getattr(default, "value", default)
    known = f" Default: `{usual}`." if usual not in {None, False} and not parameter.multiple else ""
    return f"| {_cell(names + shown)} | {_cell((parameter.help or '') + known)} |"


# --- Pipeline file ---------------------------------------------------------------------------


def pipeline() -> Iterator[str]:
    schema = _schema("pipeline")
    yield "# Pipeline file"
    yield ""
    yield f"{schema.get('description', '')} `aish schema pipeline` prints the JSON Schema that this"
    yield "page is made from. A key that is not on this page is an error."
    top = _properties(schema)
    alone = {key: node for key, node in top.items() if _text(node, schema).startswith(ONE_STEP)}
    yield from ("", "## At the top")
    yield from _keys({key: top[key] for key in top if key not in alone}, schema, schema)
    yield from ("", "## At the top of a pipeline of one step")
    yield from ("", "These stand in the place of `steps`.")
    yield from _keys(alone, schema, schema)
    for name, node in schema["$defs"].items():
        if _properties(node):
            yield from ("", f"## {name}", "", node.get("description", ""))
            yield from _keys(_properties(node), node, schema)
    yield from ("", "## Values")
    for name, node in schema["$defs"].items():
        if not _properties(node):
            yield from _value(name, node, schema)


def _value(name: str, node: Node, root: Node) -> Iterator[str]:
    yield from ("", f"### {name}", "", f"{node.get('description', '')}{_example(node)}")
    for branch in node.get("anyOf", ()):
        if _properties(branch):
            yield from _keys(_properties(branch), branch, root)


def _keys(keys: Node, parent: Node, root: Node, before: str = "") -> Iterator[str]:
    """The rows of an object's keys; what is nested in one of them follows it."""
    if not before:
        yield from ("", "| key | type | |", "| --- | --- | --- |")
    required = set(parent.get("required", ()))
    for key, node in keys.items():
        mark = " (required)" if key in required else ""
        text = _text(node, root).removeprefix(ONE_STEP) + _default(node) + _example(node)
        yield f"| `{before}{key}`{mark} | {_cell(_type(node))} | {_cell(text)} |"
        if "$ref" not in node:
            yield from _keys(_properties(node), node, root, f"{before}{key}.")


def _properties(node: Node) -> Node:
    found: Node = node.get("properties", {})
    return found


def _text(node: Node, root: Node) -> str:
    if "description" in node:
        return str(node["description"])
    reference = str(node.get("$ref", ""))
    target = root.get("$defs", {}).get(reference.removeprefix("#/$defs/"), {})
    return str(target.get("description", ""))


def _type(node: Node) -> str:
    if "$ref" in node:
        name = str(node["$ref"]).removeprefix("#/$defs/")
        return f"[{name}](#{_slug(name)})"
    if "enum" in node:
        return ", ".join(f"`{json.dumps(item)}`" for item in node["enum"])
    if "const" in node:
        return f"`{json.dumps(node['const'])}`"
    for key in ("anyOf", "oneOf"):
        if key in node:
            return " or ".join(dict.fromkeys(_type(branch) for branch in node[key]))
    kind = node.get("type", "any")
    if kind == "array" and isinstance(node.get("items"), Mapping):
        return f"list of {_type(node['items'])}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _default(node: Node) -> str:
    return f" Default: `{json.dumps(node['default'])}`." if "default" in node else ""


def _example(node: Node) -> str:
    examples = node.get("examples", ())
    return f" Example: `{json.dumps(examples[0], ensure_ascii=False)}`" if examples else ""


# --- Events ----------------------------------------------------------------------------------


def event_page() -> Iterator[str]:
    schema = _schema("events")
    yield "# Events and the result"
    yield ""
    yield "`aish run --format jsonl` writes one event a line to stdout; `events.jsonl` in a run's"
    yield "folder holds the same but for the deltas, each line with a checksum (`crc`). Everything"
    yield "shown or reported comes from these events."
    yield "Keys and types are only ever added: skip what you do not know. `aish schema events` and"
    yield "`aish schema result` print the JSON Schemas that this page is made from."
    yield from ("", "## Every event")
    yield from _keys(_properties(schema), schema, schema)
    for name in _properties(schema)["type"]["enum"]:
        node = schema["$defs"][name]
        yield from ("", f"## {name}", "", node.get("description", ""))
        keys = {key: value for key, value in _properties(node).items() if key != "type"}
        if keys:
            yield from _keys(keys, {}, schema)
    yield from ("", "## The result object", "", "`aish run --format json` prints one object.")
    result = _schema("result")
    yield from _keys(_properties(result), {}, result)
    shared = {**schema["$defs"], **result["$defs"]}
    for name, node in shared.items():
        if name not in _properties(schema)["type"]["enum"]:
            yield from (
                "",
                f"## {name}",
                "",
                f"{node.get('description', '')} {_choices(node)}".strip(),
            )
            if _properties(node):
                yield from _keys(_properties(node), {}, result)


def _choices(node: Node) -> str:
    return f"One of {_type(node)}." if "enum" in node else ""


# --- Commands of a session -------------------------------------------------------------------


def shell_page() -> Iterator[str]:
    yield "# Commands of a session"
    yield ""
    yield "What can be typed in `aish shell`; `:help` and completion are made of the same table."
    yield f"{LINES} Options of `aish shell` itself: [command line](cli.md#aish-shell)."
    yield from ("", "| command | |", "| --- | --- |")
    for row in ROWS:
        link = f"[{_code(row.title)}](#{row.name})"
        yield f"| {link} | {_cell(row.summary)} |"
    for row in ROWS:
        yield from ("", f"## {row.name}", "", f"`{row.title}`: {row.summary}.")
        if row.details:
            yield from ("", row.details)
        if row.also:
            others = ", ".join(f"`:{name}`" for name in row.also)
            yield from ("", f"Also called {others}.")
        if row.forms:
            yield from ("", "| form | |", "| --- | --- |")
            for form in row.forms:
                yield f"| {_code(f':{row.name} {form.spelled}')} | {_cell(form.summary)} |"


# --- Requirements ----------------------------------------------------------------------------


def requirements_page() -> Iterator[str]:
    yield "# Requirements"
    yield ""
    yield "The numbered requirements of the design, and the acceptance test of each, which carries"
    yield 'its number: `@pytest.mark.requirement("L7")`. File names are unique over `tests/`. The'
    yield "numbers and their text are in `docs/requirements.json`."
    tests_by_number = tests_by_requirement()
    for title, rows in requirements().items():
        yield from (
            "",
            f"## {title}",
            "",
            "| number | requirement | acceptance test |",
            "| --- | --- | --- |",
        )
        for number, text in rows.items():
            tests = ", ".join(f"`{name}`" for name in tests_by_number.get(number, ()))
            yield f"| {number} | {_cell(text)} | {tests} |"


def requirements() -> Mapping[str, Mapping[str, str]]:
    """What each number is about, by subject."""
    read: Mapping[str, Mapping[str, str]] = json.loads(REQUIREMENTS.read_text("utf-8"))
    return read


def tests_by_requirement() -> Mapping[str, Sequence[str]]:
    """Return the acceptance tests of each number, in order.

    Tables of streams carry numbers in the first argument of `row`, of `tests/support`.
    """
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py"), key=lambda path: path.name):
        if path.stem == "test_requirements":  # its numbers are examples
            continue
        text = path.read_text("utf-8")
        pairs = [
            (number, name) for mark, name in _MARK.findall(text) for number in _NUMBER.findall(mark)
        ]
        pairs += [(number, name) for name in _TABLE.findall(text) for number in _ROW.findall(text)]
        for number, name in dict.fromkeys(pairs):
            found.setdefault(number, []).append(f"{path.stem}::{name}")
    return found


def _code(text: str) -> str:
    return f"`{_cell(text)}`"


# --- Tool packs ------------------------------------------------------------------------------


def _packs() -> Mapping[str, Pack]:
    return {name: import_module(entry.module).PACK for name, entry in PACKS.items()}


def pack_page() -> Iterator[str]:
    yield "# Tools of the packs"
    yield ""
    yield "Every tool of the built-in packs. A parameter with `?` may be left out, `=` gives its"
    yield "default. R: only reads; D: may destroy; I: a second call changes nothing more; O: has to"
    yield "do with more than this machine's files. Codes are those of `error.code` in the"
    yield "structured result, beside `bad_arguments`, `failed` and `system`, which all may return."
    for name, pack in _packs().items():
        entry = PACKS[name]
        yield from ("", f"## {name}", "")
        if entry.extra:
            verb = "Needs" if entry.needs else "Complete with"
            yield f"{verb} `pip install 'aish-pipelines[{entry.extra}]'`."
            yield ""
        yield "| tool | marks | result | codes |"
        yield "| --- | --- | --- | --- |"
        for one in pack.tools:
            marks = "".join(
                letter
                for letter, hint in zip("RDIO", one.marks.annotations.values(), strict=True)
                if hint
            )
            properties = one.output_schema["properties"]
            assert isinstance(properties, Mapping)
            result = ", ".join(map(str, properties))
            codes = " ".join(code for code in one.codes if code not in ALWAYS)
            yield f"| {_code(_signature(one))} | {marks} | {result} | {codes} |"
    yield from ("", "## Older names", "")
    yield "Names that users of other tool servers know can be called and used in rules without"
    yield "wildcards; they are not listed. They are translated before anything else."
    yield ""
    yield "| older name | tool |"
    yield "| --- | --- |"
    for pack in _packs().values():
        for one in pack.tools:
            for older, how in one.older.items():
                renamed = [f"`{old}` is `{own}`" for old, own in how.rename.items()]
                renamed += [f"`{key}` is {json.dumps(value)}" for key, value in how.set.items()]
                said = f" ({', '.join(renamed)})" if renamed else ""
                yield f"| `{older}` | `{one.name}`{said} |"


def _signature(one: PackTool) -> str:
    properties, required = one.input_schema["properties"], one.input_schema.get("required", ())
    assert isinstance(properties, Mapping)
    assert isinstance(required, Sequence)
    words = []
    for name, schema in properties.items():
        assert isinstance(schema, Mapping)
        if "default" in schema:
            words.append(f"{name}={json.dumps(schema['default'])}")
        else:
            words.append(name if name in required else f"{name}?")
    return f"{one.name}({', '.join(words)})"


def _pack_row(pack: Pack) -> dict[str, str]:
    row: dict[str, str] = {"root": pack.root}
    if (options := pack.options) is not None:
        row["options"] = f"{options.__module__}:{options.__qualname__}"
    return row


def manifest() -> str:
    """`aish/packs/manifest.json`: what is known of tools without loading a pack."""
    packs = _packs()
    tools = [(name, one) for name, pack in packs.items() for one in pack.tools]
    found = {
        "packs": {name: _pack_row(pack) for name, pack in packs.items()},
        "tools": {one.name: {"pack": name, **packs[name].manifest_row(one)} for name, one in tools},
        "older_names": {
            older: {"tool": one.name, "rename": dict(how.rename), "set": dict(how.set)}
            for _, one in tools
            for older, how in one.older.items()
        },
        "older_parameters": {
            one.name: dict(one.older_parameters) for _, one in tools if one.older_parameters
        },
    }
    # One line an entry: small to read, and a change shows as what it is.
    parts = []
    for part, rows in found.items():
        lines = [f"    {json.dumps(key)}: {json.dumps(row)}" for key, row in rows.items()]
        parts.append(f"  {json.dumps(part)}: {{\n" + ",\n".join(lines) + "\n  }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


# --- Vendors of models -----------------------------------------------------------------------


_VENDORS_HEAD = """\
# Models by vendor

An entry of `models` for each vendor. `aish init --model NAME` writes a pipeline with one, and
`--model NAME/MODEL` with another model of the vendor, by its name there. A template may stand
before it:

```console
$ aish init tools --model mistral/mistral-large-latest
wrote note.md
export before a run:
  MISTRAL_API_KEY
wrote aish.yaml; next: aish validate aish.yaml
$ aish validate aish.yaml
aish.yaml: ok
```

What depends on the account is a variable, such as `${AZURE_OPENAI_RESOURCE}`. `aish validate` names
each that is not set; the value may be written in its place. Names of models change faster than this
page: they are the vendor's, and only an example here.
"""
_VENDORS_TAIL = """\
`api` is explained in [Claude, GPT and other APIs](wires.md), all keys of an entry in the
[reference](pipeline.md#model), endpoints in general in [Models](../start/models.md).
"""


def vendors_page() -> Iterator[str]:
    from ruamel.yaml import YAML

    yield from _VENDORS_HEAD.splitlines()
    yield ""
    yield "| `NAME` | `api` | `base_url` | key | set | leave out |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, vendor in vendors().items():
        (entry,) = YAML(typ="safe", pure=True).load(vendor["entry"]).values()
        api = entry.get("api", CHAT)
        wire = WIRES[api]
        address = entry.get("base_url") or f"{wire.base_url} (default)"
        cells = (_code(name), _code(api), _address(address), _key(entry, wire.key_header))
        yield f"| {' | '.join((*cells, _cell(vendor['set']), _cell(vendor['leave'])))} |"
    yield ""
    yield from _VENDORS_TAIL.splitlines()
    for name, vendor in vendors().items():
        yield from ("", f"## {vendor['title']}", "", f"`aish init --model {name}`", "")
        yield from ("```yaml fragment", "models:")
        yield from (f"  {line}" for line in vendor["entry"].strip().splitlines())
        yield "```"


def _address(address: str) -> str:
    url, _, rest = address.partition(" ")
    return f"`{url}` {rest}".rstrip()


def _key(entry: Mapping[str, Any], header: str) -> str:
    """Where the key comes from, and how it is sent."""
    name = entry.get("key_header", header).lower()
    sent = "`Authorization: Bearer`" if name == "authorization" else f"`{name}`"
    if "key_env" in entry:
        return f"`{entry['key_env']}`, as {sent}"
    if "key_command" in entry:
        return f"`{' '.join(entry['key_command'])}`, as {sent}"
    return "none"


# --- Compatibility ---------------------------------------------------------------------------


_COMPATIBILITY = """\
What was tried with aish: {count} servers, endpoints and programs, each with its version,
the day, and what to know. `aish doctor FILE` names the rows of what a file uses. `make compat`
tries all of them again with packages from the registries, `make compat NAME=git` those whose name
holds the word; both tell what does not hold any more. What is not here was not tried. The entries
are in [`compat/`](../../compat)."""


def compatibility_page() -> Iterator[str]:
    entries = compat_entries.read_entries()
    yield "# Compatibility"
    yield ""
    yield _COMPATIBILITY.format(count=len(entries))
    for kind, title in compat_entries.KINDS.items():
        rows = [entry for entry in entries if entry.kind == kind]
        if not rows:
            continue
        yield from ("", f"## {title}", "", "| name | version | tried | result | what to know |")
        yield "| --- | --- | --- | --- | --- |"
        for entry in rows:
            name = f"[{entry.name}](#{_slug(entry.name)})" if entry.pipeline else entry.name
            cells = (name, entry.version, entry.tried, entry.result, entry.know)
            yield f"| {' | '.join(map(_cell, cells))} |"
        for entry in rows:
            if entry.pipeline:
                yield from ("", f"### {entry.name}", "", f"`{entry.package}`", "")
                yield from ("```yaml", *_declaration(entry.pipeline), "```")


def _declaration(pipeline: str) -> Iterator[str]:
    """The lines of `models`, `mcp` and `serve` in the text of a pipeline file."""
    is_wanted = False
    for line in pipeline.splitlines():
        if line[:1].strip():
            is_wanted = line.partition(":")[0] in {"models", "mcp", "serve"}
        if is_wanted:
            yield line


def compatibility_rows() -> str:
    """What `aish doctor` knows of it: rows by package, and by the usual origin of an endpoint."""
    rows = {}
    for entry in compat_entries.read_entries():
        row = {
            "name": entry.name,
            "version": entry.version,
            "tried": entry.tried,
            "result": entry.result,
            "know": _cell(entry.know).strip(),
            "anchor": _slug(entry.name)
            if entry.pipeline
            else _slug(compat_entries.KINDS[entry.kind]),
        }
        if entry.kind == "servers":
            rows[entry.package_name] = row
        elif entry.kind == "endpoints" and entry.address:
            rows[entry.address] = row
    return json.dumps(rows, indent=2, sort_keys=True) + "\n"


# --- All pages -------------------------------------------------------------------------------


def _schema(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((SCHEMAS / f"{name}.schema.json").read_text("utf-8"))
    return loaded


def _slug(title: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


# --- Messages --------------------------------------------------------------------------------

# Where the messages of a part of `aish/` are explained; the longest path that fits counts.
EXPLAINED: Mapping[str, tuple[str, str]] = {
    "": ("Other messages", "troubleshooting.md"),
    "agent": ("Tool calls", "../start/tools-and-approvals.md"),
    "cassettes": ("Cassettes", "../why/record-and-replay.md"),
    "cli": ("The command line", "cli.md"),
    "cli/cassette_options.py": ("Cassettes", "../why/record-and-replay.md"),
    "cli/commands/login.py": ("Logins", "../jobs/oauth.md"),
    "cli/commands/test.py": ("Tests", "../jobs/testing-pipelines.md"),
    "cli/importing": ("Files of other programs", "../jobs/migrating.md"),
    "config": ("Pipeline files", "pipeline.md"),
    "control": ("The control API", "control-api.md"),
    "engine": ("Runs", "../why/how-a-run-works.md"),
    "engine/expectations": ("Expectations", "expectations.md"),
    "engine/limits.py": ("Limits", "../jobs/limits-and-cost.md"),
    "engine/plan": ("Pipeline files", "pipeline.md"),
    "features/approvals": ("Approvals", "../start/tools-and-approvals.md"),
    "features/browser_login.py": ("Logins", "../jobs/oauth.md"),
    "features/cluster": ("Clusters", "../jobs/running-on-a-cluster.md"),
    "features/control": ("The control API", "control-api.md"),
    "features/history": ("Past runs", "../jobs/past-runs.md"),
    "features/lockfile.py": ("Lock files", "../jobs/locking-tools.md"),
    "features/recording": ("Cassettes", "../why/record-and-replay.md"),
    "features/resume": ("Resuming", "../why/resuming-runs.md"),
    "features/staging": ("Staged calls", "../jobs/staged-calls.md"),
    "features/suggest": ("Rules", "rules.md"),
    "features/testing": ("Tests", "../jobs/testing-pipelines.md"),
    "items": ("Items", "../jobs/batch-processing.md"),
    "journal": ("Past runs", "../jobs/past-runs.md"),
    "mcp": ("MCP servers", "../jobs/mcp-servers.md"),
    "mcp/transports/confined.py": ("Confined servers", "../jobs/confined-servers.md"),
    "mcp/transports/package_fetch.py": ("Confined servers", "../jobs/confined-servers.md"),
    "models": ("Models", "../start/models.md"),
    "models/batch_calls.py": ("Batches", "../jobs/half-price-batches.md"),
    "models/batch_delivery.py": ("Batches", "../jobs/half-price-batches.md"),
    "net": ("Network", "../start/models.md"),
    "net/listen": ("Serving", "serving.md"),
    "net/oauth": ("Logins", "../jobs/oauth.md"),
    "output": ("Results and reports", "../jobs/reports.md"),
    "packs": ("Tool packs", "tool-packs.md"),
    "policy": ("Rules", "rules.md"),
    "policy/lock.py": ("Lock files", "../jobs/locking-tools.md"),
    "reports": ("Results and reports", "../jobs/reports.md"),
    "serve": ("Serving", "serving.md"),
    "shell": ("Sessions", "../jobs/interactive-shell.md"),
    "system/platform": ("Systems", "systems.md"),
    "system/process": ("Commands", "../jobs/commands-and-processes.md"),
    "system/schema": ("Schemas", "../start/structured-output.md"),
    "system/secrets": ("Secrets", "../start/inputs-and-templates.md"),
    "templates": ("Templates", "../start/inputs-and-templates.md"),
    "terminal": ("Approvals", "../start/tools-and-approvals.md"),
    "wire": ("Models", "../start/models.md"),
}
_INTERNAL = frozenset({"AssertionError", "RuntimeError", "TypeError", "ValueError"})
_FEWEST_WORDS = 3


def messages_page() -> Iterator[str]:
    yield "# Messages"
    yield ""
    yield "The messages of errors, by the page that explains their subject; `…` is a part that"
    yield "varies. In parentheses is the hint of a message. The most frequent ones, with their"
    yield "causes, are in [Troubleshooting](troubleshooting.md)."
    for part in EXPLAINED:
        if not (ROOT / "aish" / part).exists():
            raise FileNotFoundError(part)
    rows: dict[tuple[str, str], set[str]] = {}
    for path in sorted((ROOT / "aish").rglob("*.py")):
        name = path.relative_to(ROOT / "aish").as_posix()
        place = EXPLAINED[max((part for part in EXPLAINED if _is_below(name, part)), key=len)]
        rows.setdefault(place, set()).update(messages_in(path.read_text("utf-8")))
    for (title, page), messages in sorted(rows.items()):
        if messages:
            yield from ("", f"## {title}", "", f"See [{title}]({page}).", "")
            yield from (f"- {message}" for message in sorted(messages, key=_letters))


def messages_in(source: str) -> Iterator[str]:
    """Messages of the exceptions and problems that a module makes, as code spans, with hints."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        name = node.func.id if isinstance(node.func, ast.Name) else name
        texts = {keyword.arg: _literal(keyword.value) for keyword in node.keywords}
        if name in _INTERNAL or not (name.endswith(("Error", "Problem")) or "hint" in texts):
            continue
        given = [texts.get("message"), *map(_literal, node.args)]
        message = next((text for text in given if text and _is_sentence(text)), None)
        if message is not None:
            hint = texts.get("hint")
            yield f"{_span(message)} ({_span(hint)})" if hint else _span(message)


def _is_below(name: str, part: str) -> bool:
    return not part or name == part or name.startswith(f"{part}/")


def _is_sentence(text: str) -> bool:
    return len([word for word in text.split() if re.search(r"[a-z]", word)]) >= _FEWEST_WORDS


def _literal(node: ast.AST) -> str | None:
    """The text of a literal, with `…` for what an f-string inserts."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_literal(part) or "…" for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            before, after = _literal(left), _literal(right)
            return None if before is None or after is None else before + after
    return None


def _span(text: str) -> str:
    text = " ".join(text.split())
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * (longest + 1)
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}"


def _letters(text: str) -> tuple[str, str]:
    """What sorts a message: its letters, and then all of it."""
    return re.sub(r"[^a-z]+", " ", text.lower()).strip(), text


# --- Systems -----------------------------------------------------------------------------------


def systems_page() -> Iterator[str]:
    yield "# Systems"
    yield ""
    yield "`aish` is made for Linux, where every test runs. **macOS** is expected to work,"
    yield "tested on Linux with the portable forms of the calls below, until somebody runs it on"
    yield "one; types are checked for both. `aish doctor` tells what is weaker on a machine."
    yield "**Windows** has none of these calls: use"
    yield "[WSL](https://learn.microsoft.com/windows/wsl/), where `aish` runs as on Linux. Started"
    yield "on Windows itself, it says so and ends with 5."
    yield ""
    yield "| subject | on Linux | elsewhere | what is weaker there |"
    yield "| --- | --- | --- | --- |"
    for row in DIFFERENCES:
        cells = map(_cell, (row.subject, row.linux, row.portable, row.weaker or "nothing"))
        yield f"| {' | '.join(cells)} |"
    yield ""
    yield "A file that needs a sandbox (`sandbox: required`, or a server with `sandbox`) is refused"
    yield "where there is none. No option, file or variable of the environment switches the forms"
    yield "of Linux off."


PAGES: Mapping[str, Callable[[], Iterator[str]]] = {
    "cli.md": command_line,
    "exit-codes.md": exit_codes,
    "pipeline.md": pipeline,
    "packs.md": pack_page,
    "events.md": event_page,
    "messages.md": messages_page,
    "shell.md": shell_page,
    "requirements.md": requirements_page,
    "vendors.md": vendors_page,
    "systems.md": systems_page,
    "compatibility.md": compatibility_page,
}


def written() -> Mapping[Path, str]:
    """Every generated page as it has to be, and the data of packs and of `aish doctor`."""
    return {
        **{
            REFERENCE / name: "\n".join([GENERATED, "", *page()]).rstrip() + "\n"
            for name, page in PAGES.items()
        },
        ROOT / "aish" / "packs" / "manifest.json": manifest(),
        ROOT / "aish" / "engine" / "preview" / "compatibility.json": compatibility_rows(),
    }


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = []
    for path, text in written().items():
        if path.is_file() and path.read_text("utf-8") == text:
            continue
        stale.append(path.name)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    if stale and check:
        sys.stderr.write(f"out of date: {', '.join(stale)}; `make docs` writes them anew\n")
    return 1 if stale and check else 0


if __name__ == "__main__":
    sys.exit(main())
