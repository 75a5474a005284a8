"""What texts have in common, as a glob no wider than they are (S8).

Only what reads as a path or a name is given a glob, and only in its last part: the folder and the
ending stay as they were seen. Prose, and texts that share no whole word, stay as they are.
"""

import re
from collections.abc import Sequence
from itertools import pairwise

from aish.core.json import JsonValue
from aish.policy.texts import LONGEST, is_odd

_WORDS = re.compile(r"[^\W\d_]+|\d+|.", re.DOTALL)
_ENDING = re.compile(r"[^.]\.[A-Za-z0-9]{1,8}\Z")
_HOST_AT = 3
"""How many slashes stand before the path of a URL."""

Family = tuple[str, str]


def has_wildcard(text: str) -> bool:
    """Whether a text would be a glob if it stood in a rule."""
    return "*" in text or "?" in text


def family(value: JsonValue) -> Family | None:
    """The folder and the ending of a text; `None` for what no glob may stand for."""
    if not isinstance(value, str) or not value or len(value) > LONGEST:
        return None
    if has_wildcard(value) or "\\" in value or is_odd(value) or any(map(str.isspace, value)):
        return None
    folder, slash, name = value.rpartition("/")
    if ("://" in value and value.count("/") < _HOST_AT) or "@" in name:
        # What would vary here is a host, or who gets something.
        return None
    ending = _ENDING.search(name)
    return folder + slash, ending[0][1:] if ending else ""


def glob_of(texts: Sequence[str]) -> str | None:
    """A glob that has these texts of one family, or `None` where they share too little."""
    found = family(texts[0])
    if found is None or not all(family(text) == found for text in texts):
        return None
    folder, ending = found
    names = [_WORDS.findall(text[len(folder) : len(text) - len(ending) or None]) for text in texts]
    begin = _shared(names)
    rest = [name[len(begin) :] for name in names]
    end = _shared([name[::-1] for name in rest])[::-1]
    # An ending alone says too little: `*.com` is any host.
    fixed = (folder, *begin, *end)
    if not any(map(_says_something, fixed)):
        return None
    return f"{folder}{''.join(begin)}*{''.join(end)}{ending}"


def _says_something(part: str) -> bool:
    return any(map(str.isalnum, part))


def _shared(rows: Sequence[Sequence[str]]) -> list[str]:
    """The words that all begin with."""
    shortest = min(map(len, rows))
    count = 0
    while count < shortest and all(one[count] == two[count] for one, two in pairwise(rows)):
        count += 1
    return list(rows[0][:count])
