"""The session as the data of a pipeline file (S7). Pure."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aish.config.model import ServerEntry
from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.policy.suggest import Made, Suggestion, suggestion
from aish.shell.exporting.deeds import Deeds, Line
from aish.shell.exporting.servers import models_of, servers_of
from aish.shell.exporting.steps import Step, Told, as_run, steps_of

_RULES = ("ask", "deny", "stage", "parallel", "idempotent")
_BOUNDS = ("max_tool_depth", "max_calls_per_turn", "result_limit")
_OF_MODELS = ("env", "secrets")
_OF_CONTEXT = ("max_tokens", "keep")


@frozen
class Source:
    """What an exported file takes over from the session.

    `data` is the session's own file, `folder` where that stands, and `here` where its commands
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
class Draft:
    """A pipeline in its parts; `made` are the calls that it makes when all goes as it did."""

    head: Mapping[str, JsonObject]
    mcp: JsonObject
    steps: tuple[Step, ...]
    tail: JsonObject
    suggestion: Suggestion
    made: tuple[Made, ...]


def draft(source: Source, deeds: Deeds, ran: frozenset[str], file: Path, cassette: str) -> Draft:
    """The pipeline of what a session did; `ran` are the local commands that are recorded.

    Raises:
        NotExportedError: something cannot be said in a pipeline.
    """
    lines, folder = deeds.kept(), file.parent.resolve()
    offered = _offered(source, lines)
    told = Told(source.frame, source.shell, offered, ran, folder, source.here)
    steps = tuple(steps_of(lines, told))
    calls = deeds.calls_of({step.id for step in steps})
    made = tuple(as_run(one, source.shell) for one in calls.made)
    answered = [line.model for line in lines]
    head: dict[str, JsonObject] = {
        "": {"aish": 1, "name": file.stem, "description": "Exported from a session"},
        "models": {key: source.data[key] for key in _OF_MODELS if source.data.get(key)}
        | {"models": models_of(source.data, answered), "model": answered[0]},
        "bounds": _bounds(source, denied=any(_is_by_model(one) for one in calls.denied)),
    }
    servers = servers_of(source.data, source.connected, offered, source.folder, folder)
    test: dict[str, Any] = {"name": "does what the session did"}
    if made:
        test["expect"] = [{"tool_sequence": [str(call.tool) for call in made]}]
    tail: JsonObject = {"cassette": cassette, "tests": [test]}
    mcp = _mcp(source, servers)
    return Draft(head, mcp, steps, tail, suggestion(made, calls.denied), made)


def _offered(source: Source, lines: Sequence[Line]) -> dict[str, frozenset[str]]:
    """What each server offers that a model was shown something of."""
    shown: dict[str, set[str]] = {}
    for line in lines:
        for name in line.tools:
            shown.setdefault(name.partition("__")[0], set()).add(name)
    return {
        alias: frozenset(names.union(source.tools.get(alias, ()))) for alias, names in shown.items()
    }


def _is_by_model(denied: Made) -> bool:
    return str(denied.tool) != "shell__run"


def _bounds(source: Source, *, denied: bool) -> JsonObject:
    found: dict[str, Any] = {}
    if denied:
        # The session went on after a denial.
        found["on_denied"] = "continue"
    if source.data.get("limits"):
        found["limits"] = source.data["limits"]
    context: Any = source.data.get("context") or {}
    if kept := {key: context[key] for key in _OF_CONTEXT if key in context}:
        found["context"] = kept
    return found


def _mcp(source: Source, servers: Mapping[str, Any]) -> JsonObject:
    declared: Any = source.data.get("mcp") or {}
    found: dict[str, Any] = {"servers": dict(servers)} if servers else {}
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
