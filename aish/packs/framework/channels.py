"""Channels for events of the packs of a run."""

from collections.abc import Callable

from aish.core.frozen import frozen
from aish.core.json import JsonObject


@frozen
class Follower:
    """A follower of channels: `wants` selects channels, `take` gets the events.

    Neither waits, so that a pack is never slowed down.
    """

    wants: Callable[[str], bool]
    take: Callable[[str, str, JsonObject], None]
    """Gets the channel, the type of what happened, and its data."""


class Channels:
    """The channels of a run, shared by all packs."""

    def __init__(self) -> None:
        self._followers: tuple[Follower, ...] = ()
        self._numbers: dict[str, int] = {}

    def number(self, kind: str) -> int:
        """Return the next number of a kind, from 1, so that each id names one channel."""
        self._numbers[kind] = self._numbers.get(kind, 0) + 1
        return self._numbers[kind]

    def follow(self, follower: Follower) -> Callable[[], None]:
        """Send further events to a follower, until the returned function is called."""
        self._followers = (*self._followers, follower)

        def stop() -> None:
            self._followers = tuple(other for other in self._followers if other is not follower)

        return stop

    def is_followed(self, channel: str) -> bool:
        """Return true if anybody follows a channel; otherwise no event is needed."""
        return any(follower.wants(channel) for follower in self._followers)

    def publish(self, channel: str, type: str, data: JsonObject) -> None:  # ruff: ignore[builtin-argument-shadowing] - the word of the message
        """Send an event to the followers of a channel; `data` must contain no secret."""
        for follower in self._followers:
            if follower.wants(channel):
                follower.take(channel, type, data)
