"""What goes out with a question, and what went out with one (L14, S5)."""

from aish.core.frozen import frozen
from aish.core.tools import Media


@frozen
class Enclosure:
    """What `:attach` puts before a question: what it is called, its text, pictures named there."""

    name: str
    text: str
    media: tuple[Media, ...] = ()


@frozen
class Asked:
    """A question, and what went out with it: output that `waited` (L14), and what was attached."""

    text: str
    waited: str = ""
    attached: tuple[Enclosure, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """What is attached, by name."""
        return tuple(one.name for one in self.attached)

    @property
    def whole(self) -> str:
        """All of its text, as a model is told it."""
        parts = (*(one.text for one in self.attached), self.waited, self.text)
        return "\n\n".join(part for part in parts if part)

    @property
    def media(self) -> tuple[Media, ...]:
        """All of its pictures."""
        return tuple(media for one in self.attached for media in one.media)
