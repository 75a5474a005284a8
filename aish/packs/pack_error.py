"""The failure of a tool (K3).

Without imports, because the child process that parses untrusted files raises it too (K16).
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aish.core.json import JsonValue


class PackError(Exception):
    """A failure reported to the model: a stable code, a sentence, and details for programs."""

    def __init__(self, code: str, message: str, **details: "JsonValue") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details
        self.trailer = ""

    def followed_by(self, trailer: str) -> "PackError":
        """The same, with lines of ours after its text: they are not indented as an imitation."""
        self.trailer = trailer
        return self
