"""Calls that become tasks (H7): raw JSON lines to real processes, also to several that share."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, stdio, wait_gone
from mcp_processes import read_pid
from model_endpoint import Gate, Reply, hanging_reply, text_reply
from served_http import HttpClient, HttpHub
from served_hub import META, Message, ServedHub, SocketClient, text_of

TASKS = f"{META}tasks"
CAPABILITIES: Message = {f"{META}clientCapabilities": {"extensions": {TASKS: {}}}}


def asked(hub: ServedHub, method: str, params: Message) -> Message:
    """The answer to a request of a client that takes tasks."""
    meta = {**CAPABILITIES, **params.get("_meta", {})}
    return hub.ask(method, {**params, "_meta": meta}, modern=True)


def called(hub: ServedHub, name: str, arguments: Message | None = None) -> Message:
    found = asked(hub, "tools/call", {"name": name, "arguments": arguments or {}})
    assert "result" in found, found
    return found["result"]  # type: ignore[no-any-return]  # JSON


def task(hub: ServedHub, id: str) -> Message:
    found = asked(hub, "tasks/get", {"taskId": id})
    assert "result" in found, found
    return found["result"]  # type: ignore[no-any-return]  # JSON


def until(hub: ServedHub, id: str, *statuses: str) -> Message:
    while (found := task(hub, id))["status"] not in statuses:
        assert found["status"] in {"working", "input_required"}, found
    return found


def tasks_file(project: Project, name: str = "hub.yaml", **limits: Any) -> None:
    """A hub that serves the pipeline `talk`, as tasks at once, and a server."""
    note = project.folder / "grandchild"
    project.pipeline(
        f"""
        name: talk
        inputs: {{word: {{type: string}}}}
        mcp: {{servers: {{s: {{command: {stdio("--grandchild-note", note)}}}}}}}
        steps:
          - {{id: first, prompt: "first {{{{ inputs.word }}}}"}}
          - {{id: second, prompt: "second {{{{ steps.first.text }}}}"}}
        outputs: {{said: "{{{{ steps.second.text }}}}"}}
        """,
        name="talk.yaml",
    )
    serve = {"pipelines": [{"file": "talk.yaml", "task": True}], **limits}
    project.write(
        name,
        f"aish: 1\nname: hub\nserve: {json.dumps(serve)}\n"
        f"mcp: {{servers: {{t: {{command: {stdio()}}}}}, auto_approve: [pipeline__*, t__sleep]}}\n",
    )


class Model:
    """A model that says what it was asked, and stops at `second` until its gate opens."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.asked: list[str] = []

    def __call__(self, request: Any) -> Reply:
        words = request["messages"][-1]["content"]
        self.asked.append(words)
        reply = text_reply(f"<{words}>")
        return reply.but(before_head=self.gate) if words.startswith("second") else reply


def test_a_pipeline_may_answer_at_once_with_a_task_and_its_result_comes_later(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    model = Model()
    project.uses(model_endpoint(model))
    tasks_file(project)
    with ServedHub(project, "hub.yaml") as hub:
        offered = hub.ask("server/discover", modern=True)["result"]["capabilities"]
        made = called(hub, "pipeline__talk", {"word": "hub"})
        kept = json.loads((project.served_state() / "tasks" / f"{made['taskId']}.json").read_text())
        model.gate.wait_arrived()
        running = task(hub, made["taskId"])
        while "statusMessage" not in running:
            running = task(hub, made["taskId"])
        refused = called(hub, "pipeline__talk", {"wrod": "x"})
        model.gate.open()
        done = until(hub, made["taskId"], "completed")
        plain = hub.call("pipeline__talk", {"word": "plain"}, modern=True)
        hub.end_input()
        assert hub.finish() == 0
        records = [one for one in hub.audit if one["event"] == "task"]

    assert offered["extensions"] == {TASKS: {}}
    assert (made["resultType"], made["status"], made["ttlMs"]) == ("task", "working", None)
    assert kept["client"] == "stdio"
    assert (running["resultType"], running["status"]) == ("complete", "working")
    assert running["createdAt"] == made["createdAt"]
    assert running["statusMessage"] == "step `first`: ok"
    # What is refused before anything runs is told at once.
    assert refused["isError"] is True
    assert "unknown input `wrod`" in text_of(refused)
    assert done["ttlMs"] > 0
    assert done["result"]["structuredContent"] == {"said": "<second <first hub>>"}
    assert plain["structuredContent"] == {"said": "<second <first plain>>"}
    assert [one["status"] for one in records] == ["working", "completed"]
    assert records[0]["run"] == done["result"]["_meta"]["aish/run"]


def test_tasks_of_others_and_guessed_ids_are_unknown(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint(Model()))
    tasks_file(project)
    with ServedHub(project, "hub.yaml") as hub:
        id = called(hub, "pipeline__talk", {"word": "x"})["taskId"]
        folder = project.served_state() / "tasks"
        foreign = "f" * 32
        row = json.loads((folder / f"{id}.json").read_text())
        (folder / f"{foreign}.json").write_text(json.dumps({**row, "id": foreign, "client": "eve"}))
        linked = "e" * 32
        (folder / f"{linked}.json").symlink_to(folder / f"{id}.json")
        guesses: list[Any] = [foreign, linked, "0" * 32, id[:-1], f"{id}\n", "", None]
        guesses += [f"../tasks/{id}", f"{id}.json", {"id": id}, 5, "x" * 100_000]
        # An id may have no letter.
        guesses += [id.upper()] if id.upper() != id else []
        for guess in guesses:
            for method in ("tasks/get", "tasks/cancel", "tasks/update"):
                params = {"taskId": guess, "inputResponses": {}}
                found = asked(hub, method, params)
                assert found["error"]["code"] == -32602, (guess, method)
                assert found["error"]["message"] == "unknown task, or one that has expired"
        undeclared = hub.ask("tasks/get", {"taskId": id}, modern=True)["error"]
        hub.begin()
        legacy = hub.ask("tasks/get", {"taskId": id})["error"]
        still = task(hub, id)

    assert undeclared["code"] == -32021
    assert undeclared["data"] == {"requiredCapabilities": {"extensions": {TASKS: {}}}}
    assert legacy["code"] == -32601
    assert still["status"] == "working"


def test_a_cancelled_task_ends_its_run_also_from_another_process(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    gate = Gate()
    project.uses(model_endpoint(lambda _: hanging_reply(gate)))
    tasks_file(project)
    note = project.folder / "grandchild"
    with ServedHub(project, "hub.yaml") as hub, ServedHub(project, "hub.yaml") as other:
        mine = called(hub, "pipeline__talk", {"word": "x"})["taskId"]
        gate.wait_arrived()
        first = read_pid(note)
        assert asked(hub, "tasks/cancel", {"taskId": mine})["result"]["resultType"] == "complete"
        wait_gone(first)
        cancelled = until(hub, mine, "cancelled")
        note.unlink()
        gate.arrived.clear()
        theirs = called(hub, "pipeline__talk", {"word": "y"})["taskId"]
        gate.wait_arrived()
        second = read_pid(note)
        seen = task(other, theirs)
        asked(other, "tasks/cancel", {"taskId": theirs})
        until(other, theirs, "cancelled")
        wait_gone(second)
        again = asked(other, "tasks/cancel", {"taskId": theirs})

    assert cancelled["ttlMs"] > 0
    assert seen["status"] == "working"
    assert again["result"]["resultType"] == "complete"


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "ended"])
def test_after_a_restart_a_pipeline_is_resumed_and_another_call_has_failed(
    project: Project, model_endpoint: ModelEndpoints, kind: signal.Signals
) -> None:
    model = Model()
    project.uses(model_endpoint(model))
    tasks_file(project, hold="300ms", limits={"drain": "100ms"})
    with ServedHub(project, "hub.yaml") as hub:
        ids = [called(hub, "pipeline__talk", {"word": "on"})["taskId"]]
        model.gate.wait_arrived()
        ids.append(called(hub, "t__sleep", {"ms": 60_000})["taskId"])
        hub.signal(kind)
        hub.process.wait(60)
    model.gate.open()
    with ServedHub(project, "hub.yaml") as hub:
        done = until(hub, ids[0], "completed")
        lost = until(hub, ids[1], "failed")

    assert done["result"]["structuredContent"] == {"said": "<second <first on>>"}
    # What the first process had finished is not asked again.
    assert model.asked.count("first on") == 1
    assert len(project.run_folders) == 1
    assert lost["error"]["code"] == -32603
    assert "the server ended while the call was under way" in lost["statusMessage"]


def test_a_process_goes_on_with_a_task_of_another_one_that_has_died(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    model = Model()
    project.uses(model_endpoint(model))
    tasks_file(project)
    with ServedHub(project, "hub.yaml") as other:
        assert other.ask("server/discover", modern=True)["result"]
        with ServedHub(project, "hub.yaml") as hub:
            id = called(hub, "pipeline__talk", {"word": "on"})["taskId"]
            model.gate.wait_arrived()
            assert task(other, id)["status"] == "working"
            hub.signal(signal.SIGKILL)
            hub.process.wait(60)
        model.gate.open()
        done = until(other, id, "completed")

    assert done["result"]["structuredContent"] == {"said": "<second <first on>>"}
    assert model.asked.count("first on") == 1


@pytest.mark.parametrize("why", ["changed", "secret"])
def test_a_run_that_cannot_be_resumed_fails_its_task_and_says_why(
    project: Project, model_endpoint: ModelEndpoints, why: str
) -> None:
    model = Model()
    project.uses(model_endpoint(model))
    tasks_file(project)
    file = project.folder / "talk.yaml"
    key = project.aish.env["TASK_KEY"] = "sk-a-key-that-nobody-may-see"
    file.write_text(f"{file.read_text()}\nsecrets: [TASK_KEY]\n")
    with ServedHub(project, "hub.yaml") as hub:
        word = key if why == "secret" else "on"
        id = called(hub, "pipeline__talk", {"word": word})["taskId"]
        model.gate.wait_arrived()
        hub.signal(signal.SIGKILL)
        hub.process.wait(60)
    if why == "changed":
        file.write_text(file.read_text().replace("second {{", "third {{"))
    with ServedHub(project, "hub.yaml") as hub:
        failed = until(hub, id, "failed")

    said = failed["statusMessage"]
    assert "cannot be resumed" in said
    assert ("`word` had a secret in it" in said) == (why == "secret")
    assert key not in project.everything_written()
    (folder,) = project.run_folders
    assert folder.name in failed["error"]["message"]


def test_a_call_that_takes_longer_than_it_is_held_becomes_a_task(project: Project) -> None:
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:9/v1"
    tasks_file(project, hold="60s")
    end = project.folder / "end"
    with ServedHub(project, "hub.yaml") as hub:
        quick = called(hub, "t__sleep", {"ms": 1})
        tasks_file(project, hold="200ms")
        hub.signal(signal.SIGHUP)
        hub.stderr_with("the file is reloaded")
        slow = called(hub, "t__sleep", {"ms": 0, "until": str(end)})
        end.touch()
        done = until(hub, slow["taskId"], "completed")
        long = hub.call("t__sleep", {"ms": 600}, modern=True)

    assert text_of(quick) == "slept 1 ms"
    assert slow["resultType"] == "task"
    assert text_of(done["result"]) == "slept 0 ms"
    assert text_of(long) == "slept 600 ms"


# The interpreter of the server tells which thread opens the file of a result.
THREADS = """
import sys, threading

def hear(event, arguments):
    if event == "open" and ".result" in str(arguments[0]):
        with open("threads", "a") as file:
            print(threading.current_thread() is threading.main_thread(), file=file)

sys.addaudithook(hear)
"""


@pytest.mark.real_process
def test_a_result_is_written_and_read_beside_the_event_loop(project: Project) -> None:
    project.write("site/sitecustomize.py", THREADS)
    project.aish.env["PYTHONPATH"] = str(project.folder / "site")
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:9/v1"
    tasks_file(project, hold="10ms")
    end = project.folder / "end"
    with ServedHub(project, "hub.yaml") as hub:
        made = called(hub, "t__sleep", {"ms": 0, "until": str(end)})
        end.touch()
        done = until(hub, made["taskId"], "completed")
        hub.end_input()
        assert hub.finish() == 0

    assert text_of(done["result"]) == "slept 0 ms"
    assert (project.folder / "threads").read_text("ascii").split() == ["False", "False"]


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_server_asks_the_client_through_its_task_also_in_another_process(
    project: Project, era: str
) -> None:
    project.pipeline(
        f"""
        mcp:
          servers: {{s: {{command: {stdio("--asks", "--era", era)}}}}}
          auto_approve: [s__ask_client]
        serve: {{hold: 100ms}}
        """,
        name="hub.yaml",
    )
    form = {
        "message": "Who are you?",
        "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
    }
    arguments = {"method": "elicitation/create", "params": form, "after_ms": 600}
    able = {**CAPABILITIES[f"{META}clientCapabilities"], "elicitation": {"form": {}}}
    meta = {f"{META}clientCapabilities": able}
    params = {"name": "s__ask_client", "arguments": arguments, "_meta": meta}
    with ServedHub(project, "hub.yaml") as hub, ServedHub(project, "hub.yaml") as other:
        id = asked(hub, "tools/call", params)["result"]["taskId"]
        required = until(other, id, "input_required")
        ((key, request),) = required["inputRequests"].items()
        stray = {"nothing": {"action": "accept"}}
        bad = {key: {"action": "perhaps"}}
        for given in (stray, bad, {key: {"action": "accept", "content": {"name": "Ada"}}}):
            params = {"taskId": id, "inputResponses": given}
            taken = asked(other, "tasks/update", params)["result"]
        done = until(other, id, "completed")

    assert taken["resultType"] == "complete"
    assert request["method"] == "elicitation/create"
    assert request["params"]["message"] == "s: Who are you?"
    answer = json.loads(text_of(done["result"]))
    assert (answer["action"], answer["content"]) == ("accept", {"name": "Ada"})


def test_a_secret_in_what_a_server_asks_through_a_task_is_in_no_file(project: Project) -> None:
    project.aish.env["BOX_KEY"] = secret = "correct-horse-battery"
    project.pipeline(
        f"""
        secrets: [BOX_KEY]
        mcp:
          servers: {{s: {{command: {stdio("--asks")}}}}}
          auto_approve: [s__ask_client]
        serve: {{hold: 100ms}}
        """,
        name="hub.yaml",
    )
    fields = {"type": "object", "properties": {"name": {"type": "string"}}}
    form = {"message": f"Is it {secret}?", "requestedSchema": fields}
    arguments = {"method": "elicitation/create", "params": form, "after_ms": 600}
    able = {**CAPABILITIES[f"{META}clientCapabilities"], "elicitation": {"form": {}}}
    meta = {f"{META}clientCapabilities": able}
    params = {"name": "s__ask_client", "arguments": arguments, "_meta": meta}
    with ServedHub(project, "hub.yaml") as hub:
        id = asked(hub, "tools/call", params)["result"]["taskId"]
        required = until(hub, id, "input_required")
        written = project.everything_written()
        ((key, request),) = required["inputRequests"].items()
        given = {"taskId": id, "inputResponses": {key: {"action": "decline"}}}
        asked(hub, "tasks/update", given)
        done = until(hub, id, "completed")

    assert id in written
    assert secret not in written
    assert request["params"]["message"] == "s: Is it <secret:BOX_KEY>?"
    assert json.loads(text_of(done["result"]))["action"] == "decline"


def test_a_subscription_tells_of_the_states_of_tasks_of_its_own_client(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    model = Model()
    project.uses(model_endpoint(model))
    tasks_file(project)
    with ServedHub(project, "hub.yaml") as hub:
        id = called(hub, "pipeline__talk", {"word": "on"})["taskId"]
        model.gate.wait_arrived()
        wanted = {"notifications": {"taskIds": [id, "0" * 32, 5]}}
        undeclared = hub.ask("subscriptions/listen", wanted, modern=True)["error"]
        listening = hub.request(
            "subscriptions/listen", {**wanted, "_meta": CAPABILITIES}, modern=True
        )
        acknowledged = hub.notification("notifications/subscriptions/acknowledged")
        first = hub.notification("notifications/tasks")["params"]
        model.gate.open()
        last = first
        while last["status"] == "working":
            last = hub.notification("notifications/tasks")["params"]
        same = task(hub, id)

    assert undeclared["code"] == -32021
    assert acknowledged["params"]["notifications"] == {"taskIds": [id]}
    assert first["_meta"] == {f"{META}subscriptionId": listening}
    assert (first["taskId"], first["status"]) == (id, "working")
    assert last["status"] == "completed"
    assert last["result"] == same["result"]


@pytest.mark.requirement("H7")
def test_tasks_over_http_belong_to_the_clients_token_and_outlive_the_request(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    model = Model()
    project.uses(model_endpoint(model))
    clients = {name: {"token_env": name.upper()} for name in ("alice", "bob")}
    project.aish.env |= {"ALICE": "a" * 32, "BOB": "b" * 32}
    tasks_file(project, clients=clients)
    with HttpHub(project, "hub.yaml") as hub:
        alice, bob = hub.client("a" * 32), hub.client("b" * 32)

        def got(client: HttpClient, method: str, params: Message, **headers: str) -> Message:
            answer = client.modern(method, {**params, "_meta": CAPABILITIES}, headers)
            return answer.json()  # type: ignore[no-any-return]  # JSON

        params = {"name": "pipeline__talk", "arguments": {"word": "http"}}
        made = got(alice, "tools/call", params)["result"]
        about = {"taskId": made["taskId"], "inputResponses": {}}
        methods = ("tasks/get", "tasks/update", "tasks/cancel")
        foreign = [got(bob, method, about)["error"] for method in methods]
        header = got(alice, "tasks/get", about, **{"Mcp-Name": "0" * 32})["error"]
        model.gate.open()
        done = made
        while done["status"] == "working":
            done = got(alice, "tasks/get", about)["result"]
        after = got(bob, "tasks/get", about)["error"]

    assert {one["code"] for one in (*foreign, after)} == {-32602}
    assert header["code"] == -32020
    assert done["result"]["structuredContent"] == {"said": "<second <first http>>"}


def test_a_call_that_waits_for_an_approval_is_a_task_until_somebody_has_answered(
    project: Project,
) -> None:
    project.pipeline(
        f"mcp: {{servers: {{t: {{command: {stdio()}}}}}}}\nserve: {{hold: 100ms}}", name="hub.yaml"
    )
    with ServedHub(project, "hub.yaml", "--control") as hub:
        hub.stderr_with("control API: listening on")
        made = [called(hub, "t__echo", {"text": word}) for word in ("yes", "no", "never")]
        listed = project.aish("runs", "pending", "--format", "json")
        questions = {one["arguments"]["text"]: one for one in json.loads(listed.stdout)["pending"]}
        waiting = task(hub, made[0]["taskId"])
        for word, *more in (("yes",), ("no", "--deny")):
            one = questions[word]
            words = ("approve", one["run"], one["id"], *more, "--yes", "--digest", one["digest"])
            assert project.aish(*words).code == 0
        approved = until(hub, made[0]["taskId"], "completed")
        denied = until(hub, made[1]["taskId"], "completed")
        asked(hub, "tasks/cancel", {"taskId": made[2]["taskId"]})
        until(hub, made[2]["taskId"], "cancelled")
        left = json.loads(project.aish("runs", "pending", "--format", "json").stdout)["pending"]

    assert [one["resultType"] for one in made] == ["task"] * 3
    assert waiting["status"] == "working"
    assert text_of(approved["result"]) == "yes"
    assert denied["result"]["isError"] is True
    assert left == []


def test_a_task_that_cannot_be_written_down_is_held_and_one_that_was_ends_later(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    model = Model()
    project.uses(model_endpoint(model))
    tasks_file(project, hold="100ms")
    state = project.served_state()
    with ServedHub(project, "hub.yaml") as hub:
        id = called(hub, "pipeline__talk", {"word": "on"})["taskId"]
        model.gate.wait_arrived()
        (state / "tasks").rename(state / "elsewhere")
        model.gate.open()
        # The run has ended, and its result has no place.
        hub.stderr_with("a request failed: FileNotFoundError")
        (state / "elsewhere").rename(state / "tasks")
        done = until(hub, id, "completed")
    (state / "tasks").rename(state / "elsewhere")
    (state / "tasks").symlink_to(state / "elsewhere")
    with ServedHub(project, "hub.yaml") as hub:
        held = called(hub, "t__sleep", {"ms": 400})
        unknown = asked(hub, "tasks/get", {"taskId": id})["error"]
        hub.end_input()
        assert hub.finish() == 0

    assert done["result"]["structuredContent"] == {"said": "<second <first on>>"}
    assert text_of(held) == "slept 400 ms"
    assert unknown["code"] == -32603


def test_a_task_opens_no_server_for_a_session_that_has_ended(
    project: Project, tmp_path: Path
) -> None:
    note = tmp_path / "pids"
    project.pipeline(
        f"""
        mcp: {{servers: {{t: {{command: {stdio("--note-pid", note)}, share: false}}}}}}
        serve: {{hold: 100ms}}
        """,
        name="hub.yaml",
    )
    flags = ("--stdio", "--unix", "run/s", "--control")
    with ServedHub(project, "hub.yaml", *flags) as hub:
        hub.stderr_with("control API: listening on")
        (address,) = [one for one in hub.addresses() if one.startswith("unix:")]
        called = {"name": "t__echo", "arguments": {"text": "x"}, "_meta": CAPABILITIES}
        with SocketClient(address) as client:
            id = client.ask("tools/call", called, modern=True)["result"]["taskId"]
        (one,) = json.loads(project.aish("runs", "pending", "--format", "json").stdout)["pending"]
        while "session.closed" not in [record["event"] for record in hub.audit]:
            hub.ask("server/discover", modern=True)
        words = ("approve", one["run"], one["id"], "--yes", "--digest", one["digest"])
        assert project.aish(*words).code == 0
        about = {"taskId": id, "_meta": CAPABILITIES}
        with SocketClient(address) as client:
            found = client.ask("tasks/get", about, modern=True)["result"]
            while found["status"] == "working":
                found = client.ask("tasks/get", about, modern=True)["result"]
        started = note.read_text().split()

    assert found["result"]["isError"] is True
    assert text_of(found["result"]) == "[aish] t: the session that had this server has ended"
    # The one whose tools are listed.
    assert len(started) == 1


@pytest.mark.parametrize("bob", ["", "bob: {token_env: BOB, tools: [t__add]}"])
def test_a_task_of_a_client_that_a_reload_takes_its_tool_makes_no_call(
    project: Project, bob: str
) -> None:
    def clients(*entries: str) -> None:
        listed = ", ".join(filter(None, entries))
        project.pipeline(
            f"mcp: {{servers: {{t: {{command: {stdio()}}}}}}}\n"
            f"serve: {{hold: 100ms, clients: {{{listed}}}}}",
            name="hub.yaml",
        )

    project.aish.env |= {"ALICE": "a" * 32, "BOB": "b" * 32}
    clients("alice: {token_env: ALICE}", "bob: {token_env: BOB}")
    params = {"name": "t__echo", "arguments": {"text": "x"}, "_meta": CAPABILITIES}
    with HttpHub(project, "hub.yaml", "--control", token="a" * 32) as hub:
        hub.stderr_with("control API: listening on")
        made = hub.client("b" * 32).modern("tools/call", params).json()["result"]
        (one,) = json.loads(project.aish("runs", "pending", "--format", "json").stdout)["pending"]
        clients("alice: {token_env: ALICE}", bob)
        hub.signal(signal.SIGHUP)
        hub.stderr_with("reloaded")
        words = ("approve", one["run"], one["id"], "--yes", "--digest", one["digest"])
        assert project.aish(*words).code == 0
        alice = hub.client("a" * 32)
        alice.begin()
        while [record["event"] for record in hub.audit].count("task") < 2:
            alice.ask("ping")
        decided = [record for record in hub.audit if record["event"] == "decided"]

    assert made["resultType"] == "task"
    assert decided == []
