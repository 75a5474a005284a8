"""Runs by batches that are killed at every place around them, and resumed until their end (W15).

All is counted where it arrives, at the provider and at the tool: nothing has to be believed of the
journal. `AISH_TEST_ALL=1` kills each wire 40 times with 500 rows, or with as many as
`AISH_TEST_ROWS` says.
"""

import faulthandler
import json
import os
import random
import re
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from batch_servers import (
    Answer,
    Api,
    Batch,
    BatchServer,
    Outcome,
    Quirks,
    Refusal,
    answer_in_words,
    answer_with_call,
)
from cli_process import Done, Running
from e2e_project import Project, of_type
from fork_server import ForkServer
from kill_points import COUNT_INTO, KILL_AT
from mcp_emulators import McpEndpoint, Modern
from mcp_tools import text_result
from model_endpoint import RESET, Part, Recorded, Reply

from aish.journal.reader import read_journal

SEED = 20261130
ROWS = int(os.environ.get("AISH_TEST_ROWS", "500"))
ROUNDS = 2
PATIENCE = 600.0
KEY = {"KEY": "sk-batch-0123456789abcdef"}
TOOL = {
    "name": "pay",
    "description": "Pay a part of what a row costs",
    "inputSchema": {
        "type": "object",
        "properties": {"row": {"type": "integer"}, "part": {"type": "integer"}},
    },
}
ROW = re.compile(r"Row (\d+) of")
RECEIPT = re.compile(r"receipt (\d+)/(\d+)")
GONE = Reply(parts=(RESET,), framing="raw")
INPUT, OUTPUT, SHARE = 3.0, 15.0, 0.5
# The moments before and after a submission, and how often each is chosen. Only those with a star
# let a run come nearer to its end.
MOMENTS = {
    "upload arrived": 3,
    "upload taken": 2,
    "upload answered": 2,
    "creation arrived": 3,
    "creation taken": 6,  # *
    "creation answered": 6,  # *
    "list asked": 3,
    "state asked": 2,
    "results begun": 1,
    "results half read": 5,  # *
    "call arrived": 3,  # *
    "call answered": 3,  # *
    "any step": 4,  # *
}
OF_FILES = frozenset({"upload arrived", "upload taken", "upload answered"})


@dataclass
class Killer:
    """Kills the program that runs at the n-th time that a moment comes."""

    chance: random.Random
    running: Running | None = None
    moment: str = ""
    left: int = 0
    kills: Counter[str] = field(default_factory=Counter)

    def aim(self, moment: str, number: int) -> None:
        self.moment, self.left = moment, number

    def strike(self, moment: str) -> bool:
        """Kill the program if this is its moment."""
        if self.moment != moment or self.running is None:
            return False
        self.left -= 1
        if self.left > 0:
            return False
        self.moment = ""
        self.kills[moment] += 1
        os.kill(self.running.pid, signal.SIGKILL)
        return True


class DeadlyServer(BatchServer):
    """A provider whose batches fail in part, and have results in any order, some twice."""

    def __init__(self, api: Api, killer: Killer) -> None:
        quirks = Quirks(mixes=True)
        super().__init__(api, self._answer_row, polls=2, key=KEY["KEY"], quirks=quirks)
        self._killer = killer
        self._asked: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.cost = 0.0

    def _answer_row(self, body: dict[str, Any]) -> Answer:
        text = json.dumps(body, sort_keys=True)
        row = row_of(text)
        paid = sorted({int(part) for of, part in RECEIPT.findall(text) if int(of) == row})
        times = self._asked[text]
        self._asked[text] += 1
        luck = random.Random(f"{SEED} {row} {len(paid)} {times}").random()
        if times < ROUNDS and luck < 0.03:
            self.failed[text] += 1
            return Outcome.EXPIRED if luck < 0.01 else Refusal(529, "overloaded_error", "busy")
        if len(paid) < ROUNDS:
            arguments = {"row": row, "part": len(paid) + 1}
            answer = answer_with_call(self.api, "box__pay", arguments, call_id=f"c{len(paid)}")
        else:
            said = f"row {row} has receipts {paid}"
            answer = answer_in_words(self.api, said, prompt=100 + row % 9, completion=row % 7)
        self.cost += cost_of(answer["usage"])
        return answer

    def _end(self, batch: Batch) -> None:
        super()._end(batch)
        random.Random(f"{SEED} {batch.id}").shuffle(batch.answers)

    # The moments.

    def _file(self, request: Recorded, parts: Any) -> Reply:
        if request.method != "POST" or parts:
            return super()._file(request, parts)
        if self._killer.strike("upload arrived"):
            return GONE
        reply = super()._file(request, parts)
        return GONE if self._killer.strike("upload taken") else self._then(reply, "upload answered")

    def _create(self, request: Recorded) -> Reply:
        if self._killer.strike("creation arrived"):
            return GONE
        reply = super()._create(request)
        if self._killer.strike("creation taken"):
            return GONE
        return self._then(reply, "creation answered")

    def _list(self, query: dict[str, str]) -> Reply:
        return GONE if self._killer.strike("list asked") else super()._list(query)

    def _batch(self, batch: Batch, method: str, verb: str) -> Reply:
        is_state = method == "GET" and not verb
        if is_state and self._killer.strike("state asked"):
            return GONE
        return super()._batch(batch, method, verb)

    def _download(self, rows: list[bytes]) -> Reply:
        if self._killer.strike("results begun"):
            return GONE
        self.quirks.piece = max(64, sum(map(len, rows)) // 20)
        return self._then(super()._download(rows), "results half read", every=True)

    def _then(self, reply: Reply, moment: str, *, every: bool = False) -> Reply:
        """The reply, and the moment after it, or after every part of it."""
        parts = [*reply.parts]

        def send() -> Iterator[Part]:
            for number, part in enumerate(parts, 1):
                yield part
                if (every or number == len(parts)) and self._killer.strike(moment):
                    yield RESET

        size = str(sum(len(part) for part in parts if isinstance(part, bytes)))
        headers = {**reply.headers, "content-length": size}
        return reply.but(parts=send(), headers=headers, framing="length")


def row_of(text: str) -> int:
    found = ROW.search(text)
    assert found is not None, text
    return int(found[1])


def cost_of(usage: dict[str, Any]) -> float:
    read, written = (
        ("prompt_tokens", "completion_tokens")
        if "prompt_tokens" in usage
        else ("input_tokens", "output_tokens")
    )
    return float(SHARE * (usage[read] * INPUT + usage[written] * OUTPUT) / 1e6)


@dataclass
class Campaign:
    """One run of many parts; `named` are the calls that may be made again by the part that runs."""

    project: Project
    api: Api
    rows: int
    killer: Killer
    folder: str
    steps: int
    refusals: int = 0
    named: set[tuple[int, int]] = field(default_factory=set)
    paid: Counter[tuple[int, int]] = field(default_factory=Counter)
    again_named: int = 0
    again_unnamed: list[tuple[int, int]] = field(default_factory=list)

    @property
    def kills(self) -> int:
        return self.killer.kills.total()

    def call(self, request: Recorded) -> Reply:
        """The tool; what it counts has been paid."""
        is_call = request.method == "POST" and request.json["method"] == "tools/call"
        if is_call and self.killer.strike("call arrived"):
            return GONE
        reply = Modern(tools=[TOOL], tools__call=self._pay)(request)
        return GONE if is_call and self.killer.strike("call answered") else reply

    def _pay(self, request: Recorded) -> dict[str, Any]:
        arguments = request.json["params"]["arguments"]
        row, part = one = (arguments["row"], arguments["part"])
        if self.paid[one]:
            if one in self.named:
                self.named.discard(one)
                self.again_named += 1
            else:
                self.again_unnamed.append(one)
        self.paid[one] += 1
        return {"resultType": "complete", **text_result(f"receipt {row}/{part}")}

    def pipeline(self) -> None:
        bound = "max_tokens: 100" if self.api == "messages" else ""
        self.project.shorten_pauses()
        self.project.pipeline(
            f"""
            inputs: {{rows: {{type: integer}}}}
            models:
              m:
                api: {self.api}
                base_url: "${{MODEL_URL}}"
                model: scripted
                key_env: KEY
                delivery: batch
                params: {{{bound}}}
                price: {{input: {INPUT}, output: {OUTPUT}}}
                retry: {{attempts: 4, max_delay: 10ms}}
            mcp: {{servers: {{box: {{url: "${{BOX_URL}}"}}}}, auto_approve: [box__pay]}}
            steps:
              - {{id: rows, foreach: "range(inputs.rows) | list",
                  prompt: "Row {{{{ item }}}} of all"}}
            """
        )

    def part(self, *words: str, env: dict[str, str] | None = None) -> Done:
        words = ("run", "p.yaml", *words, "--format", "json")
        with self.project.aish.start(*words, env={**KEY, **(env or {})}) as running:
            self.killer.running = running
            # Each part has these ten minutes, not the test.
            faulthandler.dump_traceback_later(PATIENCE + 60, exit=True)
            done = running.finish(PATIENCE)
            self.killer.running = None
        return done

    def count_steps(self) -> int:
        """The steps of a run of few rows, which is not killed."""
        into = self.project.folder / "steps"
        done = self.part("--run-dir", "few", "-i", "rows=3", env={COUNT_INTO: str(into)})
        assert done.code == 0, done.stderr
        return int(into.read_text())

    def events(self) -> list[Any]:
        """The journal of the run."""
        folders = sorted((self.project.folder / self.folder).glob("*/events.jsonl"))
        if not folders:
            return []
        with read_journal(folders[-1]) as reading:
            return list(reading)

    def choose(self) -> dict[str, str]:
        """Choose the moment at which the next part is killed."""
        chance = self.killer.chance
        moments = [one for one in MOMENTS if self.api != "messages" or one not in OF_FILES]
        # Nothing is looked for unless a batch may have been made.
        planned, submitted = (
            {one["batch"] for one in of_type(self.events(), f"batch.{kind}")}
            for kind in ("planned", "submitted")
        )
        if not planned - submitted:
            moments.remove("list asked")
        (moment,) = chance.choices(moments, [MOMENTS[one] for one in moments])
        most = {"results half read": 20, "call arrived": self.rows // 8, "state asked": 2}
        self.killer.aim(moment, 1 + chance.randrange(most.get(moment, 1) or 1))
        if moment == "call answered":
            self.killer.left = 1 + chance.randrange(self.rows // 8)
        if moment != "any step":
            return {}
        return {KILL_AT: str(1 + chance.randrange(self.steps + 8 * self.rows))}

    def next(self, env: dict[str, str]) -> Done:
        """Resume it, and give consent if it names calls."""
        where: tuple[str, ...] = ("--run-dir", self.folder)
        if not of_type(self.events(), "run.started"):
            shutil.rmtree(self.project.folder / self.folder, ignore_errors=True)
            done = self.part(*where, "-i", f"rows={self.rows}", env=env)
        else:
            done = self._resume(where, env)
        if done.code == -signal.SIGKILL and KILL_AT in env:
            self.killer.kills["any step"] += 1
        return done

    def _resume(self, where: tuple[str, ...], env: dict[str, str]) -> Done:
        self.named = set()
        done = self.part(*where, "--resume", env=env)
        if done.code == 2:
            self.refusals += 1
            calls = json.loads(done.stdout)["calls"]
            self.named = {(one["arguments"]["row"], one["arguments"]["part"]) for one in calls}
            done = self.part(*where, "--resume", "--retry-unknown", env=env)
        return done

    def pending(self) -> list[Any]:
        done = self.project.aish("runs", "pending", "--run-dir", self.folder, "--format", "json")
        assert done.code == 0, done.stderr
        batches: list[Any] = json.loads(done.stdout)["batches"]
        return batches


SLOW = pytest.mark.slow(reason="kills a run, and looks half a minute for what was lost")


@pytest.mark.parametrize(
    ("api", "rows", "kills"),
    [
        ("messages", 24, 6),
        pytest.param("messages", 60, 6, marks=SLOW),
        pytest.param("chat", 60, 6, marks=SLOW),
        pytest.param("responses", 60, 6, marks=SLOW),
        *(pytest.param(api, ROWS, 40, marks=SLOW) for api in ("messages", "chat", "responses")),
    ],
)
def test_nothing_is_submitted_twice_and_nothing_lost_however_often_a_run_is_killed(
    project: Project, fork_server: ForkServer, api: Api, rows: int, kills: int
) -> None:
    killer = Killer(random.Random(f"{SEED} {api}"))
    # The steps of a real executable are not counted.
    project.aish.warm = fork_server
    number = steps = 0
    # A run may end before it was killed so often.
    while killer.kills.total() < kills:
        campaign = Campaign(project, api, rows, killer, f"batch{number}", steps)
        campaign.pipeline()
        number += 1
        with DeadlyServer(api, killer) as server, McpEndpoint(campaign.call) as box:
            project.uses(server)
            project.aish.env["BOX_URL"] = box.url
            if not steps:
                steps = campaign.count_steps()
                continue
            done = finish(campaign, server, kills)
            judge(campaign, server, json.loads(done.stdout))


def finish(campaign: Campaign, server: DeadlyServer, kills: int) -> Done:
    """Kill a run and resume it, until it ends."""
    for number in count(1):
        is_last = campaign.kills >= kills
        campaign.killer.aim("", 0)
        done = campaign.next({} if is_last else campaign.choose())
        print(number, len(server.batches), done.code, dict(campaign.killer.kills), flush=True)
        assert done.code in {0, -signal.SIGKILL}, done.stderr
        if done.code == 0:
            return done
        if number % (kills // 3) == 0 and of_type(campaign.events(), "run.started"):
            check_pending(campaign, server)
    raise AssertionError("it counts without end")


def check_pending(campaign: Campaign, server: BatchServer) -> None:
    """All batches of the run are listed, but those that were never made."""
    listed = {one["id"] for one in campaign.pending()} - {None}
    submitted = of_type(campaign.events(), "batch.submitted")
    collected = {one["batch"] for one in of_type(campaign.events(), "batch.collected")}
    assert listed == {one["id"] for one in submitted if one["batch"] not in collected}
    assert listed <= {batch.id for batch in server.batches}


def judge(campaign: Campaign, server: DeadlyServer, result: dict[str, Any]) -> None:
    """Hold the result and the journal against what arrived at the provider and the tool."""
    rows, events = campaign.rows, campaign.events()
    submitted = Counter(json.dumps(body, sort_keys=True) for body in server.bodies)
    figures = {
        "kills": campaign.kills,
        "batches": len(server.batches),
        "submitted": submitted.total(),
        "failed and submitted again": server.failed.total(),
        "refused": campaign.refusals,
        "calls made again, named": campaign.again_named,
    }
    print(figures, flush=True)
    table = {int(one["key"]): one for one in result["steps"]["rows"]["items"]}
    receipts = [*range(1, ROUNDS + 1)]
    assert sorted(table) == [*range(rows)]
    for row, item in table.items():
        assert (item["status"], item["output"]) == ("ok", f"row {row} has receipts {receipts}")
    # Each request once, and once more for each time that it was not answered.
    twice = {row_of(text) for text, n in submitted.items() if n != 1 + server.failed[text]}
    assert twice == set()
    assert len(submitted) == rows * (ROUNDS + 1)
    assert server.singles == []
    # Each call as often as the journal has it, and again only after it was named.
    assert campaign.again_unnamed == []
    assert len(campaign.paid) == rows * ROUNDS
    assert campaign.paid.total() <= len(of_type(events, "tool.started"))
    assert len(of_type(events, "tool.finished")) >= rows * ROUNDS
    assert len(of_type(events, "item.finished")) == rows
    assert result["cost_usd"] == pytest.approx(server.cost)
    assert campaign.pending() == []
