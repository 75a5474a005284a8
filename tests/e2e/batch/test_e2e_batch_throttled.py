"""Many items at an endpoint that cannot take them all at once, and what people see of them (B4)."""

import json
import shlex
import sys
from collections import Counter
from itertools import count
from textwrap import dedent
from typing import Any

import pexpect
import pytest
from busy_endpoint import Busy
from e2e_project import ModelEndpoints, Project, of_type
from model_endpoint import CUT, RESET, Gate, Reply, json_reply, stream_reply, text_reply
from terminal_cells import Cells

ITEMS = """
    steps:
      - id: each
        foreach: {{file: rows.jsonl}}
        concurrency: {concurrency}
        prompt: "{{{{ item.n }}}}"
"""


def with_items(project: Project, count: int, concurrency: int) -> None:
    project.write("rows.jsonl", "".join(f'{{"n": "w{n}"}}\n' for n in range(count)))
    project.pipeline(ITEMS.format(concurrency=concurrency))


@pytest.mark.slow(reason="waits for the endpoint again and again")
@pytest.mark.parametrize("capacity", [1, 5])
def test_no_item_is_lost_at_an_endpoint_that_turns_most_of_them_away(
    project: Project, model_endpoint: ModelEndpoints, capacity: int
) -> None:
    busy = Busy(capacity)
    project.uses(model_endpoint(busy))
    with_items(project, 40, 16)

    done = project.run()

    assert done.code == 0, done.stderr
    assert busy.served == Counter(f"w{n}" for n in range(40))
    assert busy.refused
    throttled = [e for e in of_type(project.journal, "notice") if e["code"] == "throttled"]
    assert throttled[0]["text"].endswith(" at a time from now on; it has too many")
    assert len(throttled) <= 3


def test_no_item_is_lost_at_an_endpoint_that_flaps_and_breaks_streams_off(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    numbers, tries = count(), Counter[str]()

    def flaky(asked: Any) -> Reply:
        """Breaks off one stream in twenty, resets one in a hundred, and is away for a while.

        Never of one item as often as it is tried.
        """
        number = next(numbers)
        content = asked["messages"][-1]["content"]
        whole = text_reply(content)
        tries[content] += 1
        if tries[content] == 4:
            return whole
        if 60 <= number < 76:
            return json_reply(503, {"error": {"message": "no server is available"}})
        if number % 100 == 37:
            return stream_reply(*list(whole.parts)[:1], RESET)
        return stream_reply(*list(whole.parts)[:2], CUT) if number % 20 == 7 else whole

    endpoint = model_endpoint(flaky)
    project.uses(endpoint)
    project.write("rows.jsonl", "".join(f'{{"n": "w{n}"}}\n' for n in range(200)))
    models = 'models: {m: {base_url: "${MODEL_URL}", model: mock, retry: {max_delay: 0.05s}}}\n'
    project.pipeline(models + dedent(ITEMS.format(concurrency=16)))

    done = project.run("--format", "json")

    assert done.code == 0, done.stderr
    items = json.loads(done.stdout)["steps"]["each"]["items"]
    assert [(item["status"], item["text"]) for item in items] == [
        ("ok", f"w{n}") for n in range(200)
    ]
    assert len(endpoint.requests) > 200 + 16


def test_the_pace_comes_back_when_the_endpoint_does(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    busy = Busy(lambda served: 2 if served < 20 else 100, seconds=0.01)
    project.uses(model_endpoint(busy))
    with_items(project, 200, 16)

    done = project.run()

    assert done.code == 0, done.stderr
    assert busy.served.total() == 200
    assert max(busy.inside[:20]) <= 2
    assert max(busy.inside[-60:]) >= 8


@pytest.mark.slow(reason="records a batch that waits")
def test_a_replay_waits_for_nothing_and_turns_nobody_away_twice(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    busy = Busy(1)
    project.uses(model_endpoint(busy))
    with_items(project, 30, 16)
    recorded = project.run("--record", "c.yaml", "--ephemeral")
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:9/v1"

    replayed = project.result("--replay", "c.yaml")

    assert recorded.code == 0, recorded.stderr
    assert replayed["exit"]["code"] == 0
    assert busy.refused == len(of_type(project.journal, "retry"))
    assert not [e for e in of_type(project.journal, "notice") if e["code"] == "throttled"]


@pytest.mark.slow(reason="waits for the endpoint")
def test_a_terminal_is_left_with_a_summary_and_no_trace_of_what_moved(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    # The first answers wait until something has moved.
    moving, numbers, busy = Gate(), count(), Busy(4, seconds=0.05)

    def answer(asked: Any) -> Reply:
        if next(numbers) < 8:
            return text_reply(asked["messages"][-1]["content"]).but(before_head=moving)
        return busy(asked)

    project.uses(model_endpoint(answer))
    with_items(project, 40, 8)
    program = shlex.join([sys.executable, "-m", "aish", "run", "p.yaml", "-o", "r.jsonl"])
    child: pexpect.spawn[str] = pexpect.spawn(
        "/bin/sh",
        ["-c", program],
        cwd=str(project.folder),
        env={**project.aish.env, "TERM": "xterm"},
        encoding="utf-8",
        dimensions=(24, 80),
    )
    child.expect_exact("in flight", timeout=60)
    moving.open()
    seen = f"{child.before}in flight"
    child.expect(pexpect.EOF, timeout=60)
    seen += f"{child.before}"
    child.wait()
    child.close()
    terminal = Cells(80)
    terminal.feed(seen.replace("\r\n", "\n"))
    left = terminal.text()

    assert child.exitstatus == 0, left
    assert "● each\n  40 ok · " in left
    assert "in flight" not in left
    assert "━" not in left
    # The summary ends in the run's folder, whose random end may read like an item.
    assert "w1" not in project.tidy(left)
    assert "━" in seen


def test_a_log_tells_of_items_in_few_lines(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint(lambda asked: text_reply(asked["messages"][-1]["content"])))
    with_items(project, 60, 8)

    done = project.run()

    lines = [line.partition("] ")[2] for line in done.stderr.splitlines()]
    assert "each: 60 items" in lines
    assert any(line.startswith("each: 60 ok, ") for line in lines)
    assert len(lines) < 12
