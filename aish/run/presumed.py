"""What is known of a tool before its server was asked: that of our own tools is all that counts."""

from collections.abc import Iterable, Iterator
from importlib import import_module

from aish.config.pipeline import Pipeline
from aish.packs.catalogue import OLDER_NAMES, PACKS
from aish.policy.rules import LOCAL_COMMAND
from aish.vocab.tools import Annotations, Tool, ToolName


def presumed_tool(name: ToolName, pipeline: Pipeline) -> Tool | None:
    """The tool as far as rules look at it; `None` where only its server can tell."""
    entry = pipeline.servers.get(name.server)
    if name != LOCAL_COMMAND and (entry is None or not entry.pack):
        return None
    older_of = OLDER_NAMES.get(name.name, "")
    packs = () if entry is None else entry.pack
    return Tool(
        name=name,
        wire=str(name),
        description="",
        input_schema={},
        unlisted=bool(older_of),
        annotations=Annotations(destructive=_destructive(older_of or name.name, packs)),
        trusted=entry is None or entry.trust,
        older_of=older_of,
    )


def destructive_tools(aliases: Iterable[str], pipeline: Pipeline) -> Iterator[ToolName]:
    """Those of our own tools on these servers that call themselves so."""
    for alias in aliases:
        entry = pipeline.servers[alias]
        for pack in entry.pack:
            for tool in import_module(PACKS[pack]).TOOLS if pack in PACKS else ():
                if tool.annotations.get("destructiveHint") is True:
                    yield ToolName(alias, tool.name)


def _destructive(name: str, packs: tuple[str, ...]) -> bool:
    """Whether one of our own tools says so of itself (P5)."""
    for pack in packs:
        for tool in import_module(PACKS[pack]).TOOLS if pack in PACKS else ():
            if tool.name == name:
                return tool.annotations.get("destructiveHint") is True
    return False
