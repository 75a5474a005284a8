"""A session's questions as steps, and the local commands whose output they took along. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aish.config.model import PLATFORM_SHELL
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.text import for_line
from aish.engine.plan.uris import is_uri
from aish.engine.resources.local_commands import command_arguments
from aish.policy.suggest import Made
from aish.shell.exporting.deeds import Line, Waited
from aish.shell.exporting.servers import NotExportedError
from aish.shell.local.handing import handed_over_template, literal

# The line of `agent.result_limit` in the place of what is left out.
_CUT = re.compile(r"^\[aish\] \d+ of \d+ bytes left out here$", re.MULTILINE)
_SHOWN = 60


@frozen
class Step:
    """A step's data, and what a reader of the file is told of it."""

    data: JsonObject
    remarks: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """What it is called."""
        return str(self.data["id"])


@frozen
class Told:
    """What steps are made with.

    `frame` is the system prompt, `shell` the words before a command line, `offered` what every
    step is shown that says nothing of tools, `ran` the steps whose commands are recorded. `folder`
    is where the file will stand, and `here` where the session's commands ran.
    """

    frame: str
    shell: tuple[str, ...]
    offered: Mapping[str, frozenset[str]]
    ran: frozenset[str]
    folder: Path
    here: Path


def steps_of(lines: Sequence[Line], told: Told) -> Iterator[Step]:
    """A step for each question, which goes on from the one before it, and for what it needs."""
    before: str | None = None
    known: set[str] = set()
    for line in lines:
        attached, far = _attached(line, told.folder)
        outputs = [_output(one, told) for one in line.waited] if not far else []
        for one in outputs:
            if one.run is not None and one.step not in known:
                known.add(one.step)
                needs = {"needs": [before]} if before else {}
                yield Step({"id": one.step, "run": one.run, **needs})
        data: dict[str, Any] = {"id": line.id}
        data |= {"system": literal(told.frame)} if before is None else {"continues": before}
        texts = [*(one.template for one in outputs), literal(line.text)]
        # What is far is said as it was sent: no step could say it again.
        data["prompt"] = _prompt(literal(line.sent) if far else "\n\n".join(texts))
        data |= {"attach": attached} if attached and not far else {}
        data |= {"model": line.model} if line.model != lines[0].model else {}
        tools = _tools(line, told.offered)
        data |= {"tools": tools} if tools is not None else {}
        remarks = tuple(one.remark for one in outputs if one.remark)
        yield Step(data, (*remarks, far) if far else remarks)
        before = line.id


def _prompt(text: str) -> JsonValue:
    """The text itself, where it cannot be taken for the name of a prompt."""
    return text if " " in text or "\n" in text else {"user": text}


def as_run(made: Made, shell: tuple[str, ...]) -> Made:
    """A call of the session as the exported file makes it."""
    command = made.arguments.get("command")
    if str(made.tool) != "shell__run" or shell == PLATFORM_SHELL or not isinstance(command, str):
        return made
    return Made(made.tool, command_arguments((*shell, command)), made.unknown)


@frozen
class _Output:
    """What a local command printed, as a template; `run` is what runs it as `step`, if it can."""

    template: str
    step: str = ""
    run: JsonValue = None
    remark: str = ""


def _output(waited: Waited, told: Told) -> _Output:
    why = _why_not(waited, told)
    if why is not None:
        shown = for_line(waited.command[:_SHOWN]) + ("…" if len(waited.command) > _SHOWN else "")
        remark = f"The output of `{shown}` stands as it was: {why}." if waited.command else ""
        return _Output(literal(waited.text), remark=remark)
    run: JsonValue = literal(waited.command)
    if told.shell != PLATFORM_SHELL:
        run = [literal(word) for word in (*told.shell, waited.command)]
    return _Output(handed_over_template(waited.step, waited.command), waited.step, run)


def _why_not(waited: Waited, told: Told) -> str | None:
    """Why an output cannot be made again by a step."""
    if not waited.command:
        return ""
    reasons = (
        (_failed(waited), "the command did not succeed, and a step that fails ends a run"),
        ("<secret:" in waited.command, "a secret stood in the command"),
        (waited.step not in told.ran, "it is not in the recording of the session"),
        (bool(_CUT.search(waited.text)), "it was too long to be sent whole"),
        (told.here != told.folder, "steps run in the folder of this file, and it ran in another"),
    )
    return next((why for is_so, why in reasons if is_so), None)


def _failed(waited: Waited) -> bool:
    return not waited.text.endswith("[exit code 0]")


def _attached(line: Line, folder: Path) -> tuple[list[JsonValue], str]:
    """What a step can attach; or why it cannot.

    Raises:
        NotExportedError: a picture is among what cannot be attached.
    """
    found: list[JsonValue] = []
    for name in line.attached:
        path = Path(name).expanduser().absolute()
        if is_uri(name) and not path.is_file():
            found.append(literal(name))
        elif path.is_file() and path.resolve().is_relative_to(folder):
            found.append(literal(str(path.resolve().relative_to(folder))))
        elif line.has_media:
            raise NotExportedError(
                f"a picture cannot go along: `{name}` is not in {folder}",
                hint="`:export` into a folder that it is in",
            )
        else:
            return [], f"`{for_line(name)}` stands as it was sent: it is no file of this folder."
    return found, ""


def _tools(line: Line, offered: Mapping[str, frozenset[str]]) -> list[JsonValue] | None:
    """What a step says of its tools, if it must."""
    shown = frozenset(line.tools)
    if shown == frozenset().union(*offered.values()):
        return None
    found: list[JsonValue] = []
    for alias, names in offered.items():
        if names and names <= shown:
            found.append(f"{alias}__*")
        else:
            found += [name for name in line.tools if name in names]
    return found
