"""What a person sees of a session: wide and narrow, with colour and without, resized (S4)."""

import json
import re
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, of_type, stdio
from model_endpoint import Gate, Reply, delta, json_reply, sse, stream_reply, text_reply, tool_reply
from shell_terminal import (
    CTRL_C,
    answered,
    ask,
    at_prompt,
    leave,
    sent_messages,
    session_journal,
    sitting,
)

PASTE, PASTED = "\x1b[200~", "\x1b[201~"
ANSWER = """# Release notes

It has **two** parts, as `aish plan` says it, and a line that is longer than most terminals are.

- one
- two, which is [the longer one](https://example.org/two)

```python
def f(x: int) -> int:
    return x
```

| part | size |
|------|-----:|
| one  |   12 |
"""
FILE = f"""
mcp:
  servers: {{s: {{command: {stdio("--era", "legacy", "--asks")}}}}}
  auto_approve: [s__echo, s__fail]
shell: {{auto_approve: ["echo **"]}}
"""
ECHO = json.dumps({"text": "line one\nline two of what the tool says, which is rather long"})
LOOKS = [
    pytest.param(80, {}, id="80 columns"),
    pytest.param(40, {}, id="40 columns"),
    pytest.param(20, {}, id="20 columns"),
    pytest.param(80, {"NO_COLOR": "1"}, id="no colour"),
]


def script() -> list[Any]:
    """What the model says, one reply after the other."""
    return [
        text_reply("hi there"),
        text_reply(ANSWER),
        tool_reply([("c1", "s__echo", ECHO), ("c2", "s__fail", "{}")], "Let me see."),
        text_reply("It says **two lines**."),
        tool_reply([("c3", "s__add", '{"a": 1, "b": 2}')]),
        text_reply("Then not.\n\nCMD: echo hello\nCMD: ls -l"),
        json_reply(401, {"error": {"message": "bad key"}}),
    ]


def of_a_quick_call(found: re.Match[str]) -> str:
    """A time and the rule behind it, which fills the line: after `1.2 s` it is longer."""
    time, rule = found.groups()
    return f"0.00 s {rule[0] * (len(time) + len(rule) - len('0.00 s'))}"


@pytest.mark.parametrize(("columns", "env"), LOOKS)
def test_a_session_looks_like_this(
    project: Project,
    model_endpoint: ModelEndpoints,
    snapshot: Any,
    columns: int,
    env: dict[str, str],
) -> None:
    project.uses(model_endpoint(script()))
    project.pipeline(FILE)
    with sitting(project, rows=160, columns=columns, env=env) as window:
        # The server is there after this, so that nothing waits for it below.
        answered(window, "hello", "hi there")
        for line, wanted in (("what is new?", "12"), ("call", "lines"), ("add", "[y/N/a")):
            ask(window, line)
            window.wait_for(wanted)
        # What is typed before the end of the question is no answer to it.
        window.wait_for(lambda: window.lines[-1].endswith("]"))
        window.type("\r")
        window.wait_for(lambda: window.lines[-1].endswith("[y/N/e]"))
        window.type("n\r")
        ask(window, "again")
        window.wait_for("401")
        window.wait_for(at_prompt(window))
        seen = window.styles if not env and columns > 40 else window.text
        seen = re.sub(r"\b([\d.]+ s) (─+)", of_a_quick_call, seen[seen.index("hi there") :])
        assert project.tidy(seen) == snapshot
        assert window.styled is not bool(env)
        assert leave(window) == 0


def test_the_first_prompt_stands_below_what_the_session_says_of_itself(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([text_reply("hi there")]))
    project.pipeline("")
    with sitting(project) as window:
        window.wait_for(lambda: window.lines[:1] == ["p · m (scripted)"])
        window.wait_for(at_prompt(window))
        assert window.lines == ["p · m (scripted)", "m>"]
        answered(window, "hello", "hi there")
        assert window.lines[:3] == ["p · m (scripted)", "m> hello", "hi there"]
        assert leave(window) == 0


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_terminal_without_escape_sequences_is_served_as_a_pipe_is(
    project: Project, model_endpoint: ModelEndpoints, term: str
) -> None:
    call = tool_reply([("c1", "s__add", '{"a": 1, "b": 2}')])
    project.uses(model_endpoint([text_reply("**hi** there"), call, text_reply("Then not.")]))
    project.pipeline(FILE)
    with sitting(project, env={"TERM": term}, prompt=False) as window:
        window.type("hello\r")
        window.wait_for("**hi** there")
        window.type("add them\r")
        window.wait_for("denied")
        window.wait_for("Then not.")
        window.type("\x04")
        assert window.finish() == 0
        assert "m>" not in window.text
        assert b"\x1b" not in window.raw
        assert window.echoes


@pytest.mark.parametrize("arguments", [(), ("--plain",)])
def test_a_terminal_that_is_resized_in_mid_answer_goes_on(
    project: Project, model_endpoint: ModelEndpoints, arguments: tuple[str, ...]
) -> None:
    gates = [Gate() for _ in range(3)]
    pieces = ["before " * 30 + "\n\n", "meanwhile " * 30 + "\n\n", "after " * 30 + "\n\n"]
    parts: list[Any] = []
    for piece, gate in zip(pieces, gates, strict=True):
        parts += [sse([delta(content=piece)], done=False), gate]
    whole = stream_reply(*parts, sse([delta("stop", content="the end")]))
    endpoint = model_endpoint([whole, text_reply("fine")])
    project.uses(endpoint)
    project.pipeline("")
    with sitting(project, *arguments) as window:
        ask(window, "go")
        steps = zip(("before", "meanwhile", "after"), (20, 40, 100), gates, strict=True)
        for word, columns, gate in steps:
            window.wait_for(word)
            window.resize(24, columns)
            gate.open()
        window.wait_for("the end")
        answered(window, "on", "fine")
        assert leave(window) == 0
        assert "Traceback" not in window.text
        # Nothing is said twice, and nothing is lost.
        words = (b"before", b"meanwhile", b"after")
        assert [window.raw.count(word) for word in words] == [30] * 3
    assert sent_messages(endpoint.asked[-1])[1] == ("assistant", "".join(pieces) + "the end")


@pytest.mark.requirement("S1")
@pytest.mark.parametrize("columns", [80, 20])
def test_a_paste_of_5000_lines_reaches_the_model_whole(
    project: Project, model_endpoint: ModelEndpoints, columns: int
) -> None:
    endpoint = model_endpoint([text_reply("I have read it")])
    project.uses(endpoint)
    project.pipeline("")
    lines = [f":line {number} é\t!" for number in range(5000)]
    with sitting(project, columns=columns) as window:
        window.type(f"{PASTE}{chr(13).join(['look:', *lines])}{PASTED}")
        window.wait_for("4999")
        window.type("\r")
        window.wait_for("I have read it")
    (asked,) = endpoint.asked
    assert sent_messages(asked) == [("user", "\n".join(["look:", *lines]))]


def test_lines_that_are_typed_ahead_are_taken_one_after_the_other(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    gate = Gate()
    begun = sse([delta(content="thinking\n\n")], done=False)
    slow = stream_reply(begun, gate, sse([delta("stop", content="done")]))
    endpoint = model_endpoint([slow, text_reply("second"), text_reply("third")])
    project.uses(endpoint)
    project.pipeline("")
    with sitting(project) as window:
        ask(window, "one")
        window.wait_for("thinking")
        window.type("two\rthree\r")
        gate.open()
        window.wait_for("third")
        assert leave(window) == 0
    questions = [text for role, text in sent_messages(endpoint.asked[-1]) if role == "user"]
    assert questions == ["one", "two", "three"]


def test_what_was_typed_ahead_does_not_answer_a_question(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    gate = Gate()
    begun = sse([delta(content="thinking\n\n")], done=False)
    calls = tool_reply([("c1", "s__add", '{"a": 1, "b": 2}')]).parts
    endpoint = model_endpoint([stream_reply(begun, gate, *calls), text_reply("well")])
    project.uses(endpoint)
    project.pipeline(FILE)
    with sitting(project, rows=40) as window:
        ask(window, "add")
        window.wait_for("thinking")
        window.type("y\r")
        gate.open()
        window.wait_for("send? [y/N/a/?]")
        window.type("n\r")
        window.wait_for("! input typed before the question was discarded")
        window.wait_for("well")
        assert leave(window) == 0
    (decided,) = of_type(session_journal(project), "tool.decided")
    assert decided["verdict"] == "ask-no"
    assert [text for role, text in sent_messages(endpoint.asked[-1]) if role == "user"] == ["add"]


@pytest.mark.parametrize("columns", [50, 30])
def test_a_paragraph_stands_once_in_a_window_made_narrower_within_it(
    project: Project, model_endpoint: ModelEndpoints, columns: int
) -> None:
    said = [" ".join(f"word{n}" for n in range(at, at + 40)) for at in (0, 40)]
    gates = [Gate(), Gate()]
    parts: list[Any] = []
    for piece, gate in zip(said, gates, strict=True):
        parts += [sse([delta(content=f"{piece} ")], done=False), gate]
    whole = stream_reply(*parts, sse([delta("stop", content="the end")]))
    project.uses(model_endpoint([whole]))
    project.pipeline("")
    # The emulator leaves lines where they are, as xterm does, which says so.
    env = {"XTERM_VERSION": "XTerm(379)"}
    with sitting(project, rows=40, columns=60, env=env) as window:
        window.wait_for("p · m (scripted)")
        ask(window, "go")
        window.wait_for("word39")
        window.resize(40, columns)
        gates[0].open()
        window.wait_for("word79")
        gates[1].open()
        window.wait_for("the end")
        window.wait_for(at_prompt(window))
        shown = " ".join(window.text.split("m> go")[1].split())
        assert shown.startswith(f"{said[0]} {said[1]} the end")
        assert leave(window) == 0


@pytest.mark.requirement("S4")
def test_an_answer_can_be_stopped_at_any_width(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    begun: Reply = stream_reply(sse([delta(content="word " * 99)], done=False), Gate())
    endpoint = model_endpoint([begun, text_reply("fine")])
    project.uses(endpoint)
    project.pipeline("")
    with sitting(project, columns=20, rows=10) as window:
        ask(window, "go")
        window.wait_for("word word")
        window.resize(5, 9)
        window.type(CTRL_C)
        window.wait_for(at_prompt(window))
        window.resize(24, 80)
        answered(window, "on", "fine")
        assert leave(window) == 0
