"""The tools that a server lists and its entry wants (M6). No I/O."""

from collections.abc import Iterable, Mapping

from aish.config.server_entry import ServerEntry
from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.mcp.convert import Complain, Definition, Reading, read_tools
from aish.system.globs import matches_word


@frozen
class ToolList:
    """Tools by name; `ambiguous` are names under which there are two that differ: none is offered.

    Which of them a call would reach only the server knows.
    """

    definitions: Mapping[str, Definition]
    ambiguous: frozenset[str] = frozenset()


def tool_list(
    pages: Iterable[JsonObject], reading: Reading, entry: ServerEntry, complain: Complain
) -> ToolList:
    """What stands on the pages of `tools/list`."""
    found: dict[str, Definition] = {}
    repeated: set[str] = set()
    ambiguous: set[str] = set()
    for page in pages:
        for one in read_tools(page, reading, complain):
            if not _is_wanted(one, entry):
                continue
            earlier = found.setdefault(one.name, one)
            if earlier != one:
                ambiguous.add(one.name)
            elif earlier is not one:
                repeated.add(one.name)
    for name in sorted(repeated - ambiguous):
        complain("duplicate_tool", f"it lists `{name}` more than once; the first is used")
    for name in ambiguous:
        del found[name]
    return ToolList(found, frozenset(ambiguous))


def _is_wanted(one: Definition, entry: ServerEntry) -> bool:
    """Whether the entry wants a tool; left out by one name, it is left out by all."""
    wanted, names = entry.tools, filter(None, (one.name, one.older_of))
    return (not wanted or any(matches_word(glob, one.name) for glob in wanted)) and not any(
        matches_word(glob, name) for name in names for glob in entry.exclude
    )


def differences(before: Mapping[str, Definition], found: Mapping[str, Definition]) -> str:
    """What changed in mid-session, in words."""
    words = [f"added `{name}`" for name in found if name not in before]
    words += [f"removed `{name}`" for name in before if name not in found]
    words += [f"changed `{n}`" for n in found if n in before and found[n] != before[n]]
    return "its tools changed: " + ", ".join(words)
