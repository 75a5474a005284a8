"""A session is asked about and answered over its socket, beside the person at its terminal (A1)."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import httpx
import pytest
from control_shapes import READS, check
from e2e_project import ModelEndpoints, Project, of_type, stdio
from live_runs import WAITS, answer, client_of, code_of, control_path, pending, runtime_folder
from plain_http import PLAIN
from shell_sessions import FS, READ, obedient, records, session_folders
from shell_terminal import (
    CTRL_C,
    answered,
    at_prompt,
    leave,
    sent_messages,
    session_journal,
    sitting,
)
from terminal_window import Window


@pytest.fixture
def endpoint(model_endpoint: ModelEndpoints) -> Any:
    return model_endpoint(obedient)


@pytest.fixture
def session(project: Project, endpoint: Any) -> Iterator[Project]:
    """A project with a file to read, which no rule approves."""
    with runtime_folder(project):
        project.uses(endpoint)
        project.pipeline(FS)
        project.write("data/note.txt", "hello\n")
        yield project


def socket_of(project: Project) -> Path:
    """A socket in a private folder, which the session makes."""
    return Path(project.aish.env["XDG_RUNTIME_DIR"], "own", "s")


def client_at(path: Path) -> httpx.Client:
    transport = httpx.HTTPTransport(uds=str(path), verify=PLAIN)
    return httpx.Client(transport=transport, base_url="http://aish/api/v1", timeout=60)


def address_of(project: Project, folder: Path) -> Path:
    named = json.loads(control_path(project, folder.name).read_text("utf-8"))
    return Path(named["address"].removeprefix("unix:"))


def asked(window: Window, line: str) -> None:
    """Type a question whose call needs an answer, and wait until somebody is asked."""
    window.wait_for(at_prompt(window))
    window.mark()
    window.type(f"{line}\r")
    window.wait_for(lambda: "send? [y/N/a/?]" in "\n".join(window.since))


def test_the_first_answer_counts_at_the_terminal_or_elsewhere(
    session: Project, endpoint: Any
) -> None:
    path = socket_of(session)
    session.pipeline(FS + "on_ask: pause\n")
    with sitting(session, "--control", f"unix:{path}", columns=160) as window:
        window.wait_for(f"listening on unix:{path}")
        with client_at(path) as client:
            asked(window, READ)
            (question,) = pending(client)
            assert client.get("status").json()["state"] == "waiting"
            assert question["arguments"] == {"path": "note.txt"}
            # What was typed for the question is not an answer, and no part of the next line.
            window.type("y")
            window.wait_for("[y/N/a/?] y")
            given = answer(client, question)
            assert given.status_code == 200, given.text
            by = given.json()["answer"]["by"]
            window.wait_for(f"answered meanwhile: approved by {by} (api)")
            window.wait_for("hello")
            window.wait_for(at_prompt(window))

            asked(window, READ)
            (other,) = pending(client)
            window.type("n\r")
            window.wait_for(lambda: "denied by the user" in "\n".join(window.since))
            late = answer(client, other)
            assert code_of(late) == (409, "decided")
            assert "already denied, by the user (terminal)" in late.json()["error"]["message"]

            # What is stopped, here or there, is withdrawn; the session goes on.
            for stop in (lambda: window.type(CTRL_C), lambda: command(client, "stop")):
                asked(window, READ)
                (left,) = pending(client)
                stop()
                window.wait_for(at_prompt(window))
                assert code_of(answer(client, left)) == (410, "withdrawn")
            # The calls have their replies: the conversation can be continued.
            answered(window, "well", ": well>")
            assert sent_messages(endpoint.asked[-1])[-1] == ("user", "well")
            window.wait_for(at_prompt(window))
            assert command(client, "cancel").json() == {"command": "cancel"}
        assert window.finish() == 143
    # The page shows by it that the session is being ended.
    (ended,) = [
        one for one in of_type(session_journal(session), "notice") if one["code"] == "interrupted"
    ]
    assert ended["text"] == "the session is being ended"

    assert not path.exists()
    ends = of_type(session_journal(session), "approval.answered")
    assert [(one["answer"], one["way"]) for one in ends] == [
        ("approve", "api"),
        ("deny", "terminal"),
        ("withdrawn", "run"),
        ("withdrawn", "run"),
    ]


PROBE = """
import http.client, json, pathlib, socket, sys

(named,) = pathlib.Path("RUNTIME/aish").glob("*.control.json")
connection = http.client.HTTPConnection("x")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect(json.loads(named.read_text())["address"].removeprefix("unix:"))
body = json.dumps({"answer": "deny"})
connection.request("POST", f"/api/v1/approvals/{'0' * 32}", body)
print("probe:", connection.getresponse().status)
"""


def test_a_proposed_command_can_be_answered_elsewhere_too(session: Project) -> None:
    path = socket_of(session)
    with sitting(session, "--control", f"unix:{path}", columns=160, rows=40) as window:
        window.wait_for("listening on")
        with client_at(path) as client:
            window.type("SAY CMD: echo one > one\r")
            window.wait_for("[y/N/e]")
            (question,) = pending(client)
            assert question["arguments"] == {"command": "echo one > one"}
            assert code_of(answer(client, question, "always")) == (422, "not_offered")
            place = ("--run-dir", ".aish/sessions")
            listed = session.aish("runs", "pending", *place).stdout
            given = (question["id"][:8], "--yes", "--digest", question["digest"][:12])
            assert given[0] in listed
            told = session.aish("approve", session_folders(session)[-1].name, *given, *place)
            assert told.code == 0, told.stderr
            window.wait_for("answered meanwhile: approved by ")
            window.wait_for(at_prompt(window))

            # One that is changed is another command.
            window.type("SAY CMD: echo two > two\r")
            window.wait_for("run 'echo two > two'? [y/N/e]")
            (question,) = pending(client)
            window.type("e\r")
            window.wait_for("run: echo two > two")
            assert code_of(answer(client, question)) == (410, "withdrawn")
            window.type("\x7f\x7f\x7fthree\r")
            window.wait_for("run 'echo two > three'? [y/N/e]")
            (question,) = pending(client)
            assert answer(client, question, "deny", note="no").status_code == 200
            window.wait_for("answered meanwhile: denied by ")
        assert leave(window) == 0

    assert (session.folder / "one").read_text() == "one\n"
    assert not any((session.folder / name).exists() for name in ("two", "three"))
    journal = session_journal(session)
    asked = [one["id"] for one in of_type(journal, "approval.asked")]
    assert len(asked) == 3
    decided = of_type(journal, "tool.decided")
    assert [one["approval"] for one in decided] == [asked[0], asked[2]]
    assert [one["verdict"] for one in decided] == ["ask-yes", "ask-no"]


def test_without_a_terminal_a_session_waits_for_somebody_who_is_not_below_it(
    session: Project, endpoint: Any
) -> None:
    session.pipeline(FS.replace("{", "{exfiltration: deny, ", 1) + "on_ask: pause\n")
    runtime = session.aish.env["XDG_RUNTIME_DIR"]
    probe = session.write("probe.py", PROBE.replace("RUNTIME", runtime))
    lines = (READ, f"!{sys.executable} {probe}", "bye")
    place = ("--run-dir", ".aish/sessions")
    with session.aish.start("shell", "p.yaml", stdin="\n".join(lines)) as running:
        running.wait_for_line(WAITS)
        (folder,) = session_folders(session)
        (question,) = of_type(records(folder), "approval.asked")
        listed = session.aish("runs", "pending", *place)
        assert question["id"][:8] in listed.stdout, listed
        with client_at(address_of(session, folder)) as client:
            # It waits for its turn, which comes before the next line.
            assert say(client, "one").json()["queued"] == 1
            assert say(client, "!touch made").json()["queued"] == 2
        digest = question["digest"][:12]
        given = ("--yes", "--digest", digest, *place)
        told = session.aish("approve", folder.name, question["id"][:8], *given)
        assert told.code == 0, told.stderr
        done = running.finish()

    assert done.code == 0, done.stderr
    assert "hello" in done.stdout
    assert "probe: 403" in done.stdout
    asked = [sent_messages(body)[-1] for body in endpoint.asked]
    assert asked[2:] == [("user", "one"), ("user", "!touch made"), ("user", ANY)]
    assert not (session.folder / "made").exists()
    # What is said is typed, as far as flows are concerned: a person has the token of the session.
    turns = of_type(records(folder), "turn.started")
    read = ["repo__file_read"]
    assert [one["sources"] for one in turns] == [[], read, read, read, ["!", *read]]
    ended, typed = of_type(records(folder), "approval.answered")
    assert (ended["answer"], ended["way"]) == ("approve", "command")
    # What is typed has its answer: nobody has time to give one.
    assert typed["way"] == "terminal"
    ends = [one["expires"] for one in of_type(records(folder), "approval.asked")]
    assert (ends[0] is not None, ends[1]) == (True, None)
    assert not control_path(session, folder.name).exists()


def say(client: httpx.Client, text: str) -> httpx.Response:
    return command(client, "say", text=text)


def command(client: httpx.Client, name: str, **arguments: Any) -> httpx.Response:
    return client.post("commands", json={"command": name, **arguments})


COMMAND_LINES = (
    "!touch made",
    "$touch made",
    ":quit",
    "CMD: touch made",
    "  !touch made\n:quit",
    "\x1b]0;title\x07 and \x1b[2J",
)


def test_what_is_said_over_the_socket_is_text_for_the_model_alone(
    session: Project, endpoint: Any
) -> None:
    path = socket_of(session)
    session.pipeline(FS.replace("root: data", "root: data, trust: true"))
    with sitting(session, "--control", f"unix:{path}", columns=120, rows=50) as window:
        window.wait_for("listening on")
        with client_at(path) as client:
            # A line that is being typed is put aside, and comes back as it was.
            window.type("half a li\x1b[D")
            window.wait_for("half a li")
            given = say(client, "first")
            assert (given.status_code, given.json()["command"]) == (200, "say"), given.text
            window.wait_for("says: first")
            window.wait_for(": first>")
            window.wait_for(lambda: window.lines[-1] == "m> half a li")
            assert window.lines.count("m> half a li") == 1
            window.type("XY\r")
            window.wait_for(": half a lXYi>")

            # What the person lets run unasked is not for others.
            answered(window, ":norris on", "norris is on")
            window.mark()
            assert say(client, READ).status_code == 200
            # To its end: what is typed before that is no answer.
            window.wait_for(lambda: "send? [y/N/a/?]" in "\n".join(window.since))
            window.type("n\r")
            answered(window, READ, "  │ hello")
            answered(window, ":norris off", "norris is off")
            asked_before = len(endpoint.asked)

            for line in COMMAND_LINES:
                window.wait_for(at_prompt(window))
                window.mark()
                assert say(client, line).status_code == 200
                window.wait_for(lambda: "says: " in "\n".join(window.since))
                window.wait_for(at_prompt(window))
        assert leave(window) == 0
        assert b"\x1b]0;title" not in window.raw

    asked = [sent_messages(body)[-1] for body in endpoint.asked]
    assert asked[0] == ("user", "first")
    assert asked[asked_before:] == [("user", line) for line in COMMAND_LINES]
    assert not (session.folder / "made").exists()
    kinds = {one["kind"] for one in of_type(session_journal(session), "step.started")}
    assert kinds == {"prompt"}


MODELS = """
models:
  m: {base_url: "${MODEL_URL}", model: first, key_env: FIRST_KEY}
  other: {base_url: "${MODEL_URL}", model: second}
  locked: {base_url: "${MODEL_URL}", model: third, key_env: NO_SUCH_KEY}
model: m
"""
KEY = "sk-1234567890abcdef"
READ_CALL = {"id": "c1", "name": "repo__file_read", "arguments": '{"path": "note.txt"}'}
HELD: list[Any] = [
    {"role": "user", "text": "what is in it?"},
    {"role": "assistant", "text": "I look.", "calls": [READ_CALL]},
    {"role": "tool", "text": "hello", "tool": "repo__file_read"},
    {"role": "assistant", "text": "It says hello."},
]
SAID = ("role", "text", "calls", "tool")
BROKEN: list[tuple[list[Any], str]] = [
    ([{"role": "user", "text": "and now?"}], "does not end with an answer"),
    ([{"role": "user", "text": "a"}, {"role": "user", "text": "b"}], "before the answer"),
    ([{"role": "assistant", "text": "more"}], "not a conversation"),
    (
        [{"role": "tool", "text": "x", "tool": "t"}, {"role": "assistant", "text": "more"}],
        "not a conversation",
    ),
    ([{"role": "nobody", "text": "x"}], "is not one of"),
    ([{"role": "user", "text": "x", "characters": 7}], "only the first part"),
    (
        [
            {"role": "user", "text": "x"},
            {"role": "assistant", "text": "", "calls": [{**READ_CALL, "arguments": "{"}]},
        ],
        "is not the text of an object",
    ),
]


def test_a_session_is_driven_over_its_socket(session: Project, endpoint: Any) -> None:
    path = socket_of(session)
    session.aish.env["FIRST_KEY"] = KEY
    session.pipeline(MODELS + FS)
    argv = json.loads(stdio())
    with sitting(session, "--control", f"unix:{path}", columns=120, rows=90) as window:
        window.wait_for("listening on")
        with client_at(path) as client:
            # Servers, as by `:mcp connect`: rules and names of the file hold.
            found = command(client, "connect", argv=argv, alias="kid").json()
            assert found["alias"] == "kid"
            assert found["tools"] > 0
            window.wait_for("kid is connected")
            refusals = [
                ({"argv": argv, "alias": "kid"}, "already used"),
                ({"argv": ["false"], "alias": "repo"}, "already used"),
                ({"argv": ["sh", "${FIRST_KEY}"], "alias": "kid2"}, "variables"),
                ({"url": "http://127.0.0.1:9/${FIRST_KEY}"}, "variables"),
                ({"url": f"http://127.0.0.1:9/?key={KEY}"}, "cannot connect"),
                ({"url": "http://127.0.0.1:9/", "alias": "shell"}, "cannot be an alias"),
                ({"argv": ["false"]}, "`alias` is missing"),
            ]
            for given, why in refusals:
                refused = command(client, "connect", **given)
                assert code_of(refused) == (422, "refused"), (given, refused.text)
                assert why in refused.text
                assert KEY not in refused.text
            answered(window, ":deny shell__run", "deny")
            refused = command(client, "connect", argv=argv, alias="kid2")
            assert "denied by rule shell__run" in refused.text

            # Another model, from the next question on.
            assert client.get("values/model").json()["value"] == "m"
            for value, status in (("nobody", 422), ("locked", 422), (7, 422), ("other", 200)):
                put = client.put("values/model", json={"value": value, "was": "m"})
                assert put.status_code == status, put.text
            window.wait_for(lambda: window.lines[-1] == "other>")
            assert say(client, f"my key is {KEY}").status_code == 200
            window.wait_for("says: my key is <secret:FIRST_KEY>")
            window.wait_for(": my key is <secret:FIRST_KEY>>")

            # A new conversation, after what was said before.
            assert say(client, "second").status_code == 200
            assert command(client, "reset").status_code == 200
            assert say(client, "third").status_code == 200
            window.wait_for(": third>")
            told = "".join(client.get(one).text for one in ("events", "session", "performance"))

            # Another conversation, in the form in which one is told.
            older = "http://aish/api/session"
            put = client.post(older, json={"session": {"entries": HELD}})
            assert put.status_code == 200, put.text
            entries = client.get("session").json()["entries"]
            assert [(one["role"], one["text"]) for one in entries[1:]] == [
                (one["role"], one["text"]) for one in HELD
            ]
            assert say(client, "next").status_code == 200
            window.wait_for(": next>")
            for changed, why in BROKEN:
                refused = client.post(older, json={"session": {"entries": [*HELD, *changed]}})
                assert (refused.status_code, why in refused.text) == (422, True), refused.text
            whole = client.get("session").json()
            assert client.post(older, json={"session": whole}).status_code == 200
            again = client.get("session").json()["entries"]
            assert [[one[key] for key in SAID] for one in again] == [
                [one[key] for key in SAID] for one in whole["entries"]
            ]

            for where, shape in READS.items():
                found = client.get(f"http://aish{where}")
                if where.endswith("/concurrency"):
                    # A session does one thing at a time.
                    assert code_of(found) == (404, "unknown_value")
                else:
                    check(found.json(), shape)

            click = {"action": "click", "item": "btn_reset_session"}
            assert client.post("http://aish/api/gui", json=click).json() == {"status": "queued"}
            window.wait_for(lambda: window.text.count("has reset the conversation") == 2)
            assert client.get("session").json()["entries"] == []

            # Limits hold from the next question on; their worst case must be known.
            for value, kind, status in ((9, "tokens", 422), ("0s", "time", 422), (4, "turns", 200)):
                put = client.put(f"values/limits.{kind}", json={"value": value, "was": None})
                assert put.status_code == status, put.text
            assert say(client, "fourth").status_code == 200
            window.wait_for("the limit of 4 turns")
            limits = {"limits.turns": 4, "limits.time": None, "limits.tool_calls": None}
            shown = client.get("values").json()["values"]
            assert {name: shown[name]["value"] for name in limits} == limits
            put = client.put("values/limits.turns", json={"value": None, "was": 4})
            assert put.status_code == 200, put.text
        # A lost socket ends no session.
        path.unlink()
        window.wait_for(lambda: window.lines[-1] == "other>")
        window.type("SAY still here\r")
        window.wait_for(lambda: window.lines[-2:] == ["still here", "other>"])
        window.type(":quit\r")
        assert window.finish() == 0

    bodies = endpoint.asked
    assert [body["model"] for body in bodies] == ["second"] * 5
    assert KEY in str(bodies[0])
    assert sent_messages(bodies[1])[-1] == ("user", "second")
    assert sent_messages(bodies[2]) == [("user", "third")]
    assert sent_messages(bodies[3])[:4] == [(one["role"], one["text"]) for one in HELD]
    assert sent_messages(bodies[3])[4:] == [("user", "next")]
    journal = session_journal(session)
    (started,) = of_type(journal, "approval.answered")
    assert (started["answer"], started["way"]) == ("approve", "api")
    assert KEY not in told + session.everything_written() + window.text


def test_a_pipeline_of_a_session_waits_for_an_answer_over_a_socket_of_its_own(
    session: Project,
) -> None:
    session.pipeline(
        FS + "on_ask: wait\nsteps: [{id: read, call: repo__file_read, with: {path: note.txt}}]\n",
        "w.yaml",
    )
    session.pipeline("")
    with session.aish.start("shell", "p.yaml", stdin=":run w.yaml\n") as running:
        running.wait_for_line(WAITS)
        with client_of(session) as client:
            (question,) = pending(client)
            assert answer(client, question).status_code == 200
        done = running.finish()

    assert done.code == 0, done.stderr
    assert done.stdout == "hello\n"


def test_a_question_of_a_killed_session_is_withdrawn_when_it_is_resumed(session: Project) -> None:
    session.pipeline(FS + "on_ask: wait\n")
    with session.aish.start("shell", "p.yaml", stdin=f"hello\n{READ}\n") as running:
        running.wait_for_line(WAITS)
        running.kill()
    (folder,) = session_folders(session)
    (left,) = of_type(records(folder), "approval.asked")

    lines = f"{READ}\n:quit\n"
    with session.aish.start("shell", "p.yaml", "--resume", stdin=lines) as running:
        running.wait_for_line(WAITS)
        with client_at(address_of(session, folder)) as client:
            found = client.get("approvals").json()
            (question,) = found["pending"]
            (gone,) = found["decided"]
            status = client.get("status").json()
            denied = answer(client, question, "deny", note="not this one")
            assert denied.status_code == 200, denied.text
        done = running.finish()

    assert done.code == 0, done.stderr
    assert (gone["id"], gone["state"]) == (left["id"], "withdrawn")
    steps = {one["id"]: one["status"] for one in status["steps"]}
    assert (steps["line-1"], steps["line-3"]) == ("ok", "waiting")
    turns = of_type(records(folder), "turn.finished")
    assert status["tokens"]["input"] == sum(one["usage"]["input"] for one in turns[:3])
    assert "denied by the user: not this one" in done.stderr


READER, TALKER = "r" * 40, "t" * 40


def test_a_session_listens_where_its_file_says_and_a_token_has_its_scopes(
    session: Project,
) -> None:
    session.aish.env |= {"READER": READER, "TALKER": TALKER}
    session.pipeline(
        FS
        + """
        on_ask: wait
        control:
          listen: ["127.0.0.1:0", auto]
          tokens:
            reader: {token_env: READER, scopes: [read]}
            talker: {token_env: TALKER, scopes: [read, write]}
        """.replace("\n        ", "\n")
    )
    with session.aish.start("shell", "p.yaml", stdin=f"{READ}\n") as running:
        running.wait_for_line(WAITS)
        (folder,) = session_folders(session)
        port, own = json.loads(control_path(session, folder.name).read_text())["addresses"]
        url = f"http://{port}/api/v1"
        for token, status in ((READER, 403), (TALKER, 200)):
            headers = {"Authorization": f"Bearer {token}"}
            with httpx.Client(base_url=url, headers=headers, timeout=60, verify=PLAIN) as client:
                (question,) = pending(client)
                assert answer(client, question).status_code == 403
                assert say(client, f"my token is {token}").status_code == status
                put = client.put("values/model", json={"value": "m", "was": "m"})
                assert put.status_code == status
        with client_at(Path(own.removeprefix("unix:"))) as client:
            assert answer(client, question).status_code == 200
        done = running.finish()

    assert done.code == 0, done.stderr
    assert "talker says: my token is <secret:TALKER>" in done.stderr
    assert not {READER, TALKER} & set(done.stdout.split())
    assert TALKER not in done.stderr + session.everything_written()
