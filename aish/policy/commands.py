"""Rules about a command line (P4): its words against a pattern, word by word.

`shell__run` takes `argv`, a list that no shell sees, or `command`, a text for `sh`. A text with
any metacharacter has no certain words, so it is always asked about; only a rule that spells out
the whole command says yes to it.
"""

from collections.abc import Callable, Sequence
from itertools import starmap

from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.text import counted, for_line, for_terminal
from aish.core.tools import ToolName
from aish.policy.texts import Fit, forbidden_text, is_odd, permitted_text
from aish.system.globs import matches_word

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


@frozen
class Miss:
    """Why a rule that permits does not fit a command; `near` is higher the nearer it is to it."""

    why: str
    near: int


def miss_of(
    pattern: Sequence[str], command: Command | None, mask: Callable[[str], str] = str
) -> Miss:
    """Why `fit_command` does not permit; `mask` takes secrets out of the words that are shown."""
    if command is None:
        return Miss("there is no command in the arguments", 0)
    if command.words is None:
        first = command.raw.split() if isinstance(command.raw, str) else command.raw
        alike = isinstance(first, Sequence) and bool(first) and first[0] == pattern[0]
        return Miss(uncertain(command), _NEAR if alike else 0)
    words = command.words
    fixed = pattern[:-1] if pattern[-1] == REST else pattern
    for index, (wanted, word) in enumerate(zip(fixed, words, strict=False)):
        if not _permitted_word(wanted, word):
            return _word_miss(wanted, word, index, mask)
    for word in words[len(fixed) :] if pattern[-1] == REST else ():
        if _leads_away(word) or permitted_text(REST, word) is not Fit.YES:
            return Miss(f"`{REST}` does not take {_odd_word(word, mask)}", _NEAR)
    more = " at least" if pattern[-1] == REST else ""
    hint = "" if more else f"; `{REST}` at the end of a rule stands for any further words"
    counts = f"the command has {counted(len(words), 'word')}, and the rule {len(fixed)}{more}"
    return Miss(counts + hint, _NEAR)


_NEAR = 100
_SHOWN = 60


def _word_miss(wanted: str, word: str, index: int, mask: Callable[[str], str]) -> Miss:
    if not _has_wildcard(wanted):
        return Miss(
            f"word {index + 1} is {_shown(word, mask)}, and the rule has {_shown(wanted, mask)}",
            index,
        )
    if word.startswith("-") and not wanted.startswith("-"):
        why = f"`{wanted}` does not take a word that begins with a dash, {_shown(word, mask)}"
        return Miss(why, _NEAR)
    if _leads_away(word) or is_odd(word):
        return Miss(f"`{wanted}` does not take {_odd_word(word, mask)}", _NEAR)
    return Miss(
        f"word {index + 1}, {_shown(word, mask)}, does not fit {_shown(wanted, mask)}", index
    )


def _has_wildcard(pattern: str) -> bool:
    return not {"*", "?"}.isdisjoint(pattern)


def _odd_word(word: str, mask: Callable[[str], str]) -> str:
    if has_metacharacter(word):
        return f"a word with shell metacharacters, {_shown(word, mask)}"
    return f"a word that may lead out of the folder, {_shown(word, mask)}"


def _shown(word: str, mask: Callable[[str], str]) -> str:
    # Masked before it is cut: half a secret would not be known for one.
    text = for_line(mask(word))
    return f"`{text if len(text) <= _SHOWN else text[:_SHOWN] + '…'}`"


def uncertain(command: Command) -> str:
    """Why the words of a command are not certain, and what follows for rules."""
    only = "only a rule with exactly this command approves it"
    if isinstance(command.raw, str):
        found = next((sign for sign in command.raw if sign in _METACHARACTERS), None)
        if found is not None:
            sign = "a line break" if found in "\n\r" else f"the shell metacharacter `{found}`"
            return f"the command has {sign}: {only}"
        return f"the words of the command are not certain before a shell reads it: {only}"
    return f"the command goes through a shell, with metacharacters: {only}"


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
