"""A live run is asked about and answered over its socket (A1 to A3, A6, A7, A9)."""

import json
import os
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import httpx
import pexpect
import pytest
from e2e_project import REPO, Project, of_type
from live_runs import (
    WAITS,
    answer,
    at_terminal,
    client_of,
    code_of,
    control_file,
    control_path,
    guessed_id,
    ledger,
    live_run,
    pending,
    runtime_folder,
)
from mcp_peers import free_port
from plain_http import PLAIN

from aish.system.user import login_name

SERVER = json.dumps([sys.executable, str(REPO / "tests" / "support" / "mcp_ledger_server.py")])
WAITING = f"""
    mcp: {{servers: {{box: {{command: {SERVER}}}}}}}
    on_ask: wait
    steps: [{{id: note, call: box__write, with: {{text: one}}}}]
    """
TWO = f"""
    mcp: {{servers: {{box: {{command: {SERVER}}}}}}}
    on_ask: wait
    on_denied: continue
    steps:
      - {{id: note, call: box__write, with: {{text: one}}}}
      - {{id: other, call: box__write, needs: [], with: {{text: two}}}}
    """


@pytest.fixture
def waiting(project: Project) -> Iterator[Project]:
    """A project whose run waits for an answer."""
    with runtime_folder(project):
        project.pipeline(WAITING)
        yield project


@pytest.mark.requirement("A3")
def test_an_answer_over_the_socket_lets_the_call_be_made(waiting: Project) -> None:
    with live_run(waiting) as (running, client):
        status = client.get("status").json()
        (question,) = pending(client)
        folder = waiting.run_folders[0]
        assert (status["state"], status["pending"]) == ("waiting", [question["id"]])
        assert status["steps"] == [{"id": "note", "status": "waiting", "done": 0, "total": 1}]
        assert client.get(f"approvals/{question['id']}").json() == question
        assert (question["state"], question["arguments"]) == ("open", {"text": "one"})
        assert stat.S_IMODE(control_path(waiting, folder.name).stat().st_mode) == 0o600
        assert control_file(waiting)["pid"] == running.pid
        assert ledger(waiting) == []

        answered = answer(client, question, note="looks right")
        done = running.finish()

    assert answered.status_code == 200, answered.text
    assert answered.json()["state"] == "approved"
    assert done.code == 0, done.stderr
    assert ledger(waiting) == ["one"]
    (ended,) = of_type(waiting.journal, "approval.answered")
    assert (ended["answer"], ended["way"], ended["note"]) == ("approve", "api", "looks right")
    assert ended["by"] == answered.json()["answer"]["by"]
    # Nothing is left of where it listened.
    assert not list(Path(waiting.aish.env["XDG_RUNTIME_DIR"], "aish").iterdir())


@pytest.mark.parametrize(("flags", "code", "written"), [((), 0, ["one"]), (("--deny",), 3, [])])
def test_aish_approve_answers_a_live_run(
    waiting: Project, flags: tuple[str, ...], code: int, written: list[str]
) -> None:
    with live_run(waiting) as (running, client):
        (question,) = pending(client)
        run = waiting.run_folders[0].name
        given = ("--yes", "--digest", question["digest"][:12], "--note", "by hand", *flags)

        told = waiting.aish("approve", run, question["id"][:8], *given)
        done = running.finish()

    assert told.code == 0, told.stderr
    assert "the run goes on by itself" in told.stderr
    assert "--resume" not in told.stderr
    assert done.code == code, done.stderr
    assert ledger(waiting) == written
    (ended,) = of_type(waiting.journal, "approval.answered")
    assert (ended["way"], ended["note"]) == ("command", "by hand")


@pytest.mark.slow(reason="answers a hundred times from twenty threads")
def test_of_a_hundred_answers_at_once_one_counts(waiting: Project) -> None:
    waiting.pipeline(TWO)
    found: list[httpx.Response] = []
    with live_run(waiting) as (running, client):
        questions = all_of(client, 2)
        path = control_file(waiting)["address"].removeprefix("unix:")
        begin = threading.Barrier(20)

        def many(number: int) -> None:
            with httpx.Client(
                transport=httpx.HTTPTransport(uds=path, verify=PLAIN),
                base_url="http://x/api/v1",
                timeout=60,
            ) as mine:
                mine.get("status")
                begin.wait(60)
                for _ in range(5):
                    given = "approve" if number % 2 else "deny"
                    found.append(answer(mine, questions[0], given, note=f"from {number}"))

        threads = [threading.Thread(target=many, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answer(client, questions[1], "deny").status_code == 200
        done = running.finish()

    assert done.code == 0, done.stderr
    won = [one.json() for one in found if one.status_code == 200]
    lost = [one for one in found if one.status_code != 200]
    assert (len(won), len(lost)) == (1, 99)
    assert {code_of(one) for one in lost} == {(409, "decided")}
    by = won[0]["answer"]
    assert all(
        f"by {by['by']} (api): {by['note']}" in one.json()["error"]["message"] for one in lost
    )
    ended = of_type(waiting.journal, "approval.answered")
    assert sorted(one["id"] for one in ended) == sorted(one["id"] for one in questions)


def all_of(client: httpx.Client, count: int) -> list[Any]:
    """The open questions, once there are so many: told by the stream of events."""
    asked = 0
    with client.stream("GET", "events", headers={"Accept": "text/event-stream"}) as stream:
        for line in stream.iter_lines():
            asked += '"type":"approval.asked"' in line
            if asked == count:
                break
    return pending(client)


def test_what_is_no_answer_to_an_open_question_is_refused(waiting: Project) -> None:
    waiting.pipeline(TWO.replace("with: {text: two}", "ask_timeout: 1ms, with: {text: two}"))
    with live_run(waiting) as (running, client):
        running.wait_for_line("other: ")
        everything = client.get("approvals").json()
        while len(everything["decided"]) < 1 or len(everything["pending"]) < 1:
            everything = client.get("approvals").json()
        (question,), (expired,) = everything["pending"], everything["decided"]

        assert {code_of(answer(client, {**question, "id": guessed_id()})) for _ in range(500)} == {
            (404, "unknown_question")
        }
        assert code_of(client.get(f"approvals/{guessed_id()}")) == (404, "unknown_question")
        assert code_of(answer(client, expired)) == (410, "expired")
        other = {**question, "digest": expired["digest"]}
        assert code_of(answer(client, other)) == (422, "other_digest")
        for body in BAD_BODIES:
            refused = client.post(f"approvals/{question['id']}", json=body)
            assert code_of(refused) == (422, "invalid_body"), body
        kind = {"Content-Type": "application/json"}
        refused = client.post(f"approvals/{question['id']}", content=b"null", headers=kind)
        assert code_of(refused) == (422, "invalid_body")
        rude = client.post(f"approvals/{question['id']}", content=b"answer=approve")
        assert code_of(rude) == (415, "wrong_type")
        assert code_of(client.put(f"approvals/{question['id']}", json={})) == (
            405,
            "method_not_allowed",
        )
        assert code_of(client.get("nothing")) == (404, "not_found")
        assert code_of(client.get("events?after=x")) == (422, "invalid_value")
        assert ledger(waiting) == []
        assert [one["id"] for one in pending(client)] == [question["id"]]

        assert answer(client, question, "deny").status_code == 200
        done = running.finish()

    assert done.code == 0, done.stderr
    assert ledger(waiting) == []


DIGEST = "0" * 64
BAD_BODIES: list[Any] = [
    {},
    [],
    "approve",
    {"answer": "yes", "digest": DIGEST},
    {"answer": "expired", "digest": DIGEST},
    {"answer": "approve"},
    {"answer": "approve", "digest": DIGEST[:11]},
    {"answer": "approve", "digest": "x" * 64},
    {"answer": "approve", "digest": 12},
    {"answer": "approve", "digest": DIGEST, "note": 1},
    {"answer": "approve", "digest": DIGEST, "note": "x" * 2001},
    {"answer": "approve", "digest": DIGEST, "by": "somebody else"},
    {"answer": "approve", "digest": DIGEST, "way": "terminal"},
]


def test_a_late_answer_hears_who_was_first(waiting: Project) -> None:
    waiting.pipeline(TWO)
    with live_run(waiting) as (running, client):
        first, second = all_of(client, 2)
        assert answer(client, first, note="no need", given="deny").status_code == 200
        late = answer(client, first)
        run = waiting.run_folders[0].name
        told = waiting.aish("approve", run, first["id"], "--deny", "--yes")
        assert answer(client, second, "deny").status_code == 200
        running.finish()

    assert code_of(late) == (409, "decided")
    assert "already denied, by " in late.json()["error"]["message"]
    assert late.json()["error"]["message"].endswith("(api): no need")
    assert told.code != 0
    assert "is already denied, by " in told.stderr


@pytest.mark.parametrize("way", ["child", "orphan"])
def test_what_the_run_has_started_cannot_answer_it(waiting: Project, way: str) -> None:
    probe = waiting.write("probe.py", PROBE)
    # The folder of a socket is private.
    path = f"{waiting.aish.env['XDG_RUNTIME_DIR']}/own/s"
    waiting.pipeline(
        f"""
        mcp:
          servers: {{box: {{command: {SERVER}}}}}
          auto_approve: [shell__run]
        on_ask: wait
        steps:
          - {{id: note, call: box__write, with: {{text: one}}}}
          - {{id: probe, needs: [], run: [{sys.executable}, {probe}, {way}, {path}]}}
        """
    )
    with live_run(waiting, "--control", f"unix:{path}") as (running, client):
        running.wait_for_line("probe: ok")
        (question,) = pending(client)
        assert answer(client, question, "deny").status_code == 200
        running.finish()

    said = json.loads((waiting.folder / "said.json").read_text(encoding="utf-8"))
    assert said[0] == 403
    assert "processes that the run started" in said[1]
    assert ledger(waiting) == []


PROBE = """
import http.client, json, os, socket, sys, time

way, path = sys.argv[1:]
if way == "orphan":
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        os.read(reading, 1)  # until the orphan has ended
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    while os.getppid() == int(open("/proc/self/stat").read().split()[5]):
        pass
connection = http.client.HTTPConnection("x")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect(path)
connection.request("GET", "/api/v1/approvals")
response = connection.getresponse()
with open("said.json", "w") as file:
    json.dump([response.status, response.read().decode()], file)
"""


@pytest.mark.requirement("A7")
def test_a_question_that_nobody_answers_is_denied_in_time(waiting: Project) -> None:
    waiting.pipeline(WAITING.replace("on_ask: wait", "on_ask: wait\n    ask_timeout: 1ms"))

    done = waiting.run()

    assert done.code == 3, done.stderr
    assert ledger(waiting) == []
    (ended,) = of_type(waiting.journal, "approval.answered")
    assert (ended["answer"], ended["by"], ended["way"]) == ("expired", "nobody", "time")
    assert "nobody answered within 1ms" in done.stderr


def test_an_interrupted_run_keeps_its_question(waiting: Project) -> None:
    with live_run(waiting) as (running, client):
        (question,) = pending(client)
        running.interrupt(signal.SIGTERM)
        ended = running.finish()
    assert ended.code == 143, ended.stderr
    assert of_type(waiting.journal, "approval.answered") == []
    run = waiting.run_folders[0].name
    given = ("--yes", "--digest", question["digest"][:12])

    told = waiting.aish("approve", run, question["id"], *given)
    done = waiting.run("--resume")

    assert told.code == 0, told.stderr
    assert "--resume" in told.stderr
    assert done.code == 0, done.stderr
    assert ledger(waiting) == ["one"]
    assert len({one["id"] for one in of_type(waiting.journal, "approval.asked")}) == 1


@pytest.mark.slow(reason="asks at a terminal and over the socket")
def test_the_terminal_says_who_was_first(waiting: Project) -> None:
    with at_terminal(waiting, "exec $AISH run p.yaml --ask") as terminal:
        terminal.expect_exact("[y/N/a")
        with client_of(waiting) as client:
            (question,) = pending(client)
            answered = answer(client, question, note="seen")
        terminal.expect(pexpect.EOF)
        rest = terminal.before or ""
        terminal.wait()

    assert answered.status_code == 200, answered.text
    assert terminal.exitstatus == 0, rest
    by = answered.json()["answer"]["by"]
    assert f"answered meanwhile: approved by {by} (api): seen" in rest
    assert ledger(waiting) == ["one"]


@pytest.mark.requirement("T34")
def test_always_answers_the_same_call_and_no_other(waiting: Project) -> None:
    more = "\n      - {id: c, call: box__write, with: {text: one}}"
    waiting.pipeline(TWO.rstrip() + more)
    with live_run(waiting) as (running, client):
        questions = all_of(client, 3)
        first = next(one for one in questions if one["arguments"] == {"text": "one"})
        assert first["always"] == 'box__write when {"text": "one"} schema {"maxProperties": 1}'
        assert answer(client, first, "always").status_code == 200
        (left,) = all_of(client, 1)
        assert left["arguments"] == {"text": "two"}
        assert answer(client, left, "deny").status_code == 200
        done = running.finish()

    assert done.code == 0, done.stderr
    assert ledger(waiting) == ["one", "one"]
    ways = [one["way"] for one in of_type(waiting.journal, "approval.answered")]
    assert ways == ["api", "rule", "api"]


def test_over_tcp_a_token_is_needed(waiting: Project) -> None:
    # `aish approve` asks once more after its answer; the run may have ended by then.
    with live_run(waiting, "--control", f"127.0.0.1:{free_port()}") as (running, client):
        named = control_file(waiting)
        assert f"listening on {named['address']}, token in" in running.stderr
        assert stat.S_IMODE(Path(named["token_file"]).stat().st_mode) == 0o600
        url = f"http://{named['address']}/api/v1"
        (question,) = pending(client)
        for headers in ({}, {"Authorization": f"Bearer {'x' * 43}"}):
            refused = httpx.post(
                f"{url}/approvals/{question['id']}",
                json={"answer": "approve", "digest": question["digest"]},
                headers=headers,
                verify=PLAIN,
            )
            assert code_of(refused) == (401, "unauthorized")
        run = waiting.run_folders[0].name

        told = waiting.aish("approve", run, question["id"], "--yes", "--digest", question["digest"])
        done = running.finish()

    assert told.code == 0, told.stderr
    assert done.code == 0, done.stderr
    (ended,) = of_type(waiting.journal, "approval.answered")
    assert (ended["by"], ended["way"]) == (login_name(), "command")
    assert not Path(named["token_file"]).exists()


def test_the_token_of_a_run_is_masked_where_a_tool_has_read_it(project: Project) -> None:
    with runtime_folder(project) as folder:
        project.pipeline(
            f"""
            mcp: {{auto_approve: [shell__run]}}
            run: [find, {folder}/aish, -name, "*.token", -exec, cat, "{{}}", ";"]
            """
        )
        done = project.aish("run", "p.yaml", "--control", "127.0.0.1:0")

    assert done.code == 0, done.stderr
    (finished,) = of_type(project.journal, "tool.finished")
    assert finished["content"].strip() == "<secret:control.token>"
    assert done.stdout.strip() == "<secret:control.token>"


def test_events_are_followed_from_any_number_to_the_end(waiting: Project) -> None:
    with live_run(waiting) as (running, client):
        listed = client.get("events").json()
        numbers = [one["seq"] for one in listed["events"]]
        assert listed["next"] == numbers[-1]
        assert client.get("events", params={"after": listed["next"]}).json() == {
            "events": [],
            "next": listed["next"],
        }
        later = client.get("events", params={"after": numbers[1]}).json()["events"]
        assert later == listed["events"][2:]
        (question,) = pending(client)
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(numbers[1])}
        with (
            client.stream("GET", "events", headers=headers) as stream,
            client_of(waiting) as another,
        ):
            assert stream.headers["content-type"].startswith("text/event-stream")
            answer(another, question)
            lines = [line for line in stream.iter_lines() if line.startswith("data: ")]
            seen = [json.loads(line.removeprefix("data: ")) for line in lines]
        done = running.finish()

    assert done.code == 0, done.stderr
    assert seen[: len(later)] == later
    kept = [{k: v for k, v in one.items() if k != "crc"} for one in waiting.journal]
    numbered = {one["seq"]: one for one in kept}
    assert [numbered[one["seq"]] for one in seen if one["seq"] in numbered] == kept[2:]
    assert seen[-1]["type"] == "run.finished"


def test_a_socket_that_was_asked_for_is_opened_or_nothing_runs(waiting: Project) -> None:
    folder = waiting.folder / "open"
    folder.mkdir(mode=0o755)
    taken = waiting.write("own/file", "x")
    taken.parent.chmod(0o700)

    for address, said in {
        "nonsense:port:1": "is not an address",
        "example.org:80": "neither an IP address",
        "0.0.0.0:0": "can be reached from other machines",
        f"unix:{folder}/s": "is open to others",
        f"unix:{taken}": "not a socket",
    }.items():
        done = waiting.run(f"--control={address}")
        assert (done.code, said in done.stderr) == (2, True), done.stderr
    assert waiting.run_folders == []
    alone = waiting.run("--allow-remote")
    assert (alone.code, "go with `--control`" in alone.stderr) == (2, True)


def test_a_run_that_cannot_open_a_socket_by_itself_says_so_and_goes_on(waiting: Project) -> None:
    waiting.aish.env["XDG_RUNTIME_DIR"] = "/dev/null"
    waiting.pipeline(WAITING.replace("on_ask: wait", "on_ask: wait\n    ask_timeout: 1ms"))

    done = waiting.run()

    assert done.code == 3, done.stderr
    assert "no answers are taken while the run waits" in done.stderr
    (notice,) = of_type(waiting.journal, "notice")
    assert (notice["level"], notice["code"]) == ("warning", "control_failed")


def test_a_replay_opens_no_socket(waiting: Project) -> None:
    with waiting.aish.start("run", "p.yaml", "--record", "c.yaml") as running:
        running.wait_for_line(WAITS)
        with client_of(waiting) as client:
            (question,) = pending(client)
            answer(client, question)
        assert running.finish().code == 0

    refused = waiting.run("--replay", "c.yaml", "--control")
    replayed = waiting.run("--replay", "c.yaml", env={"XDG_RUNTIME_DIR": "/dev/null"})

    assert refused.code == 2
    assert "`--control` and a replay exclude each other" in refused.stderr
    assert "no answers are taken" not in replayed.stderr


def test_no_answer_has_a_secret(waiting: Project) -> None:
    secret = "correct-horse-battery"
    waiting.aish.env["NOTE_KEY"] = secret
    waiting.pipeline(
        dedent(TWO).replace("text: one", f"text: {secret}").lstrip() + "secrets: [NOTE_KEY]\n"
    )
    with live_run(waiting) as (running, client):
        first, second = all_of(client, 2)
        answer(client, first, "deny", note=secret)
        late = answer(client, first)
        said = [
            client.get(path).text
            for path in ("status", "events", "approvals", f"approvals/{first['id']}")
        ]
        answer(client, second, "deny")
        running.finish()

    assert code_of(late) == (409, "decided")
    assert "<secret:NOTE_KEY>" in late.text
    assert secret not in "".join([late.text, *said])
    assert os.environ.get("NOTE_KEY") is None


@pytest.mark.parametrize(("command", "code"), [("cancel", 143), ("stop", 130)])
def test_a_command_ends_the_run_as_a_signal_does(waiting: Project, command: str, code: int) -> None:
    with live_run(waiting) as (running, client):
        for body in ({}, {"command": "quit"}, {"command": command, "now": True}, [command]):
            assert code_of(client.post("commands", json=body)) == (422, "invalid_body")
        done_by = client.post("commands", json={"command": command})
        ended = running.finish()

    assert done_by.json() == {"command": command}
    assert ended.code == code, ended.stderr
    called = of_type(waiting.journal, "control.called")
    assert [one["status"] for one in called] == [422, 422, 422, 422, 200]
    assert (called[-1]["path"], called[-1]["scope"]) == ("/api/v1/commands", "write")
    assert f"control API: POST /api/v1/commands by {called[-1]['by']}: done (200)" in ended.stderr
    # The question is kept, as after the signal.
    assert waiting.journal[-1]["waiting"] == 1


@pytest.mark.slow(reason="sends many requests that are refused")
def test_what_was_refused_is_in_the_journal_and_does_not_fill_it(waiting: Project) -> None:
    with live_run(waiting, "--control", "127.0.0.1:0") as (running, client):
        url = f"http://{control_file(waiting)['address']}/api/v1/status"
        with httpx.Client(verify=PLAIN) as stranger:
            for _ in range(150):
                assert stranger.get(url).status_code == 401
        (question,) = pending(client)
        assert answer(client, question).status_code == 200
        done = running.finish()

    assert done.code == 0, done.stderr
    called = of_type(waiting.journal, "control.called")
    assert [one["status"] for one in called] == [401] * 100 + [200]
    assert (called[0]["by"], called[-1]["by"]) == ("", login_name())
    assert "Bearer" not in waiting.everything_written()


def test_a_run_whose_socket_is_gone_cannot_be_answered_and_goes_on_waiting(
    waiting: Project,
) -> None:
    with live_run(waiting) as (running, client):
        (question,) = pending(client)
        Path(control_file(waiting)["address"].removeprefix("unix:")).unlink()
        run = waiting.run_folders[0].name
        given = ("--yes", "--digest", question["digest"])
        unheard = waiting.aish("approve", run, question["id"], *given)
        # Who is connected still is.
        assert [one["id"] for one in pending(client)] == [question["id"]]
        assert answer(client, question, "deny").status_code == 200
        done = running.finish()

    assert unheard.code == 1
    assert "the run does not answer at unix:" in unheard.stderr
    assert done.code == 3, done.stderr
    ended = of_type(waiting.journal, "approval.answered")
    assert [one["answer"] for one in ended] == ["deny"]


@pytest.mark.slow(reason="asks at a terminal")
def test_a_run_without_a_socket_is_answered_where_it_asks(waiting: Project) -> None:
    waiting.pipeline(WAITING.replace("on_ask: wait", "on_ask: deny"))
    with at_terminal(waiting, "exec $AISH run p.yaml --ask") as terminal:
        terminal.expect_exact("[y/N/a")
        (asked,) = of_type(waiting.journal, "approval.asked")
        told = waiting.aish("approve", "latest", asked["id"], "--deny", "--yes")
        terminal.send("y\r")
        terminal.expect(pexpect.EOF)
        terminal.wait()

    assert terminal.exitstatus == 0
    assert told.code == 1
    assert "writes its journal, and takes no answers" in told.stderr
    assert ledger(waiting) == ["one"]


def test_a_file_says_where_a_run_listens_and_who_may_connect(waiting: Project) -> None:
    reader, writer = "reader-" + "r" * 32, "writer-" + "w" * 32
    waiting.aish.env["READER_TOKEN"] = reader
    waiting.write("writer.token", f"{writer}\n").chmod(0o600)
    waiting.pipeline(
        dedent(WAITING)
        + dedent("""
        control:
          listen: 127.0.0.1:0
          origins: ["https://runs.example.org"]
          tokens:
            reader: {token_env: READER_TOKEN, scopes: [read]}
            writer: {token_file: writer.token, scopes: [answer, write]}
        """)
    )
    with waiting.aish.start("run", "p.yaml") as running:
        running.wait_for_line(WAITS)
        url = f"http://{control_file(waiting)['address']}/api/v1"
        reads = {"Authorization": f"Bearer {reader}"}
        writes = {"Authorization": f"Bearer {writer}"}
        with httpx.Client(base_url=url, headers=reads, verify=PLAIN) as client:
            (question,) = pending(client)
            assert code_of(answer(client, question)) == (403, "forbidden")
            assert code_of(client.post("commands", json={"command": "stop"})) == (403, "forbidden")
            page = {"Origin": "https://runs.example.org"}
            assert client.get("status", headers=page).status_code == 200
            page = {"Origin": "https://runs.example.com"}
            assert code_of(client.get("status", headers=page)) == (403, "wrong_origin")
        with httpx.Client(base_url=url, headers=writes, verify=PLAIN) as client:
            assert code_of(client.get("status")) == (403, "forbidden")
            assert answer(client, question, note=f"with {reader}").status_code == 200
        done = running.finish()

    assert done.code == 0, done.stderr
    (ended,) = of_type(waiting.journal, "approval.answered")
    assert (ended["by"], ended["note"]) == ("writer", "with <secret:READER_TOKEN>")
    assert not list(Path(waiting.aish.env["XDG_RUNTIME_DIR"]).rglob("*.token"))
    assert reader not in waiting.everything_written() + done.stderr
    assert writer not in waiting.everything_written() + done.stderr


@pytest.mark.parametrize(
    ("control", "said"),
    [
        ("{listen: nowhere}", "control.listen: `nowhere` is not an address"),
        ("{listen: '127.0.0.1:0', tokens: {t: {token_env: UNSET_TOKEN, scopes: [read]}}}", "UNSET"),
        ("{tokens: {t: {token_env: T, token_file: f, scopes: [read]}}}", "control.tokens.t"),
        ("{tokens: {t: {token_env: T, scopes: [all]}}}", "control.tokens.t.scopes"),
        ("{listens: auto}", "listens"),
    ],
)
def test_what_is_wrong_under_control_is_told_before_the_run(
    waiting: Project, control: str, said: str
) -> None:
    waiting.pipeline(dedent(WAITING) + f"control: {control}\n")

    done = waiting.run()

    assert done.code == 2, done.stderr
    assert said in done.stderr
    assert waiting.run_folders == []


def test_what_a_killed_run_left_where_runs_listen_is_removed_by_the_next_run(
    project: Project,
) -> None:
    project.pipeline("mcp: {auto_approve: [shell__run]}\nrun: [sleep, '60']\n")
    left: list[set[str]] = []
    with runtime_folder(project) as runtime:
        for _ in range(3):
            with project.aish.start("run", "p.yaml", "--control") as running:
                running.wait_for_line("listening on")
                left.append({path.name for path in (runtime / "aish").iterdir()})
                running.kill()

    # Its socket, where that is told, and the lock that says it lives.
    assert [len(names) for names in left] == [3, 3, 3], left
    assert not left[0] & left[1]
