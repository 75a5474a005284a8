"""Secrets of our own in the reach of tool packs: files with tokens, and `serve.state`.

Who may read files with a pack could read another client's token there, and be that client.
"""

from collections.abc import Iterator
from pathlib import Path

from aish.config.model import Pipeline
from aish.engine.plan.validation.issue import Issue
from aish.packs.workspace.deny_list import is_denied

_COMMANDS = frozenset({"shell", "proc"})
"""Packs whose commands write all of the root where only Landlock confines them."""
_HINT = "choose a place outside, or below `.aish`, which no tool of a pack shows"


def exposed_file_issues(pipeline: Pipeline) -> Iterator[Issue]:
    """A problem for each file or folder with secrets that is below the root of a pack."""
    places = [(f"control.tokens.{token.name}", token.path) for token in pipeline.control.tokens]
    places += [(f"serve.clients.{client.name}", client.path) for client in pipeline.serve.clients]
    for place, path in places:
        if path is not None and (alias := _reader(pipeline, path)) is not None:
            message = f"the tools of `{alias}` could read the token: it is below their root"
            yield Issue(f"{place}.token_file", message, _HINT)
    state = pipeline.serve.state
    if state is not None and (alias := _reader(pipeline, state, writes=True)) is not None:
        message = f"the tools of `{alias}` could read keys and tokens: it is below their root"
        yield Issue("serve.state", message, _HINT)


def _reader(pipeline: Pipeline, path: Path, *, writes: bool = False) -> str | None:
    """The first server whose pack has the path below its root, and does not hide it.

    What must not be written by anybody else is not hidden from commands.
    """
    real = path.parent.resolve() / path.name
    for alias, entry in pipeline.servers.items():
        if not entry.pack or entry.root is None:
            continue
        root = entry.root.resolve()
        if not real.is_relative_to(root):
            continue
        is_open = writes and not _COMMANDS.isdisjoint(entry.pack)
        if is_open or not is_denied(real.relative_to(root).parts or (".",)):
            return alias
    return None
