"""Ctrl-C stops what runs and not the session; what is told next is a legal conversation (S1)."""

import os
import signal
from dataclasses import replace
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, of_type, processes_in, wait_file, wait_gone
from model_endpoint import Reply, text_reply, tool_reply
from samples import sampled
from shell_states import STATES, half, reach, set_the_scene
from shell_terminal import (
    CTRL_C,
    answered,
    ask,
    at_prompt,
    leave,
    left_alone,
    sent_messages,
    session_journal,
    sitting,
)
from terminal_window import Window

KEPT = "[aish] interrupted by the user"
Talk = list[tuple[str, str]]


def hanging_at_hello(body: Any) -> Reply:
    """Begins to answer `hello`, and answers anything else."""
    last = body["messages"][-1]["content"]
    return half("Once") if last == "hello" else text_reply("next answer")


def with_call(reply: str, said: str = KEPT) -> Talk:
    """A question whose call was answered by us."""
    return [("user", "hello"), ("assistant", ""), ("tool", reply), ("assistant", said)]


BEFORE: dict[str, Talk] = {
    "editing": [],
    "before the first token": [],
    "streaming": [("user", "hello"), ("assistant", f"Once upon\n\n{KEPT}")],
    "a tool": with_call("[aish] tool call interrupted; whether it took effect is not known"),
    "an approval": with_call("[aish] tool call not run: interrupted"),
    "a proposal": [("user", "hello"), ("assistant", "CMD: ls\nCMD: id")],
    "an elicitation": with_call('{"action":"cancel"}', "next answer"),
    "a pipeline": [],
    "a summary": [
        ("user", "one"),
        ("assistant", "first"),
        ("user", "two"),
        ("assistant", "second"),
    ],
}


@pytest.mark.parametrize("name", sampled(BEFORE, often={0, 3}, reason="cases of the same kind"))
def test_ctrl_c_stops_what_runs_and_the_next_question_is_answered(
    project: Project, model_endpoint: ModelEndpoints, name: str
) -> None:
    state = STATES[name]
    endpoint = set_the_scene(project, model_endpoint, state)
    with sitting(project) as window:
        reach(window, endpoint, state)
        window.type(CTRL_C)
        window.wait_for(at_prompt(window))
        asked = len(endpoint.asked)
        answered(window, "next", "next answer")
        assert leave(window) == 0
        assert "Traceback" not in window.text
    assert [sent_messages(body) for body in endpoint.asked[asked:]] == [
        [*BEFORE[name], ("user", "next")]
    ]
    (end,) = of_type(session_journal(project), "run.finished")
    assert (end["status"], end["exit"]["code"]) == ("ok", 0)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("an approval", "✗ interrupted: s__fail was not sent"),
        ("a tool", "✗ interrupted: outcome of s__sleep is unknown"),
    ],
)
def test_a_call_that_a_ctrl_c_stops_is_named(
    project: Project, model_endpoint: ModelEndpoints, name: str, said: str
) -> None:
    state = STATES[name]
    endpoint = set_the_scene(project, model_endpoint, state)
    with sitting(project) as window:
        reach(window, endpoint, state)
        window.type(CTRL_C)
        window.wait_for(said)
        assert leave(window) == 0
    (end,) = of_type(session_journal(project), "step.finished")
    assert end["error"]["message"] == said.removeprefix("✗ ")


def test_of_several_calls_each_is_named_as_what_became_of_it(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    asked = [("c1", "s__fail", "{}"), ("c2", "s__sleep", "{}"), ("c3", "s__fail", "{}")]
    calls = [*asked, ("c4", "s__sleep", "{}")]
    state = replace(STATES["an approval"], replies=lambda: (tool_reply(calls),))
    endpoint = set_the_scene(project, model_endpoint, state)
    with sitting(project) as window:
        reach(window, endpoint, state)
        window.type(CTRL_C)
        window.wait_for("interrupted: s__fail, s__sleep, s__fail and 1 more were not sent")
        answered(window, "next", "next answer")
        assert leave(window) == 0


def test_proposals_that_a_ctrl_c_skips_are_named(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    state = STATES["a proposal"]
    endpoint = set_the_scene(project, model_endpoint, state)
    with sitting(project) as window:
        reach(window, endpoint, state)
        window.type(CTRL_C)
        window.wait_for("`ls` and 1 more `CMD:` line are not run: interrupted")
        assert leave(window) == 0
    assert of_type(session_journal(project), "tool.decided") == []


@pytest.mark.requirement("M9")
def test_an_interrupted_call_is_cancelled_at_its_server(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    state = STATES["a tool"]
    called = project.folder / "called"
    endpoint = set_the_scene(project, model_endpoint, state, "--note-called", called)
    with sitting(project) as window:
        reach(window, endpoint, state)
        # It is shown before it is sent.
        wait_file(called)
        window.type(CTRL_C)
        wait_file(project.folder / "cancelled")
        answered(window, "next", "next answer")


def test_an_answer_that_is_stopped_is_no_longer_received(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    state = STATES["streaming"]
    endpoint = set_the_scene(project, model_endpoint, state)
    with sitting(project) as window:
        reach(window, endpoint, state)
        window.type(CTRL_C)
        window.wait_for("interrupted: the answer so far is kept")
        assert endpoint.requests[0].aborted.wait(60)


def test_an_interrupted_command_is_killed_with_its_children_and_told_of(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    state = STATES["a local command"]
    endpoint = set_the_scene(project, model_endpoint, state)
    with sitting(project) as window:
        reach(window, endpoint, state)
        pid = int((project.folder / "pid").read_text())
        window.type(CTRL_C)
        wait_gone(pid)
        answered(window, "next", "next answer")
        (message,) = sent_messages(endpoint.asked[0])
        assert message[1].endswith("\nbegun\n[aish] interrupted\n\nnext")
        assert os.fspath(project.folder / "pid") not in window.text


def test_a_question_that_waits_for_a_server_says_so_and_can_be_given_up(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    state = STATES["connecting"]
    endpoint = set_the_scene(project, model_endpoint, state)
    with sitting(project) as window:
        # The editor is there, and shows what is typed, while the server never answers.
        window.type("hello")
        window.wait_for("m> hello\nconnecting to s")
        window.type("\r")
        window.wait_for("waiting for s to connect")
        window.type(CTRL_C)
        window.wait_for("interrupted before any answer: the question is taken back")
        assert not endpoint.requests
        ask(window, ":mcp disconnect s")
        answered(window, ":retry", "next answer")
        assert leave(window) == 0
    assert sent_messages(endpoint.asked[0]) == [("user", "hello")]


def test_an_interrupted_pipeline_has_a_journal_with_an_end(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    state = STATES["a pipeline"]
    endpoint = set_the_scene(project, model_endpoint, state)
    with sitting(project) as window:
        reach(window, endpoint, state)
        window.type(CTRL_C)
        answered(window, "next", "next answer")
        assert leave(window) == 0
    end = project.journal[-1]
    assert (end["type"], end["status"], end["exit"]["code"]) == ("run.finished", "interrupted", 130)


def _ended(window: Window) -> int:
    """The exit code: 130 where a second Ctrl-C came while the first one was still at work.

    That takes half a second at most. One that comes later, or as one with the first, finds the
    prompt, and the session goes on.
    """
    try:
        window.wait_for(lambda: window.lines[-1].strip() == "m>")
    except AssertionError:
        return window.finish()
    return leave(window)


def test_two_ctrl_c_leave_no_process_behind(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint())
    project.pipeline("")
    slow = "trap 'touch stopping' TERM; echo $$ > pid; echo begun; while :; do sleep 600; done"
    with sitting(project) as window:
        ask(window, f"!{slow}")
        window.wait_for("│ begun")
        pid = int((project.folder / "pid").read_text())
        window.type(CTRL_C)
        window.type(CTRL_C)
        assert _ended(window) in {0, 130}
        assert left_alone(window)
        wait_gone(pid)
    for pid in processes_in(project.folder):
        wait_gone(pid)


def test_two_ctrl_c_in_a_pipeline_leave_no_process_behind(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint())
    project.pipeline("")
    project.write(
        "slow.sh",
        "trap 'touch stopping' TERM\necho $$ > part\nmv part pid\nwhile :; do sleep 600; done\n",
    )
    project.pipeline("mcp: {auto_approve: [shell__run]}\nrun: [sh, slow.sh]\n", "other.yaml")
    with sitting(project) as window:
        ask(window, ":run other.yaml")
        wait_file(project.folder / "pid")
        # What stands there afterwards is not the prompt before it.
        window.wait_for("shell__run")
        pid = int((project.folder / "pid").read_text())
        window.type(CTRL_C)
        window.type(CTRL_C)
        assert _ended(window) in {0, 130}
        assert left_alone(window)
        wait_gone(pid)


def test_ctrl_c_as_fast_as_it_can_be_typed_stops_the_answer(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint(hanging_at_hello))
    project.pipeline("")
    with sitting(project) as window:
        window.type(f"hello\r{CTRL_C}")
        window.wait_for("interrupted")
        answered(window, "next", "next answer")
        assert leave(window) == 0


LATE = """
import runpy, sys
from pathlib import Path

class Late:
    def find_spec(self, name, path=None, target=None):
        if name == "aish.shell.bootstrap":
            Path("opens").read_bytes()

sys.meta_path.insert(0, Late())
del sys.argv[1:3]
runpy.run_module("aish", run_name="__main__", alter_sys=True)
"""


def test_ctrl_c_behind_the_first_question_stops_it_while_the_session_is_being_opened(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(hanging_at_hello)
    project.uses(endpoint)
    project.pipeline("")
    # The session is not there before somebody writes to this.
    os.mkfifo(project.folder / "opens")
    project.aish.python = (*project.aish.python, os.fspath(project.write("late.py", LATE)))
    with sitting(project) as window:
        window.type("hello\r")
        window.wait_for_raw(b"\x1b[?2004l")
        window.type(CTRL_C)
        (project.folder / "opens").write_bytes(b"")
        window.wait_for("interrupted")
        answered(window, "next", "next answer")
        assert leave(window) == 0
        assert window.echoes
    assert sent_messages(endpoint.asked[-1])[-1] == ("user", "next")


def test_a_signal_from_elsewhere_stops_what_runs_and_leaves_the_line_alone(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([half("Once upon\n\n"), text_reply("next answer")])
    project.uses(endpoint)
    project.pipeline("")
    with sitting(project) as window:
        window.send_signal(signal.SIGINT)
        ask(window, "hello")
        window.wait_for("Once upon")
        window.send_signal(signal.SIGINT)
        answered(window, "next", "next answer")
        assert leave(window) == 0
