"""What becomes of the images and sounds that come with a reply (M7)."""

import re

from aish.core.text import for_line
from aish.core.tools import Media

# A stranger's word that goes into a URL: an endpoint refuses what is no type, in every turn after.
_IMAGE = re.compile(r"image/[A-Za-z0-9.+-]{1,80}", re.ASCII)

_LONGEST_TYPE = 80


def can_be_attached(media: Media) -> bool:
    """Whether a model that sees can be sent it: chat completions know images only."""
    return _IMAGE.fullmatch(media.mime_type) is not None


def describe(media: Media, *, attached: bool) -> str:
    """The line that stands for `media` in a reply, whether or not the model gets the media.

    Where it is kept is not said: that depends on the run, and a replay has to send the same.
    """
    return f"[aish] {'attached' if attached else 'not shown to this model'}: {what(media)}"


def what(media: Media) -> str:
    """Its kind and size in words."""
    # Never a part of it, which might be half a secret that nothing would mask then.
    kind = media.mime_type if len(media.mime_type) <= _LONGEST_TYPE else ""
    kind = for_line(kind) or "unknown type"
    return f"{kind}, {len(media.data)} bytes"
