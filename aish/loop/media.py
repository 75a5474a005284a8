"""What becomes of the images and sounds that come with a reply (M7)."""

from aish.text import for_line
from aish.vocab.tools import Media


def can_be_attached(media: Media) -> bool:
    """Whether a model that sees can be sent it: chat completions know images only."""
    return media.mime_type.startswith("image/")


def describe(media: Media, path: str | None, *, attached: bool) -> str:
    """The line that stands for `media` in a reply, whether or not the model gets the media."""
    kind = for_line(media.mime_type)[:80] or "unknown type"
    size = f"{len(media.data)} bytes"
    if attached:
        return f"[aish] attached: {kind}, {size}"
    where = f"saved as {path}" if path else "not kept"
    return f"[aish] not shown to this model: {kind}, {size}, {where}"
