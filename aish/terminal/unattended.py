"""The counterpart of the approver for unattended runs."""

from aish.core.protocols import Answer, Question


class Unattended:
    @property
    def attended(self) -> bool:
        return False

    async def ask(self, question: Question) -> Answer:  # ruff: ignore[unused-method-argument, no-self-use] - nobody is there
        return "no"
