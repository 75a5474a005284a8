"""`delivery: batch`: a run by batches of the provider, which are a slow endpoint to all else."""

import json
import os
import signal
from typing import Any

import pytest
from batch_servers import (
    Answer,
    BatchServer,
    Outcome,
    Quirks,
    Refusal,
    answer_in_words,
    answer_with_call,
)
from cli_process import PATIENCE, Running
from e2e_project import Project, of_type
from model_endpoint import RESET, Recorded, Reply, json_reply

KEY = {"KEY": "sk-batch-0123456789abcdef"}
MODEL = (
    '{api: messages, base_url: "${MODEL_URL}", model: scripted, key_env: KEY,'
    " params: {max_tokens: 100}, price: {input: 3.0, output: 15.0, batch: 0.4}}"
)
READS = "mcp: {servers: {repo: {pack: [fs], root: .}}, auto_approve: [repo__file_read]}"


def pipeline(project: Project, rows: int, more: str = "", model: str = MODEL) -> None:
    project.shorten_pauses()
    project.write("notes.txt", "from the file")
    project.pipeline(
        f"""
        models: {{m: {model}}}
        {READS}
        {more}
        steps:
          - id: rows
            foreach: "range({rows}) | list"
            max_failures: 5
            prompt: "Row {{{{ item }}}} of all"
        """
    )


def reads_first(body: dict[str, Any]) -> Answer:
    """Read a file, then say what the row is and what was read."""
    first, last = body["messages"][0]["content"], body["messages"][-1]["content"]
    row = first if isinstance(first, str) else first[0]["text"]
    if last[0] == "R" or last[0].get("type") != "tool_result":
        return answer_with_call("messages", "repo__file_read", {"path": "notes.txt"})
    return answer_in_words("messages", f"{row}: {json.dumps(last)}"[:200])


@pytest.mark.requirement("W14")
def test_each_round_of_all_items_is_one_batch_and_a_cassette_has_single_requests(
    project: Project,
) -> None:
    pipeline(project, 12)
    with BatchServer("messages", reads_first, polls=2, key=KEY["KEY"]) as server:
        project.uses(server)
        planned = project.aish("plan", "p.yaml", env=KEY)
        recorded = project.aish(
            "run", "p.yaml", "--record", "c.yaml", "--delivery", "batch", env=KEY
        )
        assert recorded.code == 0, recorded.stderr
        assert [len(batch.rows) for batch in server.batches] == [12, 12]
        assert server.singles == []
        names = {name for batch in server.batches for name, _ in batch.rows}
    replayed = project.run("--replay", "c.yaml")
    cassette = (project.folder / "c.yaml").read_text()

    assert len(names) == 24
    assert len(recorded.stdout.splitlines()) == 12
    assert "from the file" in recorded.stdout
    assert replayed.code == 0, replayed.stderr
    assert replayed.stdout == recorded.stdout
    assert "batches" not in cassette
    assert KEY["KEY"] not in cassette
    assert "in batches" not in planned.stdout


class DeadlyServer(BatchServer):
    """Kills the program that submits a batch: before it is made, or once it is made."""

    running: Running
    kills: list[str]

    def _create(self, request: Recorded) -> Reply:
        kind = self.kills.pop(0) if self.kills else ""
        if kind == "before":
            os.kill(self.running.pid, signal.SIGKILL)
            return Reply(parts=(RESET,), framing="raw")
        reply = super()._create(request)
        if kind == "after":
            os.kill(self.running.pid, signal.SIGKILL)
        return reply


@pytest.mark.requirement("W15")
def test_a_run_killed_around_its_submissions_submits_nothing_twice(project: Project) -> None:
    pipeline(project, 9, model=MODEL.replace("{api", "{delivery: batch, api"))
    words: tuple[str, ...] = ("run", "p.yaml")
    with DeadlyServer("messages", reads_first) as server:
        server.kills = ["after", "before"]
        project.uses(server)
        for _ in server.kills.copy():
            with project.aish.start(*words, env=KEY) as server.running:
                assert server.running.finish().code == -signal.SIGKILL
            words = ("run", "p.yaml", "--resume")
        server.holds = True
        with project.aish.start(*words, env=KEY) as running:
            # One that was never made is looked for first, as lists may be late.
            running.wait_for_line("as batch `msgbatch_0001`", timeout=2 * PATIENCE)
            server.wait_polls(3)
            running.kill()
        server.release()
        done = project.aish(*words, "--delivery", "batch", env=KEY)

    assert done.code == 0, done.stderr
    assert len(done.stdout.splitlines()) == 9
    assert server.most_often == 1
    assert [len(batch.rows) for batch in server.batches] == [9, 9]
    planned = of_type(project.journal, "batch.planned")
    assert [one["batch"] for one in planned] == [1, 2, 3]
    submitted = of_type(project.journal, "batch.submitted")
    assert [one["batch"] for one in submitted] == [1, 3]


@pytest.mark.requirement("W16")
def test_single_requests_fail_and_are_retried_as_those_of_an_endpoint_at_the_price_of_a_batch(
    project: Project,
) -> None:
    pipeline(project, 7)
    once: dict[str, Answer] = {
        "Row 1 of all": Outcome.EXPIRED,
        "Row 2 of all": Refusal(529, "overloaded_error", "busy"),
    }
    always: dict[str, Answer] = {
        "Row 3 of all": Refusal(400, "invalid_request_error", "no such thing"),
        "Row 4 of all": Outcome.CANCELED,
    }

    def answer(body: dict[str, Any]) -> Answer:
        content = body["messages"][0]["content"]
        row = content if isinstance(content, str) else content[0]["text"]
        found: Answer | None = once.pop(row, None) or always.get(row)
        return found or answer_in_words("messages", row, prompt=1000, completion=100)

    quirks = Quirks(
        reverses=True,
        blank_last_line=True,
        cut=[300],
        refused=[json_reply(429, {"type": "error", "error": {"type": "rate_limit_error"}})],
        refused_polls=[json_reply(503, {}), json_reply(500, {})],
        results_origin="http://127.0.0.1:9",
    )
    with BatchServer("messages", answer, quirks=quirks) as server:
        project.uses(server)
        found = project.result("--delivery", "batch", env=KEY)

    assert [len(batch.rows) for batch in server.batches] == [7, 2]
    items = {one["key"]: one for one in of_type(project.journal, "item.finished")}
    ended = {key: one["status"] for key, one in items.items()}
    assert ended == dict.fromkeys("01256", "ok") | dict.fromkeys("34", "failed")
    assert "no such thing" in items["3"]["error"]["message"]
    assert "canceled" in items["4"]["error"]["message"]
    # 5 answers of 1000 and 100 tokens, at 0.4 of 3 and 15 dollars for a million.
    assert found["cost_usd"] == pytest.approx(5 * 0.4 * (1000 * 3 + 100 * 15) / 1e6)


def test_a_paused_run_ends_while_its_batch_waits_and_is_resumed(project: Project) -> None:
    pipeline(project, 5, more="on_wait: pause")
    with BatchServer("messages", reads_first, holds=True) as server:
        project.uses(server)
        first = project.run("--delivery", "batch", env=KEY)
        pending = project.aish("runs", "pending")
        told = json.loads(project.aish("runs", "pending", "--format", "json").stdout)
        early = project.run("--resume", env=KEY)
        server.release()
        second = project.run("--resume", env=KEY)
        last = project.run("--resume", env=KEY)
        after = project.aish("runs", "pending")

    assert [first.code, early.code, second.code, last.code] == [8, 8, 8, 0], last.stderr
    assert "works on batch `msgbatch_0000`, which is waited for" in early.stderr
    assert "msgbatch_0000" in pending.stdout
    assert len(last.stdout.splitlines()) == 5
    (batch,) = told["batches"]
    assert (batch["id"], batch["requests"], batch["left"]) == ("msgbatch_0000", 5, 5)
    assert batch["ends"] is not None
    assert [len(batch.rows) for batch in server.batches] == [5, 5]
    assert server.most_often == 1
    assert "msgbatch" not in after.stdout
