"""A batch whose journal cannot be written begins no more items (B14)."""

from aish.core.errors import AishError


class JournalLostError(AishError):
    """Nothing of a batch would be known any more that is done from now on (B14)."""

    code = "journal_lost"

    def __init__(self) -> None:
        super().__init__(
            "no more items are started, because the journal cannot be written",
            hint="`--resume` continues once there is space",
        )
