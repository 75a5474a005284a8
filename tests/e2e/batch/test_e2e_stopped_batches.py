"""A batch that is stopped before it is through: by a signal, or by a step that failed (F3, B14).

What was begun comes to its end, what was not is not forgotten: a resumed run does the rest.
"""

import json
import signal
from dataclasses import dataclass, field
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, driven, of_type
from model_endpoint import Gate, Reply, json_reply, text_reply

ITEMS = [f"r{number}" for number in range(10)]
ROWS = f"inputs: {{rows: {{default: {json.dumps(ITEMS)}}}}}"
INNER = """
inputs: {n: {type: string}}
steps:
  - {id: one, prompt: "one {{ inputs.n }}"}
  - {id: two, prompt: "two {{ steps.one.text }}"}
outputs: {said: "{{ steps.two.text }}"}
"""


@dataclass
class Endpoint:
    """Answers with what it is asked, once the gate is open; `broken` prompts are refused.

    They are refused when so many `others` have come: those are in flight then.
    """

    gate: Gate = field(default_factory=Gate)
    broken: bool = True
    others: int = 0
    refusal: Gate = field(default_factory=Gate)

    def __call__(self, request: Any) -> Reply:
        text = request["messages"][-1]["content"]
        if self.broken and text == "be broken":
            return json_reply(400, {"error": {"message": "no"}}).but(before_head=self.refusal)
        self.others -= 1
        if self.others == 0:
            self.refusal.open()
        reply = text_reply(f"<{text}>")
        return reply.but(parts=(self.gate, *reply.parts))

    def mend(self) -> None:
        self.broken = False
        self.gate.open()


def finished(project: Project) -> dict[tuple[str, str | None], Any]:
    """The ends of steps and items as the journal has them, the last one of each."""
    kinds = ("step.finished", "item.finished")
    ends = [event for event in project.journal if event["type"] in kinds]
    return {(event["step"], event.get("item")): event for event in ends}


def check_whole(project: Project, outputs: list[Any]) -> None:
    """Go on with the run, and hold what comes out against all items."""
    found = project.result("--resume")
    assert found["exit"]["code"] == 0
    rows = found["steps"]["each"]["items"]
    assert [row["output"] for row in rows] == outputs
    keys = [event["key"] for event in of_type(project.journal, "item.finished")]
    assert sorted(keys) == sorted(set(keys))
    assert found["steps"]["after"]["text"] == "<10>"


def test_an_interrupted_batch_is_not_through_and_goes_on_where_it_was(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = Endpoint()
    served = model_endpoint(endpoint)
    project.uses(served)
    project.pipeline(
        f"""
        {ROWS}
        steps:
          - {{id: each, foreach: inputs.rows, concurrency: 2, prompt: "{{{{ item }}}}"}}
          - {{id: alone, prompt: be alone}}
          - {{id: after, prompt: "{{{{ steps.each | length }}}}"}}
        """
    )
    with project.aish.start("run", "p.yaml") as running:
        served.wait_requests(3)
        running.interrupt()
        running.wait_for_line("alone: failed")
        endpoint.gate.open()
        assert running.finish().code == 130

    ends = finished(project)
    assert ends["each", None]["status"] == "failed"
    assert ends["each", None]["error"]["code"] == "interrupted"
    check_whole(project, [f"<{item}>" for item in ITEMS])


def test_a_batch_that_a_failure_elsewhere_has_stopped_is_not_through(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = Endpoint(others=2)
    project.uses(model_endpoint(endpoint))
    project.pipeline(
        f"""
        {ROWS}
        steps:
          - {{id: each, foreach: inputs.rows, concurrency: 2, prompt: "{{{{ item }}}}"}}
          - {{id: broken, prompt: be broken}}
          - {{id: after, prompt: "{{{{ steps.each | length }}}}"}}
        """
    )
    with project.aish.start("run", "p.yaml") as running:
        running.wait_for_line("broken: failed")
        endpoint.gate.open()
        assert running.finish().code == 1

    ends = finished(project)
    assert ends["each", None]["status"] == "failed"
    assert sorted(item for step, item in ends if item is not None) == ["0", "1"]
    endpoint.mend()
    check_whole(project, [f"<{item}>" for item in ITEMS])


@pytest.mark.parametrize("width", [(), ("--concurrency", "1")])
def test_more_pipelines_than_slots_do_not_wait_for_each_other(
    project: Project, model_endpoint: ModelEndpoints, width: tuple[str, ...]
) -> None:
    endpoint = Endpoint()
    endpoint.gate.open()
    project.uses(model_endpoint(endpoint))
    project.pipeline(INNER, "inner.yaml")
    project.pipeline(
        f"""
        {ROWS}
        steps:
          - {{id: each, foreach: inputs.rows, pipeline: inner.yaml, with: {{n: "{{{{ item }}}}"}}}}
        """
    )

    rows = project.result(*width)["steps"]["each"]["items"]

    assert [row["output"]["said"] for row in rows] == [f"<two <one {item}>>" for item in ITEMS]


@pytest.mark.parametrize("stopped_by", ["a signal", "a failure"])
def test_a_pipeline_of_an_item_comes_to_its_end_and_another_one_does_not(
    project: Project, model_endpoint: ModelEndpoints, stopped_by: str
) -> None:
    endpoint = Endpoint(others=3)
    served = model_endpoint(endpoint)
    project.uses(served)
    project.pipeline(INNER, "inner.yaml")
    broken = "- {id: broken, prompt: be broken}" if stopped_by == "a failure" else ""
    project.pipeline(
        f"""
        {ROWS}
        steps:
          - {{id: each, foreach: inputs.rows, concurrency: 2, pipeline: inner.yaml,
             with: {{n: "{{{{ item }}}}"}}}}
          - {{id: alone, pipeline: inner.yaml, with: {{n: x}}}}
          - {{id: after, prompt: "{{{{ steps.each | length }}}}"}}
          {broken}
        """
    )
    with project.aish.start("run", "p.yaml") as running:
        served.wait_requests(3)
        if stopped_by == "a signal":
            running.interrupt()
            running.wait_for_line("alone: failed")
        else:
            running.wait_for_line("broken: failed")
        endpoint.gate.open()
        assert running.finish().code == (130 if stopped_by == "a signal" else 1)

    ends = finished(project)
    done = {item: ends["each", item]["output"] for step, item in ends if step == "each" and item}
    assert done == {key: {"said": f"<two <one r{key}>>"} for key in ("0", "1")}
    assert ends["alone", None]["status"] == "failed"
    assert ends["alone", None]["error"]["code"] == "interrupted"
    endpoint.mend()
    check_whole(project, [{"said": f"<two <one {item}>>"} for item in ITEMS])


REFUSED = {"no key": 401, "no": 400}
"""The statuses with which the endpoint answers these prompts: unavailable, failed."""


def answering(project: Project, model_endpoint: ModelEndpoints, flow: str, items: Any) -> None:
    """A batch over prompts that the endpoint may refuse."""

    def answer(body: Any) -> Reply:
        text = body["messages"][-1]["content"]
        status = REFUSED.get(text)
        return text_reply(text) if status is None else json_reply(status, {"error": {}})

    project.uses(model_endpoint(answer))
    project.pipeline(
        f"""
        steps:
          - {{id: each, foreach: {json.dumps(repr(items))}, concurrency: 1, {flow},
             prompt: "{{{{ item }}}}"}}
        """
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("flow", "items", "code"),
    [
        ("on_error: fail", ["no key"], 5),
        ("on_error: fail", ["yes", "no"], 1),
        ("max_failures: 1", ["no", "no key"], 5),
        ("max_failures: 1", ["no", "no"], 1),
        ("max_failures: 5", ["no", "no key"], 1),
        ("on_error: continue", ["no key", "yes"], 1),
    ],
)
def test_a_batch_of_which_nothing_is_left_ends_as_it_has_ended(
    project: Project, model_endpoint: ModelEndpoints, flow: str, items: list[str], code: int
) -> None:
    answering(project, model_endpoint, flow, items)
    assert project.run().code == code
    first = of_type(project.journal, "run.finished")[-1]["exit"]

    for _ in range(2):
        assert project.run("--resume").code == code
    last = of_type(project.journal, "run.finished")[-1]["exit"]
    assert [last[one] for one in ("code", "name", "retryable")] == [
        first[one] for one in ("code", "name", "retryable")
    ]
    assert len(of_type(project.journal, "item.finished")) == len(items)


def test_a_batch_that_died_at_its_end_ends_as_it_would_have(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    answering(project, model_endpoint, "on_error: fail", ["yes", "no key"])
    done = driven(project, "before:step.finished:1", "run", "p.yaml").finish()
    assert done.code == -signal.SIGKILL, done.stderr

    assert project.run("--resume").code == 5


def test_a_batch_that_a_later_part_has_completed_ends_as_completed(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    answering(project, model_endpoint, "on_error: fail", ["no key", "yes"])

    assert project.run().code == 5
    for _ in range(2):
        assert project.run("--resume").code == 1


def test_a_batch_that_a_later_part_has_stopped_ends_by_all_of_its_items(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    answering(project, model_endpoint, "max_failures: 0", ["no key", "no", "yes"])

    for flags in ([], ["--resume"]):
        assert project.run(*flags).code == 5
    assert project.run("--resume").code == 1
