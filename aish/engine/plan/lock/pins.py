"""What a pipeline declares and a server offers, as pins; and tools known from a lock alone (P8)."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Protocol

from aish.config.model import Pipeline, Prompt, PromptStep, ServerEntry, ServerPrompt
from aish.core.json import JsonValue, canonical
from aish.core.tools import Tool, ToolName
from aish.engine.plan.builtin_tools import presumed_tool
from aish.packs.catalogue import OLDER_NAMES
from aish.policy.lock import (
    Lock,
    ServerPin,
    ToolPin,
    can_be_kept,
    definition_of,
    locked_tool,
    pin_of,
    pinned_name,
)
from aish.system.globs import matches_word
from aish.system.secrets.secrets import Secrets


class Offering(Protocol):
    """Open servers, as far as it matters what tools they have."""

    def listed(self) -> tuple[Tool, ...]:
        """Every tool that is shown."""
        ...

    def by_name(self, name: ToolName) -> Tool | None:
        """The tool of that name, shown or not."""
        ...


def declared(pipeline: Pipeline, secrets: Secrets) -> Lock:
    """The pins of what the file says, servers without their tools."""
    prompts = {step.id: _prompt(step) for step in pipeline.steps if isinstance(step, PromptStep)}
    return Lock(
        servers={alias: _server(entry, secrets) for alias, entry in pipeline.servers.items()},
        models={
            alias: secrets.mask(entry.model or entry.embedded or alias)
            for alias, entry in pipeline.models.items()
        },
        prompts=prompts,
    )


def with_tools(lock: Lock, tools: Iterable[Tool], secrets: Secrets) -> Lock:
    """The same with what servers offer."""
    pins: dict[str, dict[str, ToolPin]] = {alias: {} for alias in lock.servers}
    for tool in tools:
        pins[tool.name.server][pinned_name(tool)] = pin_now(tool, secrets)
    servers = {
        alias: ServerPin(server.transport, server.address, pins[alias])
        for alias, server in lock.servers.items()
    }
    return Lock(servers, lock.models, lock.prompts)


def pin_now(tool: Tool, secrets: Secrets) -> ToolPin:
    """The pin of a tool as its server has it now.

    Secrets in it are masked first: so none is written, a new value of one is no difference, and
    what a cassette holds has the same hash.
    """
    definition = secrets.mask_json(definition_of(tool))
    assert isinstance(definition, Mapping)
    pin = pin_of(pinned_name(tool), definition)
    return pin if can_be_kept(definition) else ToolPin(pin.sha256)


def locked_tools(pipeline: Pipeline, lock: Lock) -> Mapping[ToolName, Tool]:
    """The tools that a run would find if nothing has changed, older names of ours included."""
    found: dict[ToolName, Tool] = {}
    for alias in known_servers(pipeline, lock):
        entry = pipeline.servers[alias]
        pins = lock.servers[alias]
        for name, own in names_of(entry, pins).items():
            tool = locked_tool(ToolName(alias, name), pins.tools[own], trusted=entry.trust)
            if tool is not None:
                older = own if own != name else ""
                found[tool.name] = replace(tool, unlisted=bool(older), older_of=older)
    return found


def known_servers(pipeline: Pipeline, lock: Lock) -> tuple[str, ...]:
    """The servers of the file that are pinned as they are."""
    now = declared(pipeline, Secrets()).servers
    return tuple(
        alias for alias, pin in lock.servers.items() if alias in now and pin.is_at(now[alias])
    )


def locked_tool_named(name: ToolName, pipeline: Pipeline, lock: Lock) -> Tool | None:
    """One tool as it was pinned."""
    return locked_tools(pipeline, lock).get(name)


def known_tool(name: ToolName, pipeline: Pipeline, lock: Lock | None) -> Tool | None:
    """A tool as far as it is known before its server was asked: from the lock, or ours."""
    locked = None if lock is None else locked_tool_named(name, pipeline, lock)
    return locked or presumed_tool(name, pipeline)


def is_wanted(entry: ServerEntry, name: str, older_of: str = "") -> bool:
    """Whether the entry's `tools` and `exclude` let a tool in, as they do when it is connected."""
    wanted = not entry.tools or any(matches_word(glob, name) for glob in entry.tools)
    names = filter(None, (name, older_of))
    return wanted and not any(matches_word(glob, one) for one in names for glob in entry.exclude)


def names_of(entry: ServerEntry, pin: ServerPin) -> dict[str, str]:
    """Every name that a locked server's tools can be called by, and the name it is pinned under."""
    older = OLDER_NAMES if entry.pack else {}
    return {
        **{name: name for name in pin.tools if is_wanted(entry, name)},
        **{
            old: own
            for old, own in older.items()
            if own in pin.tools and is_wanted(entry, old, own)
        },
    }


def everything(tools: Offering, pipeline: Pipeline) -> tuple[Tool, ...]:
    """What is listed, and what of ours can only be called by an older name (K2)."""
    listed = tools.listed()
    here = {tool.name for tool in listed}
    packs = [alias for alias, entry in pipeline.servers.items() if entry.pack]
    older = (
        tools.by_name(ToolName(alias, old))
        for alias in packs
        for old, own in OLDER_NAMES.items()
        if ToolName(alias, own) not in here
    )
    return (*listed, *filter(None, older))


def _server(entry: ServerEntry, secrets: Secrets) -> ServerPin:
    if entry.url is not None:
        return ServerPin("http", (secrets.mask(entry.url),), {})
    if entry.command:
        return ServerPin("stdio", tuple(map(secrets.mask, entry.command)), {})
    return ServerPin("pack", entry.pack, {})


def _prompt(step: PromptStep) -> str:
    """The hash of all that a step's author wrote for the model."""
    parts: list[JsonValue]
    match step.prompt:
        case Prompt(user=user, system=system):
            parts = [user, system, step.system]
        case ServerPrompt(server=server, name=name, arguments=arguments):
            parts = [{"server": server, "name": name, "arguments": dict(arguments)}, step.system]
    # A prompt to which nothing is attached keeps the hash that it had before there was `attach`.
    parts += [[one.ref, one.server] for one in step.attach]
    return sha256(canonical(parts).encode("ascii")).hexdigest()
