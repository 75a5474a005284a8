"""A batch that something ends, at a bad endpoint or beside a bad server: resumed, it is whole (B3).

Kills without number are in `test_e2e_resume_crashes`.
"""

import itertools
import math
import random
import signal
import threading
from collections import Counter
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, of_type, stdio
from model_endpoint import CUT, RESET, Gate, Reply, hanging_reply, json_reply, text_reply
from samples import sampled

SEED = 20261122
ITEMS = 150


class Flapping:
    """Away for a quarter of the time; resets 1 % of its streams, and cuts off 5 %."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chance = random.Random(SEED)
        self._asked = 0
        self._left = math.inf

    def answer_only(self, count: float) -> None:
        """Answer so many more requests; those that follow wait until their client leaves."""
        with self._lock:
            self._left = count

    def __call__(self, request: Any) -> Reply:
        with self._lock:
            self._asked += 1
            away, chance = self._asked // 20 % 4 == 3, self._chance.random()
            self._left -= 1
            is_over = self._left < 0
        if is_over:
            return hanging_reply(Gate())
        reply = text_reply(f"<{request['messages'][-1]['content']}>")
        whole = b"".join(part for part in reply.parts if isinstance(part, bytes))
        if chance < 0.01:
            return reply.but(parts=(whole[:80], RESET))
        if chance < 0.06:
            return reply.but(parts=(whole[: len(whole) // 2], CUT))
        if away:
            return json_reply(503, {"error": {"message": "away"}})
        return reply


def batch(project: Project, more: str = "") -> None:
    project.shorten_pauses()
    project.write("rows.jsonl", "".join(f'{{"id": "r{n}"}}\n' for n in range(ITEMS)))
    project.pipeline(
        f"""
        models: {{m: {{base_url: "${{MODEL_URL}}", model: scripted,
                  retry: {{attempts: 20, max_delay: 500ms}}}}}}
        {more}
        steps:
          - {{id: each, foreach: {{file: rows.jsonl}}, key: item.id, prompt: "{{{{ item.id }}}}"}}
        """
    )


def check_whole(project: Project) -> None:
    """Go on to the end: each item is there once, and right."""
    found = project.result("--resume", "-q")
    assert found["exit"]["code"] == 0, found["exit"]
    texts = [row["text"] for row in found["steps"]["each"]["items"]]
    assert texts == [f"<r{number}>" for number in range(ITEMS)]
    finished = Counter(event["key"] for event in of_type(project.journal, "item.finished"))
    assert finished == {f"r{number}": 1 for number in range(ITEMS)}


@pytest.mark.slow(reason="kills again and again")
def test_a_flapping_endpoint_and_kills_cost_no_item(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    flapping = Flapping()
    endpoint = model_endpoint(flapping)
    project.uses(endpoint)
    batch(project)
    for resume in ((), ("--resume",), ("--resume",)):
        # However late the signal is, the batch is not through before it.
        flapping.answer_only(30)
        before = len(endpoint.requests)
        with project.aish.start("run", "p.yaml", *resume) as running:
            endpoint.wait_requests(before + 30)
            running.interrupt(signal.SIGKILL)
            running.finish()

    flapping.answer_only(math.inf)
    check_whole(project)


@pytest.mark.parametrize(
    ("signals", "code"),
    sampled(
        [
            ([signal.SIGINT], 130),
            ([signal.SIGINT, signal.SIGINT], 130),
            ([signal.SIGTERM], 143),
            ([signal.SIGHUP], 143),
        ],
        often={0, 2},
        reason="each starts a batch with servers",
    ),
)
def test_a_signal_ends_a_batch_and_what_it_has_started(
    project: Project, model_endpoint: ModelEndpoints, signals: list[signal.Signals], code: int
) -> None:
    # However late the signals are, the batch is not through before them.
    gate, numbers = Gate(), itertools.count(1)

    def answer(request: Any) -> Reply:
        reply = text_reply(f"<{request['messages'][-1]['content']}>")
        return reply if next(numbers) <= 20 else reply.but(before_head=gate)

    endpoint = model_endpoint(answer)
    project.uses(endpoint)
    server = stdio("--ignore-sigterm", "--grandchild-note", project.folder / "note")
    batch(project, f"mcp: {{servers: {{child: {{command: {server}}}}}}}")

    with project.aish.start("run", "p.yaml") as running:
        endpoint.wait_requests(20)
        for kind in signals:
            running.interrupt(kind)
        gate.open()
        assert running.finish().code == code

    # The fixture sees that no process stays behind.
    check_whole(project)


@pytest.mark.parametrize("rows", ["three", ""])
def test_items_that_fail_as_a_whole_are_a_list(project: Project, rows: str) -> None:
    project.pipeline(
        """
        models: {}
        mcp: {auto_approve: [shell__run]}
        inputs: {rows: {type: string}}
        steps:
          - id: each
            foreach: "inputs.rows if inputs.rows else []"
            on_error: continue
            run: ["true"]
          - id: count
            needs: [each]
            run: [echo, "{{ steps.each | length }} {{ steps.each is mapping }}"]
        outputs: {count: "{{ steps.each | length }}"}
        """
    )

    found = project.result("-q", "-i", f"rows={rows}")

    assert found["steps"]["each"]["status"] == ("failed" if rows else "ok")
    assert found["steps"]["count"]["text"] == "0 false\n"
    assert found["outputs"] == {"count": 0}
