"""The counterpart of the approver for unattended runs (P3)."""

from aish.core.protocols import Answer, Question


class Unattended:
    """Answers `no` at once."""

    @property
    def attended(self) -> bool:
        """Always false."""
        return False

    async def ask(self, question: Question) -> Answer:  # ruff: ignore[unused-method-argument, no-self-use] - nobody is there
        """Always `no`."""
        return "no"
