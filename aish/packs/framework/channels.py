"""Channels that tell their followers of events in the packs of a run."""

from collections.abc import Callable

from aish.core.frozen import frozen
from aish.core.json import JsonObject


@frozen
class Follower:
    """A follower of channels: `wants` says of which, `take` gets the events.

    Neither waits: what happens in a pack is never slowed.
    """

    wants: Callable[[str], bool]
    take: Callable[[str, str, JsonObject], None]
    """Gets the channel, the type of what happened, and its data."""


class Channels:
    """The channels of a run; one for all packs."""

    def __init__(self) -> None:
        self._followers: tuple[Follower, ...] = ()
        self._numbers: dict[str, int] = {}

    def number(self, kind: str) -> int:
        """The next number of a kind, from 1: ids are made of it, so that each names one channel."""
        self._numbers[kind] = self._numbers.get(kind, 0) + 1
        return self._numbers[kind]

    def follow(self, follower: Follower) -> Callable[[], None]:
        """Tell a follower what happens from now on, until it is stopped by what this returns."""
        self._followers = (*self._followers, follower)

        def stop() -> None:
            self._followers = tuple(other for other in self._followers if other is not follower)

        return stop

    def is_followed(self, channel: str) -> bool:
        """Return true if anybody follows a channel; else nothing need be told of it."""
        return any(follower.wants(channel) for follower in self._followers)

    def publish(self, channel: str, type: str, data: JsonObject) -> None:  # ruff: ignore[builtin-argument-shadowing] - the word of the message
        """Tell those who follow a channel; `data` has no secret in it."""
        for follower in self._followers:
            if follower.wants(channel):
                follower.take(channel, type, data)
