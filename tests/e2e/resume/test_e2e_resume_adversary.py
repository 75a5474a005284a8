"""A run that is killed, fails, waits, changes and is resumed at random (A10, B3, P6).

Every call is counted where it is received. One that was made before, of a tool that is not
idempotent, has to be named by the part that makes it again, before it does.
"""

import base64
import json
import os
import random
import re
import shutil
import signal
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from cli_process import Done
from e2e_project import ModelEndpoints, Project, of_type
from fork_server import ForkServer
from kill_points import COUNT_INTO, KILL_AT, KILL_WITH
from mcp_emulators import McpEndpoint, Modern, error
from mcp_tools import PNG, text_result
from model_endpoint import Recorded, Reply, json_reply, text_reply, tool_reply
from samples import sampled

from aish.core.events import REFUSED
from aish.core.json import json_text
from aish.journal.reader import read_journal

PARTS = 15 if os.environ.get("AISH_TEST_ALL") == "1" else 7
ROW = {"type": "object", "properties": {"row": {"type": "string"}}}
TOOLS = [{"name": n, "description": n, "inputSchema": ROW} for n in ("pay", "sign", "put")]
SERVER = """
mcp:
  servers: {box: {url: "${BOX_URL}"}}
  auto_approve: [box__pay, box__put]
  idempotent: [box__put]
on_ask: pause
"""
STEPS = """
  - {id: rows, foreach: "range(7) | list", concurrency: 3, on_error: continue,
     retry: {attempts: 2}, prompt: "Row {{ item }}. NOTE"}
  - {id: talk, on_error: continue, prompt: "Row talk. NOTE"}
  - {id: more, continues: talk, on_error: continue, prompt: "Row more. NOTE"}
  - {id: held, on_error: continue, prompt: "Row held. NOTE", expect: [{contains: done}]}
  - {id: form, on_error: continue, prompt: "Row form. NOTE",
     output: {attempts: 2, schema: {type: object, required: [done]}}}
  - {id: one, on_error: continue, call: box__pay, with: {row: one, note: NOTE}}
  - {id: each, foreach: "['x', 'y']", key: item, on_error: continue, pipeline: inner.yaml,
     with: {n: "{{ item }}"}}
  - {id: part, on_error: continue, pipeline: inner.yaml, with: {n: part}}
"""
INNER = """
  - {id: first, call: box__pay, with: {row: "{{ inputs.n }}-first"}}
  - {id: second, needs: [first], prompt: "Row {{ inputs.n }}. Go on"}
  - {id: third, needs: [second], foreach: "['p', 'q']", key: item, call: box__pay,
     with: {row: "{{ inputs.n }}-{{ item }}"}}
"""
IMAGE = {"type": "image", "data": base64.b64encode(PNG).decode(), "mimeType": "image/png"}
ENDS = ("ok", "ok", "ok", "image", "handler_error", "rpc_error", "lost")


def wanted(row: str) -> list[list[tuple[str, str]]]:
    """The calls that a model makes for a row, round by round, each with its tool."""
    number = sum(row.encode())
    tool = ("pay", "sign", "put", "pay")[number % 4]
    calls = [(tool, f"{row}.1"), ("pay", f"{row}.2")]
    return ([calls[:1]], [calls], [calls[:1], calls[1:]])[number % 3]


def approvals_used(events: list[Any]) -> Counter[str]:
    """How many calls were made by each approval."""
    decided: dict[tuple[Any, ...], Any] = {}
    used: Counter[str] = Counter()
    for one in events:
        place = tuple(one.get(name) for name in ("step", "item", "turn", "call"))
        if one["type"] == "tool.decided":
            decided[place] = one.get("approval")
        elif one["type"] == "tool.started" and decided.get(place) is not None:
            used[decided[place]] += 1
    return used


@dataclass
class Adversary:
    """One run; `part` numbers its processes, `mended` ends all faults."""

    project: Project
    seed: int
    chance: random.Random
    part: int = 0
    mended: bool = False
    broken: float = 0.0
    steps: int = 0
    note: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    unnamed: list[str] = field(default_factory=list)
    figures: Counter[str] = field(default_factory=Counter)

    def _luck(self, *about: object) -> random.Random:
        """Chance that does not depend on the order of what happens at the same time."""
        return random.Random(f"{self.seed} {self.part} {about}")

    def called(self, request: Recorded) -> Any:
        """A call has arrived."""
        params = request.json["params"]
        row = params["arguments"]["row"]
        if self.calls[row] and params["name"] != "put":
            self.figures["made again"] += 1
            if not self._is_named(row):
                self.unnamed.append(f"{row} in part {self.part}")
        self.calls[row] += 1
        end = "ok" if self.mended else self._luck(row).choice(ENDS)
        self.figures[end] += 1
        if end == "lost":
            return Reply(framing="raw")
        if end == "rpc_error":
            return error(request, -32000, "no")
        found = text_result(f"{row}: {end}", isError=end == "handler_error")
        if end == "image":
            found["content"].append(IMAGE)
        return {"resultType": "complete", **found}

    def answer(self, body: Any) -> Reply:
        """The model calls for its row what is wanted, and then ends."""
        turns = body["messages"]
        found = [re.match(r"Row (\S+)\.", str(one["content"])) for one in turns]
        row = next(one for one in reversed(found) if one is not None)
        turns = turns[found.index(row) :]
        rounds = sum(1 for one in turns if one.get("tool_calls"))
        if not self.mended and self._luck(row[1], rounds, "asked").random() < self.broken:
            return json_reply(400, {"error": {"message": "not now"}})
        calls = wanted(row[1])
        if rounds >= len(calls):
            is_good = self.mended or self._luck(row[1], len(turns)).random() < 0.6
            return text_reply('{"done": true}' if is_good else "no")
        return tool_reply(
            [(f"c{name}", f"box__{tool}", json_text({"row": name})) for tool, name in calls[rounds]]
        )

    def _is_named(self, row: str) -> bool:
        """Whether the part that runs now has named a call for this row."""
        (folder,) = self.project.run_folders
        _, _, part = (folder / "events.jsonl").read_text("utf-8").rpartition('"run.started"')
        found = [line for line in part.splitlines() if '"calls_repeated"' in line]
        if any("all of them are in" in line for line in found):
            found.append((folder / "calls-to-check.txt").read_text("utf-8"))
        return any(f'"row": "{row}"' in line.replace("\\", "") for line in found)

    def events(self) -> list[Any]:
        """The journal."""
        folders = self.project.run_folders
        if not folders or not (folders[0] / "events.jsonl").exists():
            return []
        with read_journal(folders[0] / "events.jsonl") as reading:
            return list(reading)

    def write(self) -> None:
        """The pipeline, as it is at the moment."""
        inner = f"{SERVER}inputs: {{n: {{type: string}}}}\nsteps:{INNER}"
        self.project.pipeline(inner, "inner.yaml")
        luck = random.Random(self.seed)

        def flow(_: object) -> str:
            return luck.choice(["on_error: continue", "on_error: continue", "on_error: fail"])

        steps = re.sub(r"on_error: continue", flow, STEPS)
        self.project.pipeline(f"{SERVER}steps:{steps}".replace("NOTE", f"note{self.note}"))

    def run(self, *flags: str, kill: bool = False, count: bool = False) -> Done:
        """A process, with a fault or none."""
        self.part += 1
        into = self.project.folder / "steps"
        env = {COUNT_INTO: str(into)} if count else {}
        if kill:
            end = self.chance.choice(["SIGKILL", "SIGKILL", "SIGTERM", "SIGINT"])
            env = {KILL_AT: str(self.chance.randrange(self.steps)), KILL_WITH: end}
        with self.project.aish.start("run", "p.yaml", "--format", "json", *flags, env=env) as run:
            done = run.finish()
        if count:
            self.steps = int(into.read_text())
        self.figures[f"exit {done.code}"] += 1
        # Before it is ready to end in order, a process ends by the signal.
        ended = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT}
        assert done.code in {0, 1, 2, 3, 4, 5, 8, 130, 143, *ended}, done.stderr
        return done

    def settle(self, share: float) -> None:
        """Answer a share of the questions that wait."""
        events = self.events()
        answered = {one["id"] for one in of_type(events, "approval.answered")}
        asked = {one["id"]: one for one in of_type(events, "approval.asked")}
        for id, one in asked.items():
            if id not in answered and self.chance.random() < share:
                yes = ("--yes", "--digest", one["digest"])
                is_yes = self.mended or self.chance.random() < 0.8
                self.project.aish("approve", "latest", id, *(yes if is_yes else ("--deny",)))

    def next(self) -> Done:
        """Begin it, or go on, in some way."""
        if not of_type(self.events(), "run.started"):
            shutil.rmtree(self.project.folder / ".aish", ignore_errors=True)
            return self.run(kill=self.chance.random() < 0.7)
        self.settle(0.6)
        self.broken = self.chance.choice([0.0, 0.0, 0.2, 1.0])
        flags = ["--resume"]
        if self.chance.random() < 0.2:
            self.note += 1
            self.write()
        if self.note:
            flags.append("--force")
        if self.chance.random() < 0.4:
            flags.append("--retry-failed")
        if self.chance.random() < 0.1:
            flags += ["--max-turns", str(self.chance.randrange(1, 60))]
        done = self.run(*flags, kill=self.chance.random() < 0.6)
        if done.code == 2 and self.chance.random() < 0.8:
            assert json.loads(done.stdout)["calls"], done.stderr
            self.figures["refused"] += 1
            done = self.run(*flags, "--retry-unknown", kill=self.chance.random() < 0.6)
        return done

    def end(self) -> Done:
        """Let it come to its end."""
        self.mended = True
        flags = ("--resume", "--force", "--retry-failed", "--retry-unknown")
        for _ in range(8):
            self.settle(1.0)
            done = self.run(*flags)
            if done.code == 0:
                break
        return done


@pytest.mark.parametrize(
    "seed", sampled(range(20), often={1}, reason="many runs, each with many parts")
)
def test_no_call_is_made_again_by_a_part_that_has_not_named_it(
    project: Project, model_endpoint: ModelEndpoints, fork_server: ForkServer, seed: int
) -> None:
    adversary = Adversary(project, seed, random.Random(seed), mended=True)
    project.uses(model_endpoint(adversary.answer))
    project.aish.warm = fork_server
    with McpEndpoint(Modern(tools=TOOLS, tools__call=adversary.called)) as box:
        project.aish.env["BOX_URL"] = box.url
        adversary.write()
        assert adversary.run(count=True).code == 8
        shutil.rmtree(project.folder / ".aish")
        adversary.mended = False
        adversary.calls.clear()
        for _ in range(PARTS):
            if adversary.next().code == 0:
                break
        done = adversary.end()

    print(seed, dict(adversary.figures))
    assert adversary.unnamed == []
    assert done.code == 0, done.stderr
    rows = [str(n) for n in range(7)] + ["talk", "more", "held", "form", "x", "y", "part"]
    names = {name for row in rows for calls in wanted(row) for _, name in calls}
    names |= {"one", *(f"{n}-{of}" for n in ("x", "y", "part") for of in ("first", "p", "q"))}
    events = adversary.events()
    decided = of_type(events, "tool.decided")
    denied = {one["arguments"]["row"] for one in decided if one["verdict"] in REFUSED}
    assert names <= adversary.calls.keys() | denied
    assert all(count == 1 for count in approvals_used(events).values())
    ended = [one for one in of_type(events, "item.finished") if one["status"] == "ok"]
    done_once = Counter((one["step"], one["item"]) for one in ended if "/" not in one["step"])
    assert done_once == Counter(
        [*(("rows", str(n)) for n in range(7)), ("each", "x"), ("each", "y")]
    )
