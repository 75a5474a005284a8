"""The commands of the control API: which there are, what they take, and for what they are.

`say` is text for the model and nothing else: no command line, whatever it begins with.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from aish.core.errors import AishError, ExitCode
from aish.core.events import ControlEvent
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.phrases import backticked
from aish.engine.environment import RunHandle
from aish.net.listen.http_error import HttpError, body_error

_ArgumentKind = Literal["text", "texts", "word", "any"]
_Subject = Literal["run", "shell", "serve"]

_LONGEST_WORD = 100
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*\Z", re.ASCII)
_ENDS: Final[Mapping[str, ExitCode]] = {"stop": ExitCode.INTERRUPTED, "cancel": ExitCode.TERMINATED}
_A: Final[Mapping[_Subject, str]] = {"run": "a run", "shell": "a shell", "serve": "a server"}


@frozen
class CommandSpec:
    """A command, what it takes, and for what it is; `one_of` are keys of which one is needed."""

    name: str
    subjects: tuple[_Subject, ...]
    required: Mapping[str, _ArgumentKind]
    optional: Mapping[str, _ArgumentKind]
    one_of: tuple[str, ...] = ()


COMMANDS: Final = {
    command.name: command
    for command in (
        CommandSpec("stop", ("run", "shell", "serve"), {}, {}),
        CommandSpec("cancel", ("run", "shell", "serve"), {}, {}),
        CommandSpec("event", ("run", "shell", "serve"), {"name": "word"}, {"data": "any"}),
        CommandSpec("say", ("shell",), {"text": "text"}, {}),
        CommandSpec(
            "connect",
            ("shell",),
            {},
            # `command` is the name of the command itself.
            {"url": "text", "argv": "texts", "alias": "word"},
            one_of=("url", "argv"),
        ),
        CommandSpec("reset", ("shell",), {}, {}),
        CommandSpec("reload", ("serve",), {}, {}),
    )
}
"""Every command; those of a shell are done by `RunHandle.commands`."""


async def obey(body: JsonValue, handle: RunHandle, by: str) -> JsonObject:
    """Do what a body asks for, and return the answer.

    Raises:
        HttpError: it is no command, it does not fit, or it cannot be done.
    """
    command, arguments = _parse_command(body, handle)
    name = command.name
    if name in _ENDS:
        handle.interrupt(_ENDS[name])
        return {"command": name}
    if name == "event":
        handle.emit(ControlEvent(str(arguments["name"]), arguments.get("data"), by))
        return {"command": name}
    if name not in handle.commands:
        raise HttpError(422, "not_offered", f"`{name}` cannot be done here")
    try:
        answer = await handle.commands[name](arguments, by)
    except HttpError:
        raise
    except AishError as error:
        raise HttpError(422, "refused", error.message, hint=error.hint) from error
    return {"command": name, **answer}


def _parse_command(body: JsonValue, handle: RunHandle) -> tuple[CommandSpec, JsonObject]:
    if not isinstance(body, Mapping) or not isinstance(body.get("command"), str):
        raise body_error("the body is not an object with the name of a `command`")
    command = COMMANDS.get(str(body["command"]))
    if command is None:
        raise body_error(f"`command` is one of {backticked(COMMANDS)}")
    if handle.subject not in command.subjects:
        needed = " or ".join(_A[subject] for subject in command.subjects)
        message = f"`{command.name}` is for {needed}, and this is {_A[handle.subject]}"
        raise HttpError(422, "wrong_subject", message)
    arguments = {key: value for key, value in body.items() if key != "command"}
    kinds = {**command.required, **command.optional}
    if unknown := [key for key in arguments if key not in kinds]:
        takes = f"takes {backticked(kinds)}" if kinds else "takes no arguments"
        raise body_error(f"`{command.name}` {takes}, and not {backticked(unknown[:5])}")
    if missing := [key for key in command.required if key not in arguments]:
        raise body_error(f"`{command.name}` needs {backticked(missing)}")
    for key, value in arguments.items():
        if problem := _problem(kinds[key], value):
            raise body_error(f"`{key}` {problem}")
    if command.one_of and sum(key in arguments for key in command.one_of) != 1:
        raise body_error(f"`{command.name}` needs exactly one of {backticked(command.one_of)}")
    return command, arguments


def _problem(kind: _ArgumentKind, value: JsonValue) -> str | None:
    match kind:
        case "text":
            return None if isinstance(value, str) and value else "is not a text"
        case "texts":
            items = value if isinstance(value, Sequence) and not isinstance(value, str) else ()
            if items and all(isinstance(item, str) and item for item in items):
                return None
            return "is not a list of texts"
        case "word":
            if isinstance(value, str) and len(value) <= _LONGEST_WORD and _WORD.match(value):
                return None
            return f"is not a name: letters, digits and `_.:-`, at most {_LONGEST_WORD}"
        case "any":
            return None
