"""Options that may stand alone or with a value, which the parser of the command line has not."""

import re
from collections.abc import Mapping, Sequence

FILES_OWN = "cassette:"
"""Stands for the cassette that the pipeline file names."""

# An id of a run, or its end: no name of a pipeline file, which has a dot or a slash in it.
_RUN_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]*\Z")
_PATH = re.compile(r"[^-]")
# Only behind a `=`: what follows is a path of its own.
_NOTHING = re.compile(r"(?!)")

# The command, and for each of its options what it means where it stands alone, and what the next
# word has to look like to be its value.
ALONE: Mapping[str, Mapping[str, tuple[str, re.Pattern[str]]]] = {
    "run": {
        "--resume": ("latest", _RUN_ID),
        **dict.fromkeys(("--record", "--replay", "--cassette"), (FILES_OWN, _PATH)),
    },
    "shell": {"--resume": ("latest", _RUN_ID)},
    "test": {"--record": ("changed", _NOTHING)},
}


def completed(argv: Sequence[str]) -> list[str]:
    """`argv` with a value behind each such option."""
    alone = ALONE.get(argv[0], {}) if argv else {}
    found: list[str] = []
    for place, word in enumerate(argv):
        if word == "--":
            return [*found, *argv[place:]]
        found.append(word)
        following = argv[place + 1] if place + 1 < len(argv) else ""
        if word in alone:
            meant, value = alone[word]
            if not value.match(following):
                found.append(meant)
    return found
