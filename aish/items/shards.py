"""Shards: a stable part of the items for each of several machines."""

import hashlib
import re

from aish.core.errors import UsageError
from aish.core.events import Shard

MOST_SHARDS = 10_000

_SHARD = re.compile(r"([0-9]{1,9})/([0-9]{1,9})", re.ASCII)


def shard_of(key: str, shards: int) -> int:
    """Which of `shards` parts an item belongs to, from 0: the same on every machine, always."""
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % shards


def holds(shard: Shard, key: str) -> bool:
    """Return true if the item of this key is part of the shard."""
    return shard_of(key, shard.of) == shard.index - 1


def parse_shard(text: str) -> Shard:
    """`2/8`: the second of eight parts."""
    found = _SHARD.fullmatch(text)
    if found is None:
        raise UsageError("a shard is written as `2/8`: which one of how many", where=_at(text))
    shard = Shard(int(found[1]), int(found[2]))
    if not 1 <= shard.of <= MOST_SHARDS:
        raise UsageError(f"there are 1 to {MOST_SHARDS} shards", where=_at(text))
    if not 1 <= shard.index <= shard.of:
        said = f"there is no shard {shard.index} of {shard.of}"
        raise UsageError(said, where=_at(text), hint=f"they are counted from 1 to {shard.of}")
    return shard


def _at(text: str) -> str:
    return f"--shard {text}"
