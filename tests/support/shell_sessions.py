"""Sessions of `aish shell` over a model that does what it is told, and what they leave behind.

A line of a question says what the model does: `CALL repo__file_read {"path": "a.txt"}` asks for a
tool, `SAY text` answers it, anything else gets an answer that says how much the model was told.
"""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from cli_process import Done
from e2e_project import Project
from model_endpoint import Reply, text_reply, tool_reply
from terminal_window import Window

from aish.journal.reader import read_journal

FS = """
mcp: {servers: {repo: {pack: fs, root: data}}}
"""
APPROVED = """
mcp: {servers: {repo: {pack: fs, root: data}}, auto_approve: ["repo__file_read"]}
"""
COLUMNS = 160
READ = 'CALL repo__file_read {"path": "note.txt"}'


def obedient(body: Any) -> Reply:
    """A model that does what the last question says, and answers what it was told of it."""
    messages = body["messages"]
    last = messages[-1]
    text = _text(last)
    if last["role"] == "user":
        wanted = [line.split(" ", 2)[1:] for line in text.split("\n") if line.startswith("CALL ")]
        if wanted:
            calls = [(f"c{len(messages)}-{n}", *call) for n, call in enumerate(wanted)]
            return tool_reply([(id, name, arguments) for id, name, arguments in calls], "Well.")
        said = [line.removeprefix("SAY ") for line in text.split("\n") if line.startswith("SAY ")]
        if said:
            return text_reply("\n".join(said))
    return text_reply(f"<{len(messages)}: {text[-60:]}>")


def _text(message: Any) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content)


def sit(project: Project, *lines: str, args: tuple[str | Path, ...] = (), **options: Any) -> Done:
    """A session whose lines come from a pipe."""
    text = "".join(f"{line}\n" for line in lines)
    return project.aish("shell", "p.yaml", *args, stdin=text, **options)


@contextmanager
def at_terminal(project: Project, *args: str | Path) -> Generator[Window]:
    """A session that a person sees; it has its first prompt."""
    argv = [sys.executable, "-m", "aish", "shell", "p.yaml", *map(str, args)]
    with Window(
        argv, cwd=project.folder, env=project.aish.env, columns=COLUMNS, warm=project.aish.warm
    ) as window:
        window.wait_for(lambda: window.lines[-1].endswith(">") or "> " in window.lines[-1])
        yield window


def session_folders(project: Project) -> list[Path]:
    """The oldest first."""
    found = (project.folder / ".aish" / "sessions").glob("*Z-*")
    return sorted(found, key=lambda path: (path / "plan.json").stat().st_mtime_ns)


def records(folder: Path) -> list[Any]:
    """The journal of a session."""
    with read_journal(folder / "events.jsonl") as reading:
        return list(reading)


def messages(body: Any) -> list[Any]:
    """What a model was told, without the system prompt."""
    return [message for message in body["messages"] if message["role"] != "system"]


def accepted(project: Project, name: str, *, offline: bool = True) -> Any:
    """The exported file as data: it is valid without a warning, and `aish test` passes on it."""
    path = project.folder / name
    valid = project.aish("validate", "--strict", name)
    assert valid.code == 0, f"{valid.stderr}\n{path.read_text()}"
    env = {"MODEL_URL": "http://127.0.0.1:9/v1"} if offline else {}
    tested = project.aish("test", name, env=env)
    assert tested.code == 0, f"{tested.stdout}\n{tested.stderr}\n{path.read_text()}"
    return yaml.safe_load(path.read_text())
