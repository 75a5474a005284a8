"""What people, networks and other runs do to a batch: nothing is lost, nothing is paid twice."""

import asyncio
import json
import os
import re
import signal
from contextlib import ExitStack
from typing import Any

import pytest
from batch_servers import CREATED, Api, Batch, BatchServer, answer_in_words
from cli_process import Running
from e2e_project import Project, driven, of_type
from model_endpoint import CUT, RESET, Recorded, Reply
from syrupy.assertion import SnapshotAssertion

KEY = {"KEY": "sk-batch-0123456789abcdef"}
APIS: tuple[Api, ...] = ("messages", "chat", "responses")
ROWS = 3


def pipeline(
    project: Project, servers: dict[Api, BatchServer], prompt: str = "Row", more: str = ""
) -> None:
    """A step for each server, which is asked by batches; rows are as `Row 1 of chat`."""
    project.shorten_pauses()
    models, steps = "", ""
    for api, server in servers.items():
        bound = "max_tokens: 100" if api == "messages" else ""
        models += f"""
          {api}:
            api: {api}
            base_url: {server.base_url}
            model: scripted
            delivery: batch
            key_env: KEY
            params: {{{bound}}}
            retry: {{attempts: 3, max_delay: 10ms}}"""
        steps += f"""
          - {{id: {api}, model: {api}, foreach: "range({ROWS}) | list", on_error: continue, {more}
             prompt: "{prompt} {{{{ item }}}} of {api}"}}"""
    project.pipeline(f"""
        models:{models}
        steps:{steps}
        """)


def counts(servers: dict[Api, BatchServer]) -> dict[Api, tuple[int, int, int]]:
    """Of each server: its batches, how often a request came at most, and single requests."""
    return {
        api: (len(server.batches), server.most_often, len(server.singles))
        for api, server in servers.items()
    }


class CanceledServer(BatchServer):
    """Its first batch is canceled by somebody, who was too late for one request."""

    def _batch(self, batch: Batch, method: str, verb: str) -> Reply:
        batch.canceling = batch is self.batches[0]
        return super()._batch(batch, method, verb)

    def _end(self, batch: Batch) -> None:
        super()._end(batch)
        if batch.canceling:
            name, body = batch.rows[0]
            batch.answers[0] = name, self._answer_one(body)


def test_what_somebody_cancels_at_the_provider_fails_and_is_asked_again_only_on_request(
    project: Project,
) -> None:
    with ExitStack() as stack:
        servers: dict[Api, BatchServer] = {
            api: stack.enter_context(CanceledServer(api)) for api in APIS
        }
        pipeline(project, servers)
        first = project.run("--format", "json", env=KEY)
        plain = project.run("--resume", env=KEY)
        once = counts(servers)
        again = project.run("--resume", "--retry-failed", "--format", "json", env=KEY)

    steps = json.loads(first.stdout)["steps"]
    for api in APIS:
        items = {item["key"]: item for item in steps[api]["items"]}
        assert [items[key]["status"] for key in "012"] == ["ok", "failed", "failed"], api
        assert "cancel" in items["1"]["error"]["message"]
    assert first.code == plain.code == 1
    assert once == dict.fromkeys(APIS, (1, 1, 0))
    assert again.code == 0, again.stderr
    assert counts(servers) == dict.fromkeys(APIS, (2, 2, 0))
    for server in servers.values():
        assert [len(batch.rows) for batch in server.batches] == [ROWS, ROWS - 1]


class CutServer(BatchServer):
    """The connection breaks in the middle of the first upload, and of each first answer."""

    def __init__(self, api: Api) -> None:
        super().__init__(api)
        self.uploads = 1
        self.answers = {"/v1/files", "/v1/batches", "/v1/messages/batches"}

    async def _read_body(self, reader: asyncio.StreamReader, method: str, size: int) -> bytes:
        if method == "POST" and self.uploads:
            self.uploads -= 1
            await reader.readexactly(size // 2)
            raise ConnectionResetError("in the middle")
        return await super()._read_body(reader, method, size)

    def _route(self, request: Recorded) -> Reply:
        reply = super()._route(request)
        if request.method != "POST" or request.path not in self.answers:
            return reply
        self.answers.discard(request.path)
        (whole,) = reply.parts
        assert isinstance(whole, bytes)
        size = {"content-length": str(len(whole))}
        return reply.but(parts=(whole[: len(whole) // 2], CUT), headers={**reply.headers, **size})


def test_a_connection_that_breaks_within_a_submission_makes_no_second_batch(
    project: Project,
) -> None:
    """The submissions are larger than what a socket holds."""
    with ExitStack() as stack:
        cut = [stack.enter_context(CutServer(api)) for api in APIS]
        servers: dict[Api, BatchServer] = {server.api: server for server in cut}
        pipeline(project, servers, "{{ 'word ' * 200000 }} Row")
        done = project.run(env=KEY)

    assert done.code == 0, done.stderr
    assert counts(servers) == dict.fromkeys(APIS, (1, 1, 0))
    assert [server.uploads for server in cut] == [0] * len(APIS)


class SharedServer(BatchServer):
    """One account of several runs: `held` are the batches that have not ended."""

    running: Running | None = None
    held: frozenset[str] = frozenset()

    def _create(self, request: Recorded) -> Reply:
        reply = super()._create(request)
        running, self.running = self.running, None
        if running is None:
            return reply
        os.kill(running.pid, signal.SIGKILL)
        return Reply(parts=(RESET,), framing="raw")

    def _batch(self, batch: Batch, method: str, verb: str) -> Reply:
        self.holds = batch.id in self.held
        return super()._batch(batch, method, verb)


@pytest.mark.parametrize("api", ["messages", "chat"])
def test_a_run_whose_batch_has_no_id_takes_no_batch_of_another_run_and_does_not_wait_for_it(
    project: Project, api: Api
) -> None:
    """Both of one size and within a second, by a list without metadata."""
    answered: list[str] = []

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        answered.append(json.dumps(body))
        return answer_in_words(api, f"answer {len(answered)}")

    with SharedServer(api, answer) as server:
        server.quirks.no_metadata = True
        pipeline(project, {api: server})
        with project.aish.start("run", "p.yaml", "--run-dir", "killed", env=KEY) as running:
            server.running = running
            assert running.finish().code == -signal.SIGKILL
        (own,) = server.batches
        # The other run begins later, so that its batch comes first in the list, and lasts longer.
        server.held = frozenset({own.id[:-1] + "1"})
        with project.aish.start("run", "p.yaml", "--run-dir", "other", env=KEY) as other:
            server.wait_batches(2)
            resumed = project.run("--run-dir", "killed", "--resume", env=KEY)
            assert not server.batches[1].ended
            server.held = frozenset()
            done = other.finish()

    assert resumed.code == 0, resumed.stderr
    assert done.code == 0, done.stderr
    assert sorted(resumed.stdout.split("\n")[:-1]) == [f"answer {n}" for n in (1, 2, 3)]
    assert sorted(done.stdout.split("\n")[:-1]) == [f"answer {n}" for n in (4, 5, 6)]
    assert len(server.batches) == 2


@pytest.mark.parametrize("newest_first", [True, False])
def test_a_search_reads_no_pages_that_are_too_old(project: Project, newest_first: bool) -> None:  # ruff: ignore[boolean-type-hint-positional-argument] - a case
    """A list that begins with the oldest batches is read to its end."""
    with BatchServer("messages") as server:
        server.quirks.lost, server.quirks.page = 1, 5
        server.batches += [Batch(f"old_{n}", [], CREATED + n, ended=True) for n in range(60)]
        pipeline(project, {"messages": server})
        if not newest_first:
            server.batches.reverse()
        done = project.run(env=KEY)
    pages = [one for one in server.requests if "batches?limit=" in one.path]

    assert done.code == 0, done.stderr
    assert done.stdout.splitlines() == ["hello"] * ROWS
    assert counts({"messages": server}) == {"messages": (61, 1, 0)}
    assert len(pages) == (2 if newest_first else 13)


@pytest.mark.parametrize("presses", [1, 2])
def test_an_interrupt_ends_a_run_that_waits_and_the_batch_is_collected_later(
    project: Project, presses: int
) -> None:
    """Once where all items are suspended; those with a time limit have tasks, which may end."""
    with BatchServer("messages", holds=True) as server:
        pipeline(project, {"messages": server}, more="timeout: 1h," if presses > 1 else "")
        with project.aish.start("run", "p.yaml", env=KEY) as running:
            server.wait_polls(2)
            running.interrupt()
            if presses > 1:
                running.wait_for_line("Ctrl-C again exits at once")
                running.interrupt_again()
            done = running.finish()
        listed = json.loads(project.aish("runs", "pending", "--format", "json").stdout)
        server.release()
        resumed = project.run("--resume", env=KEY)

    assert done.code == 130
    assert "`aish run p.yaml --resume` resumes" in done.stderr
    assert ("3 items under way" in done.stderr) == (presses > 1)
    assert [one["id"] for one in listed["batches"]] == ["msgbatch_0000"]
    assert resumed.code == 0, resumed.stderr
    assert resumed.stdout.splitlines() == ["hello"] * ROWS
    assert counts({"messages": server}) == {"messages": (1, 1, 0)}


@pytest.mark.parametrize(
    "place",
    [
        *("before:batch.submitted:1", "torn:batch.submitted:1", "after:batch.submitted:1"),
        *("before:item.finished:2", "torn:item.finished:2"),
        *("before:batch.collected:1", "torn:batch.collected:1", "after:batch.collected:1"),
        *("before:run.finished:1", "after:run.finished:1"),
    ],
)
@pytest.mark.sampled(4)
def test_a_run_killed_between_an_answer_and_its_record_pays_nothing_twice(
    project: Project, place: str
) -> None:
    project.aish.env |= KEY
    with BatchServer("chat") as server:
        pipeline(project, {"chat": server})
        with driven(project, place, "run", "p.yaml") as running:
            assert running.finish().code == -signal.SIGKILL
        resumed = project.run("--resume")
        listed = [
            json.loads(project.aish("runs", "pending", *run, "--format", "json").stdout)["batches"]
            for run in ((), ("latest",))
        ]
        (batch,) = server.batches

    assert resumed.code == 0, resumed.stderr
    assert len(batch.rows) == ROWS
    assert server.singles == []
    assert listed == [[], []]
    finished = [one["key"] for one in of_type(project.journal, "item.finished")]
    assert sorted(finished) == ["0", "1", "2"]


def test_runs_pending_shows_what_became_of_each_batch(
    project: Project, snapshot: SnapshotAssertion
) -> None:
    shown: dict[str, str] = {}

    def show(state: str, *run: str) -> None:
        text = project.aish("runs", "pending", *run)
        document = project.aish("runs", "pending", *run, "--format", "json")
        tidy = project.tidy(f"{text.stdout}{text.stderr}{document.stdout}")
        shown[state] = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "<date and time>", tidy)

    paused = ("--set", "on_wait=pause")
    with SharedServer("messages") as server:
        pipeline(project, {"messages": server})
        server.held = frozenset({"msgbatch_0000"})
        with project.aish.start("run", "p.yaml", env=KEY) as running:
            server.running = running
            running.finish()
        show("killed before the id was known")
        project.run("--resume", *paused, env=KEY)
        show("being looked for, by a run that has paused")
        server.held = frozenset()
        project.run("--resume", env=KEY)
        show("collected")
        show("collected, by its run", "latest")
        server.held = frozenset({"msgbatch_0001"})
        project.run(*paused, env=KEY)
        show("submitted, by a run that has paused")
        server.batches.pop()
        project.run("--resume", env=KEY)
        show("gone at the provider")
        show("gone at the provider, by its run", "latest")

    assert shown == snapshot
