"""Regular expressions that are compiled when they are first used.

A run imports some seventy that belong to rare cases; compiling them was 3 % of its CPU.
"""

import re
from typing import Any, AnyStr, cast


class _LazyPattern:
    """Has what a compiled pattern has, from the first time that something of it is asked for."""

    def __init__(self, text: Any, flags: int) -> None:
        self._source = text, flags

    def __getattr__(self, name: str) -> Any:
        found = getattr(re.compile(*self._source), name)
        # The next time it is found here, without this function.
        setattr(self, name, found)
        return found


def lazy_pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """What `re.compile` returns, to all who call its methods; not for functions of `re`."""
    return cast("re.Pattern[AnyStr]", _LazyPattern(text, flags))
