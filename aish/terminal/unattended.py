"""The twin of the approver for runs with nobody there (P3)."""

from aish.core.protocols import Answer, Question


class Unattended:
    """Says no at once."""

    @property
    def attended(self) -> bool:
        """Never."""
        return False

    async def ask(self, question: Question) -> Answer:  # ruff: ignore[unused-method-argument, no-self-use] - nobody is there
        """No."""
        return "no"
