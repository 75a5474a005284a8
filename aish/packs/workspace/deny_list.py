"""Files that no built-in tool shows, whatever the rules say (K5): one list, one check."""

import unicodedata
from collections.abc import Sequence

from aish.system.globs import matches_word

ANYWHERE = (
    ".env*",
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


def is_denied(segments: Sequence[str]) -> bool:
    """Whether a path, given by its segments below the root, must not be seen.

    Case and Unicode forms are ignored, because file systems differ in them.
    """
    plain = [_plain(segment) for segment in segments]
    if any(matches_word(glob, segment) for segment in plain for glob in ANYWHERE):
        return True
    in_git = any(segment.endswith(".git") for segment in plain[:-1])
    return in_git and any(matches_word(glob, plain[-1]) for glob in IN_GIT)


def is_protected(segments: Sequence[str]) -> bool:
    """Whether a path must not be written, moved or removed: denied files, those of git and ours."""
    plain = [_plain(segment) for segment in segments]
    return is_denied(segments) or any(
        segment.endswith(".git") or segment in _GIT_ELSEWHERE for segment in plain
    )


def _plain(segment: str) -> str:
    # Windows and some servers ignore dots and spaces at the end of a name.
    return unicodedata.normalize("NFKC", segment).casefold().rstrip(". ")
