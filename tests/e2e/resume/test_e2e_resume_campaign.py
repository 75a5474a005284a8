"""A batch whose parts are killed or fail, and are resumed until its end (B3, B14, A10).

Every payment is counted where it is received, so that nothing has to be believed of the journal.
"""

import json
import random
import shutil
import signal
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from cli_process import Done
from e2e_project import ModelEndpoints, Project, of_type
from fork_server import ForkServer
from kill_points import COUNT_INTO, KILL_AT
from mcp_emulators import McpEndpoint, Modern
from mcp_tools import text_result
from model_endpoint import Recorded, Reply, json_reply, text_reply, tool_reply

from aish.journal.reader import read_journal

SEED = 20261128
TOOL = {
    "name": "pay",
    "description": "Pay for a row",
    "inputSchema": {"type": "object", "properties": {"row": {"type": "string"}}},
}
PIPELINE = """
    inputs: {rows: {type: integer}}
    mcp: {servers: {box: {url: "${BOX_URL}"}}, auto_approve: [box__pay]}
    steps:
      - {id: rows, foreach: "range(inputs.rows) | list", concurrency: 8, prompt: "Row {{ item }}"}
    """


@dataclass
class Campaign:
    """One batch; `named` are the rows whose calls may be made again by the part that runs now."""

    project: Project
    rows: int
    deaths: int
    chance: random.Random = field(default_factory=lambda: random.Random(SEED))
    begin: int = 0
    steps: int = 0
    kills: int = 0
    failures: int = 0
    refusals: int = 0
    is_broken: bool = False
    named: set[str] = field(default_factory=set)
    paid: Counter[str] = field(default_factory=Counter)
    again_named: int = 0
    again_unnamed: list[str] = field(default_factory=list)

    def pay(self, request: Recorded) -> dict[str, Any]:
        """A payment has arrived."""
        row = request.json["params"]["arguments"]["row"]
        if self.paid[row]:
            if row in self.named:
                self.named.discard(row)
                self.again_named += 1
            else:
                self.again_unnamed.append(row)
        self.paid[row] += 1
        return {"resultType": "complete", **text_result(f"paid for {row}")}

    def answer(self, body: Any) -> Reply:
        """The model pays once for each row; its endpoint may be broken."""
        if self.is_broken:
            return json_reply(400, {"error": {"message": "not now"}})
        first, last = body["messages"][0]["content"], body["messages"][-1]
        if last["role"] == "tool":
            return text_reply(f"<{last['content']}>")
        row = first.removeprefix("Row ")
        return tool_reply([(f"c{row}", "box__pay", json.dumps({"row": row}))])

    def part(self, *words: str, kill: bool = False, count: bool = False) -> Done:
        """A process; with `kill` it dies when it has done a share of what the batch takes."""
        most = max((self.steps - self.begin) * 2 // self.deaths, 100)
        at = str(self.begin * 9 // 10 + self.chance.randrange(most))
        into = self.project.folder / "steps"
        env = {KILL_AT: at} if kill else {COUNT_INTO: str(into)} if count else {}
        with self.project.aish.start("run", "p.yaml", *words, env=env) as running:
            done = running.finish()
        if count:
            self.begin, self.steps = self.steps, int(into.read_text())
        self.kills += done.code == -signal.SIGKILL
        return done

    def events(self) -> list[Any]:
        """The journal of the batch."""
        folders = sorted((self.project.folder / "batch").glob("*/events.jsonl"))
        if not folders:
            return []
        with read_journal(folders[-1]) as reading:
            return list(reading)

    def next(self, *, last: bool = False) -> Done:
        """Resume it, and give consent if it names calls; a part is killed, or fails at once."""
        where = ("--run-dir", "batch", "--format", "json")
        if not of_type(self.events(), "run.started"):
            shutil.rmtree(self.project.folder / "batch", ignore_errors=True)
            return self.part(*where, "-i", f"rows={self.rows}", kill=not last)
        self.named = set()
        flags: tuple[str, ...] = ("--resume", "--retry-failed")
        for _ in range(2):
            self.is_broken = not last and self.kills > 2 * self.failures
            done = self.part(*where, *flags, kill=not last and not self.is_broken)
            self.failures += self.is_broken and done.code == 1
            self.is_broken = False
            if done.code != 2:
                break
            self.refusals += 1
            self.named = {call["arguments"]["row"] for call in json.loads(done.stdout)["calls"]}
            flags = (*flags, "--retry-unknown")
        return done


@pytest.mark.parametrize(
    ("rows", "kills"),
    [
        (30, 6),
        pytest.param(300, 60, marks=pytest.mark.slow(reason="kills a batch of 300 items 60 times")),
    ],
)
def test_no_payment_is_lost_or_made_again_without_having_been_named(
    project: Project,
    model_endpoint: ModelEndpoints,
    fork_server: ForkServer,
    rows: int,
    kills: int,
) -> None:
    campaign = Campaign(project, rows, kills)
    project.pipeline(PIPELINE)
    project.uses(model_endpoint(campaign.answer))
    # The steps of a real executable are not counted.
    project.aish.warm = fork_server
    with McpEndpoint(Modern(tools=[TOOL], tools__call=campaign.pay)) as box:
        project.aish.env["BOX_URL"] = box.url
        for number in (1, rows):
            whole = campaign.part("--run-dir", "whole", "-i", f"rows={number}", count=True)
            assert (whole.code, len(campaign.paid)) == (0, number), whole.stderr
            campaign.paid.clear()
        while campaign.kills < kills:
            done = campaign.next()
            assert done.code in {0, 1, 2, -signal.SIGKILL}, done.stderr
            if done.code == 0:
                break
        while done.code != 0:
            done = campaign.next(last=True)

    ended = [one for one in of_type(campaign.events(), "item.finished") if one["status"] == "ok"]
    finished = Counter(one["key"] for one in ended)
    figures = {
        "kills": campaign.kills,
        "failed parts": campaign.failures,
        "refused": campaign.refusals,
        "lost": rows - len(finished),
        "doubled": sum(count > 1 for count in finished.values()),
        "never paid": rows - len(campaign.paid),
        "made again, named": campaign.again_named,
        "made again, not named": len(campaign.again_unnamed),
    }
    print(figures)
    wanted = ("lost", "doubled", "never paid", "made again, not named")
    assert [figures[one] for one in wanted] == [0, 0, 0, 0], figures
    assert campaign.kills > kills // 2
    assert campaign.failures
