"""What a run is made of, as its first and its last event tell of it (design 11)."""

from typing import Literal

from aish.vocab.frozen import frozen

ServerState = Literal["connecting", "ready", "failed"]
OnDuplicate = Literal["fail", "first", "number"]
"""What becomes of an item whose key was there before."""
CassetteMode = Literal["none", "once", "new_episodes", "all"]


@frozen
class ModelInfo:
    """A model of the file; `origin` is scheme, host and port."""

    alias: str
    model: str
    origin: str


@frozen
class ServerInfo:
    """A server and whether it came up; `tools` counts what it offers.

    `address` is its URL without query and credentials, its command line, or the names of its packs.
    """

    alias: str
    transport: str
    state: ServerState
    tools: int
    error: str | None = None
    address: str = ""


@frozen
class RuleInfo:
    """One approval rule: the list it stands in and its text."""

    list: str
    rule: str


@frozen
class CassetteInfo:
    """The cassette of a run and its mode (C7)."""

    path: str
    mode: CassetteMode


@frozen
class CassetteUse:
    """What became of a run's cassette: written, or played from; how many interactions."""

    path: str
    use: Literal["recorded", "replayed"]
    interactions: int


@frozen
class KeySurvey:
    """What the keys of a step's items are like, looked at before the first one is run.

    `repeated` items have a key that was there before; `twice` is such a key, and the two lines of
    `file` where it stands, or the two items where there is no file. `unusable` items have no key,
    `odd` says where the first of them stands and why.
    """

    items: int
    file: str | None = None
    repeated: int = 0
    twice: tuple[str, int, int] | None = None
    unusable: int = 0
    odd: str | None = None

    def runs(self, policy: OnDuplicate) -> int:
        """How many items are run."""
        return self.items - (self.repeated if policy == "first" else 0)


@frozen
class Shard:
    """Which part of the items a run has (B6): `index` of `of`, counted from 1 as in `2/8`."""

    index: int
    of: int
