"""What a session can be doing when something happens to it: each state, and how it is reached."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from e2e_project import ModelEndpoints, Project, stdio
from model_endpoint import (
    Answer,
    Gate,
    Reply,
    delta,
    hanging_reply,
    sse,
    stream_reply,
    text_reply,
    tool_reply,
)
from shell_terminal import ask, at_prompt
from terminal_window import Window

_FORM = {
    "message": "Which colour?",
    "requestedSchema": {"type": "object", "properties": {"colour": {"type": "string"}}},
}
_PASTES_OFF = b"\x1b[?2004l"
_WAIT = "!trap '' HUP TERM INT; echo $$ > pid.part; mv pid.part pid; echo begun; sleep 600"


def half(text: str) -> Reply:
    """An answer that begins and never ends."""
    return stream_reply(sse([delta(role="assistant", content=text)], done=False), Gate())


@dataclass(frozen=True)
class State:
    """Lines that are typed one after the other, what the model answers them, and what is seen."""

    lines: tuple[str, ...]
    seen: str
    replies: Callable[[], tuple[Answer, ...]] = field(default=tuple)
    typed: str = ""
    """What is typed without Enter."""
    requests: int = 0
    """How many requests have come then."""
    hangs: bool = False
    """Whether the server never answers."""


def _asks() -> tuple[Answer, ...]:
    params = json.dumps({"method": "elicitation/create", "params": _FORM})
    return (tool_reply([("c1", "s__ask_client", params)]),)


STATES = {
    "editing": State((), "m> half a line", typed="half a line"),
    "connecting": State(("hello",), "waiting for s", hangs=True),
    "before the first token": State(("hello",), "", lambda: (hanging_reply(Gate()),), requests=1),
    "streaming": State(("hello",), "Once upon", lambda: (half("Once upon\n\n"),)),
    "a tool": State(
        ("hello",), "s__sleep", lambda: (tool_reply([("c1", "s__sleep", '{"ms": 600000}')]),)
    ),
    "an approval": State(("hello",), "[y/N/a", lambda: (tool_reply([("c1", "s__fail", "{}")]),)),
    "a proposal": State(("hello",), "run 'ls'? [y/N/e]", lambda: (text_reply("CMD: ls\nCMD: id"),)),
    "an elicitation": State(("hello",), "answer it? [y/N]", _asks),
    "a local command": State((_WAIT,), "\n  │ begun"),
    "a pipeline": State((":run other.yaml",), "It was", lambda: (half("It was\n\n"),)),
    "a summary": State(
        ("one", "two", ":compact"),
        "",
        lambda: (text_reply("first"), text_reply("second"), hanging_reply(Gate())),
        requests=3,
    ),
}


def set_the_scene(
    project: Project, model_endpoint: ModelEndpoints, state: State, *flags: Any
) -> Any:
    """The pipelines, the server and the endpoint of a state; after its replies: `next answer`."""
    endpoint = model_endpoint([*state.replies(), *[text_reply("next answer")] * 3])
    project.uses(endpoint)
    own = ("--hang-at-start",) if state.hangs else ("--asks", "--era", "legacy")
    cancelled = project.folder / "cancelled"
    command = stdio(*own, "--note-cancelled", cancelled, *flags)
    rules = "auto_approve: [s__sleep, s__ask_client]"
    project.pipeline(f"mcp: {{servers: {{s: {{command: {command}}}}}, {rules}}}\n")
    project.pipeline(
        "steps: [{id: tell, prompt: Tell}, {id: more, needs: [tell], prompt: More}]", "other.yaml"
    )
    return endpoint


def reach(window: Window, endpoint: Any, state: State) -> None:
    """Bring a session to a state."""
    for line in state.lines:
        window.wait_for(at_prompt(window))
        taken = window.raw.count(_PASTES_OFF)
        ask(window, line)
        # Until it is drawn and taken, the prompt on the screen may be the one before it.
        window.wait_for(f"m> {line[:60]}")
        window.wait_for_raw(_PASTES_OFF, times=taken + 1)
    window.type(state.typed)
    if state.requests:
        endpoint.wait_requests(state.requests)
    last = f"m> {state.lines[-1][:60]}" if state.lines else ""
    wanted = state.seen or last
    window.wait_for(lambda: wanted in window.text and not at_prompt(window)())
