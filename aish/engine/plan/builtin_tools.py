"""Descriptions of built-in tools, known without asking their server."""

from collections.abc import Iterable, Iterator

from aish.config.model import Pipeline
from aish.core.tools import Annotations, Tool, ToolName
from aish.packs.catalogue import is_builtin, tools_of
from aish.policy.rules import LOCAL_COMMAND


def presumed_tool(name: ToolName, pipeline: Pipeline) -> Tool | None:
    """The tool as far as rules need it; `None` if only its server can describe it."""
    entry = pipeline.servers.get(name.server)
    if name != LOCAL_COMMAND and (entry is None or not is_builtin(entry.pack)):
        return None
    marks = None if entry is None else dict(tools_of(entry.pack)).get(name.name)
    return Tool(
        name=name,
        wire=str(name),
        description="",
        input_schema={},
        annotations=Annotations(
            read_only=marks.read_only if marks else None,
            destructive=marks.destructive if marks else False,
            open_world=marks.open_world if marks else None,
        ),
        parallel=bool(marks and marks.parallel),
        trusted=entry is None or entry.trust,
        builtin=entry is not None,
        reach=marks.reach if marks else "",
    )


def destructive_tools(aliases: Iterable[str], pipeline: Pipeline) -> Iterator[ToolName]:
    """The built-in tools of these servers that are marked as destructive."""
    for alias in aliases:
        for name, marks in tools_of(pipeline.servers[alias].pack):
            if marks.destructive:
                yield ToolName(alias, name)
