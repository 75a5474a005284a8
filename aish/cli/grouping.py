"""Options in groups: a command takes a group, and the command line sees each of its options.

@grouped
def command(file: FileArgument, filling: Filling, *, output: OutputOption = None) -> int: ...
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def grouped(command: Callable[..., int]) -> Callable[..., int]:
    """The command with each parameter that is a dataclass replaced by the fields of that class."""
    signature = inspect.signature(command)
    groups: dict[str, Any] = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if is_dataclass(parameter.annotation)
    }

    def called(**given: Any) -> int:
        made = {
            name: kind(**{field.name: given.pop(field.name) for field in fields(kind)})
            for name, kind in groups.items()
        }
        return command(**given, **made)

    flat = [one for p in signature.parameters.values() for one in _spread(p, groups.get(p.name))]
    called.__doc__ = command.__doc__
    called.__annotations__ = {one.name: one.annotation for one in flat} | {"return": int}
    # What `inspect.signature` answers with, and so what typer reads.
    vars(called)["__signature__"] = signature.replace(parameters=flat)
    return called


def _spread(parameter: inspect.Parameter, kind: Any) -> Iterator[inspect.Parameter]:
    if kind is None:
        yield parameter.replace(kind=_KEYWORD)
        return
    for field in fields(kind):
        default = _default(field.default)
        yield inspect.Parameter(field.name, _KEYWORD, default=default, annotation=field.type)


def _default(value: Any) -> Any:
    return inspect.Parameter.empty if value is MISSING else value
