"""`:norris`: tools of trusted servers that are declared harmless are approved (S5).

The one exception to P5, made by nobody but the person, for this session.
"""

from collections.abc import Callable

from aish.core.frozen import slotted
from aish.core.phrases import counted
from aish.core.tools import Tool

STEPS = 25
RULE = "`:norris on`"


@slotted
class AutonomousMode:
    """Whether it is on, and how many calls of those that it was `given` it may still let through.

    `tell` is how the person hears that it has ended by itself.
    """

    left: int = 0
    given: int = 0
    tell: Callable[[str], None] = lambda _: None

    def begin(self, calls: int, tell: Callable[[str], None]) -> None:
        """Turn it on for so many calls."""
        self.left = self.given = calls
        self.tell = tell

    @property
    def on(self) -> bool:
        """Whether it lets anything through."""
        return self.left > 0

    def lets(self, tool: Tool) -> bool:
        """Whether a call that no rule is about would run unasked now."""
        notes = tool.annotations
        # What says both is taken at its worst (X1).
        harmless = notes.destructive is not True and (
            notes.read_only is True or notes.destructive is False
        )
        return self.on and tool.trusted and harmless

    def approves(self, tool: Tool) -> str | None:
        """The rule by which a call may run that no rule of the file is about.

        Each call that it lets through is counted.
        """
        if not self.lets(tool):
            return None
        self.left -= 1
        if not self.left:
            self.tell(f"norris has used its {counted(self.given, 'call')} and is off")
        return RULE
