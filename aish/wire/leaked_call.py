"""A tool call that a model wrote as text (quirk 57): worth a warning, never a call."""

import re
from collections.abc import Collection

_MARKS = re.compile(
    r"<tool_call>|<\|tool_call|<\|channel\|>|<function[=_]|<invoke\b|\[TOOL_CALLS\]|<\uff5ctool"
)


def looks_leaked(text: str, known_tools: Collection[str]) -> bool:
    """Whether a text has the marks of a call, or names a tool where a call would."""
    if _MARKS.search(text):
        return True
    names = "|".join(re.escape(name) for name in known_tools)
    named = rf'"name"\s*:\s*"(?:{names})"|^\W*(?:functions\.)?(?:{names})\s*[({{]'
    return bool(names) and re.search(named, text, re.MULTILINE) is not None
