"""Calls of clients that wait for an answer: at the control API, by `aish approve`, after a kill."""

import json
import signal
import sys
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cli_process import Done
from e2e_project import (
    REPO,
    Project,
    ahead,
)
from live_runs import control_path, ledger, runtime_folder
from served_http import HttpHub
from served_hub import (
    META,
    PATIENCE,
    LineClient,
    Message,
    ServedHub,
    SocketClient,
    text_of,
)

from aish.control import (
    ApprovalQuestion,
    Client,
    ConflictError,
    GoneError,
    NotListeningError,
    RejectedError,
)
from aish.serve.calls.waiting_calls import MOST_OPEN

SERVER = json.dumps([sys.executable, str(REPO / "tests" / "support" / "mcp_ledger_server.py")])
WAITING = "[aish] waiting for approval "
REPLACED = "[aish] not made: a later call with the same arguments took its place"
HOUR = 3600


def serving(project: Project, *rest: str, mcp: str = "") -> None:
    lines = "\n        ".join(rest or ["serve: {hold: 60s}"])
    project.pipeline(
        f"""
        mcp:
          servers: {{box: {{command: {SERVER}}}}}
          auto_approve: [box__fail, box__change]
          {mcp}
        {lines}
        """
    )


def state(project: Project) -> Path:
    (folder,) = project.served_state().glob("hub-*")
    return folder


def control_address(project: Project, hub: ServedHub) -> str:
    """Where its control API listens, once it does."""
    hub.stderr_with("control API: listening on")
    return str(json.loads(control_path(project, state(project).name).read_text("ascii"))["address"])


@contextmanager
def control(project: Project, hub: ServedHub) -> Generator[Client]:
    """The control API of a hub, once it listens."""
    with Client(control_address(project, hub)) as client:
        yield client


def text_in(question: ApprovalQuestion) -> str:
    """What the call of a question would write."""
    arguments: Any = question.arguments
    return str(arguments["text"])


def write(client: LineClient, text: str, *, modern: bool = False, name: str = "box__write") -> int:
    """Ask for a call that no rule decides; the id of the request."""
    params = {"name": name, "arguments": {"text": text}}
    return client.request("tools/call", params, modern=modern)


def held_over(project: Project, text: str, *flags: str) -> dict[str, Any]:
    """A hub that was killed while a question was open, whose client was told to call again."""
    with ServedHub(project, "p.yaml", "--control") as hub, control(project, hub) as api:
        hub.begin()
        said = text_of(hub.answer(write(hub, text))["result"])
        (question,) = api.approvals().pending
        hub.signal(signal.SIGKILL)
        hub.finish()
    assert said == f"{WAITING}{question.id}: call again with the same arguments"
    listed = project.aish("runs", "pending", "--format", "json", *flags)
    (found,) = json.loads(listed.stdout)["pending"]
    assert found["id"] == question.id
    return dict(found)


def approve(project: Project, asked: dict[str, Any], *more: str) -> Done:
    words = ("approve", asked["run"], asked["id"][:8], *more)
    return project.aish(*words, "--yes", "--digest", asked["digest"])


@pytest.mark.requirement("H11")
def test_a_call_waits_for_the_answer_at_the_control_api_and_holds_up_no_other(
    project: Project,
) -> None:
    serving(project, "serve: {hold: 60s, limits: {session_calls: 1, calls: 1}}")
    with ServedHub(project, "p.yaml", "--control") as hub, control(project, hub) as api:
        hub.begin()
        asked = {text: write(hub, text) for text in ("one", "two")}
        found: dict[str, ApprovalQuestion] = {}
        while len(found) < len(asked):
            one = api.wait_for_approval(lambda one: text_in(one) not in found)
            found[text_in(one)] = one
        # The only place is free while they wait.
        other = hub.call("box__fail", {"text": ""})
        waiting = api.status()
        approved = api.approve(found["one"], "looks right")
        first = hub.answer(asked["one"])["result"]
        api.deny(found["two"], "not today")
        second = hub.answer(asked["two"])["result"]
        with pytest.raises(ConflictError):
            api.deny(found["one"])
        decided = api.approvals()
        events = [str(event["type"]) for event in api.events(0).events]
        hub.end_input()
        assert hub.finish() == 0
        audit = hub.audit

    assert text_of(other) == "no luck"
    assert (waiting.state, len(waiting.pending)) == ("waiting", 2)
    one = found["one"]
    assert (one.step, one.tool, one.caller_waiting) == ("stdio", "box__write", True)
    assert one.reason == "no rule approves box__write"
    assert approved.state == "approved"
    assert text_of(first) == "wrote one"
    assert text_of(second) == "[aish] tool call denied by the user: not today"
    assert second["isError"] is True
    assert ledger(project) == ["one"]
    assert {one.state for one in decided.decided} == {"approved", "denied"}
    assert events.count("tool.started") == 2
    assert events.count("tool.finished") == 3
    seen = [(one["event"], one.get("answer"), one.get("decision")) for one in audit]
    assert seen.count(("asked", None, None)) == 2
    assert ("answered", "approve", None) in seen
    assert ("answered", "deny", None) in seen
    assert seen.index(("answered", "approve", None)) < seen.index(("decided", None, "ask-yes"))
    (yes,) = (one for one in audit if one.get("answer") == "approve")
    assert (yes["client"], yes["tool"], yes["way"]) == ("stdio", "box__write", "api")


@pytest.mark.requirement("H10")
def test_without_a_page_what_would_ask_is_no_at_once(project: Project) -> None:
    serving(project, mcp='ask: ["box__hang"]')
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        denied = [hub.call(name, {"text": "x"}) for name in ("box__write", "box__hang")]
        hub.end_input()
        assert hub.finish() == 0

    assert [one["isError"] for one in denied] == [True, True]
    assert text_of(denied[0]) == "[aish] tool call denied: no rule approves box__write"
    asks = "rule box__hang asks, and nobody is there to answer"
    assert text_of(denied[1]) == f"[aish] tool call denied: {asks}"
    assert list(state(project).glob("*.jsonl")) == []
    assert ledger(project) == []


@pytest.mark.parametrize("modern", [False, True], ids=["handshake", "stateless"])
def test_a_killed_hub_has_its_question_back_and_uses_the_yes_once(
    project: Project, *, modern: bool
) -> None:
    serving(project, "serve: {hold: 10ms}")
    asked = held_over(project, "one")
    done = approve(project, asked, "--note", "fine")
    with ServedHub(project, "p.yaml", "--control") as hub, control(project, hub) as api:
        if not modern:
            hub.begin()
        shown = api.approvals().decided
        other = hub.answer(write(hub, "two", modern=modern))["result"]
        again = hub.answer(write(hub, "one", modern=modern))["result"]
        once_more = hub.answer(write(hub, "one", modern=modern))["result"]
        pending = api.approvals().pending
        hub.signal(signal.SIGKILL)
        hub.finish()
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        # Nobody is there to be asked, but a question is open: the call joins it.
        last = hub.answer(write(hub, "one"))["result"]
        hub.end_input()
        hub.finish()

    assert done.code == 0, done.stderr
    assert done.stdout == f"approved: box__write, question {asked['id']}\n"
    assert [(one.id, one.state) for one in shown] == [(asked["id"], "approved")]
    assert text_of(again) == "wrote one"
    assert text_of(other).startswith(WAITING)
    assert text_of(once_more).startswith(WAITING)
    assert asked["id"] not in text_of(once_more)
    assert sorted(map(text_in, pending)) == ["one", "two"]
    assert text_of(last) == text_of(once_more)
    assert ledger(project) == ["one"]


def test_a_live_hub_without_a_socket_of_its_own_hears_of_an_answer(project: Project) -> None:
    """`aish approve` writes into the state, where a waiting call finds it."""
    serving(project, "serve: {hold: 10ms}")
    asked = held_over(project, "one")
    serving(project)
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        joined = write(hub, "one")
        # The call has been admitted once a later one was answered.
        hub.call("box__fail", {"text": ""})
        done = approve(project, asked)
        found = hub.answer(joined)["result"]
        hub.end_input()
        hub.finish()

    assert done.code == 0, done.stderr
    assert text_of(found) == "wrote one"
    assert ledger(project) == ["one"]


def test_a_live_hub_is_answered_over_its_socket(project: Project) -> None:
    serving(project)
    with ServedHub(project, "p.yaml", "--control") as hub, control(project, hub) as api:
        hub.begin()
        call = write(hub, "one")
        question = api.wait_for_approval()
        words = ("approve", question.run, question.id[:8])
        wrong = project.aish(*words, "--yes", "--digest", "0" * 12)
        done = project.aish(*words, "--deny", "--yes", "--note", "no")
        found = hub.answer(call)["result"]
        (answer,) = (one.answer for one in api.approvals().decided)
        late = project.aish(*words, "--deny", "--yes")
        hub.end_input()
        hub.finish()

    assert wrong.code == 2
    assert (done.code, done.stderr) == (0, "")
    assert text_of(found) == "[aish] tool call denied by the user: no"
    assert answer is not None
    assert answer.way == "command"
    assert late.code == 1
    assert "is already denied, by" in late.stderr


def test_nobody_answers_in_time(project: Project) -> None:
    """On a clock that is an hour ahead the question of 15 minutes has expired."""
    serving(project, "serve: {hold: 10ms}", "ask_timeout: 50m")
    asked = held_over(project, "one")
    late = ahead(
        project, HOUR, "approve", asked["run"], asked["id"], "--yes", "--digest", asked["digest"]
    )
    with ServedHub(project, "p.yaml", "--control", ahead=HOUR) as hub, control(project, hub) as api:
        hub.begin()
        with pytest.raises(GoneError):
            api.approve(api.approval(asked["id"]))
        told = hub.answer(write(hub, "one"))["result"]
        anew = hub.answer(write(hub, "one"))["result"]
        hub.end_input()
        hub.finish()

    assert late.code == 1
    assert "has expired: it was open until" in late.stderr
    assert text_of(told) == "[aish] tool call denied: nobody answered within 50m"
    assert text_of(anew).startswith(WAITING)
    assert asked["id"] not in text_of(anew)
    assert ledger(project) == []


def test_a_yes_is_not_good_for_ever(project: Project) -> None:
    serving(project, "serve: {hold: 10ms}")
    asked = held_over(project, "one")
    assert approve(project, asked).code == 0
    with ServedHub(project, "p.yaml", "--control", ahead=HOUR) as hub:
        hub.begin()
        anew = hub.answer(write(hub, "one"))["result"]
        hub.end_input()
        hub.finish()

    assert text_of(anew).startswith(WAITING)
    assert ledger(project) == []


def test_another_client_does_not_use_the_yes(project: Project) -> None:
    serving(project, "serve: {hold: 10ms}")
    asked = held_over(project, "one")
    assert approve(project, asked).code == 0
    flags = ("--control", "--stdio", "--unix", "run/s")
    with ServedHub(project, "p.yaml", *flags) as hub:
        (_, address) = hub.addresses() if len(hub.addresses()) > 1 else ("", hub.addresses()[0])
        with SocketClient(address) as stranger:
            stranger.begin()
            foreign = stranger.answer(write(stranger, "one"))["result"]
            changed = stranger.answer(write(stranger, "two"))["result"]
        hub.begin()
        own = hub.answer(write(hub, "one"))["result"]
        hub.end_input()
        hub.finish()

    assert text_of(foreign).startswith(WAITING)
    assert text_of(changed).startswith(WAITING)
    assert asked["id"] not in text_of(foreign)
    assert text_of(own) == "wrote one"
    assert ledger(project) == ["one"]


@pytest.mark.slow(reason="answers from fifty threads")
def test_of_a_hundred_answers_at_once_one_wins(project: Project) -> None:
    serving(project)
    with ServedHub(project, "p.yaml", "--control") as hub, control(project, hub) as api:
        hub.begin()
        calls, address = [write(hub, "one") for _ in range(2)], control_address(project, hub)
        question = api.wait_for_approval()
        won, lost = [], []

        begun = threading.Barrier(50)  # of the 64 connections that there may be

        def answer(number: int) -> None:
            with Client(address) as own:
                own.status()
                begun.wait(PATIENCE)
                for given in (own.approve, own.deny)[:: 1 if number % 2 else -1]:
                    try:
                        won.append(given(question, str(number)))
                    except ConflictError as error:
                        lost.append(error)

        threads = [threading.Thread(target=answer, args=(number,)) for number in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (decided,) = (one for one in api.approvals().decided if one.id == question.id)
        hub.signal(signal.SIGTERM)
        hub.finish()
        said = [
            text_of(one["result"]) for one in hub.seen if one.get("id") in calls and "result" in one
        ]

    assert (len(won), len(lost)) == (1, 99)
    assert decided.state == won[0].state
    if decided.state == "approved":
        assert ledger(project) == ["one"]
        assert said == [REPLACED, "wrote one"]
    else:
        assert ledger(project) == []
        assert decided.answer is not None
        denied = f"[aish] tool call denied by the user: {decided.answer.note}"
        assert said == [REPLACED, denied]


def test_a_tool_that_is_redefined_while_its_call_waits_is_asked_about_again(
    project: Project,
) -> None:
    serving(project)
    with ServedHub(project, "p.yaml", "--control") as hub, control(project, hub) as api:
        hub.begin()
        hub.tools()
        call = write(hub, "one")
        first = api.wait_for_approval()
        hub.call("box__change", {"text": "Deletes everything"})
        hub.notification("notifications/tools/list_changed")
        api.approve(first)
        second = api.wait_for_approval(lambda one: one.id != first.id)
        before = ledger(project)
        with pytest.raises(ConflictError):
            api.approve(first)
        api.deny(second)
        found = hub.answer(call)["result"]
        hub.end_input()
        hub.finish()

    assert before == []
    assert first.digest != second.digest
    assert text_of(found) == "[aish] tool call denied by the user"
    assert "changed after its call was asked about" in hub.stderr
    assert ledger(project) == []


def test_a_cancelled_call_withdraws_its_question_and_a_client_that_is_gone_does_not(
    project: Project,
) -> None:
    serving(project)
    flags = ("--control", "--stdio", "--unix", "run/s")
    with ServedHub(project, "p.yaml", *flags) as hub, control(project, hub) as api:
        address = hub.addresses()[-1]
        with SocketClient(address) as client:
            client.begin()
            cancelled, kept = write(client, "one"), write(client, "two")
            first = api.wait_for_approval(lambda one: one.arguments == {"text": "one"})
            second = api.wait_for_approval(lambda one: one.arguments == {"text": "two"})
            client.send(
                {
                    "jsonrpc": "2.0",
                    "method": "notifications/cancelled",
                    "params": {"requestId": cancelled},
                }
            )
            api.wait_for_event("approval.answered")
            with pytest.raises(GoneError):
                api.approve(first)
        api.wait_for_event("session.closed")
        open_still = api.approval(second.id)
        api.approve(second)
        with SocketClient(address) as client:
            client.begin()
            made = client.answer(write(client, "two"))["result"]
        hub.end_input()
        hub.finish()

    assert kept != cancelled
    assert (open_still.state, open_still.caller_waiting) == ("open", False)
    assert text_of(made) == "wrote two"
    assert ledger(project) == ["two"]


def test_the_paths_of_the_control_api_answer_for_a_hub(project: Project) -> None:
    project.aish.env["BOX_KEY"] = secret = "correct-horse-battery"
    serving(project, "serve: {hold: 60s}", "secrets: [BOX_KEY]")
    with ServedHub(project, "p.yaml", "--control", "127.0.0.1:0") as hub:
        hub.stderr_with("control API: listening on")
        named = json.loads(control_path(project, state(project).name).read_text("ascii"))
        token = Path(named["token_file"]).read_text("ascii").strip()
        mode = Path(named["token_file"]).stat().st_mode & 0o777
        link = project.aish("control", "open", state(project).name)
        with Client(named["address"], token) as api:
            hub.begin()
            call = write(hub, secret)
            question = api.wait_for_approval()
            shown = json.dumps([api.approvals().pending[0].arguments, api.events(0).events])
            with pytest.raises(RejectedError):
                api.answer(question, "always")
            with pytest.raises(RejectedError, match="is for"):
                api.command("say", text="hello")
            reloaded = api.command("reload")
            project.pipeline("mcp: 7")
            with pytest.raises(RejectedError, match="nothing has changed"):
                api.command("reload")
            values = api.values()
            session = api.session()
            project_file = api.get_project()
            api.approve(question)
            made = hub.answer(call)["result"]
            api.command("cancel")
            assert hub.finish() == 0

    assert mode == 0o600
    assert reloaded["result"] == "ok"
    assert link.stdout.startswith(f"http://{named['address']}/#code=")
    assert secret not in shown
    assert values == {}
    assert session.entries == ()
    assert "box" in json.dumps(project_file)
    assert text_of(made) == f"wrote {secret}"
    assert not control_path(project, state(project).name).exists()
    assert secret not in "".join(path.read_text() for path in state(project).glob("*.jsonl"))


def test_a_secret_that_a_reload_brings_is_in_no_question_on_disk(project: Project) -> None:
    project.aish.env["BOX_KEY"] = secret = "correct-horse-battery"
    serving(project)
    with ServedHub(project, "p.yaml", "--control") as hub, control(project, hub) as api:
        hub.begin()
        hub.tools()
        serving(project, "serve: {hold: 60s}", "secrets: [BOX_KEY]")
        reloaded = api.command("reload")
        call = write(hub, secret)
        question = api.wait_for_approval()
        api.approve(question, f"for {secret}")
        made = hub.answer(call)["result"]

    assert reloaded["result"] == "ok"
    assert text_of(made) == f"wrote {secret}"
    assert secret not in project.everything_written()


def staged_files(project: Project) -> list[Path]:
    return [path for path in state(project).glob("staged-*.json") if "applied" not in path.name]


@pytest.mark.requirement("B16")
def test_staged_calls_are_put_down_and_applied_once_each(project: Project) -> None:
    project.aish.env["BOX_KEY"] = secret = "correct-horse-battery"
    serving(project, "secrets: [BOX_KEY]", mcp='stage: ["box__write"]')
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        first = hub.call("box__write", {"text": "one"})
        again = hub.call("box__write", {"text": "one"})
        refused = hub.call("box__write", {"text": secret})
        hub.stderr_with("a call waits for review: `aish apply ")
        (path,) = staged_files(project)
        found = json.loads(path.read_bytes())
        shown = project.aish("apply", path, "p.yaml", "--dry-run")
        before = ledger(project)
        done = project.aish("apply", path, "p.yaml")
        # What was applied may be wanted once more.
        once_more = hub.call("box__write", {"text": "one"})
        later = json.loads(path.read_bytes())["calls"]
        done_again = project.aish("apply", path, "p.yaml")
        serving(project, "secrets: [BOX_KEY]", mcp='stage: ["box__*"]')
        hub.signal(signal.SIGHUP)
        hub.stderr_with("the file is reloaded")
        other = hub.call("box__hang", {"text": "two"})
        hub.end_input()
        assert hub.finish() == 0
        audit = [one for one in hub.audit if one.get("decision") == "staged"]

    assert first == again == once_more == other
    assert first["isError"] is False
    assert text_of(first).startswith("[aish] staged for review: this call was NOT executed")
    assert "an argument contains a secret" in text_of(refused)
    assert [call["arguments"] for call in found["calls"]] == [{"text": "one"}]
    assert (found["calls"][0]["step"], found["run"]) == ("stdio", state(project).name)
    assert shown.code == 0, shown.stderr
    assert '"one"' in shown.stdout or "one" in shown.stdout
    assert before == []
    assert (done.code, done_again.code) == (0, 0), done.stderr + done_again.stderr
    assert len(later) == 2
    assert ledger(project) == ["one", "one"]
    assert len(staged_files(project)) == 2
    assert {one["level"] for one in audit} == {"security"}
    assert len(audit) == 4


def test_a_staged_call_of_a_tool_with_an_output_schema_is_no_result_that_a_client_refuses(
    project: Project,
) -> None:
    project.pipeline("mcp: {servers: {fs: {pack: fs, root: .}}, stage: [fs__file_write]}")
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        (tool,) = [one for one in hub.tools() if one["name"] == "fs__file_write"]
        staged = hub.call("fs__file_write", {"path": "note.md", "content": "hello"})
        hub.end_input()
        assert hub.finish() == 0

    assert "outputSchema" in tool
    assert staged["isError"] is True
    assert text_of(staged).startswith("[aish] staged for review: this call was NOT executed")
    assert len(staged_files(project)) == 1
    assert not (project.folder / "note.md").exists()


def test_new_rules_decide_the_calls_that_wait(project: Project) -> None:
    serving(project)
    with ServedHub(project, "p.yaml", "--control") as hub, control(project, hub) as api:
        hub.begin()
        asked = {name: write(hub, name, name=f"box__{name}") for name in ("write", "hang", "fail")}
        del asked["fail"]
        found: dict[str, ApprovalQuestion] = {}
        while len(found) < len(asked):
            one = api.wait_for_approval(lambda one: text_in(one) not in found)
            found[text_in(one)] = one
        serving(project, "serve: {hold: 60s}", mcp="deny: [box__hang]")
        text = (project.folder / "p.yaml").read_text().replace("box__fail,", "box__write,")
        project.write("p.yaml", text)
        api.command("reload")
        results = {name: hub.answer(number)["result"] for name, number in asked.items()}
        decided = {text_in(one): one.answer for one in api.approvals().decided}
        hub.end_input()
        assert hub.finish() == 0

    assert text_of(results["write"]) == "wrote write"
    assert results["hang"]["isError"] is True
    assert {name: answer.way for name, answer in decided.items() if answer} == {
        "write": "rule",
        "hang": "rule",
    }
    assert ledger(project) == ["write"]


@pytest.mark.requirement("H28")
def test_a_question_is_answered_at_any_of_the_processes_that_share_the_state(
    project: Project,
) -> None:
    serving(project)
    folder = project.folder / "run"
    folder.mkdir(mode=0o700)
    with (
        ServedHub(project, "p.yaml", "--control", f"unix:{folder}/a") as one,
        ServedHub(project, "p.yaml", "--control", f"unix:{folder}/b") as other,
        Client(f"unix:{folder}/b") as api,
    ):
        for hub in (one, other):
            hub.begin()
            hub.stderr_with("control API: listening on")
        call = write(one, "one")
        question = api.wait_for_approval()
        api.approve(question)
        made = one.answer(call)["result"]
        second = write(other, "one")
        anew = api.wait_for_approval(lambda asked: asked.id != question.id)
        api.deny(anew)
        denied = other.answer(second)["result"]
        for hub in (one, other):
            hub.end_input()
            assert hub.finish() == 0

    assert text_of(made) == "wrote one"
    assert text_of(denied) == "[aish] tool call denied by the user"
    assert ledger(project) == ["one"]


@pytest.mark.requirement("A11")
def test_a_replay_gives_the_recorded_answers_and_asks_nobody(project: Project) -> None:
    serving(project)
    calls = ("one", "two", "three")
    with ServedHub(project, "p.yaml", "--control", "--record", "c.yaml") as hub:
        hub.begin()
        with control(project, hub) as api:
            found = []
            for text, given in zip(calls, (api.approve, api.deny, api.approve), strict=True):
                number = write(hub, text)
                given(api.wait_for_approval(lambda one, text=text: text_in(one) == text))  # type: ignore[misc]  # bound at once
                found.append(text_of(hub.answer(number)["result"]))
        hub.end_input()
        assert hub.finish() == 0, hub.stderr
    (project.folder / "ledger.txt").unlink()
    with ServedHub(project, "p.yaml", "--replay", "c.yaml") as hub:
        hub.begin()
        replayed = [text_of(hub.call("box__write", {"text": text})) for text in calls]
        other = hub.call("box__write", {"text": "other"})
        hub.end_input()
        hub.finish()
    refused = project.aish("serve", "p.yaml", "--replay", "c.yaml", "--control")

    assert found == ["wrote one", "[aish] tool call denied by the user", "wrote three"]
    assert replayed == found
    assert text_of(other) == "[aish] tool call denied: no rule approves box__write"
    assert ledger(project) == []
    assert refused.code == 2
    assert "`--control` and a replay exclude each other" in refused.stderr


def test_a_damaged_question_is_told_once_and_affects_no_other(project: Project) -> None:
    serving(project, "serve: {hold: 10ms}")
    asked = held_over(project, "one")
    damaged = state(project) / f"{'0' * 32}.jsonl"
    damaged.write_bytes(b"no record\n")
    damaged.chmod(0o600)
    listed = project.aish("runs", "pending")
    done = approve(project, asked)
    with ServedHub(project, "p.yaml", "--control") as hub:
        hub.begin()
        hub.stderr_with("control API: listening on")
        made = hub.answer(write(hub, "one"))["result"]
        hub.end_input()
        assert hub.finish() == 0

    assert listed.code == 0
    assert asked["id"][:8] in listed.stdout
    assert "warning: " in listed.stderr
    assert damaged.name in listed.stderr
    assert done.code == 0, done.stderr
    assert text_of(made) == "wrote one"
    assert hub.stderr.count(damaged.name) == 1


@pytest.mark.slow(reason="a hundred questions, each synced")
def test_a_client_has_so_many_questions_and_a_drain_lets_its_calls_go(project: Project) -> None:
    serving(project, "serve: {hold: 60s, limits: {drain: 60s}}")
    with ServedHub(project, "p.yaml", "--control") as hub, control(project, hub) as api:
        hub.begin()
        calls = [write(hub, str(number)) for number in range(MOST_OPEN + 1)]
        busy = text_of(hub.answer(calls[-1])["result"])
        # The number counts for this client alone.
        pending = api.approvals().pending
        hub.signal(signal.SIGTERM)
        said = [text_of(hub.answer(number)["result"]) for number in calls[:-1]]
        code = hub.finish()
    listed = project.aish("runs", "pending", "--format", "json")

    assert busy == f"[aish] box: busy: {MOST_OPEN} calls of this client wait for approval"
    assert len(pending) == MOST_OPEN
    assert {text[: len(WAITING)] for text in said} == {WAITING}
    assert code == 0
    assert len(json.loads(listed.stdout)["pending"]) == MOST_OPEN
    assert ledger(project) == []


APPROVES = """
import http.client, json, socket, subprocess, sys
from pathlib import Path

way, path = sys.argv[1:]
(file,) = Path(STATE).glob("hub-*/" + "[0-9a-f]" * 32 + ".jsonl")
asked = json.loads(file.read_text().splitlines()[0])
if way == "command":
    words = ["approve", file.parent.name, asked["id"], "--yes", "--digest", asked["digest"]]
    done = subprocess.run([sys.executable, "-m", "aish", *words], capture_output=True, text=True)
    print(done.returncode, done.stderr)
else:
    connection = http.client.HTTPConnection("x")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(path)
    body = json.dumps({"answer": "approve", "digest": asked["digest"]})
    headers = {"Content-Type": "application/json"}
    connection.request("POST", f"/api/v1/approvals/{asked['id']}", body, headers)
    response = connection.getresponse()
    print(response.status, response.read().decode())
"""


def test_no_process_of_the_server_approves_its_calls(project: Project) -> None:
    program = project.write(
        "approves.py", APPROVES.replace("STATE", repr(str(project.served_state())))
    )
    folder = project.folder / "run"
    folder.mkdir(mode=0o700)
    project.pipeline(
        f"""
        mcp:
          servers:
            box: {{command: {SERVER}}}
            # A sandbox may hide the program of this checkout.
            sh: {{pack: shell, root: ., options: {{shell: {{sandbox: "off"}}}}}}
          auto_approve: [sh__shell_run]
        """
    )
    with ServedHub(project, "p.yaml", "--control", f"unix:{folder}/s") as hub:
        with control(project, hub) as api:
            hub.begin()
            call = write(hub, "one")
            question = api.wait_for_approval()
            said = [
                hub.call(
                    "sh__shell_run",
                    {"command": f"{sys.executable} {program} {way} {folder}/s"},
                )
                for way in ("socket", "command")
            ]
            api.deny(question)
            hub.answer(call)
        hub.end_input()
        assert hub.finish() == 0

    outputs = [text_of(one) for one in said]
    assert "403 " in outputs[0], outputs
    assert "processes that the run started" in outputs[0]
    assert "processes that the run started" in outputs[1], outputs
    assert ledger(project) == []


def test_a_client_that_takes_tasks_gets_one_for_a_call_that_waits(project: Project) -> None:
    serving(project, "serve: {hold: 10ms}")
    meta: Message = {f"{META}clientCapabilities": {"extensions": {f"{META}tasks": {}}}}

    def ask(hub: ServedHub, method: str, params: dict[str, Any]) -> dict[str, Any]:
        return dict(hub.ask(method, {**params, "_meta": meta}, modern=True)["result"])

    def until_over(hub: ServedHub, id: str) -> dict[str, Any]:
        while (found := ask(hub, "tasks/get", {"taskId": id}))["status"] == "working":
            pass
        return found

    with ServedHub(project, "p.yaml", "--control") as hub, control(project, hub) as api:
        made = [
            ask(hub, "tools/call", {"name": "box__write", "arguments": {"text": text}})
            for text in ("one", "two", "three")
        ]
        found: dict[str, ApprovalQuestion] = {}
        while len(found) < len(made):
            one = api.wait_for_approval(lambda one: text_in(one) not in found)
            found[text_in(one)] = one
        working = ask(hub, "tasks/get", {"taskId": made[0]["taskId"]})
        api.approve(found["one"])
        api.deny(found["two"])
        ask(hub, "tasks/cancel", {"taskId": made[2]["taskId"]})
        ended = [until_over(hub, one["taskId"]) for one in made]
        withdrawn = api.approval(found["three"].id)
        hub.end_input()
        assert hub.finish() == 0

    assert {one["resultType"] for one in made} == {"task"}
    assert working["status"] == "working"
    assert [one["status"] for one in ended] == ["completed", "completed", "cancelled"]
    assert text_of(ended[0]["result"]) == "wrote one"
    assert text_of(ended[1]["result"]) == "[aish] tool call denied by the user"
    assert withdrawn.state == "withdrawn"
    assert ledger(project) == ["one"]


@pytest.mark.slow(reason="starts several servers")
def test_two_processes_of_a_file_listen_and_either_may_end_first(project: Project) -> None:
    serving(project)
    listeners = project.served_state() / "listeners.json"

    def listed(path: Path, key: str) -> dict[int, Any]:
        document = json.loads(path.read_text("ascii")) if path.exists() else {"processes": []}
        return {one["pid"]: one[key] for one in document["processes"]}

    arguments = ("p.yaml", "--stdio", "--control")
    with (
        ServedHub(project, *arguments, "--unix", "run/a") as first,
        ServedHub(project, *arguments, "--unix", "run/b") as second,
    ):
        for hub in (first, second):
            hub.stderr_with("control API: listening on")
            hub.stderr_with("listening on unix:")
        named = control_path(project, state(project).name)
        pids = {first.process.pid, second.process.pid}
        addresses = listed(named, "address")
        assert addresses.keys() == listed(listeners, "listeners").keys() == pids
        assert len(set(addresses.values())) == 2
        for address in addresses.values():
            with Client(address) as client:
                assert client.status().state == "running"
        first.end_input()
        assert first.finish() == 0
        assert listed(named, "address") == {second.process.pid: addresses[second.process.pid]}
        assert listed(listeners, "listeners").keys() == {second.process.pid}
        second.process.kill()
        second.process.wait()
        with ServedHub(project, *arguments, "--unix", "run/c") as third:
            third.stderr_with("listening on unix:")
            third.stderr_with("control API: listening on")
            assert listed(listeners, "listeners").keys() == {third.process.pid}
            assert listed(named, "address").keys() == {third.process.pid}
            third.end_input()
            assert third.finish() == 0
    assert not named.exists()
    assert not listeners.exists()


@pytest.mark.slow(reason="starts several servers")
@pytest.mark.parametrize("other", [None, "/nowhere"], ids=["unset", "another"])
def test_who_has_another_runtime_folder_finds_the_servers_too(
    project: Project, other: str | None
) -> None:
    """As a command of the shell pack, an editor, or a container."""
    serving(project)
    env, arguments = project.aish.env, ("p.yaml", "--control", "127.0.0.1:0")
    runtime = env["XDG_RUNTIME_DIR"]
    with ServedHub(project, *arguments) as first, ServedHub(project, *arguments) as second:
        for hub in (first, second):
            hub.stderr_with("control API: listening on")
        named = state(project) / control_path(project, state(project).name).name
        first.begin()
        call = write(first, "one")
        env |= {"XDG_RUNTIME_DIR": other} if other else {}
        if other is None:
            del env["XDG_RUNTIME_DIR"]
        with Client.of_run(state(project)) as api:
            question = api.wait_for_approval()
            done = project.aish("approve", question.run, question.id, "--deny", "--yes")
            said = text_of(first.answer(call)["result"])
            events = api.events(0).events
        links = [project.aish("control", "open", question.run)]
        first.process.kill()
        first.process.wait()
        links.append(project.aish("control", "open", question.run))
        env["XDG_RUNTIME_DIR"] = runtime
        with ServedHub(project, *arguments) as third:
            third.stderr_with("control API: listening on")
            listed = json.loads(named.read_text("ascii"))["processes"]
            pids = second.process.pid, third.process.pid
            assert tuple(entry["pid"] for entry in listed) == pids
            third.process.kill()
            third.process.wait()
        second.end_input()
        assert second.finish() == 0
    late = project.aish("control", "open", question.run)

    assert (done.code, done.stderr) == (0, "")
    assert said == "[aish] tool call denied by the user"
    assert "control.called" in {event["type"] for event in events}
    assert [link.stdout.rpartition(":")[0] for link in links] == ["http://127.0.0.1"] * 2, links
    assert (late.code, named.exists()) == (1, False)
    assert "it has ended, or listens nowhere" in late.stderr
    assert [path for path in state(project).iterdir() if path.suffix == ".lock"] == [
        state(project) / "questions.lock"
    ]


@pytest.mark.slow(reason="starts servers and kills them")
@pytest.mark.parametrize("next_one", ["reader", "start"])
def test_whoever_comes_after_a_killed_server_removes_what_it_left(
    project: Project, next_one: str
) -> None:
    serving(project)
    arguments = ("p.yaml", "--stdio", "--control", "--control", "127.0.0.1:0")
    with ServedHub(project, *arguments, "--unix", "run/a") as hub:
        hub.stderr_with("control API: listening on", 2)
        hub.stderr_with("listening on unix:")
        named = control_path(project, state(project).name)
        entry = json.loads(named.read_text("ascii"))
        own = Path(entry["address"].removeprefix("unix:"))
        token = Path(entry["token_file"])
        id = state(project).name
        hub.process.kill()
        hub.process.wait()
    listener = project.folder / "run" / "a"
    assert own.is_socket()
    assert token.exists()
    assert listener.is_socket()

    if next_one == "reader":
        with (
            runtime_folder(project),
            Client() as client,
            pytest.raises(NotListeningError, match="no run listens"),
        ):
            client.status()
        done = project.aish("control", "open", id)
        project.aish("serve", "p.yaml", "--http", "127.0.0.1:0", "--print-config", "cursor")
        assert done.code == 1
        assert "it has ended, or listens nowhere" in done.stderr
        assert not named.exists()
    else:
        with ServedHub(project, *arguments, "--unix", "run/b") as second:
            second.stderr_with("control API: listening on", 2)
            second.stderr_with("listening on unix:")
            entry = json.loads(named.read_text("ascii"))
            assert [one["pid"] for one in entry["processes"]] == [second.process.pid]
            second.end_input()
            assert second.finish() == 0
    assert not own.exists()
    assert not token.exists()
    assert not listener.exists()


@pytest.mark.slow(reason="starts several servers")
def test_the_state_that_an_older_version_kept_in_the_project_is_moved_once(
    project: Project,
) -> None:
    serving(project, "serve: {hold: 10ms}")
    with ServedHub(project, "p.yaml", "--control") as hub:
        hub.begin()
        first = text_of(hub.answer(write(hub, "one"))["result"])
        hub.end_input()
        assert hub.finish() == 0
    new, old = project.served_state(), project.folder / ".aish" / "serve"
    old.mkdir(parents=True)
    id = state(project).name
    for name in (id, "audit"):
        (new / name).rename(old / name)

    with ServedHub(project, "p.yaml", "--control") as hub:
        hub.begin()
        hub.end_input()
        assert hub.finish() == 0
    listed = json.loads(project.aish("runs", "pending", "--format", "json").stdout)

    assert first.startswith(WAITING)
    assert [one["run"] for one in listed["pending"]] == [id]
    assert len(list((new / "audit").iterdir())) == 2
    assert list(old.iterdir()) == []


@pytest.mark.parametrize("modern", [False, True], ids=["handshake", "stateless"])
def test_a_yes_is_for_the_latest_of_the_calls_that_a_client_repeats(
    project: Project, *, modern: bool
) -> None:
    """A client that gives a call up need not say so: its earlier calls are not made."""
    serving(project)

    def repeated(hub: LineClient, text: str, count: int = 3) -> tuple[list[Message], int]:
        """The results of the calls whose place another one took, and the call that waits."""
        calls = [write(hub, text, modern=modern)]
        api.wait_for_approval(lambda one: text_in(one) == text)
        for _ in range(count - 1):
            calls.append(write(hub, text, modern=modern))
            ended.append(hub.answer(calls[-2])["result"])
        return ended, calls[-1]

    flags = ("--control", "--stdio", "--unix", "run/s")
    ended: list[Message] = []
    with ServedHub(project, "p.yaml", *flags) as hub, control(project, hub) as api:
        hub.begin()
        with SocketClient(hub.addresses()[0]) as other:
            other.begin()
            foreign = write(other, "one")
            theirs = api.wait_for_approval()
            (_, latest) = repeated(hub, "one")
            (mine,) = (one for one in api.approvals().pending if one.id != theirs.id)
            api.approve(mine)
            made = hub.answer(latest)["result"]
            # The other client has a question of its own, which is still open.
            (left,) = api.approvals().pending
            api.deny(theirs)
            denied = [other.answer(foreign)["result"]]
        _, refused = repeated(hub, "two")
        api.deny(api.approvals().pending[0])
        denied.append(hub.answer(refused)["result"])
        _, cancelled = repeated(hub, "three")
        (third,) = api.approvals().pending
        told = {"method": "notifications/cancelled", "params": {"requestId": cancelled}}
        hub.send({"jsonrpc": "2.0", **told})
        api.wait_for_event("approval.answered", lambda event: event["id"] == third.id)
        withdrawn = api.approval(third.id)
        # What has its yes is used up.
        again = write(hub, "one", modern=modern)
        fresh = api.wait_for_approval(lambda one: text_in(one) == "one")
        hub.end_input()
        assert hub.finish() == 0
        audit = [one["event"] for one in hub.audit]

    assert [text_of(one) for one in ended] == [REPLACED] * 6
    assert {one["isError"] for one in ended} == {True}
    assert text_of(made) == "wrote one"
    assert left.id == theirs.id
    assert {text_of(one) for one in denied} == {"[aish] tool call denied by the user"}
    assert withdrawn.state == "withdrawn"
    assert fresh.id not in {mine.id, theirs.id}
    assert again not in {one.get("id") for one in hub.seen if "result" in one}
    assert audit.count("replaced") == 6
    assert ledger(project) == ["one"]


@pytest.mark.slow(reason="starts several servers")
def test_a_repeated_call_takes_the_place_of_one_in_another_session_or_process(
    project: Project,
) -> None:
    serving(project)
    with (
        HttpHub(project, "p.yaml", "--control") as hub,
        HttpHub(project, "p.yaml") as second,
        control(project, hub) as api,
        ThreadPoolExecutor() as threads,
    ):
        arguments = ("box__write", {"text": "one"})
        clients = [hub.client(), hub.client(), second.client()]
        calls = []
        for number, client in enumerate(clients):
            client.begin()
            calls.append(threads.submit(client.call, *arguments))
            if number == 0:
                question = api.wait_for_approval()
            else:
                assert text_of(calls[number - 1].result()) == REPLACED
        api.approve(question)
        made = text_of(calls[-1].result())
        left = api.approvals().pending

    assert made == "wrote one"
    assert left == ()
    assert ledger(project) == ["one"]


def test_a_task_whose_call_is_repeated_ends_as_a_result_that_says_so(project: Project) -> None:
    serving(project, "serve: {hold: 10ms}")
    meta: Message = {f"{META}clientCapabilities": {"extensions": {f"{META}tasks": {}}}}

    def ask(method: str, params: dict[str, Any]) -> dict[str, Any]:
        return dict(hub.ask(method, {**params, "_meta": meta}, modern=True)["result"])

    def until_over(id: str) -> Message:
        while (found := ask("tasks/get", {"taskId": id}))["status"] == "working":
            pass
        return found

    with ServedHub(project, "p.yaml", "--control") as hub, control(project, hub) as api:
        call = {"name": "box__write", "arguments": {"text": "one"}}
        first, second = (ask("tools/call", call)["taskId"] for _ in range(2))
        replaced = until_over(first)
        (question,) = api.approvals().pending
        api.approve(question)
        made = until_over(second)
        hub.end_input()
        assert hub.finish() == 0

    assert (replaced["status"], text_of(replaced["result"])) == ("completed", REPLACED)
    assert text_of(made["result"]) == "wrote one"
    assert ledger(project) == ["one"]
