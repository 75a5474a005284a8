"""Which tool calls a cassette holds, and which of them its models were refused (S8).

A recording of a server at a URL does not say under which alias it was known: the pipeline does, or
the names that models were shown.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from aish.cassettes.conversation import conversation
from aish.cassettes.conversation_parts import AskedCall, LocalCommand, ModelTurn, ServerExchange
from aish.cassettes.edits import text_of
from aish.cassettes.interaction import Interaction
from aish.cassettes.json_body import json_object, json_or_text
from aish.cassettes.model_requests import chat_request, messages_of
from aish.config.pipeline import Pipeline
from aish.core.errors import UsageError
from aish.core.json import JsonObject, JsonValue
from aish.core.text import for_line
from aish.core.tools import ToolName
from aish.policy.suggest_rules import Made
from aish.run.suggesting.aliases import aliases_of, tool_of_wire, tools_of
from aish.run.suggesting.calls import Calls
from aish.run.taping.recorded_answer import read_answer

_DENIED = "[aish] tool call denied"
_LISTED = re.compile(r"^\[tool: [^\]\n]+\]\n(\[aish\] tool call denied)?", re.MULTILINE)
_FOLDER = re.compile(r"<(?:root|run|home)>")
_MOVED = "a folder of the recording's machine stood in its arguments"
_SHELL_RUN = ToolName("shell", "run")


def made_of_cassette(interactions: Sequence[Interaction], pipeline: Pipeline | None) -> Calls:
    """The calls of a recording; `pipeline` knows the aliases of its servers."""
    parts = conversation(interactions, read_answer)
    aliases = aliases_of(interactions, pipeline)
    made: list[Made] = []
    untold: dict[str, None] = {}
    for part in parts:
        if isinstance(part, LocalCommand):
            made.append(_made(_SHELL_RUN, _command(interactions[part.number - 1])))
        elif isinstance(part, ServerExchange) and part.method == "tools/call":
            alias = aliases.get(part.server)
            if alias is None:
                name = f"`{for_line(part.name)}` at {for_line(part.server)}"
                untold[f"the call of {name}: under which alias, the recording does not say"] = None
            elif isinstance(part.arguments, Mapping):
                made.append(_made(ToolName(alias, part.name), part.arguments))
    turns = [part for part in parts if isinstance(part, ModelTurn)]
    denied = {call.name + call.arguments: call for call in _refused(turns, interactions)}
    tools = tools_of(interactions, aliases)
    return Calls(tuple(made), tuple(_asked(denied.values(), tools)), tuple(untold))


def _command(interaction: Interaction) -> JsonObject:
    return json_object(text_of(interaction.request.body)) or {}


def _refused(
    turns: Sequence[ModelTurn], interactions: Sequence[Interaction]
) -> Iterator[AskedCall]:
    """The calls that models asked for and were told that they are denied."""
    answers = {turn.number: turn.answer.calls for turn in turns}
    for turn in turns:
        if not any(_DENIED in message.text for message in turn.news):
            continue
        messages = (
            messages_of(body)
            if (body := chat_request(interactions[turn.number - 1].request))
            else ()
        )
        asked = {call.id: call for message in messages for call in message.calls}
        for message in turn.news:
            if message.role == "tool" and message.text.startswith(_DENIED):
                yield from (asked[id] for id in (message.call,) if id in asked)
            elif message.role == "user":
                yield from _listed(message.text, answers.get(turn.follows or 0, ()))


def _listed(text: str, calls: Sequence[AskedCall]) -> Iterator[AskedCall]:
    """The same where a model's chat template has no place for results (L13)."""
    found = [bool(denied) for denied in _LISTED.findall(text)]
    if len(found) == len(calls):
        yield from (call for call, denied in zip(calls, found, strict=True) if denied)
        return
    # A result may look like one of these lines: then any of the calls may have been denied.
    if any(found):
        yield from calls


def _asked(calls: Iterable[AskedCall], tools: Collection[ToolName]) -> Iterator[Made]:
    for call in calls:
        arguments: JsonValue = json_or_text(call.arguments or "{}")
        if isinstance(arguments, str):
            # Some models wrap the object in a text, and it is unwrapped before it is decided on.
            arguments = json_or_text(arguments)
        if isinstance(arguments, Mapping):
            with suppress(UsageError):
                yield _made(tool_of_wire(call.name, tools), arguments)


def _made(tool: ToolName, arguments: JsonObject) -> Made:
    moved = _FOLDER.search(str(arguments))
    return Made(tool, arguments, f"{_MOVED}: {moved[0]}" if moved else "")
