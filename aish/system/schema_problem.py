"""What is wrong with a value, in words that a model and a person can act on.

Shared by the checker in this process and the one in the worker, so that both speak alike.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from aish.core.frozen import frozen

Path = tuple[str | int, ...]

_LONGEST = 80
_MOST_CHOICES = 20
_NAME = re.compile(r"[^\W\d][\w-]*\Z")
_BOUNDS: Mapping[str, str] = {
    "minimum": "is less than",
    "maximum": "is more than",
    "exclusiveMinimum": "is not more than",
    "exclusiveMaximum": "is not less than",
    "multipleOf": "is not a multiple of",
}
_SIZES: Mapping[str, tuple[str, str]] = {
    "minLength": ("characters", "at least"),
    "maxLength": ("characters", "at most"),
    "minItems": ("items", "at least"),
    "maxItems": ("items", "at most"),
    "minProperties": ("keys", "at least"),
    "maxProperties": ("keys", "at most"),
}


@frozen
class SchemaProblem:
    """One way in which a value does not fit its schema.

    `path` leads to what is wrong, to a missing or unknown key too. `keyword` is the schema's word
    that was not met. `key` is the missing or unknown key; `allowed` are the known keys, the types
    or the choices there would have been.
    """

    path: Path
    message: str
    keyword: str = ""
    key: str | None = None
    allowed: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{spell_path(self.path)}: {self.message}" if self.path else self.message


TOO_LONG = SchemaProblem((), "schema took too long", "schema")


def spell_path(path: Iterable[str | int]) -> str:
    """A path as it would be written: `lines[0].text`, `["odd key"].x`."""
    parts: list[str] = []
    for step in path:
        if isinstance(step, int):
            parts.append(f"[{step}]")
        elif _NAME.match(step):
            parts.append(f".{step}" if parts else step)
        else:
            parts.append(f"[{json.dumps(_cut(step), ensure_ascii=False)}]")
    return "".join(parts)


def missing(path: Path, key: str) -> SchemaProblem:
    """A required key that is not there."""
    return SchemaProblem((*path, key), "is required", "required", key)


def unknown(path: Path, key: str, allowed: Iterable[str]) -> SchemaProblem:
    """A key that the schema does not have."""
    known = tuple(allowed)
    listed = f"; known here: {_listed(known)}" if known else ""
    return SchemaProblem(
        (*path, key), f"is not a known key{listed}", "additionalProperties", key, known
    )


def ambiguous(path: Path) -> SchemaProblem:
    """A value that fits several forms of `oneOf`."""
    return SchemaProblem(path, "fits more than one form, of which only one is allowed", "oneOf")


def unmet(path: Path, keyword: str, wanted: Any, value: Any, otherwise: str = "") -> SchemaProblem:
    """A value that does not meet one keyword; `otherwise` is said of a keyword unknown here."""
    allowed: tuple[str, ...] = ()
    if keyword == "type":
        allowed = (wanted,) if isinstance(wanted, str) else tuple(wanted)
        message = f"{show(value)} is not of type {' or '.join(map(repr, allowed))}"
    elif keyword in {"enum", "const"}:
        allowed = tuple(map(show, [wanted] if keyword == "const" else wanted))
        message = f"{show(value)} is not {'one of ' * (len(allowed) != 1)}{_listed(allowed)}"
    elif keyword in _BOUNDS:
        message = f"{show(value)} {_BOUNDS[keyword]} {show(wanted)}"
    elif keyword in _SIZES:
        unit, bound = _SIZES[keyword]
        message = f"has {len(value)} {unit} and may have {bound} {wanted}"
    elif keyword == "pattern":
        message = f"{show(value)} does not match {show(wanted)}"
    elif keyword == "uniqueItems":
        message = "has the same item twice"
    else:
        message = _cut(otherwise, 300)
    return SchemaProblem(path, message, keyword, allowed=allowed)


def nearest(
    branches: Sequence[Sequence[SchemaProblem]], path: Path, value: Any
) -> list[SchemaProblem]:
    """The problems of the branch of `anyOf` or `oneOf` that the value was probably meant for.

    That is the one whose type fits, whose constants fit, and which has the fewest problems. Where
    the value is of no branch's kind, one problem names them all.
    """
    if not branches:
        return [SchemaProblem(path, "fits none of the allowed forms", "anyOf")]
    ranked = [(_distance(problems, path, value), problems) for problems in branches]
    best = min(rank for rank, _ in ranked)
    alike = [problems for rank, problems in ranked if rank[0] == best[0]]
    if best[0] == 0 or len(alike) == 1 or any(len(problems) != 1 for problems in alike):
        return list(next(problems for rank, problems in ranked if rank == best))
    return [_none_of([problems[0] for problems in alike], value)]


def show(value: Any) -> str:
    """A value in a few characters."""
    if isinstance(value, str):
        return repr(_cut(value))
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, Sequence):
        return "an array"
    return _cut(json.dumps(value))


def _distance(problems: Sequence[SchemaProblem], path: Path, value: Any) -> tuple[int, int, int]:
    """How far a value is from a branch: its kind, its constants, all its problems."""
    here = [problem for problem in problems if problem.path == path]
    kind = 0
    if any(problem.keyword in {"type", "false"} for problem in here):
        kind = 2
    elif any(problem.keyword in {"enum", "const"} for problem in here):
        choices = [choice for problem in here for choice in problem.allowed]
        kind = 1 if isinstance(value, str) and any(word[0] in "'\"" for word in choices) else 2
    constants = sum(
        problem.keyword in {"enum", "const"} and len(problem.path) == len(path) + 1
        for problem in problems
    )
    return kind, constants, len(problems)


def _none_of(problems: Sequence[SchemaProblem], value: Any) -> SchemaProblem:
    """One problem for a value that is of none of several kinds."""
    types = tuple(dict.fromkeys(a for p in problems if p.keyword == "type" for a in p.allowed))
    choices = tuple(dict.fromkeys(a for p in problems if p.keyword != "type" for a in p.allowed))
    if not choices:
        return unmet(problems[0].path, "type", types, value)
    parts = [_listed(choices)] + [f"of type '{name}'" for name in types]
    message = f"{show(value)} is not {'one of ' * (len(choices) > 1)}{' or '.join(parts)}"
    return replace(problems[0], message=message, keyword="enum", allowed=choices)


def _listed(words: Sequence[str]) -> str:
    shown = ", ".join(_cut(word) for word in words[:_MOST_CHOICES])
    return f"{shown} and {len(words) - _MOST_CHOICES} more" if len(words) > _MOST_CHOICES else shown


def _cut(text: str, longest: int = _LONGEST) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
