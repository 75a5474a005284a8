"""Regular expressions that are compiled on first use.

A run imports some seventy that are needed only in rare cases; compiling them was 3 % of its CPU
time.
"""

import re
from typing import Any, AnyStr, cast


class _LazyPattern:
    """Behaves like a compiled pattern; compiled at the first attribute access."""

    def __init__(self, text: Any, flags: int) -> None:
        self._source = text, flags

    def __getattr__(self, name: str) -> Any:
        found = getattr(re.compile(*self._source), name)
        # Later accesses find the attribute without calling this function.
        setattr(self, name, found)
        return found


def lazy_pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """A substitute for `re.compile` if only methods are called; not for functions of `re`."""
    return cast("re.Pattern[AnyStr]", _LazyPattern(text, flags))
