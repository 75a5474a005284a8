"""Options that may stand alone or with a value, which the parser of the command line has not."""

import re
from collections.abc import Mapping, Sequence

# The command, and what its option means where it stands alone.
ALONE: Mapping[str, Mapping[str, str]] = {
    "run": {"--resume": "latest"},
    "shell": {"--resume": "latest"},
}

# An id of a run, or its end: no name of a pipeline file, which has a dot or a slash in it.
_VALUE = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]*\Z")


def completed(argv: Sequence[str]) -> list[str]:
    """`argv` with a value behind each such option."""
    alone = ALONE.get(argv[0], {}) if argv else {}
    found: list[str] = []
    for place, word in enumerate(argv):
        if word == "--":
            return [*found, *argv[place:]]
        found.append(word)
        following = argv[place + 1] if place + 1 < len(argv) else ""
        if word in alone and not _VALUE.match(following):
            found.append(alone[word])
    return found
