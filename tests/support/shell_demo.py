"""Drives `aish shell` in tmux as a person would, over a real model and a real server.

    python tests/support/shell_demo.py FOLDER

The embedded model answers, and `server-everything` of `node_modules` is the MCP server. Each scene
is captured from the terminal into `FOLDER/NN-name.txt`; the guides show them.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from mcp_peers import free_port, listening, npm_server

PATIENCE = 90.0
PAUSE = 0.1
COLUMNS, ROWS = 80, 45
PIPELINE = """\
aish: 1
name: try
models:
  local: {embedded: smollm2, params: {temperature: 0, max_tokens: 200}}
mcp:
  servers:
    everything: {url: "${EVERYTHING_URL:-http://127.0.0.1:3001/mcp}", tools: [echo, get-sum]}
"""
_PROMPT = re.compile(r"^local>$")


class Terminal:
    """A tmux window of its own server, and what was written into it since the last capture."""

    def __init__(self, folder: Path, env: dict[str, str], captures: Path) -> None:
        self._socket = f"aish-demo-{os.getpid()}"
        self._captures = captures
        self._number = self._seen = 0
        size = ["-x", str(COLUMNS), "-y", str(ROWS)]
        assignments = [f"{name}={value}" for name, value in env.items()]
        shell = ["env", *assignments, "bash", "--norc", "--noprofile"]
        self._tmux("-f", "/dev/null", "new-session", "-d", *size, "-c", str(folder), *shell)

    def __enter__(self) -> Self:
        self.wait_for(lambda: self._all()[-1] == "$")
        return self

    def __exit__(self, *_: object) -> None:
        self._tmux("kill-server")

    def type(self, text: str, *keys: str) -> None:
        """Type `text` as it is, and then press named keys; Enter if none are given."""
        if text:
            self._tmux("send-keys", "-l", "--", text)
        self._tmux("send-keys", *(keys or ("Enter",)))

    def ask(self, text: str, *wanted: str) -> None:
        """Type a line, and wait for what it brings; for the next prompt if nothing is wanted."""
        before = len(self._all())
        self.type(text)
        if not wanted:
            self.wait_for(lambda: len(self._all()) > before and self.at_prompt())
        self.wait_for(lambda: all(one in "\n".join(self._all()[before - 1 :]) for one in wanted))

    def run(self, command: str) -> None:
        """Type a command of the shell, and wait for its end."""
        before = self.height()
        self.type(command)
        self.wait_for(lambda: self.height() > before and self.at_shell())

    def at_prompt(self) -> bool:
        """Whether an empty prompt is the last thing there; a toolbar may stand below it."""
        return any(_PROMPT.match(line) for line in self._all()[-2:])

    def height(self) -> int:
        """How many lines there are so far."""
        return len(self._all())

    def at_shell(self) -> bool:
        """Whether the program has ended."""
        return self._all()[-1] == "$"

    def wait_for(self, seen: Callable[[], bool]) -> None:
        """Look until something holds."""
        until = time.monotonic() + PATIENCE
        while not seen():
            story = "\n".join(self._all()[-ROWS:])
            assert "bug in aish" not in story, story
            assert time.monotonic() < until, story
            time.sleep(PAUSE)

    def scene(self, name: str) -> None:
        """Keep what has been written since the last scene."""
        lines = self._all()
        self._number += 1
        path = self._captures / f"{self._number:02}-{name}.txt"
        path.write_text("\n".join(lines[self._seen :]) + "\n", "utf-8")
        # The last line is the prompt that the next scene begins with.
        self._seen = len(lines) - 1
        print(path.read_text("utf-8"), end="\n\n", flush=True)

    def _all(self) -> list[str]:
        """All lines so far, without the empty end."""
        shown = self._tmux("capture-pane", "-p", "-S", "-")
        return [line.rstrip() for line in shown.rstrip().split("\n")]

    def _tmux(self, *arguments: str) -> str:
        argv = ["tmux", "-L", self._socket, *arguments]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def play(terminal: Terminal, url: str) -> None:
    """Everything that the guides show, in one session, and another that goes on with it."""
    terminal.ask("aish shell try.yaml", "try ·")
    terminal.wait_for(terminal.at_prompt)
    terminal.ask(":mcp tools")
    terminal.ask(":mcp list")
    terminal.scene("start")
    terminal.ask(f":mcp connect {url} second")
    terminal.ask(":mcp list")
    terminal.ask(":mcp tools second__get-s*")
    terminal.ask(":mcp disconnect second")
    terminal.ask(":mcp connect http://127.0.0.1:9/mcp nowhere")
    terminal.scene("servers")
    terminal.ask("Echo the text hello", "send? ")
    terminal.ask("n")
    terminal.scene("denied")
    terminal.ask(":retry", "send? ")
    terminal.ask("y")
    terminal.scene("approved")
    terminal.ask(":retry", "send? ")
    terminal.ask("a")
    terminal.ask(":approvals")
    terminal.ask(":retry")
    terminal.scene("always")
    terminal.ask("Say: CMD: echo works", "[y/N/e]")
    terminal.ask("e", "run: ")
    terminal.type("", "C-u")
    terminal.ask("uname -s", "run 'uname -s'?")
    terminal.ask("y")
    terminal.ask("What did the command print?")
    terminal.scene("command")
    terminal.ask("!wc -l try.yaml")
    terminal.ask("$echo nobody else reads this")
    terminal.ask("How many lines are in the file?")
    terminal.scene("local")
    before = terminal.height()
    terminal.type("Write a long story about a lighthouse")
    terminal.wait_for(lambda: terminal.height() > before + 3)
    terminal.type("", "C-c")
    terminal.wait_for(terminal.at_prompt)
    terminal.ask(":undo")
    terminal.ask(":context")
    terminal.ask(":cost")
    terminal.scene("interrupted")
    terminal.type(":quit")
    terminal.wait_for(terminal.at_shell)
    terminal.ask("aish shell try.yaml --resume", "try ·")
    terminal.wait_for(terminal.at_prompt)
    terminal.ask("What did I ask you to echo?")
    terminal.ask(":context")
    terminal.ask(":sessions")
    terminal.scene("resumed")
    terminal.ask(":export tried.yaml")
    terminal.type("", "C-d")
    terminal.wait_for(terminal.at_shell)
    terminal.scene("exported")
    look(terminal, "cat tried.yaml", "aish test tried.yaml", "ls -A .aish/sessions/*")


def play_again(terminal: Terminal) -> None:
    """A short session that becomes a file."""
    terminal.ask("aish shell try.yaml", "try ·")
    terminal.wait_for(terminal.at_prompt)
    terminal.ask("Echo the text hello", "send? ")
    terminal.ask("y")
    terminal.ask("!wc -l try.yaml")
    terminal.ask("How many lines are in the file?")
    terminal.ask(":export echo.yaml")
    terminal.type(":quit")
    terminal.wait_for(terminal.at_shell)
    terminal.scene("short")
    look(terminal, "cat echo.yaml", "aish test echo.yaml", "aish run echo.yaml -q")
    look(terminal, "aish policy suggest echo.cassette.yaml")


def look(terminal: Terminal, *commands: str) -> None:
    """What ordinary commands print, a scene each."""
    for command in commands:
        terminal.run(command)
        terminal.scene("-".join(command.split()[:3]).replace("/", "-"))


def main() -> None:
    captures = Path(sys.argv[1])
    captures.mkdir(parents=True, exist_ok=True)
    port, server = free_port(), (*npm_server("server-everything"), "streamableHttp")
    with (
        tempfile.TemporaryDirectory() as home,
        tempfile.TemporaryDirectory() as folder,
        listening(*server, port=port, environment={"PORT": str(port)}) as origin,
    ):
        url = f"{origin}/mcp"
        Path(folder, "try.yaml").write_text(PIPELINE, "utf-8")
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        env = {"HOME": home, "PATH": path, "PS1": "$ ", "LANG": "C.UTF-8", "EVERYTHING_URL": url}
        with Terminal(Path(folder), env, captures) as terminal:
            if "--short" not in sys.argv:
                play(terminal, url)
            play_again(terminal)
        for made in Path(folder).glob("*.yaml"):
            (captures / made.name).write_bytes(made.read_bytes())


if __name__ == "__main__":
    main()
