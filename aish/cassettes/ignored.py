"""Parts of a body that matching leaves out, named by a simple kind of JSONPath (C4)."""

import re
from collections.abc import Iterable, Mapping, Sequence

from aish.core.errors import UsageError
from aish.core.json import JsonValue

_STEP = (
    r"""\.(?P<name>[\w-]+)|\[(?P<quote>['"])(?P<quoted>.+?)(?P=quote)\]|\[(?P<place>\d+)\]"""
    r"""|(?P<any>\.\*|\[\*\])"""
)
_ANY = None

_Step = str | int | None


class Ignored:
    """A set of paths such as `$.a.b[*].c`: names, places counted from 0, and `*`."""

    def __init__(self, paths: Iterable[str] = ()) -> None:
        """Read the paths.

        Raises:
            UsageError: a path is of another kind.
        """
        self._paths = tuple(_steps(path) for path in paths)

    def __bool__(self) -> bool:
        return bool(self._paths)

    def left_out(self, value: JsonValue) -> JsonValue:
        """The value without what the paths name; in a list, `null` takes the place."""
        for steps in self._paths:
            value = _without(value, steps)
        return value


def _steps(path: str) -> tuple[_Step, ...]:
    steps: list[_Step] = []
    step = re.compile(_STEP)
    place = 1
    while path.startswith("$") and (found := step.match(path, place)):
        if found["any"]:
            steps.append(_ANY)
        else:
            steps.append(
                int(found["place"]) if found["place"] else found["name"] or found["quoted"]
            )
        place = found.end()
    if not steps or place != len(path):
        raise UsageError(
            f"`{path}` is no path that can be ignored",
            hint="paths look like `$.metadata.date` or `$.messages[*].name`",
        )
    return tuple(steps)


def _without(value: JsonValue, steps: tuple[_Step, ...]) -> JsonValue:
    step, rest = steps[0], steps[1:]
    if isinstance(value, Mapping):
        return {
            key: _without(below, rest) if _is(key, step) else below
            for key, below in value.items()
            if rest or not _is(key, step)
        }
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [
            below if not _is(place, step) else _without(below, rest) if rest else None
            for place, below in enumerate(value)
        ]
    return value


def _is(key: str | int, step: _Step) -> bool:
    return step is _ANY or (key == step and type(key) is type(step))
