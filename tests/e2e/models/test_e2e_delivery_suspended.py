"""Items whose requests wait in a batch have no task: nothing else differs from those that wait."""

import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from batch_servers import (
    Answer,
    BatchServer,
    Outcome,
    answer_in_words,
    answer_with_call,
)
from e2e_project import Project, of_type
from model_endpoint import Recorded, Reply

KEY = {"KEY": "sk-batch-0123456789abcdef"}
READS = "mcp: {servers: {repo: {pack: [fs], root: .}}, auto_approve: [repo__file_read]}"
ROWS = 40
MANY = 128
# Seconds for a run of hundreds of rows, on a machine with much else to do.
PATIENCE = 300.0
_OWN = {
    "time",
    "seq",
    "seconds",
    "first_token_seconds",
    "id",
    "at",
    "delay_seconds",
    "delay",
    "crc",
    "endpoint",
    "digest",
}


def write(project: Project, way: str, rows: int = ROWS, more: str = "") -> str:
    project.shorten_pauses()
    project.write("notes.txt", "from the file")
    project.pipeline(
        f"""
        models:
          m:
            api: messages
            base_url: "${{MODEL_URL}}"
            model: scripted
            key_env: KEY
            delivery: batch
            params: {{max_tokens: 100}}
            price: {{input: 3.0, output: 15.0}}
            retry: {{max_delay: 1s}}
        {READS}
        {more}
        steps:
          - id: rows
            foreach: "range({rows}) | list"
            max_failures: 100%
            prompt: "Row {{{{ item }}}} of all"
            output:
              attempts: 2
              schema: {{type: object, properties: {{n: {{type: integer}}}}, required: [n]}}
            {way}
        """,
        name=f"{way.partition(':')[0] or 'plain'}.yaml",
    )
    return f"{way.partition(':')[0] or 'plain'}.yaml"


class Talk:
    """Each row reads a file; every third expires once, every fifth is corrected, one is refused."""

    def __init__(self) -> None:
        self.asked: Counter[int] = Counter()

    def __call__(self, body: dict[str, Any]) -> Answer:
        text = json.dumps(body["messages"])
        row = int(re.findall(r"Row (\d+) of all", text)[0])
        self.asked[row] += 1
        if row % 3 == 0 and self.asked[row] == 1:
            return Outcome.EXPIRED
        if row == 7:
            return Outcome.CANCELED
        if "tool_result" not in text:
            return answer_with_call("messages", "repo__file_read", {"path": "notes.txt"})
        if row % 5 == 0 and "is not" not in text and len(body["messages"]) < 5:
            return answer_in_words("messages", "no number")
        return answer_in_words("messages", json.dumps({"n": row}))


def events_of(folder: Path) -> list[dict[str, Any]]:
    """The journal of the only run in a folder."""
    (journal,) = folder.glob("*/events.jsonl")
    return [json.loads(line) for line in journal.read_text().splitlines()]


def told(events: list[dict[str, Any]]) -> dict[str, list[str]]:
    """The events of each item, in order, without what differs in any two runs."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for record in events:
        if "item" not in record and "key" not in record:
            continue
        key = str(record.get("key", record.get("item")))
        found[key].append(json.dumps({k: v for k, v in record.items() if k not in _OWN}))
    return found


@pytest.mark.requirement("W14")
def test_items_without_a_task_are_told_of_and_end_as_those_that_wait_for_their_batch(
    project: Project,
) -> None:
    runs: list[tuple[int, str, dict[str, list[str]], int]] = []
    for way in ("", "timeout: 1h"):
        file = write(project, way)
        with BatchServer("messages", Talk(), key=KEY["KEY"]) as server:
            project.uses(server)
            done = project.aish("run", file, "--run-dir", f"runs-{len(runs)}", env=KEY)
        events = events_of(project.folder / f"runs-{len(runs)}")
        runs.append((done.code, done.stdout, told(events), len(server.bodies)))
        sizes = [len(batch.rows) for batch in server.batches]
        assert sizes[0] == ROWS
        items = {one["key"]: one["status"] for one in of_type(events, "item.finished")}
        assert items == {str(n): "failed" if n == 7 else "ok" for n in range(ROWS)}

    suspended, waiting = runs
    assert suspended[0] == waiting[0] == 1
    assert suspended[1] == waiting[1]
    assert suspended[3] == waiting[3]
    assert suspended[2].keys() == waiting[2].keys()
    for key, events_of_item in waiting[2].items():
        assert suspended[2][key] == events_of_item, key


def test_items_that_go_on_together_do_not_all_make_their_calls_at_once(project: Project) -> None:
    def answer(body: dict[str, Any]) -> Answer:
        if "tool_result" not in json.dumps(body["messages"]):
            return answer_with_call("messages", "repo__file_read", {"path": "notes.txt"})
        return answer_in_words("messages", '{"n": 1}')

    for way in ("", "timeout: 1h"):
        file = write(project, way, rows=MANY)
        with BatchServer("messages", answer, key=KEY["KEY"]) as server:
            project.uses(server)
            words = ("run", file, "--run-dir", f"runs-{way[:1]}")
            done = project.aish(*words, env=KEY, timeout=PATIENCE)
            assert done.code == 0, done.stderr
            assert [len(batch.rows) for batch in server.batches] == [MANY, MANY]
        most = at_once = 0
        for event in events_of(project.folder / f"runs-{way[:1]}"):
            at_once += {"tool.started": 1, "tool.finished": -1}.get(event["type"], 0)
            most = max(most, at_once)
        assert 0 < most <= MANY // 2


class WatchedServer(BatchServer):
    """Looks how much memory the run has when it submits a batch."""

    pid = 0
    megabytes = 0.0

    def _create(self, request: Recorded) -> Reply:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1])
        self.megabytes = max(self.megabytes, pages * 4096 / 1e6)
        return super()._create(request)


@pytest.mark.requirement("W16")
@pytest.mark.real_process
def test_open_items_and_what_is_submitted_are_not_in_memory(project: Project) -> None:
    """1,000 prompts of 20 KB: together, and with a task for each, they would be 160 MB."""
    project.pipeline(
        """
        models:
          m:
            api: messages
            base_url: "${MODEL_URL}"
            model: scripted
            key_env: KEY
            delivery: batch
            params: {max_tokens: 100}
        steps:
          - id: rows
            foreach: "range(1000) | list"
            prompt: "Row {{ item }}: {{ 'many words ' * 2000 }}"
        """
    )
    with WatchedServer("messages", key=KEY["KEY"]) as server:
        project.uses(server)
        with project.aish.start("run", "p.yaml", env=KEY) as running:
            server.pid = running.pid
            done = running.finish(PATIENCE)

    assert done.code == 0, done.stderr
    assert [len(batch.rows) for batch in server.batches] == [1000]
    assert 20 < server.megabytes < 120
