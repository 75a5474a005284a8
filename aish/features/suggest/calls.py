"""The calls in a run, a session or a cassette: which were made, and which were denied."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from operator import itemgetter
from pathlib import Path
from urllib.parse import urlsplit

from aish.cassettes.format.edits import text_of
from aish.cassettes.format.interaction import Interaction
from aish.cassettes.format.json_body import at, items, json_object, json_or_text
from aish.cassettes.inspect.conversation import (
    AskedCall,
    LocalCommand,
    ModelTurn,
    ServerExchange,
    chat_request,
    conversation,
    is_to_server,
    message_of,
    messages_of,
    reply_to,
    server_of,
    tool_names,
)
from aish.config.loader import load_pipeline
from aish.config.model import Pipeline
from aish.core.errors import AishError, UsageError
from aish.core.events import Stamped
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.text import for_line
from aish.core.tools import ToolName
from aish.features.history.run_store import JOURNAL, PROJECTS, find_run, open_project, open_stores
from aish.features.history.summary import events, open_past
from aish.features.recording.lint import settings_of
from aish.features.recording.recorded_answer import read_answer
from aish.features.yaml_files import SUFFIXES, is_pipeline
from aish.journal.history import CallRecord, fold_records
from aish.journal.reader import read_journal
from aish.mcp.protocol.convert import wire_name
from aish.policy.decide import tool_name
from aish.policy.rules import SEPARATOR
from aish.policy.suggest import Made

_YES = frozenset({"auto", "ask-yes"})


@frozen
class CallHistory:
    """Executed and denied calls, in order; `untold` says what is unknown, and why."""

    made: tuple[Made, ...] = ()
    denied: tuple[Made, ...] = ()
    untold: tuple[str, ...] = ()


def calls_of_run(calls: Iterable[CallRecord]) -> CallHistory:
    """The calls of a run or a session, without staged ones.

    A call that was approved but never begun was not made.
    """
    rows: list[tuple[int, Made]] = []
    denied: list[tuple[int, Made]] = []
    for call in calls:
        decided = call.decided
        if decided is None or not isinstance(decided.arguments, Mapping):
            continue
        made_call = Made(ToolName(decided.server, decided.name), decided.arguments)
        if call.is_refused:
            denied.append((call.seq, made_call))
        elif decided.verdict in _YES and call.sent is not None:
            rows.append((call.sent, made_call))
    return CallHistory(_in_order(rows), _in_order(denied))


def calls_in_events(events: Iterable[Stamped]) -> CallHistory:
    return calls_of_run(record for record in fold_records(events) if isinstance(record, CallRecord))


def _in_order(numbered: list[tuple[int, Made]]) -> tuple[Made, ...]:
    numbered.sort(key=itemgetter(0))
    return tuple([call for _, call in numbered])


def calls_of(wanted: str, run_dir: Path | None, pipeline: Pipeline | None) -> CallHistory:
    """The calls of a run (its id, the end of it, `latest`, or its folder) or of a cassette.

    `pipeline` provides the aliases of servers that the cassette lacks.
    """
    path = Path(wanted)
    if path.name == JOURNAL.name and path.is_file():
        return _of_journal(path)
    if (path / JOURNAL).is_file():
        return _of_journal(path / JOURNAL)
    if path.is_file():
        # Imported here: not needed to read a journal.
        from aish.cassettes.format.file import load

        return calls_in_cassette(load(path).interactions, pipeline or pipeline_of(path))
    if path.is_dir() or len(path.parts) > 1:
        raise UsageError("there is no run and no cassette", where=wanted, hint=_HINT)
    with ExitStack() as stack:
        stores = [*open_stores(run_dir, stack)]
        for project in PROJECTS if run_dir is None else ():
            with suppress(FileNotFoundError):
                stores.append(stack.enter_context(open_project(project, "sessions")))
        store, id = find_run(stores, wanted)
        try:
            reading = open_past(store, id, stack).reading
        except FileNotFoundError:
            raise UsageError("it was killed before it started", where=id) from None
        return calls_in_events(events(reading))


_HINT = "name a run (`aish runs list` lists them), its folder, or a cassette"


def _of_journal(path: Path) -> CallHistory:
    with read_journal(path) as reading:
        return calls_in_events(events(reading))


_CLIENTS = "mcp+serve:"
"""The prefix of exchanges of clients of `aish serve`: what they call is called at servers too."""


def aliases_of(interactions: Sequence[Interaction], pipeline: Pipeline | None) -> Mapping[str, str]:
    """The alias of each server in the recording; uncertain ones are omitted."""
    at_urls: dict[str, set[str]] = {}
    known: dict[str, str] = {}
    names: set[str] = set()
    for interaction in interactions:
        request = interaction.request
        server = server_of(request.uri)
        if request.uri.startswith(_CLIENTS):
            continue
        if request.uri.startswith("mcp+"):
            known[server] = server
        elif is_to_server(request):
            at_urls.setdefault(server, set()).update(_tools_in(interaction))
        elif (body := chat_request(request)) is not None:
            names.update(tool_names(body))
    servers = {} if pipeline is None else pipeline.servers
    declared = {alias: entry.url for alias, entry in servers.items() if entry.url is not None}
    for server, tools in at_urls.items():
        known.update(_alias_by_url(server, declared))
        if server not in known:
            known.update(_alias_by_names(server, tools, names, set(known.values())))
    left = set(declared) - set(known.values())
    nameless = at_urls.keys() - known.keys()
    if len(left) == len(nameless) == 1:
        known[nameless.pop()] = left.pop()
    return known


def tools_of(
    interactions: Sequence[Interaction], aliases: Mapping[str, str]
) -> frozenset[ToolName]:
    """The tools that servers listed or were called by."""
    return frozenset(
        ToolName(aliases[server], name)
        for interaction in interactions
        if (server := server_of(interaction.request.uri)) in aliases
        for name in _tools_in(interaction)
    )


def pipeline_of(cassette: Path) -> Pipeline | None:
    """The pipeline of this project that replays a cassette, if there is exactly one."""
    path = cassette.resolve()
    pipelines = [
        one for one in _pipelines() if any(path == own.path.resolve() for own in settings_of(one))
    ]
    return pipelines[0] if len(pipelines) == 1 else None


def _pipelines() -> Iterator[Pipeline]:
    for folder in PROJECTS:
        for suffix in SUFFIXES:
            for path in sorted(folder.glob(f"*{suffix}")):
                # An invalid pipeline is irrelevant for a question about a cassette.
                with suppress(AishError, OSError):
                    if is_pipeline(path):
                        yield load_pipeline(path)


def _alias_by_url(server: str, declared: Mapping[str, str]) -> dict[str, str]:
    """By the URL in the file, if it is the same."""
    aliases = [alias for alias, url in declared.items() if _is_at(url, server)]
    return {server: aliases[0]} if len(aliases) == 1 else {}


def _is_at(url: str, server: str) -> bool:
    with suppress(ValueError):
        return bool(urlsplit(url).netloc) and server_of(url) == server
    return False


def _alias_by_names(
    server: str, tools: set[str], names: set[str], taken: set[str]
) -> dict[str, str]:
    """By the names shown to models, if exactly one alias matches."""
    halves = (name.partition(SEPARATOR) for name in names)
    aliases = {alias for alias, _, name in halves if name in tools} - taken
    return {server: aliases.pop()} if len(aliases) == 1 else {}


def _tools_in(interaction: Interaction) -> set[str]:
    """The tools listed in a response, and the one that a request calls."""
    message = message_of(interaction.request) or {}
    called = at(message, "params", "name") if message.get("method") == "tools/call" else None
    result = at(reply_to(message, interaction).found, "result")
    names = [at(tool, "name") for tool in items(at(result, "tools"))]
    return {name for name in (*names, called) if isinstance(name, str)}


_DENIED = "[aish] tool call denied"
_LISTED = re.compile(r"^\[tool: [^\]\n]+\]\n(\[aish\] tool call denied)?", re.MULTILINE)
_FOLDER = re.compile(r"<(?:root|run|home)>")
_MOVED = "its arguments contained a folder of the recording machine"
_SHELL_RUN = ToolName("shell", "run")


def calls_in_cassette(
    interactions: Sequence[Interaction], pipeline: Pipeline | None
) -> CallHistory:
    """The calls of a recording; `pipeline` provides the aliases of its servers."""
    parts = conversation(interactions, read_answer)
    aliases = aliases_of(interactions, pipeline)
    of_clients = {
        number for number, one in enumerate(interactions, 1) if one.request.uri.startswith(_CLIENTS)
    }
    own = set() if pipeline is None else pipeline.servers.keys()
    elsewhere = set(aliases.values()) - own if of_clients and own else set()
    calls: list[Made] = []
    untold: dict[str, None] = {}
    for part in parts:
        if isinstance(part, LocalCommand):
            command = json_object(text_of(interactions[part.number - 1].request.body)) or {}
            calls.append(_call(_SHELL_RUN, command))
        elif isinstance(part, ServerExchange) and part.method == "tools/call":
            if part.number in of_clients:
                continue
            alias = aliases.get(part.server)
            if alias is None:
                name = f"`{for_line(part.name)}` at {for_line(part.server)}"
                untold[f"the call of {name}: the recording does not say under which alias"] = None
            elif alias in elsewhere:
                continue  # decided by the rules of a pipeline that the server runs
            elif isinstance(part.arguments, Mapping):
                calls.append(_call(ToolName(alias, part.name), part.arguments))
    turns = [part for part in parts if isinstance(part, ModelTurn)]
    denied = {call.name + call.arguments: call for call in _calls_with_denial(turns, interactions)}
    tools = tools_of(interactions, aliases)
    return CallHistory(tuple(calls), tuple(_parse_calls(denied.values(), tools)), tuple(untold))


def _calls_with_denial(
    turns: Sequence[ModelTurn], interactions: Sequence[Interaction]
) -> Iterator[AskedCall]:
    """The calls requested by models and answered with a denial."""
    answers = {turn.number: turn.answer.calls for turn in turns}
    for turn in turns:
        if not any(_DENIED in message.text for message in turn.news):
            continue
        body = chat_request(interactions[turn.number - 1].request)
        messages = messages_of(body) if body else ()
        asked = {call.id: call for message in messages for call in message.calls}
        for message in turn.news:
            if message.role == "tool" and message.text.startswith(_DENIED):
                yield from (asked[id] for id in (message.call,) if id in asked)
            elif message.role == "user":
                yield from _denials_in_list(message.text, answers.get(turn.follows or 0, ()))


def _denials_in_list(text: str, calls: Sequence[AskedCall]) -> Iterator[AskedCall]:
    """The same where a model's chat template has no place for results."""
    flags = [bool(denied) for denied in _LISTED.findall(text)]
    if len(flags) == len(calls):
        yield from (call for call, denied in zip(calls, flags, strict=True) if denied)
        return
    # A result may look like one of these lines: then any of the calls may have been denied.
    if any(flags):
        yield from calls


def _parse_calls(calls: Iterable[AskedCall], tools: Collection[ToolName]) -> Iterator[Made]:
    for call in calls:
        arguments: JsonValue = json_or_text(call.arguments or "{}")
        if isinstance(arguments, str):
            # Some models wrap the object in a text, and it is unwrapped before it is decided on.
            arguments = json_or_text(arguments)
        if isinstance(arguments, Mapping):
            with suppress(UsageError):
                # The tool that has this name for models, which may differ from its own
                known = (tool for tool in tools if wire_name(tool, len(call.name)) == call.name)
                yield _call(next(known, None) or tool_name(call.name), arguments)


def _call(tool: ToolName, arguments: JsonObject) -> Made:
    moved = _FOLDER.search(str(arguments))
    return Made(tool, arguments, f"{_MOVED}: {moved[0]}" if moved else "")
