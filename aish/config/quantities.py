"""Durations and sizes as people write them: `1h30m`, `32KiB` (F13)."""

import re
from itertools import pairwise

_DURATION = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,3})?(?:ms|[dhms])){1,5}\Z")
_PART = re.compile(r"([0-9.]+)(ms|[dhms])")
_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_SIZE = re.compile(r"([0-9]{1,12}) ?(B|kB|MB|GB|KiB|MiB|GiB)\Z")
_BYTES = {
    "B": 1,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
}


def duration(text: str) -> float:
    """Seconds of `90s`, `10m`, `1h30m`, `500ms`.

    Raises:
        ValueError: it is none: no unit, an unknown one, one twice, or a smaller before a larger.
    """
    if _DURATION.match(text):
        parts = _PART.findall(text)
        sizes = [_SECONDS[unit] for _, unit in parts]
        if all(one > two for one, two in pairwise(sizes)):
            seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
            if seconds > 0:
                return seconds
            raise ValueError("duration must be greater than zero")
    raise ValueError(f"`{text}` is not a duration such as `90s`, `10m` or `1h30m`")


def size(text: str) -> int:
    """Bytes of `32KiB`, `2MB`, `512B`.

    Raises:
        ValueError: it is none.
    """
    found = _SIZE.match(text)
    if found is None:
        raise ValueError(f"`{text}` is not a size such as `32KiB` or `2MiB`")
    count = int(found[1]) * _BYTES[found[2]]
    if count == 0:
        raise ValueError("size must be greater than zero")
    return count
