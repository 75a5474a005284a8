"""Blocks of the documentation that show a session at a terminal, typed again and compared.

`local> …` is typed at the prompt, what follows `[y/N/a/?]` or `run: ` at that question. Before
`✗ interrupted` Ctrl-C is pressed. The last line of a block is where the person is left.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from terminal_window import Window

_PROMPT = re.compile(r"^(?P<asks>local> ?)(?P<typed>.*)$")
_QUESTION = re.compile(r"^(?P<asks>.*\[y/N(?:/[ae])?(?:/\?)?\]|run:) (?P<typed>.*)$")
# What is said of a server that takes longer than a second, as it may on a busy machine.
_SLOW = re.compile(r"^· waiting for \S+ to connect; Ctrl-C gives up$")
CTRL_C, CLEAR_LINE = "\x03", "\x15"
# What the pages call the reference server, wherever it is.
SHOWN_URL = "http://127.0.0.1:3001/mcp"
# No line of a page scrolls out of it.
ROWS, COLUMNS = 300, 80


class Sitting:
    """A person before a window, who does what the blocks of a page show."""

    def __init__(self, folder: Path, plain: Callable[[str], str]) -> None:
        self._folder = folder
        self._plain = plain
        self._window: Window | None = None
        self._from = 0
        self._url = SHOWN_URL

    def follow(self, lines: Sequence[str], env: Mapping[str, str], more: Sequence[str]) -> None:
        """Type what `lines` show was typed; raises `AssertionError` where they are wrong.

        `more` are arguments that stand for the world outside.
        """
        self._url = env.get("EVERYTHING_URL", SHOWN_URL)
        expected: list[str] = []
        for line in lines:
            if line.startswith("$ aish "):
                self._settle(expected)
                expected = []
                self._begin([*shlex.split(line.removeprefix("$ ")), *more], env)
            else:
                self._line(line, expected)
        self._settle(expected)

    def _begin(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self.close()
        argv = ["bash", "-c", 'exec "$@"', "bash", *command]
        self._window = Window(argv, cwd=self._folder, env=env, rows=ROWS, columns=COLUMNS)
        self._from = 0

    def _settle(self, expected: Sequence[str]) -> None:
        """Wait until all of it is there; the next lines begin where it ends."""
        if expected:
            self._await(lambda: self._is(expected), expected)
            self._from += len(self._seen()) - (expected[-1] == "local>")

    def close(self) -> None:
        """Leave, if somebody still sits there."""
        if self._window is not None:
            self._window.close()

    def _line(self, line: str, expected: list[str]) -> None:
        asked = _PROMPT.match(line) or _QUESTION.match(line)
        if line.startswith("✗ interrupted"):
            # What is not whole yet may be drawn without the blank line above it.
            whole = expected[: len(expected) - expected[::-1].index("") - 1]
            self._await(lambda: self._is([*whole, "..."]), whole)
            self._type(CTRL_C)
            expected.append(line)
        elif asked is not None and asked["typed"]:
            shown = [*expected, f"{asked['asks'].strip()}..."]
            # What is typed sooner than a server is there may have to wait for it, which is said.
            self._await(lambda: self._is(shown) and not self._is_connecting(), expected)
            clear = CLEAR_LINE if asked["asks"] == "run:" else ""
            self._type(f"{clear}{asked['typed']}\r")
            expected.append(line)
        else:
            expected.append(line.rstrip())

    def _type(self, keys: str) -> None:
        assert self._window is not None
        self._window.type(keys.replace(SHOWN_URL, self._url))

    def _await(self, seen: Callable[[], bool], expected: Sequence[str]) -> None:
        assert self._window is not None
        try:
            self._window.wait_for(seen)
        except AssertionError as error:
            story = "\n".join(self._seen())
            raise AssertionError(f"expected\n{chr(10).join(expected)}\n\nfound\n{story}") from error

    def _seen(self) -> list[str]:
        """What stands there since the last block, without the bar below the prompt."""
        assert self._window is not None
        lines = self._window.lines[self._from :]
        prompts = [at for at, line in enumerate(lines) if line == "local>"]
        return lines[: prompts[-1] + 1] if prompts else lines

    def _is_connecting(self) -> bool:
        """Whether the bar below the prompt says that a server is not there yet."""
        assert self._window is not None
        return self._window.lines[-1].startswith("connecting to ")

    def _is(self, expected: Sequence[str]) -> bool:
        seen = [line for line in self._seen() if not _SLOW.match(line)]
        return re.fullmatch(_pattern(self._flat(expected)), self._flat(seen)) is not None

    def _flat(self, lines: Sequence[str]) -> str:
        """Without what varies, ports and therefore the gaps of tables among it."""
        text = self._plain("\n".join(lines))
        return re.sub(r"(?<=\S) {2,}", "  ", text) + "\n"


def _pattern(text: str) -> str:
    """`...` stands for any lines, and at the end of one for the rest of it."""
    parts = []
    for line in text.splitlines():
        if line.strip() == "...":
            parts.append(r"(?:.*\n)*?")
        elif line.endswith("..."):
            parts.append(re.escape(line[:-3]) + r".*\n")
        else:
            parts.append(re.escape(line) + r"\n")
    return "".join(parts)
