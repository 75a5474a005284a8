"""`:norris`: approves tools of trusted servers that are declared harmless.

The only way to approve calls that neither a rule nor a person approved one by one: only the person
can turn it on, and only for this session.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from aish.core.frozen import slotted
from aish.core.phrases import counted
from aish.core.tools import Tool

STEPS = 25
RULE = "`:norris on`"


@slotted
class AutonomousMode:
    """The state of the mode, and how many of the `given` calls it may still approve.

    `tell` notifies the person that it has ended by itself.
    """

    left: int = 0
    given: int = 0
    tell: Callable[[str], None] = lambda _: None
    is_suspended: bool = False

    def begin(self, calls: int, tell: Callable[[str], None]) -> None:
        self.left = self.given = calls
        self.tell = tell

    @property
    def on(self) -> bool:
        return self.left > 0

    def lets(self, tool: Tool) -> bool:
        """Return true if a call that matches no rule would run without a question now."""
        notes = tool.annotations
        # A tool that declares both is treated as the more dangerous.
        harmless = notes.destructive is not True and (
            notes.read_only is True or notes.destructive is False
        )
        return self.on and not self.is_suspended and tool.trusted and harmless

    @contextmanager
    def suspend(self) -> Generator[None]:
        """Approve nothing in the block, which is not for the person who turned it on."""
        self.is_suspended = True
        try:
            yield
        finally:
            self.is_suspended = False

    def approves(self, tool: Tool) -> str | None:
        """The rule that allows a call that matches no rule of the file.

        Each approved call is counted.
        """
        if not self.lets(tool):
            return None
        self.left -= 1
        if not self.left:
            self.tell(f"norris has used its {counted(self.given, 'call')} and is off")
        return RULE
