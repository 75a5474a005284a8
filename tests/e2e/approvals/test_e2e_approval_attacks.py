"""What tries to have a call made that nobody approved, or to keep a run from being answered."""

import http.client
import json
import os
import random
import resource
import socket
import sys
import threading
from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from e2e_project import REPO, ModelEndpoints, Project, of_type
from live_runs import (
    WAITS,
    answer,
    client_of,
    code_of,
    control_file,
    ledger,
    live_run,
    pending,
    runtime_folder,
)
from mcp_peers import free_port
from model_endpoint import Reply, text_reply, tool_reply
from plain_http import PLAIN

SERVER = json.dumps([sys.executable, str(REPO / "tests" / "support" / "mcp_ledger_server.py")])
WAITING = f"""
    mcp: {{servers: {{box: {{command: {SERVER}}}}}}}
    on_ask: wait
    steps: [{{id: note, call: box__write, with: {{text: one}}}}]
    """


@pytest.fixture
def waiting(project: Project) -> Iterator[Project]:
    """A project whose run waits for an answer."""
    with runtime_folder(project):
        project.pipeline(WAITING)
        yield project


CHANGES = f"""
    mcp:
      servers: {{box: {{command: {SERVER}}}}}
      auto_approve: [box__change, box__fail, shell__run]
    on_ask: wait
    steps:
      - {{id: note, prompt: "Write", needs: []}}
      - {{id: hold, needs: [], run: [cat, gate]}}
      - {{id: change, needs: [hold], call: box__change, with: {{text: Erases everything}}}}
      - {{id: seen, needs: [change], call: box__fail, with: {{text: x}}}}
    """


def writes_two(request: Any) -> Reply:
    if request["messages"][-1]["role"] == "tool":
        return text_reply("done")
    calls = [(f"c{n}", "box__write", json.dumps({"text": text})) for n, text in enumerate("ab")]
    return tool_reply(calls)


@pytest.mark.parametrize("last", ["approve", "deny"])
def test_a_tool_that_changed_while_its_call_waits_is_asked_about_again(
    waiting: Project, model_endpoint: ModelEndpoints, last: str
) -> None:
    """Two calls wait, and the first was approved as the tool was."""
    waiting.uses(model_endpoint(writes_two))
    waiting.pipeline(CHANGES)
    waiting.write("mended", "")
    os.mkfifo(waiting.folder / "gate")
    with waiting.aish.start("run", "p.yaml") as running:
        running.wait_for_line(WAITS)
        with client_of(waiting) as client:
            old = events_until(client, "approval.asked", 2)
            (waiting.folder / "gate").write_text("")
            # The list is read again before the next call is made.
            running.wait_for_line("seen: ok")
            assert [answer(client, one).status_code for one in old] == [200, 200]
            asked = events_until(client, "approval.asked", 3)
            assert asked[2]["arguments"] == {"text": "a"}
            assert asked[2]["digest"] != asked[0]["digest"]
            assert ledger(waiting) == []
            assert answer(client, asked[2]).status_code == 200
            asked = events_until(client, "approval.asked", 4)
            assert asked[3]["arguments"] == {"text": "b"}
            assert answer(client, asked[3], last).status_code == 200
        done = running.finish()

    approved = last == "approve"
    assert done.code == (0 if approved else 3), done.stderr
    assert ledger(waiting) == (["a", "b"] if approved else ["a"])
    assert "box__write changed after its call was asked about" in done.stderr
    told = [one["code"] for one in of_type(waiting.journal, "notice")]
    assert told.count("tool_changed") == 2


def events_until(client: httpx.Client, kind: str, count: int) -> list[Any]:
    """The events of a type, once there are so many: told by the stream of events."""
    found: list[Any] = []
    with client.stream("GET", "events", headers={"Accept": "text/event-stream"}) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                found += [event] if event["type"] == kind else []
            if len(found) == count:
                break
    return found


def socket_path(project: Project) -> str:
    """Where the newest run listens."""
    address: str = control_file(project)["address"]
    return address.removeprefix("unix:")


class Raw:
    """One connection to a run, kept open; a fraction of what a client of a library costs."""

    def __init__(self, path: str) -> None:
        self._connection = http.client.HTTPConnection("aish")
        self._connection.sock = socket.socket(socket.AF_UNIX)
        self._connection.sock.connect(path)
        self._connection.sock.settimeout(60)

    def answer(self, id: str, given: str, digest: str, note: str = "") -> tuple[int, Any]:
        body = json.dumps({"answer": given, "digest": digest, "note": note})
        kind = {"Content-Type": "application/json"}
        self._connection.request("POST", f"/api/v1/approvals/{id}", body, kind)
        response = self._connection.getresponse()
        return response.status, json.loads(response.read())

    def close(self) -> None:
        self._connection.close()


@pytest.mark.slow(reason="five thousand answers")
def test_of_fifty_answers_at_once_to_each_of_a_hundred_questions_one_counts(
    waiting: Project,
) -> None:
    waiting.pipeline(
        f"""
        mcp: {{servers: {{box: {{command: {SERVER}}}}}}}
        on_ask: wait
        on_denied: continue
        steps:
          - {{id: note, foreach: "{list(range(100))}", concurrency: 100,
              call: box__write, with: {{text: "n{{{{ item }}}}"}}}}
          - {{id: other, needs: [], call: box__write, with: {{text: other}}}}
        """
    )
    given: dict[str, list[tuple[int, int, Any]]] = defaultdict(list)
    with live_run(waiting) as (running, client):
        events_until(client, "approval.asked", 101)
        asked = {one["id"]: one for one in pending(client)}
        # It keeps the run until all have been heard.
        (other,) = [id for id, one in asked.items() if one["step"] == "other"]
        last = asked.pop(other)
        assert len(asked) == 100
        begin = threading.Barrier(50)

        def many(number: int) -> None:
            mine = Raw(socket_path(waiting))
            order = random.Random(number).sample(sorted(asked), len(asked))
            begin.wait(60)
            for id in order:
                answer = random.Random(f"{number}{id}").choice(["approve", "deny"])
                told = mine.answer(id, answer, asked[id]["digest"], f"from {number}")
                given[id].append((number, *told))
            mine.close()

        threads = [threading.Thread(target=many, args=(number,)) for number in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answer(client, last, "deny").status_code == 200
        done = running.finish()

    assert done.code == 0, done.stderr
    approved = []
    for id, answers in given.items():
        ((first, won),) = [(number, body) for number, status, body in answers if status == 200]
        lost = [body["error"] for _, status, body in answers if status == 409]
        assert len(lost) == 49
        assert all(one["message"].endswith(f"(api): from {first}") for one in lost)
        approved += [asked[id]["arguments"]["text"]] if won["state"] == "approved" else []
    assert sorted(ledger(waiting)) == sorted(approved)
    ended = of_type(waiting.journal, "approval.answered")
    assert sorted(one["id"] for one in ended) == sorted([*asked, other])


@pytest.mark.parametrize(
    "count", [200, pytest.param(10_000, marks=pytest.mark.slow(reason="ten thousand requests"))]
)
def test_a_guessed_id_answers_nothing(waiting: Project, count: int) -> None:
    chance = random.Random(count)
    with live_run(waiting) as (running, client):
        (question,) = pending(client)
        id, digest = question["id"], question["digest"]
        mine = Raw(socket_path(waiting))
        for number in range(count):
            guess = f"{chance.getrandbits(128):032x}"
            if number % 4 == 0:
                # One digit of the right one is another.
                place = chance.randrange(32)
                digit = chance.choice([one for one in "0123456789abcdef" if one != id[place]])
                guess = f"{id[:place]}{digit}{id[place + 1 :]}"
            status, told = mine.answer(guess, "approve", digest)
            assert (status, told["error"]["code"]) == (404, "unknown_question")
        # An id without letters is the same in capitals.
        for near in {id[:8], id[:31], f"{id}0", id.upper(), f"{id}%00", f"%20{id}"} - {id}:
            assert mine.answer(near, "approve", digest)[0] == 404, near
        mine.close()
        assert [one["id"] for one in pending(client)] == [id]
        assert answer(client, question, "deny").status_code == 200
        done = running.finish()

    assert done.code == 3, done.stderr
    assert ledger(waiting) == []
    # Nobody fills a disk by guessing.
    assert len(of_type(waiting.journal, "control.called")) == 101


def test_an_id_of_another_run_answers_nothing(waiting: Project) -> None:
    path = f"unix:{waiting.aish.env['XDG_RUNTIME_DIR']}/own/s"
    with (
        live_run(waiting) as (first, client),
        waiting.aish.start("run", "p.yaml", "--control", path) as second,
    ):
        second.wait_for_line(WAITS)
        where = httpx.HTTPTransport(uds=path.removeprefix("unix:"), verify=PLAIN)
        other = httpx.Client(transport=where, base_url="http://x/api/v1", timeout=60)
        (mine,), (theirs,) = pending(client), pending(other)
        for asked in (mine, {**mine, "digest": theirs["digest"]}):
            assert code_of(answer(other, asked)) == (404, "unknown_question")
        given = ("--yes", "--digest", mine["digest"])
        named = waiting.aish("approve", theirs["run"], mine["id"], *given)
        assert [one["id"] for one in pending(client) + pending(other)] == [mine["id"], theirs["id"]]
        assert mine["digest"] != theirs["digest"]
        for asked, live in ((mine, client), (theirs, other)):
            assert answer(live, asked, "deny").status_code == 200
        other.close()
        assert (first.finish().code, second.finish().code) == (3, 3)

    assert named.code == 2
    assert "unknown question" in named.stderr
    assert ledger(waiting) == []


ANSWERS = """
import http.client, json, os, socket, subprocess, sys
from pathlib import Path

way, path = sys.argv[1:]
if way != "child":
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
# Its own journal says all that an answer needs: it is a program of the same user.
(journal,) = Path(".aish/runs").glob("*/events.jsonl")
asked = [json.loads(line) for line in journal.read_text().splitlines()]
(question,) = [one for one in asked if one["type"] == "approval.asked"]
said = []
if way == "command":
    words = ["approve", "latest", question["id"], "--yes", "--digest", question["digest"]]
    command = [sys.executable, "-m", "aish", *words]
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(Path(path).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    said = [done.returncode, done.stderr]
else:
    connection = http.client.HTTPConnection("x")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(path)
    body = json.dumps({"answer": "approve", "digest": question["digest"]})
    headers = {"Content-Type": "application/json"}
    connection.request("POST", f"/api/v1/approvals/{question['id']}", body, headers)
    response = connection.getresponse()
    said = [response.status, response.read().decode()]
Path("said.json").write_text(json.dumps(said))
"""


@pytest.mark.parametrize(("way", "code"), [("child", 403), ("orphan", 403), ("command", 1)])
def test_no_process_of_the_run_approves_its_calls(waiting: Project, way: str, code: int) -> None:
    program = waiting.write("answers.py", ANSWERS)
    path = f"{waiting.aish.env['XDG_RUNTIME_DIR']}/own/s"
    waiting.pipeline(
        f"""
        mcp:
          servers: {{box: {{command: {SERVER}}}}}
          auto_approve: [shell__run]
        on_ask: wait
        steps:
          - {{id: note, call: box__write, with: {{text: one}}}}
          - {{id: hold, needs: [], run: [cat, gate]}}
          - {{id: tries, needs: [hold], run: [{sys.executable}, {program}, {way}, {path}]}}
        """
    )
    os.mkfifo(waiting.folder / "gate")
    with live_run(waiting, "--control", f"unix:{path}") as (running, client):
        (waiting.folder / "gate").write_text("")
        running.wait_for_line("tries: ok")
        (question,) = pending(client)
        assert answer(client, question, "deny").status_code == 200
        running.finish()

    said = json.loads((waiting.folder / "said.json").read_text(encoding="utf-8"))
    assert said[0] == code, said
    assert "processes that the run started" in said[1]
    assert ledger(waiting) == []
    (ended,) = of_type(waiting.journal, "approval.answered")
    assert ended["answer"] == "deny"


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """As many as a thousand sockets need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
@pytest.mark.parametrize(
    "count", [100, pytest.param(1000, marks=pytest.mark.slow(reason="a thousand readers"))]
)
def test_readers_of_events_that_read_nothing_neither_stop_the_run_nor_its_answers(
    waiting: Project, count: int
) -> None:
    waiting.pipeline(
        f"""
        mcp:
          servers: {{box: {{command: {SERVER}}}}}
          auto_approve: [box__fail]
        on_ask: wait
        steps:
          - {{id: note, call: box__write, with: {{text: one}}}}
          - {{id: many, foreach: "{list(range(50))}", call: box__fail, with: {{text: x}}}}
          - {{id: last, needs: [many], call: box__write, with: {{text: two}}}}
        """
    )
    waiting.write("mended", "")
    with ExitStack() as stack, live_run(waiting) as (running, client):
        question = next(one for one in pending(client) if one["step"] == "note")
        honest = stack.enter_context(client_of(waiting))
        events = events_of(honest)
        seen = [next(events)]
        before = descriptors(running.pid)
        readers = [reader_of(socket_path(waiting)) for _ in range(count)]
        # A place is left for whoever comes to answer.
        late = Raw(socket_path(waiting))
        assert late.answer(question["id"], "approve", question["digest"])[0] == 200
        late.close()
        for event in events:
            seen.append(event)
            if event.get("step") == "last" and event["type"] == "approval.asked":
                break
        events.close()
        for one in readers:
            one.close()
        while descriptors(running.pid) > before:
            assert len(pending(client)) == 1
        (second,) = pending(client)
        given = ("--yes", "--digest", second["digest"])
        told = waiting.aish("approve", "latest", second["id"], *given)
        done = running.finish()

    assert (told.code, done.code) == (0, 0), told.stderr + done.stderr
    assert ledger(waiting) == ["one", "two"]
    numbers = [one["seq"] for one in seen]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def events_of(client: httpx.Client) -> Generator[Any]:
    """The events of a run to its end; a reader that was too slow comes back for the rest."""
    headers, is_over = {"Accept": "text/event-stream"}, False
    while not is_over:
        with (
            suppress(httpx.RemoteProtocolError),
            client.stream("GET", "events", headers=headers) as stream,
        ):
            for line in stream.iter_lines():
                if line.startswith("data: "):
                    event = json.loads(line.removeprefix("data: "))
                    headers["Last-Event-ID"] = str(event["seq"])
                    yield event
            is_over = True


def reader_of(path: str) -> socket.socket:
    """A connection that asks for the events and reads none."""
    opened = socket.socket(socket.AF_UNIX)
    # Where the queue of the listener is full this waits for a place in it.
    opened.connect(path)
    opened.settimeout(60)
    with suppress(BrokenPipeError, ConnectionResetError):
        opened.sendall(
            b"GET /api/v1/events HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n"
        )
    return opened


def descriptors(pid: int) -> int:
    """How many descriptors a process has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


NAMED = f"""
    mcp: {{servers: {{box: {{command: {SERVER}}}}}}}
    on_ask: wait
    steps: [{{id: note, call: box__write, with: {{text: one}}}}]
    control:
      listen: 127.0.0.1:PORT
      tokens:
        reader: {{token_env: READER_TOKEN, scopes: [read]}}
        writer: {{SOURCE, scopes: [answer]}}
    """


@pytest.mark.parametrize("source", ["token_env: WRITER_TOKEN", "token_file: writer.token"])
def test_a_named_token_answers_from_the_same_machine_and_is_in_no_file(
    waiting: Project, source: str
) -> None:
    reader, writer = "reader-" + "r" * 32, "writer-" + "w" * 32
    waiting.aish.env |= {"READER_TOKEN": reader, "WRITER_TOKEN": writer}
    waiting.write("writer.token", f"{writer}\n").chmod(0o600)
    # `aish approve` asks once more after its answer; the run may have ended by then.
    waiting.pipeline(NAMED.replace("SOURCE", source).replace("PORT", str(free_port())))
    with waiting.aish.start("run", "p.yaml") as running:
        running.wait_for_line(WAITS)
        asked = json.loads(waiting.aish("runs", "pending", "--format", "json").stdout)
        (question,) = asked["pending"]
        given = ("latest", question["id"], "--yes", "--digest", question["digest"])
        (waiting.folder / "writer.token").chmod(0o644)
        refused = waiting.aish("approve", *given, env={"WRITER_TOKEN": ""})
        (waiting.folder / "writer.token").chmod(0o600)
        note = f"{writer} as {reader}"
        told = waiting.aish("approve", *given, "--note", note)
        done = running.finish()

    assert refused.code == 1
    assert "the run takes only the tokens that its file names: " in refused.stderr
    assert told.code == 0, told.stderr
    assert done.code == 0, done.stderr
    assert ledger(waiting) == ["one"]
    (ended,) = of_type(waiting.journal, "approval.answered")
    assert (ended["by"], ended["note"]) == (
        "writer",
        "<secret:WRITER_TOKEN> as <secret:READER_TOKEN>",
    )
    everything = waiting.everything_written() + done.stderr + told.stderr + refused.stderr
    assert reader not in everything
    assert writer not in everything


def test_a_note_in_a_journal_has_no_secret(project: Project) -> None:
    """Nobody executes the run; its file says which variables are secret."""
    project.aish.env |= {"NOTE_KEY": "correct-horse-battery", "MY_WORD": "staple-of-a-horse"}
    project.pipeline(WAITING.replace("on_ask: wait", "on_ask: pause\n    secrets: [MY_WORD]"))
    assert project.run().code == 8
    (asked,) = of_type(project.journal, "approval.asked")
    note = "correct-horse-battery, staple-of-a-horse, and plain words"

    told = project.aish("approve", "latest", asked["id"], "--deny", "--yes", "--note", note)

    assert told.code == 0, told.stderr
    (ended,) = of_type(project.journal, "approval.answered")
    assert ended["note"] == "<secret:NOTE_KEY>, <secret:MY_WORD>, and plain words"


READS = (
    *("/api/v1/status", "/api/v1/session", "/api/v1/performance", "/api/v1/events"),
    *("/api/v1/approvals", "/api/v1/values", "/api/project", "/api/session", "/api/events"),
    *("/api/performance", "/api/gui/value", "/api/gui/mma_status", "/api/gui/diagnostics"),
)


def test_no_answer_of_any_path_has_a_secret_of_the_run(
    waiting: Project, model_endpoint: ModelEndpoints
) -> None:
    """It is in the prompt, the answer of the model, a call, its result, and what is sent."""
    secret = "correct/horse+battery staple"

    def tells(request: Any) -> Reply:
        if request["messages"][-1]["role"] == "tool":
            return text_reply(f"it is {secret}")
        text = f"{secret} and {quote(secret)}"
        return tool_reply([("c1", "box__write", json.dumps({"text": text}))])

    waiting.aish.env["NOTE_KEY"] = secret
    waiting.uses(model_endpoint(tells))
    waiting.pipeline(
        f"""
        secrets: [NOTE_KEY]
        mcp: {{servers: {{box: {{command: {SERVER}}}}}}}
        on_ask: wait
        steps:
          - {{id: note, prompt: "Write {secret}"}}
          - {{id: last, needs: [note], call: box__write, with: {{text: "{secret}"}}}}
        """
    )
    said: list[str] = []
    with live_run(waiting) as (running, client):
        (question,) = pending(client)
        bad = quote(secret, safe="")
        said.append(answer(client, question, note=f"with {secret}").text)
        (last,) = events_until(client, "approval.asked", 2)[1:]
        (late,) = [answer(client, question, note=secret)]
        assert code_of(late) == (409, "decided")
        said.append(late.text)
        said += [client.get(f"http://aish{path}").text for path in READS]
        for path in (f"approvals/{bad}", f"values/{bad}", bad, f"events?after={bad}"):
            said.append(client.get(path).text)
        for path, body in (
            (f"approvals/{last['id']}", {"answer": secret, "digest": last["digest"]}),
            (f"approvals/{last['id']}", {"answer": "approve", "digest": secret}),
            ("commands", {"command": secret}),
            ("commands", {"command": "event", "name": secret, "data": {secret: [secret]}}),
            ("ask/respond", {"id": secret, "response": secret}),
        ):
            said.append(client.post(path, json=body).text)
        with client.stream("GET", "events", headers={"Accept": "text/event-stream"}) as stream:
            with client_of(waiting) as another:
                assert answer(another, last, "deny").status_code == 200
            said += list(stream.iter_lines())
        running.finish()

    assert len(said) > 40
    leaked = [one for one in said if secret in one or bad in one or quote(secret) in one]
    assert leaked == []
    assert ledger(waiting) == [f"{secret} and {quote(secret)}"]
    assert secret not in waiting.everything_written()
    assert bad not in waiting.everything_written()
