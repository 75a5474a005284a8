"""What is known of a tool before its server was asked: that of our own tools is all that counts."""

from aish.config.pipeline import Pipeline
from aish.packs.catalogue import OLDER_NAMES
from aish.policy.rules import LOCAL_COMMAND
from aish.vocab.tools import Tool, ToolName


def presumed_tool(name: ToolName, pipeline: Pipeline) -> Tool | None:
    """The tool as far as rules look at it; `None` where only its server can tell."""
    entry = pipeline.servers.get(name.server)
    if name != LOCAL_COMMAND and (entry is None or not entry.pack):
        return None
    older_of = OLDER_NAMES.get(name.name, "")
    return Tool(
        name=name,
        wire=str(name),
        description="",
        input_schema={},
        unlisted=bool(older_of),
        trusted=True,
        older_of=older_of,
    )
