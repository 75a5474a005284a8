"""`:norris`: what runs unasked then, what does not, and what ends it (S5, P5)."""

import json
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, of_type, stdio
from model_endpoint import Gate, hanging_reply, text_reply, tool_reply
from shell_terminal import answered, ask, at_prompt, leave, sent_messages, session_journal, sitting
from terminal_window import Window

PASTES_OFF = b"\x1b[?2004l"


def file(*, trust: bool = True, more: str = "") -> str:
    server = f"{{command: {stdio('--era', 'legacy')}, trust: {json.dumps(trust)}}}"
    return f"mcp: {{servers: {{s: {server}}}{more}}}\n"


def echo(id: str, tool: str = "echo") -> tuple[str, str, str]:
    return id, f"s__{tool}", '{"text": "x"}' if tool == "echo" else "{}"


def verdicts(project: Project) -> list[tuple[str, str]]:
    decided = of_type(session_journal(project), "tool.decided")
    return [(event["tool"], event["verdict"]) for event in decided]


def on(window: Window, line: str = ":norris on") -> None:
    answered(window, line, "norris is on")


@pytest.mark.slow(reason="runs a session at a terminal for each tool")
@pytest.mark.parametrize(("trust", "tool"), [(True, "crash"), (False, "echo")])
def test_what_is_destructive_or_untrusted_is_asked_about_all_the_same(
    project: Project, model_endpoint: ModelEndpoints, tool: str, *, trust: bool
) -> None:
    project.shorten_pauses()
    endpoint = model_endpoint([tool_reply([echo("c1", tool)]), text_reply("well then")])
    project.uses(endpoint)
    project.pipeline(file(trust=trust))
    with sitting(project, rows=40) as window:
        on(window)
        ask(window, "go")
        window.wait_for("send? [y/N/a/?]")
        window.type("\r")
        window.wait_for("well then")
        assert leave(window) == 0
    assert verdicts(project) == [(f"s__{tool}", "ask-no")]


def test_a_rule_that_denies_holds_and_harmless_tools_run_until_the_steps_are_used_up(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    calls = [tool_reply([echo(f"c{number}")]) for number in range(3)]
    endpoint = model_endpoint([tool_reply([echo("c", "fail")]), *calls, text_reply("that is all")])
    project.uses(endpoint)
    project.pipeline(file(more=", deny: [s__fail]"))
    with sitting(project, rows=50) as window:
        on(window, ":norris on 2")
        ask(window, "go")
        window.wait_for("send? [y/N/a/?]")
        window.type("\r")
        window.wait_for("that is all")
        assert window.text.count("! norris has used its 2 calls and is off") == 1
        answered(window, ":norris", "norris is off")
        assert leave(window) == 0
    echoed = [("s__echo", verdict) for verdict in ("auto", "auto", "ask-no")]
    assert verdicts(project) == [("s__fail", "deny"), *echoed]
    sent_messages(endpoint.asked[-1])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("key", ["x", " ", "\x1b[A", "\x03"])
def test_any_key_halts_what_goes_on_by_itself(
    project: Project, model_endpoint: ModelEndpoints, key: str
) -> None:
    gate = Gate()

    def endless(body: Any) -> Any:
        messages = body["messages"]
        if messages[-1]["role"] == "user" and messages[-1]["content"] == "again":
            return text_reply("fine")
        reply = tool_reply([echo(f"c{len(messages)}")])
        return reply if len(messages) < 6 else reply.but(before_head=gate)

    endpoint = model_endpoint(endless)
    project.uses(endpoint)
    project.pipeline(file())
    with sitting(project, rows=40) as window:
        on(window)
        ask(window, "go")
        endpoint.wait_requests(3)
        window.type(key)
        window.wait_for("interrupted")
        window.wait_for(at_prompt(window))
        answered(window, ":norris", "norris is off")
        answered(window, "again", "fine")
        assert leave(window) == 0
    assert sent_messages(endpoint.asked[-1])[-1] == ("user", "again")


def test_that_the_last_call_was_used_is_told_also_where_a_key_stops_it(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([tool_reply([("c1", "s__sleep", '{"ms": 60000}')])])
    project.uses(endpoint)
    project.pipeline(file())
    with sitting(project, rows=40) as window:
        on(window, ":norris on 1")
        ask(window, "go")
        window.wait_for("! norris has used its 1 call and is off")
        window.wait_for("s__sleep")
        window.type("x")
        window.wait_for("interrupted")
        answered(window, ":norris", "norris is off")
        assert leave(window) == 0
    assert verdicts(project) == [("s__sleep", "auto")]


@pytest.mark.parametrize("key", ["\x03", "\x03x"])
def test_ctrl_c_right_behind_a_question_stops_it_and_not_the_session(
    project: Project, model_endpoint: ModelEndpoints, key: str
) -> None:
    gate = Gate()
    endpoint = model_endpoint(lambda _: hanging_reply(gate))
    project.uses(endpoint)
    project.pipeline("")
    with sitting(project) as window:
        # At once, and as soon as the line is taken.
        for pause in (False, True):
            on(window)
            window.mark()
            taken = window.raw.count(PASTES_OFF)
            window.type("question\r")
            if pause:
                window.wait_for_raw(PASTES_OFF, times=taken + 1)
            window.type(key)
            window.wait_for(lambda: "interrupted" in "\n".join(window.since))
            answered(window, ":norris", "norris is off")
        assert leave(window) == 0
    assert session_journal(project)[-1]["type"] == "run.finished"


def test_proposed_commands_are_asked_about_all_the_same(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([text_reply("CMD: touch ran")]))
    project.pipeline(file())
    with sitting(project) as window:
        on(window)
        ask(window, "go")
        window.wait_for("run 'touch ran'? [y/N/e]")
        window.type("\r")
        assert leave(window) == 0
    assert not (project.folder / "ran").exists()
