"""The lists of tools, resources, templates and prompts, narrowed for some clients.

Each list is encoded once per change, in the order of the file, for all transports.
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Literal

from aish.core.tools import ToolName
from aish.mcp.protocol.messages import INVALID_PARAMS, RpcError
from aish.policy.rules import matches_tool

PAGE = 1000
"""Entries of a list above which it has pages."""
_LONGEST_NUMBER = 5
"""Digits of the number of a page."""

ListName = Literal["tools", "resources", "resourceTemplates", "prompts"]
"""A list, by the key that its rows stand under."""
Rows = Mapping[str, tuple[ToolName, bytes]]
"""What there is by the name that clients have for it: its server with that server's own name for
it, and its row as JSON."""


class _Pages:
    """A list in pages."""

    def __init__(self) -> None:
        self.names: Mapping[str, ToolName] = {}
        self._pages: Sequence[bytes] = (b"[]",)
        self._version = ""

    def page(self, cursor: str | None) -> tuple[bytes, str | None]:
        number = 0
        if cursor is not None:
            version, _, text = cursor.partition(".")
            is_number = text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER
            number = int(text) if is_number else 0
            if version != self._version or not 0 < number < len(self._pages):
                raise RpcError(INVALID_PARAMS, "unknown cursor: ask for the list anew")
        more = number + 1 < len(self._pages)
        return self._pages[number], f"{self._version}.{number + 1}" if more else None

    def make(self, chosen: Rows) -> bool:
        self.names = {public: name for public, (name, _) in chosen.items()}
        rows = [row for _, row in chosen.values()]
        pages = [b"[%b]" % b",".join(rows[at : at + PAGE]) for at in range(0, len(rows), PAGE)]
        if (pages or [b"[]"]) == list(self._pages):
            return False
        self._pages = pages or [b"[]"]
        self._version = sha256(b"".join(self._pages)).hexdigest()[:16]
        return True


class Offer:
    """The lists for some clients: those of the hub, narrowed by `globs` if there are any."""

    def __init__(self, globs: tuple[str, ...]) -> None:
        self.watchers: set[Callable[[str], None]] = set()
        """Hear that a list is another one: the capability that it belongs to."""
        self._globs = globs
        self._lists: dict[ListName, _Pages] = {
            "tools": _Pages(),
            "resources": _Pages(),
            "resourceTemplates": _Pages(),
            "prompts": _Pages(),
        }

    def covers(self, name: ToolName) -> bool:
        return not self._globs or any(matches_tool(glob, name) for glob in self._globs)

    def name(self, listed: ListName, public: str) -> ToolName | None:
        """Return the tool or resource with this public name or URI."""
        return self._lists[listed].names.get(public)

    def names(self, listed: ListName) -> Mapping[str, ToolName]:
        return self._lists[listed].names

    def page(self, listed: ListName, cursor: str | None) -> tuple[bytes, str | None]:
        """Return a page of a list as a JSON array, and the cursor of the next one.

        Raises:
            RpcError: the cursor does not belong to this list.
        """
        return self._lists[listed].page(cursor)

    def make(self, listed: ListName, rows: Rows) -> bool:
        """Read the current list; return true if it has changed."""
        chosen = {public: (name, row) for public, (name, row) in rows.items() if self.covers(name)}
        return self._lists[listed].make(chosen)

    def tell(self, capability: str) -> None:
        """Notify clients that a list has changed."""
        for watcher in tuple(self.watchers):
            watcher(capability)
