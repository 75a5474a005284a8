"""Files that no built-in tool shows, whatever the rules say: one list, one check."""

from collections.abc import Sequence
from functools import lru_cache

from aish.system.globs import comparable_name, matches_word

ANYWHERE = (
    ".env",
    ".env.*",
    "*.pem",
    "*_rsa",
    "*_dsa",
    "*_ecdsa",
    "*_ed25519",
    ".ssh",
    ".aws",
    ".gnupg",
    ".netrc",
    "_netrc",
    ".git-credentials",
    ".aish",
)
"""Names of files and of folders with all that is in them, at any depth."""

IN_GIT = ("config", "config.*", "credentials")
"""Names below any git folder, bare ones too: remotes are written with their passwords there."""

_GIT_ELSEWHERE = ("git~1", "git~2")
"""What `.git` is also called on file systems with short names."""

_SUSPICIOUS = (
    *("\n" + glob.removesuffix(".*") for glob in ANYWHERE if glob[0] != "*"),
    *(glob[1:] + "\n" for glob in ANYWHERE if glob[0] == "*"),
    ".\n",
    " \n",
)
"""What is in names, each on a line, if one of them may be denied."""
_MOST_NAMES = 4096


def is_denied(segments: Sequence[str], more: tuple[str, ...] = ()) -> bool:
    """Return true if a path, by segments below the root, must not be seen.

    Case and Unicode forms are ignored, because file systems differ in them. `more` are further
    globs of names.
    """
    if may_have_denied(segments, more) and any(is_denied_name(one, more) for one in segments):
        return True
    return is_git(segments[:-1]) and is_denied_in_git(segments[-1])


def may_have_denied(names: Sequence[str], more: tuple[str, ...] = ()) -> bool:
    """Return true if any of many names may be denied: rarely so, and quickly seen."""
    if more:
        return True
    joined = "\n" + "\n".join(names).lower() + "\n"
    return not joined.isascii() or any(text in joined for text in _SUSPICIOUS)


@lru_cache(_MOST_NAMES)
def is_denied_name(name: str, more: tuple[str, ...] = ()) -> bool:
    """Return true if a file or folder of this name must not be seen anywhere."""
    plain = comparable_name(name)
    return any(matches_word(glob, plain) for glob in (*ANYWHERE, *map(comparable_name, more)))


def is_denied_in_git(name: str) -> bool:
    """Return true if a file of this name must not be seen below a git folder."""
    plain = comparable_name(name)
    return any(matches_word(glob, plain) for glob in IN_GIT)


def is_git(folders: Sequence[str]) -> bool:
    """Return true if folders lead into a git folder."""
    return any(comparable_name(segment).endswith(".git") for segment in folders)


def is_protected(segments: Sequence[str], more: tuple[str, ...] = ()) -> bool:
    """Return true if a path must not be written, moved or removed: denied, of git, or ours."""
    return (
        is_denied(segments, more)
        or is_git(segments)
        or any(comparable_name(segment) in _GIT_ELSEWHERE for segment in segments)
    )
