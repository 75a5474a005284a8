"""`aish.control` before real runs: what a test that drives a run would write (A5)."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from threading import Thread

import anyio
import pytest
from e2e_project import REPO, ModelEndpoints, Project, of_type
from live_runs import WAITS, ledger, live_run, runtime_folder
from mcp_peers import free_port
from model_endpoint import text_reply

from aish.control import (
    AsyncClient,
    Client,
    ConflictError,
    ForbiddenError,
    GoneError,
    NotFoundError,
    NotListeningError,
    RejectedError,
    RunEndedError,
    UnansweredError,
    UnauthorizedError,
    WaitTimeoutError,
)
from aish.core.json import JsonObject

SERVER = json.dumps([sys.executable, str(REPO / "tests" / "support" / "mcp_ledger_server.py")])
WAITING = f"""
    mcp: {{servers: {{box: {{command: {SERVER}}}}}}}
    on_ask: wait
    on_denied: continue
    steps:
      - {{id: note, call: box__write, with: {{text: one}}}}
      - {{id: other, needs: [note], call: box__write, with: {{text: two}}}}
    """


@pytest.fixture
def waiting(project: Project) -> Iterator[Project]:
    """A project whose run asks two questions, one after the other."""
    with runtime_folder(project):
        project.pipeline(WAITING)
        yield project


@pytest.mark.requirement("A5")
def test_a_run_is_driven_from_its_beginning_to_its_end(waiting: Project) -> None:
    address = f"unix:{waiting.aish.env['XDG_RUNTIME_DIR']}/own/s"
    with (
        waiting.aish.start("run", "p.yaml", "--control", address) as running,
        Client(address) as client,
    ):
        begun = client.wait_for_server()
        first = client.wait_for_approval()
        with pytest.raises(WaitTimeoutError):
            client.wait_for_approval(lambda one: one.step == "other", timeout=0.05)
        assert (first.step, first.arguments, first.is_open) == ("note", {"text": "one"}, True)
        assert client.approval(first.id) == first == client.approvals().pending[0]
        with client.follow() as events:
            assert client.approve(first, note="looks right").state == "approved"
            with pytest.raises(ConflictError) as late:
                client.deny(first)
            second = client.wait_for_approval(lambda one: one.step == "other")
            assert client.status().pending == (second.id,)
            taken = client.wait_for_event("tool.finished")
            page = client.events(after=1)
            client.answer(second, "deny", "not this one")
            seen = list(events)
        done = running.finish()

    assert (begun.pipeline, begun.exit) == ("p", None)
    assert [step.id for step in begun.steps] == ["note", "other"]
    assert (late.value.status, late.value.code) == (409, "decided")
    assert "looks right" in late.value.message
    assert (taken["step"], taken["tool"]) == ("note", "box__write")
    assert done.code == 0, done.stderr
    assert ledger(waiting) == ["one"]
    kept = [{k: v for k, v in one.items() if k not in {"crc", "mac"}} for one in waiting.journal]
    assert seen == kept
    assert [one["seq"] for one in page.events] == list(range(2, page.next + 1))
    ended = of_type(waiting.journal, "approval.answered")
    assert [(one["answer"], one["note"]) for one in ended] == [
        ("approve", "looks right"),
        ("deny", "not this one"),
    ]


def test_how_a_run_ended_is_known_to_its_folder_after_its_socket_is_gone(waiting: Project) -> None:
    waiting.pipeline(WAITING.replace("on_ask: wait", "on_ask: pause"))
    assert waiting.run().code == 8

    with Client.of_run(waiting.run_folders[0], max_retries=1, retry_delay=0) as client:
        with client.follow() as events:
            types = [one["type"] for one in events]
        paused = client.wait_for_end()
        with pytest.raises(RunEndedError, match=r"exit 8 \(paused\)"):
            client.wait_for_approval()
        with pytest.raises(NotListeningError, match="does not listen"):
            client.status()
        asked = client.wait_for_event("approval.asked")

    assert types == [one["type"] for one in waiting.journal]
    assert (paused.status, paused.exit.code) == ("paused", 8)
    assert asked["step"] == "note"


@pytest.mark.slow(reason="drives two processes of a run")
def test_a_client_of_a_folder_follows_its_run_to_where_it_listens_next(waiting: Project) -> None:
    # The run may have ended before the client asks how.
    address = f"127.0.0.1:{free_port()}"
    with waiting.aish.start("run", "p.yaml", "--control", address) as running:
        running.wait_for_line("waits for an answer")
        client = Client.of_run(waiting.run_folders[0])
        first = client.wait_for_approval()
        client.cancel()
        assert client.wait_for_end().exit.code == 143
        running.finish()
    with client, waiting.aish.start("run", "p.yaml", "--resume") as resumed:
        resumed.wait_for_line("waits for an answer")
        again = client.wait_for_approval()
        client.deny(again)
        client.approve(client.wait_for_approval(lambda one: one.step == "other"))
        assert client.wait_for_end().exit.code == 0
        assert resumed.finish().code == 0

    assert again.id == first.id
    assert ledger(waiting) == ["two"]


def test_refusals_of_a_run_are_exceptions_by_kind(waiting: Project) -> None:
    reader = "reader-" + "r" * 32
    waiting.aish.env["READER_TOKEN"] = reader
    waiting.pipeline(
        dedent(WAITING).lstrip().replace("needs: [note]", "ask_timeout: 1ms")
        + "control: {tokens: {reader: {token_env: READER_TOKEN, scopes: [read]}}}\n"
    )
    with waiting.aish.start("run", "p.yaml", "--control", "127.0.0.1:0") as running:
        running.wait_for_line("waits for an answer")
        folder = waiting.run_folders[0]
        with Client.of_run(folder, reader) as client:
            question = client.wait_for_approval(lambda one: one.step == "note")
            client.wait_for_event("approval.answered")
            with pytest.raises(ForbiddenError, match="needs the scope `answer`"):
                client.approve(question)
            with pytest.raises(NotFoundError):
                client.approval("0" * 32)
            with pytest.raises(NotFoundError):
                client.approval("../status?")
        with Client.of_run(folder) as stranger, pytest.raises(UnauthorizedError):
            stranger.wait_for_server()
        running.interrupt()
        running.finish()
    assert reader not in repr(client.__dict__)


def test_values_of_a_run_are_read_changed_and_waited_for(waiting: Project) -> None:
    waiting.pipeline(WAITING + "limits: {turns: 20}\n    ")
    with waiting.aish.start("run", "p.yaml") as running:
        running.wait_for_line("waits for an answer")
        with Client.of_run(waiting.run_folders[0]) as client:
            client.wait_for_approval()
            listed = client.values()
            changed = client.change_value("limits.turns", 40, was=20)
            with pytest.raises(ConflictError) as conflict:
                client.change_value("limits.turns", 50, was=20)
            with pytest.raises(RejectedError):
                client.change_value("limits.turns", "many", was=40)
            with pytest.raises(NotFoundError):
                client.change_value("mcp.auto_approve", ["*"], was=[])
            assert client.wait_for_value("limits.turns", 40) == 40
            with pytest.raises(WaitTimeoutError):
                # It was that once, and is not now.
                client.wait_for_value("limits.turns", 20, timeout=0.05)
            told = client.command("event", name="deployed", data={"to": "test"})
            seen = client.wait_for_event("control.event", lambda event: event["name"] == "deployed")
            client.stop()
        running.finish()

    assert (listed["limits.turns"].value, changed.value) == (20, 40)
    assert conflict.value.code == "changed"
    assert told == {"command": "event"}
    assert seen["data"] == {"to": "test"}


def test_conversation_figures_and_questions_of_programs_and_older_names(
    waiting: Project, model_endpoint: ModelEndpoints
) -> None:
    waiting.uses(model_endpoint([text_reply("a fine title")]))
    waiting.pipeline(
        WAITING.replace("steps:", "steps:\n      - {id: say, prompt: Write a title.}").replace(
            "id: note,", "id: note, needs: [say],"
        )
    )
    responses: list[object] = []

    def respond(folder: Path) -> None:
        with Client.of_run(folder) as client:
            for response in ({"go": True}, "yes"):
                asked = client.wait_for_event("ask_received", lambda one: one not in seen)
                seen.append(asked)
                responses.append(client.respond(str(asked["request_id"]), response))
            with pytest.raises(ConflictError):
                client.respond(str(asked["request_id"]), "late")

    seen: list[JsonObject] = []
    with waiting.aish.start("run", "p.yaml") as running:
        running.wait_for_line("waits for an answer")
        folder = waiting.run_folders[0]
        with Client.of_run(folder) as client:
            question = client.wait_for_approval()
            spoken = client.session()
            figures = client.performance()
            responder = Thread(target=respond, args=(folder,))
            responder.start()
            answers = [
                client.ask("Deploy?", "to the test system", data=[1]),
                client.request_confirmation("deploy", {"to": "test"}),
            ]
            responder.join()
            with pytest.raises(UnansweredError):
                client.ask("Deploy?", timeout=0.01)
            older = [
                client.get_status()["status"],
                client.get_project()["project"]["on_ask"],  # type: ignore[index,call-overload]  # JSON
                client.get_node_status("say"),
                client.get_mma_status()["pending_approval"],
                client.get_indicator_state("thinking_indicator")["shown"],
                client.set_value("limits.turns", 33)["status"],
                client.get_value("limits.turns"),
                client.get_text_value("limits.turns"),
                client.push_event("deployed", {"to": "test"})["status"],
            ]
            events = client.get_events()
            assert client.get_events() == []
            for refused in (client.reset_session, lambda: client.select_tab("a", "b")):
                with pytest.raises(RejectedError):
                    refused()
            client.deny(question)
            client.deny(client.wait_for_approval())
        running.finish()

    assert spoken.entries[-1].text == "a fine title"
    assert {entry.role for entry in spoken.entries} >= {"assistant"}
    assert isinstance(figures["models"], dict)
    assert answers == [{"go": True}, "yes"]
    assert responses == [None, None]
    assert older == ["ok", "wait", "ok", True, False, "queued", 33, "33", "queued"]
    assert "control.event" in [event["type"] for event in events]


def test_answers_that_do_not_count_are_refused_by_kind(waiting: Project) -> None:
    waiting.pipeline(WAITING.replace("needs: [note]", "ask_timeout: 1ms"))
    with waiting.aish.start("run", "p.yaml") as running:
        running.wait_for_line("other: ")
        with Client.of_run(waiting.run_folders[0]) as client:
            question = client.wait_for_approval(lambda one: one.step == "note")
            client.wait_for_event("approval.answered")
            (expired,) = client.approvals().decided
            with pytest.raises(GoneError) as gone:
                client.approve(expired)
            with pytest.raises(RejectedError) as rejected:
                client.command("nothing")
            assert client.command("cancel") == {"command": "cancel"}
            assert client.wait_for_end().exit.code == 143
        running.finish()

    assert gone.value.code == "expired"
    assert rejected.value.code == "invalid_body"
    assert question.expires is not None


@pytest.mark.anyio
async def test_an_async_program_drives_a_run_while_it_does_something_else(
    waiting: Project,
) -> None:
    address = f"unix:{waiting.aish.env['XDG_RUNTIME_DIR']}/own/s"
    told: list[JsonObject] = []
    follows = anyio.Event()

    async def follow(client: AsyncClient) -> None:
        async with client.follow() as events:
            async for event in events:
                follows.set()
                told.append(event)

    with waiting.aish.start("run", "p.yaml", "--control", address) as running:
        async with AsyncClient(address) as client, anyio.create_task_group() as tasks:
            await client.wait_for_server()
            tasks.start_soon(follow, client)
            # With the last answer the run ends, and by its address alone it is not known any more.
            await follows.wait()
            for step in ("note", "other"):
                question = await client.wait_for_approval(lambda one: one.step == step)  # ruff: ignore[function-uses-loop-variable] - used at once
                await client.approve(question)
        done = running.finish()

    assert done.code == 0, done.stderr
    notes = [one["type"] for one in told]
    assert notes.count("approval.answered") == 2
    assert (notes[-1], told[-1]["status"]) == ("run.finished", "ok")
    assert ledger(waiting) == ["one", "two"]


def test_the_client_can_be_imported_without_what_listens() -> None:
    code = "import sys, aish.control; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())

    assert {"starlette", "httptools", "httpx", "jinja2", "typer"} & loaded == set()


@pytest.mark.slow(reason="drives two runs")
def test_a_client_without_an_address_finds_the_only_run_that_listens(
    waiting: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotListeningError, match="no run"), Client(max_retries=0) as nobody:
        nobody.status()
    with live_run(waiting, "--control", "127.0.0.1:0") as (running, _):
        with Client(max_retries=0, retry_delay=0) as client:
            assert client.status().run == waiting.run_folders[0].name
        text = (waiting.folder / "p.yaml").read_text(encoding="utf-8")
        other = waiting.write("other/p.yaml", text)
        with waiting.aish.start("run", str(other)) as second:
            second.wait_for_line(WAITS)
            with pytest.raises(NotListeningError, match="several runs"), Client() as unsure:
                unsure.status()
            monkeypatch.chdir(other.parent)
            with Client() as near:
                near.cancel()
            second.finish()
        with Client() as client:
            client.cancel()
        running.finish()
