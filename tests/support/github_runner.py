"""How GitHub's runner reads the lines of a step: a small model of its parser.

After `ActionCommand.cs` of actions/runner: `::name props::data` at the
start of a line (after its leading white space), or `##[name props]data` anywhere in one. Names are
compared without regard to case. Characters that have no weight in a comparison are skipped, as
.NET does where it compares texts by language.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

COMMANDS = frozenset(
    {
        *("stop-commands", "add-mask", "add-matcher", "remove-matcher", "add-path", "set-env"),
        *("set-output", "save-state", "debug", "warning", "error", "notice", "group", "endgroup"),
        *("echo", "internal-set-repo-path"),
    }
)


@dataclass(frozen=True)
class Command:
    """What a line orders."""

    name: str
    properties: dict[str, str] = field(default_factory=dict)
    data: str = ""


@dataclass
class Runner:
    """What a job's log shows, and what its lines ordered."""

    commands: list[Command] = field(default_factory=list)
    masks: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    def read(self, text: str) -> None:
        """Take what a process printed on one of its streams."""
        for line in _lines(text):
            command = command_in(line)
            if command is None:
                self.log.append(self._masked(line))
                continue
            self.commands.append(command)
            if command.name == "add-mask":
                self.masks.append(command.data)

    @staticmethod
    def lines(text: str) -> Sequence[str]:
        """The lines of a text, as the runner counts them."""
        return tuple(_lines(text))

    def _masked(self, line: str) -> str:
        for mask in self.masks:
            line = line.replace(mask, "***")
        return line


def command_in(line: str) -> Command | None:
    """The command that a line is, if it is one."""
    light = _weighty(line)
    return _second(line) or _first(line) or _second(light) or _first(light)


def commands_in(text: str) -> Sequence[Command]:
    """The commands among the lines of a text."""
    return [command for line in _lines(text) if (command := command_in(line))]


def _lines(text: str) -> Iterator[str]:
    """As .NET reads lines: ended by `\\r`, `\\n` or both, by nothing else."""
    yield from re.split(r"\r\n|\r|\n", text)


def _weighty(text: str) -> str:
    kept = (
        one for one in text if unicodedata.category(one) not in {"Cf", "Cc", "Cn"} or one == "\t"
    )
    return "".join(kept)


def _second(line: str) -> Command | None:
    message = line.lstrip()
    end = message.find("::", 2)
    if not message.startswith("::") or end < 0:
        return None
    name, _, rest = message[2:end].partition(" ")
    if name.lower() not in COMMANDS:
        return None
    return Command(
        name.lower(), _properties(rest.strip(), ",", _property), _data(message[end + 2 :])
    )


def _first(line: str) -> Command | None:
    begin = line.find("##[")
    end = line.find("]", begin)
    if begin < 0 or end < 0:
        return None
    name, _, rest = line[begin + 3 : end].partition(" ")
    if name.lower() not in COMMANDS:
        return None
    return Command(name.lower(), _properties(rest, ";", _old), _old(line[end + 1 :]))


def _properties(text: str, between: str, read: Callable[[str], str]) -> dict[str, str]:
    pairs = (pair.split("=", 1) for pair in text.split(between) if pair)
    return {pair[0]: read(pair[1]) for pair in pairs if len(pair) == 2 and all(pair)}


def _data(text: str) -> str:
    return text.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")


def _property(text: str) -> str:
    for coded, plain in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(coded, plain)
    return text


def _old(text: str) -> str:
    pairs = (("%3B", ";"), ("%0D", "\r"), ("%0A", "\n"), ("%5D", "]"), ("%25", "%"))
    for coded, plain in pairs:
        text = text.replace(coded, plain)
    return text
