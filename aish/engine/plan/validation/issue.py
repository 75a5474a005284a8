"""A validation problem before its position in the file is resolved."""

from collections.abc import Collection, Iterable, Iterator, Mapping

from aish.config.model import Pipeline, Step
from aish.config.yaml_tree import UNREADABLE, join
from aish.core.errors import did_you_mean
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.patterns import lazy_pattern
from aish.core.phrases import backticked

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
    """Return true if a problem may be caused by something that could not be read."""
    return any(
        is_within(issue.path, path)
        or (_INDEX.sub("", path) == issue.path and path.endswith("]"))
        or any(_spoils(path, part) for part in issue.by)
        for path in broken
    )


def is_within(path: str, outer: str) -> bool:
    return path == outer or (path.startswith(outer) and path[len(outer)] in ".[")


def _spoils(broken: str, part: str) -> bool:
    """Return true if the invalid element is a part, contains it, or is in one needed completely."""
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


def steps_with_paths(pipeline: Pipeline) -> Iterator[tuple[str, Step]]:
    listed = "steps" in pipeline.data
    return ((step_path(index, listed=listed), step) for index, step in enumerate(pipeline.steps))


def unknown_name(
    what: str, name: str, known: Collection[str], path: str, by: tuple[str, ...] = ()
) -> Issue:
    """A name that is not declared; the hint is the closest known one, or a list of them."""
    hint = did_you_mean(name, known) or f"{what}s: {backticked(known) or 'none'}"
    return Issue(path, f"unknown {what} `{name}`", hint, by=by)


def servers_hint(pipeline: Pipeline) -> str:
    names = backticked(pipeline.servers)
    return f"servers: {names}" if names else "`mcp.servers` declares none"


def missing_inputs(declared: Mapping[str, JsonObject], given: Mapping[str, JsonValue]) -> str:
    """The message about required inputs that are not given; empty if none is missing."""
    missing = [
        f"`{name}`" for name, one in declared.items() if "default" not in one and name not in given
    ]
    many = "inputs are" if len(missing) > 1 else "input is"
    return f"the {many} missing: {', '.join(missing)}" if missing else ""


def within(path: str, key: str) -> str:
    """The path of a key of the element at `path`."""
    return f"{path}.{key}" if path else key
