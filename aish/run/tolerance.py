"""How many of its items a step may lose before it begins no more of them (B5)."""

from aish.config.steps import MaxFailures

# Of a total that is not known, a share means something only after some items.
_FEWEST = 20


def exceeds(most: MaxFailures, bad: int, done: int, total: int | None) -> bool:
    """Whether `bad` of the items that are `done` are more than the file allows."""
    if most.count is not None:
        return bad > most.count
    if total is None and done < _FEWEST:
        return False
    return bad > (most.share or 0.0) * (total if total is not None else done)
