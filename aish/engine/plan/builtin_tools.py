"""What is known of a tool without asking its server: only for built-in tools."""

from collections.abc import Iterable, Iterator

from aish.config.model import Pipeline
from aish.core.tools import Annotations, Tool, ToolName
from aish.packs.catalogue import DESTRUCTIVE, OLDER_NAMES
from aish.policy.rules import LOCAL_COMMAND

_MAKING = frozenset({"dir_create", "create_directory"})


def presumed_tool(name: ToolName, pipeline: Pipeline) -> Tool | None:
    """The tool as far as rules need it; `None` if only its server can describe it."""
    entry = pipeline.servers.get(name.server)
    if name != LOCAL_COMMAND and (entry is None or not entry.pack):
        return None
    older_of = OLDER_NAMES.get(name.name, "")
    packs = () if entry is None else entry.pack
    is_destructive = any((older_of or name.name) in DESTRUCTIVE.get(pack, ()) for pack in packs)
    return Tool(
        name=name,
        wire=str(name),
        description="",
        input_schema={},
        unlisted=bool(older_of),
        annotations=Annotations(
            read_only=not is_destructive and name.name not in _MAKING,
            destructive=is_destructive,
        ),
        trusted=entry is None or entry.trust,
        older_of=older_of,
        builtin=entry is not None,
    )


def destructive_tools(aliases: Iterable[str], pipeline: Pipeline) -> Iterator[ToolName]:
    """The built-in tools of these servers that are marked as destructive."""
    for alias in aliases:
        for pack in pipeline.servers[alias].pack:
            for name in DESTRUCTIVE.get(pack, ()):
                yield ToolName(alias, name)
