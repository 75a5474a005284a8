"""Keys that are made: programs that print them, and an endpoint that takes each one for a while."""

import os
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from model_endpoint import Recorded, Reply, json_reply, text_reply

REFUSED = json_reply(401, {"error": {"message": "the access token has expired"}})

PRINTS_TOKENS = """\
#!{python}
# Prints `PREFIX-1-…`, `PREFIX-2-…`, …: one more each time. Two at once are a mistake.
import os, sys
folder, prefix = {folder!r}, {prefix!r}
try:
    os.mkdir(folder + "/running")
except FileExistsError:
    open(folder + "/at-once", "w").close()
count = len(os.listdir(folder + "/made")) + 1
open(folder + "/made/" + str(count), "w").close()
print(f"{{prefix}}-{{count}}-0123456789")
try:
    os.rmdir(folder + "/running")
except FileNotFoundError:
    pass
"""


class TokenProgram:
    """A program that prints another token each time it runs, and leaves a file for each."""

    def __init__(self, folder: Path, name: str = "make-token", prefix: str = "made-token") -> None:
        self._folder = folder
        self.path = program(
            folder / name,
            PRINTS_TOKENS.format(python=sys.executable, folder=str(folder), prefix=prefix),
        )
        (folder / "made").mkdir()
        self.prefix = prefix

    @property
    def made(self) -> int:
        return len(list((self._folder / "made").iterdir()))

    @property
    def ran_at_once(self) -> bool:
        return (self._folder / "at-once").exists()


def program(path: Path, text: str) -> Path:
    """An executable script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    path.chmod(0o755)
    return path


def shell_program(path: Path, text: str) -> Path:
    return program(path, f"#!/bin/sh\n{text}\n")


class TokenGate:
    """Answers with the last text it was sent, if the token is the newest, for so many `uses`.

    A token that is newer than the last one it saw is good.
    """

    reads_head = True

    def __init__(self, prefix: str = "made-token", uses: int = sys.maxsize) -> None:
        self._prefix = prefix
        self._uses = uses
        self._lock = threading.Lock()
        self._newest = 0
        self._left = 0
        self.refused = 0
        self.served: Counter[str] = Counter()

    def __call__(self, request: Recorded) -> Reply:
        word: Any = request.json["messages"][-1]["content"]
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        prefix, _, rest = token.rpartition("-")[0].rpartition("-")
        number = int(rest) if scheme == "Bearer" and prefix == self._prefix else 0
        with self._lock:
            if number > self._newest:
                self._newest, self._left = number, self._uses
            if number < self._newest or number == 0 or self._left == 0:
                self.refused += 1
                return REFUSED
            self._left -= 1
            self.served[word] += 1
        return text_reply(word)


def on_path(*folders: Path) -> str:
    """A `PATH` with these folders first."""
    return os.pathsep.join((*map(str, folders), os.environ["PATH"]))
