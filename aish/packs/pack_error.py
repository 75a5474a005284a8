"""The failure of a tool.

Has no imports, because the child process that parses untrusted files raises it too.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aish.core.json import JsonValue


class PackError(Exception):
    """A failure reported to the model: a stable code, a sentence, and details for programs.

    Everything that a tool calls may raise it.
    """

    def __init__(self, code: str, message: str, **details: "JsonValue") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details
        self.trailer = ""

    def with_trailer(self, trailer: str) -> "PackError":
        """Add lines of ours after its text, which are not indented as an imitation would be."""
        self.trailer = trailer
        return self
