"""The session as a pipeline file: a step for each question and each local command (S7). Pure."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aish.config.server_entry import ServerEntry
from aish.policy.suggest import suggestion
from aish.policy.suggest_yaml import rule_data
from aish.shell.exporting.deeds import Deeds, Line
from aish.shell.local.handing import handed_over_template, literal
from aish.vocab.frozen import frozen
from aish.vocab.json import JsonObject, JsonValue

_RULES = ("ask", "deny", "stage", "parallel", "idempotent")
_BOUNDS = ("max_tool_depth", "max_calls_per_turn", "result_limit")
_OF_MODELS = ("env", "secrets")
# The line of `loop.cutting` in the place of what is left out.
_CUT = re.compile(r"^\[aish\] \d+ of \d+ bytes left out here$", re.MULTILINE)


@frozen
class Source:
    """What an exported file takes over from the session.

    `data` is the session's own file, `folder` where that stands; `connected` are servers that a
    command has added, `tools` what each server offers now, `frame` the system prompt.
    """

    data: JsonObject
    folder: Path
    model: str
    connected: Mapping[str, ServerEntry]
    tools: Mapping[str, tuple[str, ...]]
    frame: str


def pipeline_data(
    source: Source, deeds: Deeds, file: Path, cassette: Path
) -> tuple[JsonObject, tuple[str, ...]]:
    """The file's data, and a sentence for each thing that it cannot say."""
    lines = deeds.kept()
    suggested = suggestion(deeds.calls.made, deeds.calls.denied)
    servers = _servers(source, lines, file.parent)
    data: dict[str, Any] = {"aish": 1, "name": file.stem}
    data["description"] = "Exported from a session"
    data |= {key: source.data[key] for key in _OF_MODELS if source.data.get(key)}
    data["models"] = _models(source, lines)
    data["model"] = lines[0].model
    mcp = _mcp(source, servers, [rule_data(rule) for rule in suggested.rules])
    if mcp:
        data["mcp"] = mcp
    if deeds.calls.denied:
        # The session went on after a denial.
        data["on_denied"] = "continue"
    if source.data.get("limits"):
        data["limits"] = source.data["limits"]
    data["steps"] = list(_steps(source, deeds, lines, servers, file.parent))
    data["cassette"] = cassette.name
    data["tests"] = [_test(deeds)]
    return data, tuple(f"{one.call.tool}: {one.why}" for one in suggested.left_out)


def _models(source: Source, lines: Sequence[Line]) -> dict[str, Any]:
    """Those that answered, and what they fall back to."""
    declared: Any = source.data.get("models") or {}
    found: dict[str, Any] = {}
    waiting = [line.model for line in lines] + [source.model]
    while waiting:
        alias = waiting.pop(0)
        if alias in declared and alias not in found:
            found[alias] = declared[alias]
            waiting += declared[alias].get("fallback") or []
    return {alias: declared[alias] for alias in declared if alias in found}


def _servers(source: Source, lines: Sequence[Line], folder: Path) -> dict[str, Any]:
    """Those whose tools a model was shown, paths said from where the new file stands."""
    mcp: Any = source.data.get("mcp") or {}
    declared: Any = mcp.get("servers") or {}
    shown = {tool.partition("__")[0] for line in lines for tool in line.tools}
    found = {
        alias: _moved(entry, source.folder, folder)
        for alias, entry in declared.items()
        if alias in shown
    }
    for alias, entry in source.connected.items():
        if alias in shown:
            found[alias] = {"url": entry.url} | (
                {"auth_env": entry.auth_env} if entry.auth_env else {}
            )
    return found


def _moved(entry: Any, folder: Path, target: Path) -> Any:
    """A server's entry with its folders said from `target`."""
    if folder.resolve() == target.resolve():
        return entry
    moved = dict(entry)
    keys = [key for key in ("root", "cwd") if key in moved]
    if "command" in moved and "cwd" not in moved:
        moved["cwd"] = "."
        keys.append("cwd")
    if "pack" in moved and "root" not in moved:
        moved["root"] = "."
        keys.append("root")
    for key in keys:
        moved[key] = os.path.relpath((folder / str(moved[key])).resolve(), target.resolve())
    return moved


def _mcp(source: Source, servers: Mapping[str, Any], rules: list[JsonValue]) -> dict[str, Any]:
    declared: Any = source.data.get("mcp") or {}
    found: dict[str, Any] = {}
    if servers:
        found["servers"] = dict(servers)
    if rules:
        found["auto_approve"] = rules
    # A rule about a server that is not in the file is an error there.
    for key in _RULES:
        kept = [rule for rule in declared.get(key) or () if _is_about(rule, servers)]
        if kept:
            found[key] = kept
    return found | {key: declared[key] for key in _BOUNDS if key in declared}


def _is_about(rule: Any, servers: Mapping[str, Any]) -> bool:
    glob = rule if isinstance(rule, str) else str(rule.get("tool", ""))
    server = glob.partition("__")[0]
    return server in servers or server == "shell" or "*" in server or "?" in server


def _steps(
    source: Source, deeds: Deeds, lines: Sequence[Line], servers: Mapping[str, Any], folder: Path
) -> Iterator[JsonObject]:
    """A step for each question, which goes on from the one before it, and for what it needs."""
    offered = {name for alias in servers for name in source.tools.get(alias, ())}
    before: str | None = None
    run: set[str] = set()
    for line in lines:
        attached = _attached(line, folder)
        found: dict[str, Any] = {"id": line.id}
        if before is None:
            found["system"] = literal(source.frame)
        else:
            found["continues"] = before
        if attached is None:
            # Said as it was sent: no step could say it again.
            found["prompt"] = {"user": literal(line.sent)}
        else:
            outputs = [_output(text, deeds) for text in line.waited]
            for one in outputs:
                if one.step and one.step not in run:
                    run.add(one.step)
                    needs = {"needs": [before]} if before else {}
                    yield {"id": one.step, "run": literal(one.command), **needs}
            texts = [one.template for one in outputs]
            found["prompt"] = {"user": "\n\n".join([*texts, literal(line.text)])}
            found |= {"attach": attached} if attached else {}
        if line.model != lines[0].model:
            found["model"] = line.model
        if set(line.tools) != offered:
            found["tools"] = list(line.tools)
        yield found
        before = line.id


@frozen
class _Output:
    """What a local command printed, as a template; `step` runs it, if one can."""

    template: str
    step: str = ""
    command: str = ""


def _output(text: str, deeds: Deeds) -> _Output:
    step, command = deeds.commands.get(text, ("", ""))
    # Output that was cut, and of a command that failed or was not run, stands as it is.
    if not command or not text.endswith("[exit code 0]") or _CUT.search(text):
        return _Output(literal(text))
    return _Output(handed_over_template(step, command), step, command)


def _attached(line: Line, folder: Path) -> list[JsonValue] | None:
    """What a step can attach; `None` where something cannot be attached there."""
    found: list[JsonValue] = []
    for name in line.attached:
        if "://" in name:
            found.append(name)
            continue
        path = Path(name).expanduser().resolve()
        if not path.is_relative_to(folder.resolve()):
            return None
        found.append(str(path.relative_to(folder.resolve())))
    return found


def _test(deeds: Deeds) -> JsonObject:
    made = [str(call.tool) for call in deeds.calls.made]
    test: dict[str, Any] = {"name": "does what the session did"}
    if made:
        test["expect"] = [{"tool_sequence": made}]
    return test
