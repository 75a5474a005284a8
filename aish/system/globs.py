"""Globs over words and paths, matched in bounded time.

`fnmatch` is not used: its `[` opens a class, its `*` crosses slashes, and patterns translated to
`re` can backtrack exponentially. Callers decide what the patterns apply to.
"""

import re
from functools import cache

from aish.core.frozen import frozen
from aish.core.normal_form import compatible_form

SLASHES = "/\\"
"""Both, because a server may run where a backslash separates folders."""

_OF_SERVICES = (
    *(".github/**", ".gitlab-ci.yml", ".gitlab/**", ".gitea/**", ".forgejo/**", ".circleci/**"),
    *(".buildkite/**", ".teamcity/**", ".semaphore/**", ".woodpecker/**", ".woodpecker.y*ml"),
    *(".travis.yml", ".cirrus.yml", ".drone.yml", "appveyor.yml", ".appveyor.yml", "jenkinsfile"),
    *("azure-pipelines.y*ml", "bitbucket-pipelines.yml", "cloudbuild.y*ml", ".readthedocs.y*ml"),
)
"""Read by services that run commands when a change is pushed."""
_OF_GIT_HOOKS = (
    *(".pre-commit-config.yaml", ".pre-commit-hooks.yaml", ".husky/**", ".githooks/**"),
    *("lefthook.y*ml", ".lefthook.y*ml", "lefthook-local.y*ml", ".overcommit.yml"),
)
"""Run when somebody commits."""
_OF_EDITORS = (
    *(".vscode/**", "*.code-workspace", ".idea/**", ".devcontainer/**", ".devcontainer.json"),
    *(".cursor/**", ".mcp.json", ".zed/**", ".exrc", ".nvimrc", ".nvim.lua", ".dir-locals.el"),
)
"""Run, or name what is run, when somebody opens the folder."""
_OF_SHELLS = (
    *(".envrc", ".mise.toml", "mise.toml", ".mise/**", ".config/mise/**", ".config/fish/**"),
    *(".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile"),
    *(".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout"),
)
"""Run when somebody enters the folder, or starts a shell in it."""
_OF_INTERPRETERS = (
    *("*.pth", "sitecustomize.*", "sitecustomize/**", "usercustomize.*", "usercustomize/**"),
    *(".gdbinit", ".lldbinit"),
)
"""Run at each start of an interpreter or a debugger."""
_OF_PACKAGE_MANAGERS = (
    *(".npmrc", ".yarnrc", ".yarnrc.yml", ".pnpmfile.cjs", ".pnpmfile.mjs"),
    *(".cargo/config", ".cargo/config.toml", ".mvn/**", ".bazelrc"),
)
"""Settings that name a program, which the tool then runs at each call."""

AUTORUN_FILES = tuple(
    f"**/{glob}"
    for globs in (
        _OF_SERVICES,
        _OF_GIT_HOOKS,
        _OF_EDITORS,
        _OF_SHELLS,
        _OF_INTERPRETERS,
        _OF_PACKAGE_MANAGERS,
    )
    for glob in globs
)
"""Files that other programs run by themselves, at any depth, in lower case.

A tool call that changes one is approved only by a rule with that very path. What runs because
somebody builds, tests or starts the project is not meant: `Makefile`, `package.json`,
`conftest.py` are its source, as any other file.
"""

_LONGEST_PATH = 4096
_INVISIBLE = dict.fromkeys(
    (*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF)
)
"""Characters that some file systems ignore in names."""


def comparable_name(name: str) -> str:
    """A name as compared with the globs of denied and autorun files.

    Case, Unicode forms, invisible characters, and dots and spaces at the end are ignored, because
    file systems differ in them.
    """
    if not name.isascii():
        # Both ways, because case folding can leave the normal form.
        name = compatible_form(compatible_form(name.translate(_INVISIBLE)).casefold())
    return name.casefold().rstrip(". ")


def is_autorun(path: str) -> bool:
    """Return true if a path is one of the `AUTORUN_FILES`."""
    segments = [comparable_name(part) for part in path.split("/") if part not in {"", ".", ".."}]
    if not any(map(may_be_autorun, segments)):
        return False
    # The time of a glob grows with the path, and no system has longer ones.
    plain = "/".join(segments)
    return len(plain) > _LONGEST_PATH or _autorun_paths().search(plain) is not None


def may_be_autorun(name: str) -> bool:
    """Return true if a comparable name may be part of such a path: a quick first test."""
    return _autorun_parts().search(name) is not None


@cache
def _autorun_paths() -> re.Pattern[str]:
    """All of `AUTORUN_FILES` in one pattern: folders are walked with it."""
    words = {"**": ".*", "*": r"[^/\\]*"}
    globs = (re.split(r"(\*+)", glob.removeprefix("**/")) for glob in AUTORUN_FILES)
    paths = ("".join(words.get(part, re.escape(part)) for part in glob) for glob in globs)
    return re.compile(rf"(?:\A|/)(?:{'|'.join(paths)})\Z", re.DOTALL)


@cache
def _autorun_parts() -> re.Pattern[str]:
    """Pattern of the parts that those paths contain."""
    parts = {part for glob in AUTORUN_FILES for part in glob.split("/")} - {"**"}
    longest = {max(part.split("*"), key=len) for part in parts}
    return re.compile("|".join(map(re.escape, sorted(longest))))


def matches_word(pattern: str, word: str) -> bool:
    """Match the whole of `word`; `*` is any text, `?` any one character.

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
    """Match the whole of `text`; `*` and `?` stop at slashes, `**` does not.

    `**/` at the beginning of a segment also matches no folder at all: `docs/**/*.md` matches
    `docs/a.md`. Tracks all states at once, so nothing is tried twice.
    """
    parts = _parts(pattern)
    states = _reachable_states({0}, parts)
    for character in text:
        moved = {after for state in states if (after := _step(parts, state, character)) is not None}
        if not moved:
            return False
        states = _reachable_states(moved, parts)
    return len(parts) in states


def matches_below(pattern: str, folder: str) -> bool:
    """Return true if `matches_path` may hold for something below `folder`; empty for the root."""
    parts = _parts(pattern)
    states = _reachable_states({0}, parts)
    for character in f"{folder}/" if folder else "":
        moved = {after for state in states if (after := _step(parts, state, character)) is not None}
        states = _reachable_states(moved, parts)
    # Every part can match something, so that any open state may come to its end.
    return any(state < len(parts) for state in states)


@frozen
class FolderGlob:
    """A glob that is followed name by name while folders are walked; `parts` are its segments.

    States are places in it, so that nothing is tried twice. Names that begin with a dot match only
    where it says so.
    """

    parts: tuple[str, ...]

    def start(self) -> set[int]:
        """The states in the folder that the glob is relative to."""
        return self._closure({0})

    def enter(self, states: set[int], name: str) -> set[int]:
        """The states after a name; empty if nothing of that name or below it matches."""
        moved: set[int] = set()
        for state in states - {len(self.parts)}:
            part = self.parts[state]
            if name.startswith(".") and not part.startswith("."):
                continue
            if part == "**":
                moved |= {state, state + 1} if state == len(self.parts) - 1 else {state}
            elif matches_word(part, name):
                moved.add(state + 1)
        return self._closure(moved)

    def names(self, states: set[int], name: str) -> bool:
        """Return true if the glob has the name itself, not only a pattern that it matches."""
        return any(self.parts[state : state + 1] == (name,) for state in states)

    def is_end(self, states: set[int]) -> bool:
        return len(self.parts) in states

    def _closure(self, states: set[int]) -> set[int]:
        """The states, and those behind a `**`, which may stand for no folder at all."""
        closure = set(states)
        for state, part in enumerate(self.parts):
            if state in closure and part == "**":
                closure.add(state + 1)
        return closure


def segments_of_glob(pattern: str) -> tuple[str, ...]:
    return tuple(part for part in pattern.split("/") if part not in {"", "."})


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


def _reachable_states(states: set[int], parts: tuple[str, ...]) -> set[int]:
    """The states and all that are reachable from them without a character."""
    result: set[int] = set()
    waiting = list(states)
    while waiting:
        state = waiting.pop()
        if state in result:
            continue
        result.add(state)
        if state < len(parts) and parts[state] == "skip":
            waiting.extend((state + 1, state + 3))
        elif state < len(parts) and parts[state] in {"*", "**"}:
            waiting.append(state + 1)
    return result
