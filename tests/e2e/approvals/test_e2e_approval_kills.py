"""`kill -9` at any step of a run that asks, of an answer, and of what goes on after it (A10)."""

import http.client
import json
import random
import shutil
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cli_process import Done, Running
from e2e_project import ModelEndpoints, Project, of_type
from fork_server import ForkServer
from kill_points import COUNT_INTO, KILL_AT
from live_runs import WAITS, control_path, runtime_folder
from mcp_emulators import McpEndpoint, Modern
from mcp_tools import text_result
from model_endpoint import Recorded, Reply, text_reply, tool_reply

from aish.journal.reader import read_journal

TOOL = {
    "name": "write",
    "description": "Write a line",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
}
PIPELINE = """
    inputs: {life: {type: string}}
    mcp: {servers: {box: {url: "${BOX_URL}"}}}
    on_ask: pause
    steps:
      - {id: note, prompt: "Write {{ inputs.life }}"}
      - {id: after, prompt: "Then {{ inputs.life }}: {{ steps.note.text }}"}
    """


def replies(request: Any) -> Reply:
    last = request["messages"][-1]
    if last["role"] == "tool":
        return text_reply(f"done: {last['content']}")
    if last["content"].startswith("Write "):
        text = last["content"].removeprefix("Write ")
        return tool_reply([("c1", "box__write", json.dumps({"text": text}))])
    return text_reply("the end")


@dataclass
class Killer:
    """Lives of one pipeline, each a run with all that is done about it until its end."""

    project: Project
    chance: random.Random
    written: list[str]
    kills: int = 0
    unknown: int = 0
    steps: Counter[str] = field(default_factory=Counter)

    def start(self, kind: str, *arguments: str, armed: bool = True) -> Running:
        """A process that may kill itself; without `armed` its steps are counted."""
        if armed:
            most = self.steps[kind] or max(self.steps.values())
            at = self.chance.randrange(1, most * 5 // 4)
            env = {KILL_AT: str(at)}
        else:
            env = {COUNT_INTO: str(self.project.folder / kind)}
        return self.project.aish.start(*arguments, env=env)

    def done(self, kind: str, *arguments: str, armed: bool) -> Done:
        with self.start(kind, *arguments, armed=armed) as running:
            return self.ended(running, kind, armed=armed)

    def ended(self, running: Running, kind: str, *, armed: bool) -> Done:
        done = running.finish()
        self.kills += done.code == -signal.SIGKILL
        if not armed:
            self.steps[kind] = int((self.project.folder / kind).read_text())
        return done


@dataclass
class Life:
    """One run, killed as often as it comes; `answered` once somebody was told that it is."""

    killer: Killer
    name: str
    waits: bool
    armed: bool = True
    answered: bool = False

    @property
    def runs(self) -> Path:
        return self.killer.project.folder / self.name

    @property
    def events(self) -> list[Any]:
        folders = sorted(self.runs.glob("*/events.jsonl"))
        if not folders:
            return []
        with read_journal(folders[-1]) as reading:
            return list(reading)

    def live(self) -> None:
        """Until its end, which is a success or, after a call with unknown outcome, a refusal."""
        options = ["--run-dir", self.name]
        while True:
            began = bool(self.events)
            if not began:
                # Of two runs of one second the names do not tell which came last.
                shutil.rmtree(self.runs, ignore_errors=True)
            words = ["run", "p.yaml", *options]
            words += ["--resume", "latest"] if began else ["-i", f"life={self.name}"]
            words += ["--set", "on_ask=wait"] if self.waits else []
            kind = f"{'resume' if began else 'run'}{' wait' if self.waits else ''}"
            with self.killer.start(kind, *words, armed=self.armed) as running:
                if self.waits:
                    self._answer_live(running)
                done = self.killer.ended(running, kind, armed=self.armed)
            self._check()
            if done.code == 0:
                break
            if done.code == 2 and "with unknown outcome" in done.stderr:
                # It was sent, and nobody knows what came of it: it is not made again unasked.
                self.killer.unknown += 1
                ends = [len(of_type(self.events, f"tool.{end}")) for end in ("started", "finished")]
                assert ends == [1, 0], self.name
                assert self.killer.written.count(self.name) <= 1
                return
            assert done.code in {8, -signal.SIGKILL}, f"{self.name}: {done}"
            if done.code == 8:
                assert not self.answered, f"{self.name}: {done.stderr}"
                self._approve()
        assert self.killer.written.count(self.name) == 1, self.name

    def _approve(self) -> None:
        """By a command, until it is known to be answered."""
        while not self.answered:
            asked = of_type(self.events, "approval.asked")[-1]
            words = ("approve", "latest", asked["id"], "--run-dir", self.name)
            given = ("--yes", "--digest", asked["digest"])
            done = self.killer.done("approve", *words, *given, armed=self.armed)
            ended = of_type(self.events, "approval.answered")
            assert done.code in {0, -signal.SIGKILL}, f"{self.name}: {done}"
            assert len(ended) == 1 or done.code != 0
            # The next process finds what one that was killed has written.
            self.answered = bool(ended)

    def _answer_live(self, running: Running) -> None:
        """Over the socket, as soon as it asks; it may be killed before, meanwhile or after."""
        if not running.prints(WAITS):
            return
        assert not self.answered, f"{self.name}: {running.stderr}"
        asked = of_type(self.events, "approval.asked")[-1]
        (folder,) = self.runs.iterdir()
        named = json.loads(control_path(self.killer.project, folder.name).read_text())
        connection = http.client.HTTPConnection("aish")
        connection.sock = socket.socket(socket.AF_UNIX)
        body = json.dumps({"answer": "approve", "digest": asked["digest"]})
        try:
            connection.sock.connect(named["address"].removeprefix("unix:"))
            connection.request(
                "POST",
                f"/api/v1/approvals/{asked['id']}",
                body,
                {"Content-Type": "application/json"},
            )
            self.answered = connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return
        finally:
            connection.close()

    def _check(self) -> None:
        events = self.events
        assert self.killer.written.count(self.name) <= 1, self.name
        ended = of_type(events, "approval.answered")
        assert len(ended) <= 1
        assert {one["answer"] for one in ended} <= {"approve"}
        # No finished turn is asked for again.
        turns = Counter(one["step"] for one in of_type(events, "turn.finished"))
        assert turns["note"] <= 2, self.name
        assert turns["after"] <= 1, self.name
        assert ended or not self.answered, f"{self.name}: an answer is lost"
        self.answered = bool(ended)


@pytest.fixture
def killer(
    project: Project,
    model_endpoint: ModelEndpoints,
    fork_server: ForkServer,
    request: pytest.FixtureRequest,
) -> Iterator[Killer]:
    """A pipeline whose model and server answer from this process, and what kills its runs."""
    written: list[str] = []

    def write(asked: Recorded) -> dict[str, Any]:
        written.append(asked.json["params"]["arguments"]["text"])
        return {"resultType": "complete", **text_result("wrote it")}

    project.pipeline(PIPELINE)
    project.uses(model_endpoint(replies))
    # The steps of a real executable are not counted.
    project.aish.warm = fork_server
    with McpEndpoint(Modern(tools=[TOOL], tools__call=write)) as box, runtime_folder(project):
        project.aish.env["BOX_URL"] = box.url
        found = Killer(project, random.Random(20261123), written)
        for waits in (False, True):
            Life(found, f"whole{int(waits)}", waits, armed=False).live()
        assert written == ["whole0", "whole1"]
        yield found


@pytest.mark.parametrize(
    "kills",
    [8, pytest.param(200, marks=pytest.mark.slow(reason="kills two hundred processes"))],
)
def test_a_kill_at_any_step_loses_no_answer_and_makes_no_call_twice(
    killer: Killer, kills: int
) -> None:
    lives = 0
    while killer.kills < kills:
        lives += 1
        Life(killer, f"life{lives}", waits=lives % 2 == 0).live()

    # Only who is killed between the request to a server and its record leaves a call in doubt;
    # eight kills may be those of a single life.
    assert killer.unknown < max(lives / 2, 3)
