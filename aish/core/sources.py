"""Names of the sources of text, which travel with each message, value and result.

A name is `alias__tool` (a result), `alias` (resources, prompts and instructions of a server),
`alias.tools` (descriptions of its tools), `inputs.NAME`, `steps.ID` (the output of a `run` step),
or one of those below. What a source means is said by its labels: see `policy.flow`.
"""

from collections.abc import Iterable
from typing import Literal

Sources = frozenset[str]
Label = Literal["private", "untrusted"]

NO_SOURCES: Sources = frozenset()
"""Those of the words of a file, and of everything where no file asks for flows."""

STDIN = "stdin"
ITEM = "item"
ATTACH = "attach"
CONTEXT_FILES = "context.files"
READFILE = "readfile"
CLIENT = "client"
"""A client of `aish serve`."""
OWN_COMMANDS = "!"
"""What the user's own commands have printed in a session."""
UNKNOWN = "unknown"
"""That of a record without sources: an older journal."""

PLAIN_NAMES = (STDIN, ITEM, ATTACH, CONTEXT_FILES, READFILE, CLIENT, OWN_COMMANDS, UNKNOWN)


def is_alias(source: str) -> bool:
    """Return true for a source that is a server: its prompts, resources and instructions."""
    return source not in PLAIN_NAMES and "." not in source and "__" not in source


def union(sets: Iterable[Sources]) -> Sources:
    """All sources of several values."""
    result = NO_SOURCES
    for sources in sets:
        # Mostly one of them holds the other: then no new set is made.
        if not sources <= result:
            result = sources if result <= sources else result | sources
    return result


def names_of(sources: Sources) -> tuple[str, ...]:
    """The sources in the order of events and messages."""
    return tuple(sorted(sources))


def descriptions_of(alias: str) -> str:
    """The name of what a server says of its tools."""
    return f"{alias}.tools"
