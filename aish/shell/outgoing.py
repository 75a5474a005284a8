"""What goes out with a question, and what went out with one (L14, S5)."""

from dataclasses import field

from aish.vocab.frozen import frozen, slotted
from aish.vocab.tools import Media


@slotted
class Attached:
    """Texts and pictures that go out with the next question, and what they are called."""

    names: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    media: list[Media] = field(default_factory=list)

    def clear(self) -> None:
        """They have gone out."""
        self.names.clear()
        self.texts.clear()
        self.media.clear()


@frozen
class Asked:
    """A question, and what went out with it: output that `waited` (L14), and attachments."""

    text: str
    waited: str = ""
    texts: tuple[str, ...] = ()
    media: tuple[Media, ...] = ()
    names: tuple[str, ...] = ()
