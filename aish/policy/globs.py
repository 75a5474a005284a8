"""Globs over tool names: `alias__tool`, whose two halves match by themselves (P1)."""

from aish.core.errors import UsageError

SEPARATOR = "__"


def split_glob(glob: str) -> tuple[str, str]:
    """The server part and the tool part of `alias__tool`, split at the leftmost `__`.

    Raises:
        UsageError: there is no `__`, or nothing on one side of it.
    """
    server, separator, tool = glob.partition(SEPARATOR)
    if not separator:
        raise UsageError(
            f"`{glob}` has no `__` between server and tool",
            hint=f"write `{glob}__*` for every tool of a server, `*__{glob}` for one on any server",
        )
    if not server or not tool:
        raise UsageError(
            f"`{glob}` has nothing {'before' if tool else 'after'} its `__`",
            hint="write `*` for any server or any tool",
        )
    return server, tool


def is_exact(glob: str) -> bool:
    """Whether a glob has no wildcard and so names one thing."""
    return "*" not in glob and "?" not in glob
