"""Globs over words and paths, matched in bounded time.

`fnmatch` is not used: its `[` opens a class, its `*` crosses slashes, and patterns translated to
`re` can backtrack exponentially. Callers decide what the patterns apply to.
"""

import unicodedata

SLASHES = "/\\"
"""Both, because a server may run where a backslash separates folders."""

AUTORUN_FILES = (
    "**/.github/**",
    "**/.gitlab-ci.yml",
    "**/.pre-commit-config.yaml",
    "**/.envrc",
    "**/.vscode/**",
    "**/.devcontainer/**",
    "**/*.pth",
    "**/sitecustomize.py",
)
"""Files that other programs run by themselves, at any depth (K19): a tool call that changes one is
approved only by a rule with that very path."""

_INVISIBLE = dict.fromkeys(
    (*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF)
)
"""Characters that some file systems ignore in names."""


def comparable_name(name: str) -> str:
    """A name as compared with the globs of denied and autorun files (K5, K19).

    Case, Unicode forms, invisible characters, and dots and spaces at the end are ignored, because
    file systems differ in them.
    """
    if not name.isascii():
        # Both ways, because case folding can leave the normal form.
        name = unicodedata.normalize("NFKC", name.translate(_INVISIBLE)).casefold()
        name = unicodedata.normalize("NFKC", name)
    return name.casefold().rstrip(". ")


def is_autorun(path: str) -> bool:
    """Whether a path is one of the `AUTORUN_FILES`."""
    segments = [comparable_name(part) for part in path.split("/") if part not in {"", ".", ".."}]
    return any(matches_path(glob, "/".join(segments)) for glob in AUTORUN_FILES)


def matches_word(pattern: str, word: str) -> bool:
    """Whether the whole of `word` matches; `*` is any text, `?` any one character.

    Backtracks to the last `*` only, so the cost is bounded by the product of the lengths.
    """
    here = place = 0
    star, resume = -1, 0
    while place < len(word):
        if here < len(pattern) and pattern[here] == "*":
            star, resume = here, place
            here += 1
        elif here < len(pattern) and pattern[here] in {"?", word[place]}:
            here += 1
            place += 1
        elif star >= 0:
            resume += 1
            here, place = star + 1, resume
        else:
            return False
    return not pattern[here:].strip("*")


def matches_path(pattern: str, text: str) -> bool:
    """Whether the whole of `text` matches; `*` and `?` stop at slashes, `**` does not.

    `**/` at the beginning of a segment also matches no folder at all: `docs/**/*.md` matches
    `docs/a.md`. Tracks all states at once, so nothing is tried twice.
    """
    parts = _parts(pattern)
    states = _reached({0}, parts)
    for character in text:
        moved = {after for state in states if (after := _step(parts, state, character)) is not None}
        if not moved:
            return False
        states = _reached(moved, parts)
    return len(parts) in states


def matches_below(pattern: str, folder: str) -> bool:
    """Whether `matches_path` may hold for something below `folder`; empty for the root."""
    parts = _parts(pattern)
    states = _reached({0}, parts)
    for character in f"{folder}/" if folder else "":
        moved = {after for state in states if (after := _step(parts, state, character)) is not None}
        states = _reached(moved, parts)
    # Every part can match something, so that any open state may come to its end.
    return any(state < len(parts) for state in states)


def _parts(pattern: str) -> tuple[str, ...]:
    """The pattern as `skip`, `**`, `*`, `?` and, with a `=` before them, single characters."""
    parts: list[str] = []
    place = 0
    while place < len(pattern):
        begins_segment = place == 0 or pattern[place - 1] == "/"
        if begins_segment and pattern.startswith("**/", place):
            parts.extend(("skip", "**", "=/"))
            place += 3
        elif pattern.startswith("**", place):
            parts.append("**")
            place += 2
        else:
            parts.append(pattern[place] if pattern[place] in "*?" else "=" + pattern[place])
            place += 1
    return tuple(parts)


def _step(parts: tuple[str, ...], state: int, character: str) -> int | None:
    """The state after one character, or `None` if it does not match."""
    if state >= len(parts):
        return None
    part = parts[state]
    inside = character not in SLASHES
    if part == "**" or (part == "*" and inside):
        return state
    fits = part == "=" + character or (part == "?" and inside)
    return state + 1 if fits else None


def _reached(states: set[int], parts: tuple[str, ...]) -> set[int]:
    """The states and all that are reachable from them without a character."""
    found: set[int] = set()
    waiting = list(states)
    while waiting:
        state = waiting.pop()
        if state in found:
            continue
        found.add(state)
        if state < len(parts) and parts[state] == "skip":
            waiting.extend((state + 1, state + 3))
        elif state < len(parts) and parts[state] in {"*", "**"}:
            waiting.append(state + 1)
    return found
