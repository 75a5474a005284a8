"""What servers offer beside tools: resources and prompts (M12)."""

from typing import Literal

from aish.core.frozen import frozen
from aish.core.tools import Media

Capability = Literal["resources", "prompts"]


@frozen
class Resource:
    """A resource as a server lists it; the `uri` of a `template` has `{names}` to fill in."""

    server: str
    uri: str
    name: str
    description: str = ""
    mime: str = ""
    template: bool = False


@frozen
class Part:
    """A piece of a resource: its text, or a picture or a sound; never both, never neither."""

    uri: str
    mime: str
    text: str | None = None
    media: Media | None = None


@frozen
class PromptArgument:
    """An argument of a server's prompt."""

    name: str
    description: str = ""
    required: bool = False


@frozen
class ServerPromptInfo:
    """A prompt as a server lists it."""

    server: str
    name: str
    description: str = ""
    arguments: tuple[PromptArgument, ...] = ()


@frozen
class PromptMessage:
    """A message of a server's prompt; a content without words has an empty `text`."""

    role: Literal["user", "assistant"]
    text: str
    media: tuple[Media, ...] = ()
