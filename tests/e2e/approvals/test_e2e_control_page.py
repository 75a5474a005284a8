"""The page of a live run: its files, the link that opens it, and the calls that it shows (A14)."""

import json
import re
import signal
import sys
from collections.abc import Iterator
from textwrap import dedent
from typing import Any

import httpx
import pytest
from e2e_project import REPO, Project, of_type
from live_runs import (
    WAITS,
    answer,
    code_of,
    control_file,
    control_path,
    guessed_id,
    live_run,
    pending,
    runtime_folder,
)
from plain_http import PLAIN

from aish.core.events import NOWHERE
from aish.core.protocols import Question
from aish.core.tools import Tool, ToolName
from aish.system.user import login_name
from aish.terminal.approver import sheet_of

SERVER = json.dumps([sys.executable, str(REPO / "tests" / "support" / "mcp_ledger_server.py")])
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HOSTILE = "\u202eevil\u2066\x1b[2J\u200b\u00a0\u2800 p\u0430th\r\n<b>\u0301\u0301\u0301\u0301"


def waiting_on(arguments: Any, more: str = "") -> str:
    """A pipeline with one call that waits."""
    step = json.dumps([{"id": "note", "call": "box__write", "with": arguments}])
    return dedent(f"""
        mcp: {{servers: {{box: {{command: {SERVER}}}}}}}
        on_ask: wait
        {more}
        steps: {step}
        """)


@pytest.fixture
def waiting(project: Project) -> Iterator[Project]:
    """A project whose run waits for an answer."""
    with runtime_folder(project):
        project.pipeline(waiting_on({"text": "one"}))
        yield project


def opened_link(project: Project, *arguments: str) -> tuple[str, str]:
    """The page's address and the code of the link that `aish control open` prints."""
    done = project.aish("control", "open", *arguments)
    assert done.code == 0, done.stderr
    address, _, code = done.stdout.strip().partition("#code=")
    return address, code


@pytest.mark.requirement("A2")
def test_a_link_is_good_once_and_gives_a_token_that_is_written_nowhere(waiting: Project) -> None:
    with live_run(waiting, "--control", "127.0.0.1:0") as (running, own):
        address, code = opened_link(waiting, "latest")
        with httpx.Client(base_url=f"{address}api/v1", timeout=60, verify=PLAIN) as visitor:
            guessed = visitor.post("link", json={"code": guessed_id()})
            malformed = [
                visitor.post("link", json=body)
                for body in ({}, {"code": 1}, {"code": code, "x": 1}, [code])
            ]
            foreign = visitor.post(
                "link", json={"code": code}, headers={"Origin": "http://evil.example"}
            )
            named = visitor.post("link", json={"code": code}, headers={"Host": "evil.example"})
            first = visitor.post("link", json={"code": code})
            again = visitor.post("link", json={"code": code})
            assert visitor.get("status").status_code == 401
            token = first.json()["token"]
            visitor.headers["Authorization"] = f"Bearer {token}"
            (question,) = pending(visitor)
            renewed = visitor.post("code", json={})
            in_url = visitor.get(f"status?x={token}")
            answered = answer(visitor, question, way="page")
        done = running.finish()
    del own

    assert code_of(guessed) == (401, "invalid_code")
    assert [code_of(one) for one in malformed] == [(422, "invalid_body")] * 4
    # What is refused before does not use the code up.
    assert (code_of(foreign), code_of(named)) == ((403, "wrong_origin"), (421, "wrong_host"))
    assert first.json()["scopes"] == ["answer", "read", "write"]
    assert re.fullmatch(r"20\d\d-.*Z", first.json()["expires"])
    assert code_of(again) == (401, "invalid_code")
    assert code_of(renewed) == (403, "forbidden")
    assert code_of(in_url) == (400, "token_in_url")
    assert answered.status_code == 200, answered.text
    assert done.code == 0, done.stderr
    (ended,) = of_type(waiting.journal, "approval.answered")
    assert (ended["by"], ended["way"]) == (login_name(), "page")
    called = of_type(waiting.journal, "control.called")
    assert [one["status"] for one in called if one["path"] == "/api/v1/code"] == [200, 403]
    # What is no code is no attempt to use one.
    links = [one["status"] for one in called if one["path"] == "/api/v1/link"]
    assert links == [401, 422, 422, 422, 422, 403, 200, 401]
    assert token not in waiting.everything_written() + done.stderr
    assert code not in waiting.everything_written() + done.stderr


def test_on_a_socket_file_the_page_is_served_and_no_link_is_given(waiting: Project) -> None:
    with live_run(waiting) as (_, client):
        page = client.get("http://aish/")
        others = [client.get(f"http://aish/page.{kind}") for kind in ("css", "js", "svg")]
        refused = client.post("code", json={})
        told = waiting.aish("control", "open", "latest")
        posted = client.post("http://aish/", json={})

    for one in (page, *others):
        assert one.status_code == 200
        assert one.headers["content-security-policy"] == POLICY
        assert one.headers["x-content-type-options"] == "nosniff"
        assert one.headers["referrer-policy"] == "no-referrer"
        assert one.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in one.headers
        assert "set-cookie" not in one.headers
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    types = [one.headers["content-type"] for one in others]
    script = "text/javascript; charset=utf-8"
    assert types == ["text/css; charset=utf-8", script, "image/svg+xml"]
    assert sum(len(one.content) for one in (page, *others)) <= 100_000
    assert code_of(refused) == (409, "no_port")
    assert code_of(posted) == (405, "method_not_allowed")
    assert (told.code, told.stdout) == (1, "")
    assert "`aish run FILE --control 127.0.0.1:0`" in told.stderr


def test_tokens_and_the_address_of_the_file_are_those_of_the_link(waiting: Project) -> None:
    control = """control:
          listen: "127.0.0.1:0"
          origins: ["https://runs.example.org"]
          tokens: {reader: {token_env: READER, scopes: [read]}}"""
    waiting.pipeline(waiting_on({"text": "one"}, control))
    waiting.aish.env["READER"] = "r" * 40
    with waiting.aish.start("run", "p.yaml") as running:
        running.wait_for_line(WAITS)
        refused = waiting.aish("control", "open")
        unset = waiting.aish("control", "open", "--token-env", "UNSET_TOKEN")
        address, code = opened_link(waiting, "latest", "--token-env", "READER")
        local = f"http://{control_file(waiting)['address']}/api/v1"
        found = httpx.post(f"{local}/link", json={"code": code}, verify=PLAIN).json()
        bearer = {"Authorization": f"Bearer {found['token']}"}
        with httpx.Client(base_url=local, headers=bearer, verify=PLAIN) as reader:
            (question,) = pending(reader)
            denied = answer(reader, question, "deny")
        running.interrupt()
        running.finish()

    assert refused.code == 1
    assert "`--token-env NAME`" in refused.stderr
    assert (unset.code, "UNSET_TOKEN" in unset.stderr) == (2, True)
    assert (address, found["scopes"]) == ("https://runs.example.org/", ["read"])
    assert code_of(denied) == (403, "forbidden")


def test_who_is_told_gets_the_page_and_no_credential(waiting: Project) -> None:
    notify = json.dumps(
        [sys.executable, "-c", "import os; print(os.environ['AISH_LINK'], file=open('told', 'w'))"]
    )
    more = f"control: {{notify: {{command: {notify}}}}}"
    waiting.pipeline(waiting_on({"text": "one"}, more).replace("on_ask: wait", "on_ask: pause"))

    paused = waiting.run("--control", "127.0.0.1:0")

    assert paused.code == 8, paused.stderr
    (asked,) = of_type(waiting.journal, "approval.asked")
    link = (waiting.folder / "told").read_text(encoding="utf-8").strip()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/#question=" + asked["id"], link)


def test_a_run_that_has_ended_has_no_page(waiting: Project) -> None:
    with live_run(waiting, "--control", "127.0.0.1:0") as (running, _):
        running.interrupt(signal.SIGKILL)
        running.finish()
    # It still says where it listened: by now that may be the port of a stranger.
    assert control_path(waiting, waiting.run_folders[0].name).exists()
    killed = waiting.aish("control", "open", "latest")
    waiting.run("--set", "on_ask=deny")

    told = waiting.aish("control", "open", "latest")

    for one in (killed, told):
        assert (one.code, one.stdout) == (1, "")
        assert "it has ended, or listens nowhere" in one.stderr


@pytest.mark.requirement("A15")
def test_the_page_gets_the_call_as_a_terminal_shows_it(waiting: Project) -> None:
    arguments = {"text": HOSTILE * 3, "lines": [f"line {number}\n" for number in range(250)]}
    waiting.pipeline(waiting_on(arguments))
    with live_run(waiting) as (_, client):
        (question,) = pending(client)
        path = f"approvals/{question['id']}/call"
        shown = {width: client.get(f"{path}?columns={width}").json() for width in (20, 40, 120)}
        usual = client.get(path).json()
        wrong = [
            client.get(f"{path}?columns={text}") for text in ("19", "241", "x", "", "٤٠", "-40")
        ]
        unknown = client.get(f"approvals/{guessed_id()}/call")

    asked = Question(Tool(ToolName("box", "write"), "box__write", "", {}), arguments, "", NOWHERE)
    for width, found in shown.items():
        # The bar takes four columns of a terminal, and one is left free there.
        sheet = sheet_of(asked, width + 5)
        marks = {"  │ ": False, "  ┆ ": True}
        assert [row[4:] for row in sheet.arguments] == found["rows"]
        continued = [index for index, row in enumerate(sheet.arguments) if marks[row[:4]]]
        assert continued == found["continued"]
        assert found["folded"] is True
        assert found["digest"] == question["digest"]
    lines = json.dumps(arguments, indent=2).split("\n")
    assert usual["label"] == f"arguments, all {len(lines)} lines"
    facts = dict(usual["facts"])
    assert (facts["server"], facts["tool"], facts["where"]) == ("box", "write", "step note")
    assert usual["always"].startswith('box__write when {"text": "')
    assert usual["always"].endswith('schema {"maxProperties": 2}')
    odd = r"[\u202e\u2066\u200b\u00a0\u2800\x1b\r\n]"
    assert not re.search(odd, "".join((usual["always"], *usual["rows"])))
    assert [code_of(one) for one in wrong] == [(422, "invalid_value")] * 6
    assert code_of(unknown) == (404, "unknown_question")


def test_a_rule_with_a_secret_is_neither_shown_nor_offered_by_the_page(waiting: Project) -> None:
    secret = "hunter2-hunter2-hunter2"
    waiting.aish.env["API_KEY"] = secret
    waiting.pipeline(
        """
        secrets: [API_KEY]
        on_ask: wait
        steps: [{id: tell, run: [echo, hunter2-hunter2-hunter2]}]
        """
    )
    with live_run(waiting) as (_, client):
        (question,) = pending(client)
        found = client.get(f"approvals/{question['id']}/call")

    assert found.status_code == 200, found.text
    assert secret not in found.text
    shown = found.json()
    assert "<secret:API_KEY>" in "".join(shown["rows"])
    assert dict(shown["facts"])["hidden"].startswith("1 secret, sent as what")
    assert shown["always"] is None
