"""The twin of the approver for runs with nobody there (P3)."""

from aish.vocab.protocols import Question


class Unattended:
    """Says no at once."""

    @property
    def attended(self) -> bool:
        """Never."""
        return False

    async def ask(self, question: Question) -> bool:  # ruff: ignore[unused-method-argument] - nobody is there
        """No."""
        return self.attended
