"""The session as the data and the YAML of a pipeline file. Pure.

Its questions become steps, as do the local commands whose output they include; with its servers and
models.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from aish.config.model import PLATFORM_SHELL, ServerEntry
from aish.core.errors import AishError
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.phrases import shorten
from aish.core.text import for_line
from aish.core.tools import FAILED_KINDS
from aish.engine.plan.uris import is_uri
from aish.engine.resources.toolbox import command_arguments
from aish.output.formats.text import yaml_text
from aish.policy.rule_yaml import rules_yaml
from aish.policy.suggest import Made, Suggestion, suggestion
from aish.shell.export.session_log import SessionLine, SessionLog, Waited
from aish.shell.local.shell import literal, run_report_template

_FOLDERS = ("root", "cwd")


class NotExportedError(AishError):
    """The session cannot be expressed as a pipeline; nothing was written."""

    code = "not_exported"


def models_of(data: JsonObject, aliases: Sequence[str]) -> dict[str, Any]:
    """The entries of these models and their fallbacks, in the order of the file."""
    declared: Any = data.get("models") or {}
    names: set[str] = set()
    waiting = list(aliases)
    while waiting:
        alias = waiting.pop()
        if alias in declared and alias not in names:
            names.add(alias)
            waiting += declared[alias].get("fallback") or []
    return {alias: entry for alias, entry in declared.items() if alias in names}


def servers_of(
    data: JsonObject,
    connected: Mapping[str, ServerEntry],
    shown: Collection[str],
    folder: Path,
    target: Path,
) -> dict[str, Any]:
    """The entries of the servers whose tools models were shown.

    Raises:
        NotExportedError: the address of one is unknown.
    """
    mcp: Any = data.get("mcp") or {}
    declared: Any = mcp.get("servers") or {}
    entries = {
        alias: rebase(entry, folder, target) for alias, entry in declared.items() if alias in shown
    }
    entries |= {
        alias: _server_entry(entry, target) for alias, entry in connected.items() if alias in shown
    }
    unknown = sorted(set(shown) - set(entries))
    if unknown:
        raise NotExportedError(
            f"the address of the server `{unknown[0]}` is unknown in this part of the session",
            hint=f"`:mcp connect URL {unknown[0]}` connects to it again, then export",
        )
    return entries


def rebase(entry: Any, folder: Path, target: Path) -> Any:
    """A server's entry with its folders relative to `target`."""
    if folder.resolve() == target.resolve():
        return entry
    table = dict(entry)
    if "command" in table:
        table.setdefault("cwd", ".")
    for key in _FOLDERS:
        # The value of a variable is unknown here; most are absolute paths.
        if key in table and "${" not in str(table[key]):
            table[key] = os.path.relpath((folder / str(table[key])).resolve(), target.resolve())
    return table


def _server_entry(entry: ServerEntry, target: Path) -> dict[str, Any]:
    if entry.command:
        started: Any = {"command": list(entry.command)}
        return dict(rebase(started, entry.cwd or target, target))
    table: dict[str, Any] = {"url": entry.url}
    if entry.auth_env:
        table["auth_env"] = entry.auth_env
    if entry.oauth is not None:
        table["oauth"] = {"login": True}
    return table


# The line that `agent.result_limit` inserts for omitted text.
_CUT = re.compile(r"^\[aish\] \d+ of \d+ bytes left out here$", re.MULTILINE)
_SHOWN = 60


@frozen
class Step:
    data: JsonObject
    remarks: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return str(self.data["id"])


@frozen
class ExportContext:
    """The context in which steps are created.

    `frame` is the system prompt, `shell` the words before a command line, `offered` the tools shown
    to a step without `tools:`, `ran` the steps whose commands are recorded. `folder` is the folder
    of the new file, and `here` the one in which the session's commands ran.
    """

    frame: str
    shell: tuple[str, ...]
    offered: Mapping[str, frozenset[str]]
    ran: frozenset[str]
    folder: Path
    here: Path


def steps_of(lines: Sequence[SessionLine], context: ExportContext) -> Iterator[Step]:
    """A step for each question, which continues the previous one, and for the commands it needs."""
    before: str | None = None
    known: set[str] = set()
    for line in lines:
        attached, far = _attachments(line, context.folder)
        outputs = [_output(output, context) for output in line.waited] if not far else []
        for output in outputs:
            if output.run is not None and output.step not in known:
                known.add(output.step)
                needs = {"needs": [before]} if before else {}
                yield Step({"id": output.step, "run": output.run, **needs})
        data: dict[str, Any] = {"id": line.id}
        data |= {"system": literal(context.frame)} if before is None else {"continues": before}
        texts = [*(one.template for one in outputs), literal(line.text)]
        # With an attachment outside the folder, the text is kept as it was sent: no step could
        # build it.
        text = literal(line.sent) if far else "\n\n".join(texts)
        # A word alone would be read as the name of a prompt.
        data["prompt"] = text if " " in text or "\n" in text else {"user": text}
        data |= {"attach": attached} if attached and not far else {}
        data |= {"model": line.model} if line.model != lines[0].model else {}
        tools = _tools(line, context.offered)
        data |= {"tools": tools} if tools is not None else {}
        remarks = tuple(one.remark for one in outputs if one.remark)
        yield Step(data, (*remarks, far) if far else remarks)
        before = line.id


def as_run(made: Made, shell: tuple[str, ...]) -> Made:
    command = made.arguments.get("command")
    if str(made.tool) != "shell__run" or shell == PLATFORM_SHELL or not isinstance(command, str):
        return made
    return Made(made.tool, command_arguments((*shell, command)), made.unknown)


@frozen
class _CommandTemplate:
    """Output of a local command as a template; `run` is the command that repeats it in `step`."""

    template: str
    step: str = ""
    run: JsonValue = None
    remark: str = ""


def _output(waited: Waited, context: ExportContext) -> _CommandTemplate:
    why = _why_not(waited, context)
    if why is not None:
        command = for_line(shorten(waited.command, _SHOWN))
        remark = f"The output of `{command}` stands as it was: {why}." if waited.command else ""
        return _CommandTemplate(literal(waited.text), remark=remark)
    run: JsonValue = literal(waited.command)
    if context.shell != PLATFORM_SHELL:
        run = [literal(word) for word in (*context.shell, waited.command)]
    return _CommandTemplate(run_report_template(waited.step, waited.command), waited.step, run)


def _why_not(waited: Waited, context: ExportContext) -> str | None:
    if not waited.command:
        return ""
    reasons = (
        (_has_failed(waited), "the command did not succeed, and a step that fails ends a run"),
        ("<secret:" in waited.command, "the command contained a secret"),
        (waited.step not in context.ran, "it is not in the recording of the session"),
        (bool(_CUT.search(waited.text)), "it was too long to be sent in full"),
        (
            context.here != context.folder,
            "steps run in the folder of this file, and it ran in another",
        ),
    )
    return next((why for is_so, why in reasons if is_so), None)


def _has_failed(waited: Waited) -> bool:
    return not waited.text.endswith("[exit code 0]")


def _attachments(line: SessionLine, folder: Path) -> tuple[list[JsonValue], str]:
    """The attachments of a step, or why it cannot attach them.

    Raises:
        NotExportedError: a picture is among what cannot be attached.
    """
    attachments: list[JsonValue] = []
    for name in line.attached:
        path = Path(name).expanduser().absolute()
        if is_uri(name) and not path.is_file():
            attachments.append(literal(name))
        elif path.is_file() and path.resolve().is_relative_to(folder):
            attachments.append(literal(str(path.resolve().relative_to(folder))))
        elif line.has_media:
            raise NotExportedError(
                f"an image cannot be included: `{name}` is not in {folder}",
                hint="`:export` into a folder that it is in",
            )
        else:
            return [], f"`{for_line(name)}` stands as it was sent: it is not a file of this folder."
    return attachments, ""


def _tools(line: SessionLine, offered: Mapping[str, frozenset[str]]) -> list[JsonValue] | None:
    names_offered = frozenset(line.tools)
    if names_offered == frozenset().union(*offered.values()):
        return None
    globs: list[JsonValue] = []
    for alias, names in offered.items():
        if names and names <= names_offered:
            globs.append(f"{alias}__*")
        else:
            globs += [name for name in line.tools if name in names]
    return globs


_RULES = ("ask", "deny", "stage", "parallel", "idempotent")
_BOUNDS = ("max_tool_depth", "max_calls_per_turn", "result_limit")
_OF_MODELS = ("env", "secrets")
_OF_CONTEXT = ("max_tokens", "keep")


@frozen
class SessionSource:
    """The parts of a session that an exported file takes over.

    `data` is the session's own file, `folder` its folder, and `here` the one in which its commands
    ran; `connected` are servers that a command has added, `tools` what each server offers now,
    `frame` the system prompt, `shell` the words before a command line.
    """

    data: JsonObject
    folder: Path
    here: Path
    connected: Mapping[str, ServerEntry]
    tools: Mapping[str, tuple[str, ...]]
    frame: str
    shell: tuple[str, ...]


@frozen
class PipelineDraft:
    """A pipeline in its parts; `made` are the calls that it is expected to make."""

    head: Mapping[str, JsonObject]
    mcp: JsonObject
    steps: tuple[Step, ...]
    tail: JsonObject
    suggestion: Suggestion
    made: tuple[Made, ...]


def draft(
    source: SessionSource, log: SessionLog, ran: frozenset[str], file: Path, cassette: str
) -> PipelineDraft:
    """The pipeline of a session; `ran` are the local commands that are recorded.

    Raises:
        NotExportedError: something cannot be expressed in a pipeline.
    """
    lines, folder = log.complete_lines(), file.parent.resolve()
    offered = _tools_by_server(source, lines)
    context = ExportContext(source.frame, source.shell, offered, ran, folder, source.here)
    steps = tuple(steps_of(lines, context))
    calls = log.calls_of({step.id for step in steps})
    failed = _has_failed_call(log, steps)
    rows = tuple(as_run(call, source.shell) for call in calls.made)
    answered = [line.model for line in lines]
    head: dict[str, JsonObject] = {
        "": {"aish": 1, "name": file.stem, "description": "Exported from a session"},
        "models": {key: source.data[key] for key in _OF_MODELS if source.data.get(key)}
        | {"models": models_of(source.data, answered), "model": answered[0]},
        "bounds": _bounds(
            source, denied=any(str(one.tool) != "shell__run" for one in calls.denied), failed=failed
        ),
    }
    servers = servers_of(source.data, source.connected, offered, source.folder, folder)
    test: dict[str, Any] = {"name": "does what the session did"}
    if rows:
        outcome = {"outcome": "any"} if failed else {}
        test["expect"] = [{"tool_sequence": [_call_json(call, outcome) for call in rows]}]
    tail: JsonObject = {"cassette": cassette, "tests": [test]}
    mcp = _mcp(source, servers)
    return PipelineDraft(head, mcp, steps, tail, suggestion(rows, calls.denied), rows)


def _tools_by_server(
    source: SessionSource, lines: Sequence[SessionLine]
) -> dict[str, frozenset[str]]:
    """The tools of each server, where the model was shown at least one of them."""
    shown: dict[str, set[str]] = {}
    for line in lines:
        for name in line.tools:
            shown.setdefault(name.partition("__")[0], set()).add(name)
    return {
        alias: frozenset(names.union(source.tools.get(alias, ()))) for alias, names in shown.items()
    }


def _has_failed_call(log: SessionLog, steps: Sequence[Step]) -> bool:
    ids = {step.id for step in steps}
    ends = (call.finished for call in log.calls if call.place.step in ids)
    return any(end is not None and end.kind in FAILED_KINDS for end in ends)


def _call_json(call: Made, outcome: JsonObject) -> JsonValue:
    return {"tool": str(call.tool), **outcome} if outcome else str(call.tool)


def _bounds(source: SessionSource, *, denied: bool, failed: bool) -> JsonObject:
    bounds: dict[str, Any] = {}
    # The session continued after a denial, or a call that failed.
    if denied:
        bounds["on_denied"] = "continue"
    if failed:
        bounds["on_tool_error"] = "continue"
    if source.data.get("limits"):
        bounds["limits"] = source.data["limits"]
    context: Any = source.data.get("context") or {}
    if settings := {key: context[key] for key in _OF_CONTEXT if key in context}:
        bounds["context"] = settings
    return bounds


def _mcp(source: SessionSource, servers: Mapping[str, Any]) -> JsonObject:
    declared: Any = source.data.get("mcp") or {}
    table: dict[str, Any] = {"servers": dict(servers)} if servers else {}
    # A rule for a server that is not in the file is an error in the file.
    for key in _RULES:
        rules = [rule for rule in declared.get(key) or () if _is_about(rule, servers)]
        if rules:
            table[key] = rules
    return table | {key: declared[key] for key in _BOUNDS if key in declared}


def _is_about(rule: Any, servers: Mapping[str, Any]) -> bool:
    glob = rule if isinstance(rule, str) else str(rule.get("tool", ""))
    server = glob.partition("__")[0]
    return server in servers or server == "shell" or "*" in server or "?" in server


_WIDEST = 100
_IN_LINE = frozenset({"needs", "tools", "attach", "run", "tool_sequence"})
_HEADER = """\
# Exported from a session of `aish shell`: each question is a step that continues the
# conversation. `aish test {name}` replays it, `aish run {name}` runs it again.
"""
_RULE_LISTS = "  # Only the calls that were made.\n"


def layout(draft: PipelineDraft, name: str) -> str:
    parts = (
        _HEADER.format(name=for_line(name)) + _block(draft.head[""]),
        _block(draft.head["models"]),
        _block(draft.head["bounds"]),
        _mcp_text(draft),
        "steps:\n" + "\n".join(map(_step, draft.steps)),
        _block(draft.tail),
    )
    return "\n".join(part for part in parts if part)


def _block(data: JsonObject, indent: int = 0) -> str:
    margin = " " * indent
    return "".join(line for pair in data.items() for line in _pair(*pair, margin))


def _mcp_text(draft: PipelineDraft) -> str:
    rules = draft.suggestion.rules
    if not (draft.mcp or rules):
        return ""
    own = {key: value for key, value in draft.mcp.items() if key == "servers"}
    rest = {key: value for key, value in draft.mcp.items() if key != "servers"}
    text = "mcp:\n" + _block(own, 2)
    if rules:
        text += f"{_RULE_LISTS}  auto_approve:\n{rules_yaml(rules, 4)}"
    return text + _block(rest, 2)


def _step(step: Step) -> str:
    remarks = "".join(f"  # {for_line(remark)}\n" for remark in step.remarks)
    text = _block(step.data, 4)
    return f"{remarks}  - {text[4:]}"


def _pair(key: str, value: JsonValue, margin: str) -> Iterator[str]:
    if key in _IN_LINE and _is_list_of_scalars(value):
        line = f"{margin}{key}: [{', '.join(yaml_text(item).strip() for item in value)}]\n"
        if len(line) <= _WIDEST:
            yield line
            return
    if key == "tests":
        yield f"{margin}tests:\n"
        yield from _tests(value, margin)
        return
    for line in yaml_text({key: value}).removesuffix("\n").split("\n"):
        yield f"{margin}{line}\n" if line else "\n"


def _is_list_of_scalars(value: JsonValue) -> TypeGuard[Sequence[JsonValue]]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return False
    return not any(isinstance(item, Mapping | list | tuple) for item in value)


def _tests(tests: Any, margin: str) -> Iterator[str]:
    for test in tests:
        yield f"{margin}  - name: {test['name']}\n"
        if "expect" not in test:
            continue
        yield f"{margin}    expect:\n"
        for expectation in test["expect"]:
            text = _block(expectation, len(margin) + 8)
            yield f"{margin}      - {text[len(margin) + 8 :]}"
