"""`aish shell` in a terminal, as a person would sit before it, and what a model was told.

with sitting(project) as window:
    ask(window, "a question")
    window.wait_for("an answer")
    window.wait_for(at_prompt(window))
"""

import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e_project import Project
from terminal_window import Window

from aish.journal.reader import read_journal

CTRL_C, CTRL_D = "\x03", "\x04"
_PROMPT = re.compile(r"^(?:m|aish)>$")


@contextmanager
def sitting(
    project: Project,
    *arguments: str | Path,
    rows: int = 24,
    columns: int = 80,
    file: str | None = "p.yaml",
    prompt: bool = True,
    env: Mapping[str, str] | None = None,
) -> Generator[Window]:
    """A session on `p.yaml` with a person before it, who has the first prompt."""
    named = [] if file is None else [file]
    argv = [*project.aish.python, "-m", "aish", "shell", *named, *map(str, arguments)]
    environment = {**project.aish.env, **(env or {})}
    with Window(
        argv,
        cwd=project.folder,
        env=environment,
        rows=rows,
        columns=columns,
        warm=project.aish.warm,
    ) as window:
        if prompt:
            window.wait_for(at_prompt(window))
        yield window


def at_prompt(window: Window) -> Callable[[], bool]:
    """Whether an empty prompt is the last thing on the screen (a toolbar may stand below it)."""
    return lambda: any(_PROMPT.match(line) for line in window.lines[-2:])


def ask(window: Window, line: str) -> None:
    """Type a line, once there is a prompt to type it at."""
    window.wait_for(at_prompt(window))
    window.type(f"{line}\r")


def answered(window: Window, line: str, wanted: str) -> None:
    """Type a line; its answer comes, and then another prompt."""
    window.wait_for(at_prompt(window))
    window.mark()
    window.type(f"{line}\r")
    window.wait_for(lambda: wanted in "\n".join(window.since))
    window.wait_for(lambda: any(_PROMPT.match(row) for row in window.since[1:][-2:]))


def leave(window: Window) -> int:
    """Ctrl-D at the prompt; the exit code."""
    window.wait_for(at_prompt(window))
    window.type(CTRL_D)
    return window.finish()


def left_alone(window: Window) -> bool:
    """Whether the terminal is as it was found: it echoes, and pastes and the cursor are its own."""
    restored = window.raw.rfind(b"\x1b[?2004l") > window.raw.rfind(b"\x1b[?2004h")
    seen = window.raw.rfind(b"\x1b[?25h") >= window.raw.rfind(b"\x1b[?25l")
    return window.echoes and restored and seen


def session_folder(project: Project) -> Path:
    """The folder of the only session."""
    (folder,) = (project.folder / ".aish" / "sessions").glob("*Z-*")
    return folder


def session_journal(project: Project) -> list[Any]:
    """Its events."""
    with read_journal(session_folder(project) / "events.jsonl") as reading:
        return list(reading)


def sent_messages(body: Any) -> list[tuple[str, str]]:
    """The messages of a request as role and text, after the system prompt; they are legal."""
    require_legal(body["messages"])
    return [(one["role"], _text(one)) for one in body["messages"] if one["role"] != "system"]


def require_legal(messages: list[Any]) -> None:
    """Strict alternation, each call answered right behind it, the last turn one to be answered."""
    roles = [one["role"] for one in messages]
    assert "system" not in roles[1:], roles
    rest = messages[1:] if roles[0] == "system" else messages
    awaited = "user"
    waiting: set[str] = set()
    for message in rest:
        role = message["role"]
        if role == "tool":
            assert message["tool_call_id"] in waiting, (message, roles)
            waiting.remove(message["tool_call_id"])
            continue
        assert not waiting, f"unanswered calls {waiting}: {roles}"
        assert role == awaited, f"{role} where {awaited} should be: {roles}"
        calls = message.get("tool_calls") or []
        waiting = {call["id"] for call in calls}
        assert role == "user" or calls or _text(message), "an empty answer"
        awaited = "assistant" if role == "user" or calls else "user"
    assert not waiting, f"unanswered calls {waiting}: {roles}"
    assert rest[-1]["role"] in {"user", "tool"}, roles


def _text(message: Any) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content)
