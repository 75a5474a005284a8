"""How a condition on one argument fares against its value (P4).

A rule that permits needs certainty: what is odd does not match it. A rule that forbids or asks
must not be walked around: what is odd leaves it in doubt, and doubt is settled by asking.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from enum import Enum
from urllib.parse import unquote

from aish.core.json import JsonValue
from aish.system.globs import matches_path

LONGEST = 4096
"""Characters of a text that globs are tried on; the cost grows with the product (X6)."""

_ODD_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_DRIVE = 2


class Fit(Enum):
    """Whether a condition holds; `UNSURE` is never treated as permission."""

    YES = "yes"
    NO = "no"
    UNSURE = "unsure"


def fit_value(wanted: JsonValue, value: JsonValue, *, permits: bool) -> Fit:
    """Whether an argument fits: text by glob, anything else by being equal."""
    if isinstance(wanted, str) and isinstance(value, str):
        return permitted_text(wanted, value) if permits else forbidden_text(wanted, value)
    if isinstance(wanted, str):
        # `["secrets/key"]` is not the text that a rule forbids, but may mean it to the server.
        return Fit.NO if permits or value is None else Fit.UNSURE
    if same_json(wanted, value):
        return Fit.YES
    loosely = (
        not permits
        and isinstance(value, str)
        and value.strip().casefold() == str(wanted).casefold()
    )
    return Fit.UNSURE if loosely else Fit.NO


def permitted_text(pattern: str, text: str) -> Fit:
    """Whether a rule that permits has this text: exactly as written, or a glob over a plain one."""
    if pattern == text:
        return Fit.YES
    if len(text) > LONGEST or is_odd(text):
        return Fit.NO
    return Fit.YES if matches_path(pattern, text) else Fit.NO


def forbidden_text(pattern: str, text: str) -> Fit:
    """Whether a rule that forbids has this text, other spellings of it in mind."""
    if pattern == text:
        return Fit.YES
    if len(text) > LONGEST:
        return Fit.UNSURE
    canonical = _canonical(text)
    if matches_path(pattern, text) or matches_path(pattern, canonical):
        return Fit.YES
    # A file system may ignore case and Unicode forms.
    alike = matches_path(_folded(pattern), _folded(canonical))
    return Fit.UNSURE if alike or is_odd(text) else Fit.NO


def is_odd(text: str) -> bool:
    """Whether a text, as a path, could lead elsewhere than it reads.

    That is `..`, an absolute path, a home folder, a drive, control and invisible characters,
    percent-encoded ones too.
    """
    return _is_odd(text) or ("%" in text and _is_odd(unquote(text)))


def same_json(left: JsonValue, right: JsonValue) -> bool:
    """Whether two values are the same JSON: `1` is `1.0` and is not `true`."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(
            same_json(value, right[key]) for key, value in left.items()
        )
    if _is_list(left) and _is_list(right):
        assert isinstance(left, Sequence)
        assert isinstance(right, Sequence)
        return len(left) == len(right) and all(map(same_json, left, right))
    return left == right


def _is_list(value: JsonValue) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _is_odd(text: str) -> bool:
    segments = text.replace("\\", "/").split("/")
    return (
        ".." in (segment.strip() for segment in segments)
        or text.startswith(("/", "\\", "~"))
        or (len(segments[0]) >= _DRIVE and segments[0][1] == ":" and segments[0][0].isalpha())
        or any(unicodedata.category(character) in _ODD_CATEGORIES for character in text)
    )


def _canonical(text: str) -> str:
    segments = text.replace("\\", "/").split("/")
    return "/".join(segment for segment in segments if segment not in {"", "."})


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()
