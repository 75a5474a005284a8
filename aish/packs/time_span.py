"""The parameter `since` of tools: `30m`, `24h`, `7d`, up to 400 days."""

from aish.core.patterns import lazy_pattern
from aish.packs.pack_error import PackError

LONGEST_DAYS = 400
DAY = 86_400
_SINCE = lazy_pattern(r"([1-9][0-9]{0,8})([mhd])")
_SECONDS = {"m": 60, "h": 3600, "d": DAY}


def seconds_of(since: str) -> int:
    """Parse a span like `24h`."""
    match = _SINCE.fullmatch(since.strip())
    seconds = int(match[1]) * _SECONDS[match[2]] if match else 0
    if not 0 < seconds <= LONGEST_DAYS * DAY:
        message = f"`since` is not a time such as `30m`, `24h` or `7d`, up to {LONGEST_DAYS}d"
        raise PackError("bad_arguments", message)
    return seconds
