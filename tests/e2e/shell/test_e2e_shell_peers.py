"""A session whose servers and endpoints die, hang, refuse or lie: told, and the session goes on."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, of_type, stdio
from model_endpoint import (
    CUT,
    RESET,
    Reply,
    delta,
    json_reply,
    sse,
    stream_reply,
    text_reply,
    tool_reply,
)
from samples import sampled
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
from terminal_window import Window

HOSTILE = Path(__file__).parents[2] / "support" / "mcp_hostile_server.py"
IMPATIENT = "models: {m: {base_url: '${MODEL_URL}', model: scripted, retry: {attempts: 1}}}\n"
EVIL = "\x1b]0;title\x07\x1b[2J\x1b[H\u202eevil\u202c\rover\x08\x9b31m"
ALL = "auto_approve: ['s__echo', 's__crash', 's__says', 's__fails', 's__refuses', 's__huge']"


def serving(command: str, more: str = "") -> str:
    """A file with one server, whose tools run unasked."""
    return f"mcp: {{servers: {{s: {{command: {command}}}}}, {ALL}}}\n{more}"


def called(name: str, arguments: str = "{}") -> Reply:
    return tool_reply([("c1", f"s__{name}", arguments)])


def require_tame(window: Window) -> None:
    """Nothing that a stranger wrote has reached the terminal as more than text."""
    for sequence in (b"\x1b]", b"\x07", b"\x1b[2J", b"\x1b[H", b"\x08", b"\x9b31m", b"\rover"):
        assert sequence not in window.raw
    assert "\u202e".encode() not in window.raw


def test_a_server_that_dies_is_started_again_and_missed_where_that_fails(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.shorten_pauses()
    echo = called("echo", '{"text": "x"}')
    rounds = [called("crash"), text_reply("one died"), echo, text_reply("two lives")]
    # The third question's tools are those it was asked with, whatever becomes of them.
    rounds += [
        called("crash"),
        echo,
        echo,
        echo,
        text_reply("three died"),
        text_reply("four has none"),
    ]
    endpoint = model_endpoint([*rounds, echo, text_reply("five is well")])
    project.uses(endpoint)
    project.pipeline(
        serving(stdio("--note-pid", project.folder / "starts", "--die-at-starts", "345")).replace(
            "auto_approve: [", "auto_approve: [{tool: s__crash}, "
        )
    )
    with sitting(project, rows=60) as window:
        for line, wanted in (("1", "one died"), ("2", "two lives"), ("3", "three died")):
            ask(window, line)
            window.wait_for(wanted)
        window.wait_for("missing: s")
        answered(window, ":mcp list", "failed: the server ended")
        answered(window, "4", "four has none")
        window.wait_for(at_prompt(window))
        window.type(":mcp connect \t")
        window.wait_for(lambda: any(line.strip() == "s" for line in window.lines))
        window.type("s\r")
        window.wait_for("s is connected: 8 tools")
        answered(window, "5", "five is well")
        assert leave(window) == 0
        assert window.text.count("`:mcp connect s` tries again") == 1
    kinds = [event["kind"] for event in of_type(session_journal(project), "tool.finished")]
    assert kinds == ["transport_error", "ok", *["transport_error"] * 4, "ok"]
    offered = ["tools" in body for body in endpoint.asked]
    assert offered == [True] * 9 + [False, True, True]
    sent_messages(endpoint.asked[-1])


@pytest.mark.slow(reason="runs a session and its export")
def test_a_session_whose_server_was_lost_can_be_exported(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.shorten_pauses()
    echo = called("echo", '{"text": "x"}')
    rounds = [called("crash"), echo, called("crash"), echo, echo, echo, text_reply("died")]
    project.uses(model_endpoint([*rounds, text_reply("none"), echo, text_reply("well")]))
    command = stdio("--note-pid", project.folder / "starts", "--die-at-starts", "345")
    project.pipeline(
        serving(f"{command}, required: false").replace(
            "auto_approve: [", "auto_approve: [{tool: s__crash}, "
        )
    )
    lines = ("one", "two", ":mcp connect s", "three", ":export e.yaml")
    sat = project.aish("shell", "p.yaml", stdin="".join(f"{line}\n" for line in lines))
    assert sat.code == 0, sat.stderr
    assert sat.stderr.count("mcp server `s` is missing (`:mcp connect s` tries again)") == 1
    tested = project.aish("test", "e.yaml")
    assert tested.code == 0, f"{tested.stdout}\n{tested.stderr}"


def test_a_server_that_does_not_come_up_is_told_of_once(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("one"), text_reply("two")])
    project.uses(endpoint)
    project.pipeline(serving(stdio("--die-at-start")))
    with sitting(project) as window:
        window.wait_for("missing: s")
        answered(window, "1", "one")
        answered(window, "2", "two")
        assert leave(window) == 0
        assert window.text.count("mcp server `s` is missing ") == 1
    assert "tools" not in endpoint.asked[0]


def test_a_required_server_is_waited_for_with_every_question(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("one")])
    project.uses(endpoint)
    server = f"{{command: {stdio('--die-at-start')}, required: true}}"
    project.pipeline(f"mcp: {{servers: {{s: {server}}}}}\n")
    with sitting(project) as window:
        answered(window, "1", "hint: `:mcp disconnect s` continues without it")
        assert not endpoint.requests
        ask(window, ":mcp disconnect s")
        answered(window, ":retry", "one")
        assert leave(window) == 0
    assert sent_messages(endpoint.asked[0]) == [("user", "1")]


@pytest.mark.parametrize(
    "tool",
    sampled(["says", "fails", "refuses", "huge"], often={0}, reason="cases of the same kind"),
)
def test_nothing_of_a_hostile_server_steers_the_terminal(
    project: Project, model_endpoint: ModelEndpoints, tool: str
) -> None:
    endpoint = model_endpoint([called(tool), text_reply("I was called")])
    project.uses(endpoint)
    project.pipeline(serving(json.dumps([sys.executable, str(HOSTILE)])))
    with sitting(project, rows=100) as window:
        answered(window, "call it", "I was called")
        answered(window, ":mcp tools", "s__says")
        answered(window, ":mcp tool s__says", "what\\u001b[2J")
        assert leave(window) == 0
        assert len(window.raw) < 100_000
        require_tame(window)
    sent_messages(endpoint.asked[-1])
    assert len(endpoint.asked[-1]["messages"][-1]["content"]) < 1 << 20


@pytest.mark.parametrize("how", ["drawn", "--plain", "NO_COLOR"])
def test_nothing_of_a_hostile_model_steers_the_terminal(
    project: Project, model_endpoint: ModelEndpoints, how: str
) -> None:
    asked = "run 'ls'? [y/N/e] y\nm> \n```\nCMD: touch fenced\n```\n"
    lines = f"{EVIL}\n{asked}# {EVIL}\n| a | {EVIL} |\n|---|---|\n| b | c |\n[{EVIL}]({EVIL})\n"
    answer = f"{lines}CMD: touch ran \x1b[8m hidden \u202e\nlast"
    odd = [("c1", f"s__{EVIL}", "{}"), ("c2", "s__says", '{"a'), ("", "", f'"{EVIL}"')]
    pieces = [answer[at : at + 7] for at in range(0, len(answer), 7)]
    endpoint = model_endpoint(
        [tool_reply(odd, EVIL), text_reply("", pieces=pieces), text_reply("fine")]
    )
    project.uses(endpoint)
    project.pipeline(serving(json.dumps([sys.executable, str(HOSTILE)])))
    arguments = ("--plain",) if how == "--plain" else ()
    env = {"NO_COLOR": "1"} if how == "NO_COLOR" else {}
    with sitting(project, *arguments, rows=100, env=env) as window:
        ask(window, "be evil")
        window.wait_for("invisible characters are spelled out")
        window.wait_for(lambda: window.lines[-1].endswith("? [y/N/e]"))
        window.type("\r")
        answered(window, "go on", "fine")
        assert leave(window) == 0
        require_tame(window)
    sent_messages(endpoint.asked[-1])
    assert not (project.folder / "ran").exists()
    assert not (project.folder / "fenced").exists()


@pytest.mark.slow(reason="a line without end")
def test_an_answer_of_one_endless_line_is_shown_and_can_be_stopped(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    def endless() -> Any:
        yield sse([delta(role="assistant", content="begun ")], done=False)
        for number in range(1 << 30):
            yield sse([delta(content=f"w{number} " * 50)], done=False)

    stream = Reply(endless(), headers={"content-type": "text/event-stream"})
    endpoint = model_endpoint([stream, text_reply("fine")])
    project.uses(endpoint)
    project.pipeline("")
    with sitting(project) as window:
        ask(window, "go")
        window.wait_for(lambda: len(window.raw) > 200_000)
        window.type(CTRL_C)
        window.wait_for("interrupted: the answer so far is kept")
        window.wait_for(at_prompt(window))
        assert endpoint.requests[0].aborted.wait(60)


@pytest.mark.slow(reason="sends five megabytes")
@pytest.mark.parametrize(
    "arguments", sampled([[], ["--plain"]], often={0}, reason="cases of the same kind")
)
def test_a_line_of_five_megabytes_arrives_whole(
    project: Project, model_endpoint: ModelEndpoints, arguments: list[str]
) -> None:
    pieces = ["y" * 65536] * 80
    whole = text_reply("", pieces=[*pieces, " end"])
    endpoint = model_endpoint([whole, text_reply("fine")])
    project.uses(endpoint)
    project.pipeline("")
    with sitting(project, *arguments) as window:
        ask(window, "go")
        window.watched = False
        window.wait_for_raw(b" end")
        window.watched = True
        window.type("on\r")
        window.wait_for("fine")
        assert leave(window) == 0
        assert window.raw.count(b"y") < 7 << 20
    assert [len(text) for _, text in sent_messages(endpoint.asked[-1])] == [2, (5 << 20) + 4, 2]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (json_reply(401, {"error": {"message": f"bad key {EVIL}"}}), "HTTP 401"),
        (json_reply(400, {"error": {"message": "no such thing"}}), "HTTP 400"),
        (json_reply(500, {"error": {"message": "boom"}}, {"x-should-retry": "false"}), "HTTP 500"),
        (Reply((f"garbage {EVIL}".encode(),), framing="length"), "not a chat completion: garbage"),
        (Reply((b"HTTP/9 what\r\n\r\n",), framing="raw", headers={}), "✗"),
        (stream_reply(sse(["{broken"], done=False)), "✗"),
    ],
)
def test_an_endpoint_that_refuses_is_told_in_red_and_the_question_is_taken_back(
    project: Project, model_endpoint: ModelEndpoints, reply: Reply, said: str
) -> None:
    def answer(body: Any) -> Reply:
        return text_reply("fine") if body["messages"][-1]["content"] == "two" else reply

    endpoint = model_endpoint(answer)
    project.uses(endpoint)
    project.pipeline(
        "models: {m: {base_url: '${MODEL_URL}', model: scripted, retry: {attempts: 1}}}\n"
    )
    with sitting(project) as window:
        answered(window, "one", said)
        assert re.search(rb"\x1b\[31m\xe2\x9c\x97 model `m`", window.raw)
        answered(window, "two", "fine")
        assert leave(window) == 0
        require_tame(window)
    assert sent_messages(endpoint.asked[-1]) == [("user", "two")]


def test_an_endpoint_that_is_not_there_is_told_and_asked_again(project: Project) -> None:
    # Not the port of an endpoint that has ended: another test may have got it since.
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:9/v1"
    project.pipeline(
        "models: {m: {base_url: '${MODEL_URL}', model: scripted, retry: {attempts: 1}}}\n"
    )
    with sitting(project) as window:
        answered(window, "one", "✗ model `m`: ")
        assert leave(window) == 0
        assert "Traceback" not in window.text


@pytest.mark.parametrize("how", [CUT, RESET])
def test_an_answer_that_breaks_off_for_good_keeps_what_was_said(
    project: Project, model_endpoint: ModelEndpoints, how: Any
) -> None:
    begun = sse([delta(role="assistant", content="Once upon\n\n")], done=False)

    def answer(body: Any) -> Reply:
        last = body["messages"][-1]["content"]
        return text_reply("fine") if last == "two" else stream_reply(begun, how)

    endpoint = model_endpoint(answer)
    project.uses(endpoint)
    project.pipeline(
        "models: {m: {base_url: '${MODEL_URL}', model: scripted, retry: {attempts: 1}}}\n"
    )
    with sitting(project) as window:
        answered(window, "one", "✗ model `m`: ")
        answered(window, "two", "fine")
        assert leave(window) == 0
    assert sent_messages(endpoint.asked[-1])[-1] == ("user", "two")


TWICE = tool_reply([("c1", "s__echo", '{"text": "a"}'), ("c2", "s__echo", '{"text": "b"}')])
PRICED = (
    "models: {m: {base_url: '${MODEL_URL}', model: scripted, params: {max_tokens: 9},"
    " price: {input: 1.0, output: 1.0}}}\n"
)


@pytest.mark.parametrize(
    ("keys", "said"),
    sampled(
        [
            ("max_tool_depth: 1", "tool-call depth limit reached (`max_tool_depth: 1`)"),
            ("max_calls_per_turn: 1", "the model asked for 2 tool calls in one turn"),
            ("limits: {tool_calls: 1}", "the limit of 1 tool call is reached"),
            ("limits: {turns: 1}", "the limit of 1 turn is reached"),
            (f"{PRICED}limits: {{tokens: 1}}", "tokens"),
            (f"{PRICED}limits: {{cost_usd: 0.000001}}", "cost"),
            ("limits: {time: 1ms}", "the time limit of 0.001 s is exceeded"),
        ],
        often={0, 5},
        reason="cases of the same kind",
    ),
)
def test_a_limit_that_is_reached_is_told_and_the_prompt_comes_back(
    project: Project, model_endpoint: ModelEndpoints, keys: str, said: str
) -> None:
    endpoint = model_endpoint(
        lambda body: TWICE if body["messages"][-1]["role"] != "assistant" else text_reply("never")
    )
    project.uses(endpoint)
    project.pipeline(serving(stdio(), keys))
    with sitting(project, rows=40) as window:
        answered(window, "one", said)
        assert re.search(rb"\x1b\[31m\xe2\x9c\x97 ", window.raw)
        answered(window, "two", said)
        assert leave(window) == 0
    for body in endpoint.asked:
        sent_messages(body)
    ends = of_type(session_journal(project), "step.finished")
    assert {end["status"] for end in ends} <= {"budget", "failed"}


@pytest.mark.parametrize(("more", "goes_on"), [("", True), ("on_denied: fail\n", False)])
def test_a_no_is_told_to_the_model_who_goes_on_unless_the_file_says_otherwise(
    project: Project, model_endpoint: ModelEndpoints, more: str, *, goes_on: bool
) -> None:
    endpoint = model_endpoint([called("add", '{"a": 1, "b": 2}'), *[text_reply("very well")] * 2])
    project.uses(endpoint)
    project.pipeline(serving(stdio(), more))
    with sitting(project, rows=40) as window:
        ask(window, "add them")
        window.wait_for("send? [y/N/a/?]")
        window.type("n\r")
        window.wait_for("very well" if goes_on else "✗ tool call denied")
        answered(window, "and now?", "very well")
        assert leave(window) == 0
    assert len(endpoint.asked) == 3 - (not goes_on)
    assert sent_messages(endpoint.asked[-1])[-1] == ("user", "and now?")


@pytest.mark.slow(reason="waits for a server")
def test_keys_are_echoed_while_a_server_never_answers(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([]))
    project.pipeline(serving(stdio("--hang-at-start")))
    with sitting(project) as window:
        for at, key in enumerate("hello", 1):
            window.type(key)
            window.wait_for(f"m> {'hello'[:at]}")
        window.wait_for("connecting to s")
        window.type(CTRL_C)
        answered(window, ":context", "about")
        assert leave(window) == 0
