"""Rules about a command line (P4): its words against a pattern, word by word.

`shell__run` takes `argv`, a list that no shell sees, or `command`, a text for `sh`. A text with
any metacharacter has no certain words, so it is always asked about; only a rule that spells out
the whole command says yes to it.
"""

from collections.abc import Sequence
from itertools import starmap

from aish.policy.texts import Fit, forbidden_text, is_odd, permitted_text
from aish.system.globs import matches_word
from aish.text import for_terminal
from aish.vocab.frozen import frozen
from aish.vocab.json import JsonObject, JsonValue
from aish.vocab.tools import ToolName

_METACHARACTERS = frozenset("|&;<>()$`\\\"'*?[]{}~#!\n\r")
_SHELLS = frozenset({"sh", "ash", "bash", "dash", "fish", "ksh", "zsh", "busybox"})
_WRAPPERS = _SHELLS | frozenset(
    {"command", "doas", "env", "eval", "exec", "nice", "nohup", "sudo", "time", "timeout", "xargs"}
)
REST = "**"
"""As the last word of a pattern: any further words, none included."""


@frozen
class Command:
    """What a call would run; `words` is `None` where only a shell could tell."""

    words: tuple[str, ...] | None
    raw: JsonValue

    @property
    def program(self) -> str:
        """The file name of the first word."""
        return self.words[0].rpartition("/")[2] if self.words else ""


def is_command_tool(name: ToolName) -> bool:
    """Whether a tool runs command lines: `shell__run`, and `shell_run` of a pack."""
    return (name.server, name.name) == ("shell", "run") or name.name == "shell_run"


def command_of(arguments: JsonObject) -> Command | None:
    """The command in a call's arguments, or `None` where there is none to be found."""
    given = [arguments[key] for key in ("argv", "command") if arguments.get(key) is not None]
    if len(given) != 1:
        return None
    raw = given[0]
    if isinstance(raw, str):
        return Command(_split(raw), raw)
    if not isinstance(raw, Sequence) or not raw:
        return None
    words = tuple(word for word in raw if isinstance(word, str))
    if len(words) != len(raw):
        return None
    through_shell = any(word.rpartition("/")[2] in _SHELLS for word in words)
    certain = not through_shell or not any(has_metacharacter(word) or "=" in word for word in words)
    return Command(words if certain else None, raw)


def fit_command(pattern: Sequence[str], command: Command | None, *, permits: bool) -> Fit:
    """Whether a command fits a pattern."""
    if command is None:
        return Fit.NO if permits else Fit.UNSURE
    if spells_out(pattern, command):
        return Fit.YES
    if command.words is None:
        return Fit.NO if permits else Fit.UNSURE
    if permits:
        return _permitted(pattern, command.words)
    return _forbidden(pattern, command)


def spells_out(pattern: JsonValue, command: Command) -> bool:
    """Whether a rule has the very command, letter by letter."""
    if isinstance(pattern, str) or isinstance(command.raw, str):
        return pattern == command.raw
    return (
        isinstance(pattern, Sequence)
        and isinstance(command.raw, Sequence)
        and list(pattern) == list(command.raw)
    )


def has_metacharacter(text: str) -> bool:
    """Whether a shell, or a person, would read anything but plain words, spaces and tabs."""
    return for_terminal(text) != text or any(
        character in _METACHARACTERS or (not character.isprintable() and character != "\t")
        for character in text
    )


def _split(text: str) -> tuple[str, ...] | None:
    if has_metacharacter(text):
        return None
    # Without quotes there is nothing more to it, and `shlex` takes the square of a word's length.
    words = tuple(text.split())
    # `PATH=here ls` is an assignment and then a command.
    return None if not words or "=" in words[0] else words


def _permitted(pattern: Sequence[str], words: tuple[str, ...]) -> Fit:
    fixed = pattern[:-1] if pattern[-1] == REST else pattern
    more = words[len(fixed) :]
    if len(words) < len(fixed) or (more and pattern[-1] != REST):
        return Fit.NO
    fits = all(map(_permitted_word, fixed, words)) and all(
        permitted_text(REST, word) is Fit.YES and not _leads_away(word) for word in more
    )
    return Fit.YES if fits else Fit.NO


def _permitted_word(pattern: str, word: str) -> bool:
    if pattern == word:
        return True
    # A wildcard stands for a value; `--output=x` in its place would be another command.
    smuggled = _leads_away(word) or (word.startswith("-") and not pattern.startswith("-"))
    return not smuggled and permitted_text(pattern, word) is Fit.YES


def _leads_away(word: str) -> bool:
    """Whether a word is no plain one, or its value a path out of here: `--to=/etc`, `-o../x`."""
    values = [word.partition("=")[2], word[2:] if word.startswith("-") else ""]
    return has_metacharacter(word) or any(map(is_odd, values))


def _forbidden(pattern: Sequence[str], command: Command) -> Fit:
    assert command.words is not None
    spellings = (command.words, (command.program, *command.words[1:]))
    fits = {_forbidden_line(pattern, words) for words in spellings}
    if Fit.YES in fits:
        return Fit.YES
    return Fit.UNSURE if Fit.UNSURE in fits or command.program in _WRAPPERS else Fit.NO


def _forbidden_line(pattern: Sequence[str], words: tuple[str, ...]) -> Fit:
    fixed = pattern[:-1] if pattern[-1] == REST else pattern
    if len(words) < len(fixed) or (len(words) > len(fixed) and pattern[-1] != REST):
        return Fit.NO
    fits = set(starmap(_forbidden_word, zip(fixed, words, strict=False)))
    if Fit.NO in fits:
        return Fit.NO
    return Fit.UNSURE if Fit.UNSURE in fits else Fit.YES


def _forbidden_word(pattern: str, word: str) -> Fit:
    return Fit.YES if matches_word(pattern, word) else forbidden_text(pattern, word)
