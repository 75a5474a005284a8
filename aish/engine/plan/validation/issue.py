"""A validation problem before its position in the file is resolved."""

from collections.abc import Iterable

from aish.config.yaml_tree import UNREADABLE, join
from aish.core.frozen import frozen
from aish.core.patterns import lazy_pattern

_UNREADABLE = join("", UNREADABLE)
_INDICES = lazy_pattern(r"\[\d+\]")
_INDEX = lazy_pattern(r"\[\d+\]\Z")


@frozen
class Issue:
    """`path` is the path in the file; the closest existing element gives the position.

    `by` are the parts of the file that the problem depends on, such as `models` for an unknown
    model; `[]` stands for any index, and `**` at the end for everything below. If one of them is
    invalid, the problem is not reported.
    """

    path: str
    message: str
    hint: str | None = None
    warning: bool = False
    by: tuple[str, ...] = ()


def is_spoilt(issue: Issue, broken: Iterable[str]) -> bool:
    """Whether a problem may be caused by something that could not be read."""
    return any(
        is_within(issue.path, path)
        or (_INDEX.sub("", path) == issue.path and path.endswith("]"))
        or any(_spoils(path, part) for part in issue.by)
        for path in broken
    )


def is_within(path: str, outer: str) -> bool:
    """Whether a path is `outer`, or below it."""
    return path == outer or (path.startswith(outer) and path[len(outer)] in ".[")


def _spoils(broken: str, part: str) -> bool:
    """Whether the invalid element is a part, contains it, or belongs to one needed completely."""
    shape = _INDICES.sub("[]", broken)
    if shape.endswith(_UNREADABLE):
        # A mapping whose keys are unknown.
        shape = shape.removesuffix(_UNREADABLE)
        return not shape or is_within(part.removesuffix("**"), shape)
    if part.endswith("**"):
        return is_within(shape, part[:-2]) or is_within(part[:-2], shape)
    return is_within(part, shape)


STEPS = ("steps[]", "steps[].id")
"""What it takes to know all steps by their ids."""


def step_path(index: int, *, listed: bool) -> str:
    """The path of the step with that number: the root in a file of one step."""
    return f"steps[{index}]" if listed else ""


def within(path: str, key: str) -> str:
    """The path of a key of the element at `path`."""
    return f"{path}.{key}" if path else key
