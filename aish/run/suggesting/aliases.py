"""Under which aliases the servers of a recording were known, and their tools to models (S8)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from aish.cassettes.interaction import Interaction
from aish.cassettes.json_body import at, items
from aish.cassettes.model_requests import chat_request, tool_names
from aish.cassettes.server_messages import is_to_server, message_of, reply_to, server_of
from aish.config.loader import load_pipeline
from aish.config.pipeline import Pipeline
from aish.core.errors import AishError
from aish.core.tools import ToolName
from aish.mcp.protocol.naming import wire_name
from aish.policy.explain import tool_name
from aish.policy.globs import SEPARATOR
from aish.run.cassette_check.check import named_in
from aish.run.yaml_files import SUFFIXES, is_pipeline

_FOLDERS = (Path(), Path("pipelines"))


def aliases_of(interactions: Sequence[Interaction], pipeline: Pipeline | None) -> Mapping[str, str]:
    """The alias of each server as the conversation names it; one that is not sure is left out."""
    at_urls: dict[str, set[str]] = {}
    known: dict[str, str] = {}
    shown: set[str] = set()
    for interaction in interactions:
        request = interaction.request
        server = server_of(request.uri)
        if request.uri.startswith("mcp+"):
            known[server] = server
        elif is_to_server(request):
            at_urls.setdefault(server, set()).update(_listed(interaction))
        elif (body := chat_request(request)) is not None:
            shown.update(tool_names(body))
    declared = {} if pipeline is None else _urls(pipeline)
    for server, tools in at_urls.items():
        known.update(_told(server, declared))
        if server not in known:
            known.update(_by_names(server, tools, shown, set(known.values())))
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
        for name in _listed(interaction)
    )


def tool_of_wire(wire: str, tools: Iterable[ToolName]) -> ToolName:
    """The tool that models know by a name, which is another one where its own is not legal (M4).

    Raises:
        UsageError: it is the name of none.
    """
    known = (tool for tool in tools if wire_name(tool, len(wire)) == wire)
    return next(known, None) or tool_name(wire)


def pipeline_of(cassette: Path) -> Pipeline | None:
    """The pipeline of this project that plays a cassette, if there is just one."""
    found = [one for one in _pipelines() if cassette.resolve() in _played(one)]
    return found[0] if len(found) == 1 else None


def _pipelines() -> Iterator[Pipeline]:
    for folder in _FOLDERS:
        for suffix in SUFFIXES:
            for path in sorted(folder.glob(f"*{suffix}")):
                # One that is broken is no concern of whoever asks about a cassette.
                with suppress(AishError, OSError):
                    if is_pipeline(path):
                        yield load_pipeline(path)


def _played(pipeline: Pipeline) -> set[Path]:
    return {one.settings.path.resolve() for one in named_in(pipeline)}


def _urls(pipeline: Pipeline) -> dict[str, str]:
    return {alias: one.url for alias, one in pipeline.servers.items() if one.url is not None}


def _told(server: str, declared: Mapping[str, str]) -> dict[str, str]:
    """By the URL in the file, where it is the same."""
    found = [alias for alias, url in declared.items() if _is_at(url, server)]
    return {server: found[0]} if len(found) == 1 else {}


def _is_at(url: str, server: str) -> bool:
    with suppress(ValueError):
        return bool(urlsplit(url).netloc) and server_of(url) == server
    return False


def _by_names(server: str, tools: set[str], shown: set[str], taken: set[str]) -> dict[str, str]:
    """By the names that models were shown, where one alias alone fits."""
    halves = (name.partition(SEPARATOR) for name in shown)
    found = {alias for alias, _, name in halves if name in tools} - taken
    return {server: found.pop()} if len(found) == 1 else {}


def _listed(interaction: Interaction) -> set[str]:
    """The tools that an answer lists, and the one that a request calls."""
    message = message_of(interaction.request) or {}
    called = at(message, "params", "name") if message.get("method") == "tools/call" else None
    result = at(reply_to(message, interaction).found, "result")
    names = [at(tool, "name") for tool in items(at(result, "tools"))]
    return {name for name in (*names, called) if isinstance(name, str)}
