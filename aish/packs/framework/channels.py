"""What happens in the packs of a run, by channel, for those who follow it (K76)."""

from collections.abc import Callable

from aish.core.frozen import frozen
from aish.core.json import JsonObject


@frozen
class Follower:
    """Somebody who follows channels: `wants` says which, `take` gets what happens.

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
            self._followers = tuple(one for one in self._followers if one is not follower)

        return stop

    def is_followed(self, channel: str) -> bool:
        """Whether anybody follows a channel: only then is there a reason to tell of it."""
        return any(one.wants(channel) for one in self._followers)

    def publish(self, channel: str, type: str, data: JsonObject) -> None:  # ruff: ignore[builtin-argument-shadowing] - the word of the message
        """Tell those who follow a channel; `data` has no secret in it."""
        for one in self._followers:
            if one.wants(channel):
                one.take(channel, type, data)
