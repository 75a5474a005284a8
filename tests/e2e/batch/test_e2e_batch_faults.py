"""A batch where something is short: descriptors, tries, permission (B4, B5, B14)."""

import json
import threading
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, driven, of_type
from model_endpoint import Reply, json_reply, text_reply, tool_reply

ITEMS = 120


def echo(request: Any) -> Reply:
    return text_reply(f"<{request['messages'][-1]['content']}>")


@pytest.mark.parametrize("most", [40, 24])
def test_a_batch_gets_by_with_the_file_descriptors_that_there_are(
    project: Project, model_endpoint: ModelEndpoints, most: int
) -> None:
    project.uses(model_endpoint(echo))
    rows = json.dumps([f"r{number}" for number in range(ITEMS)])
    project.pipeline(
        f"""
        inputs: {{rows: {{default: {rows}}}}}
        steps: [{{id: each, foreach: inputs.rows, concurrency: 60, prompt: "{{{{ item }}}}"}}]
        """
    )
    project.through_shell(f'ulimit -n {most}; exec "$@"')

    found = project.result("-q")

    assert found["exit"]["code"] == 0, found["exit"]
    texts = [row["text"] for row in found["steps"]["each"]["items"]]
    assert texts == [f"<r{number}>" for number in range(ITEMS)]
    reasons = {event["reason"].partition(": ")[2] for event in of_type(project.journal, "retry")}
    assert any("too many open files" in reason for reason in reasons)


def test_an_item_that_is_interrupted_between_two_tries_has_not_failed(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    broken = threading.Event()

    def answer(request: Any) -> Reply:
        if not broken.is_set():
            return json_reply(500, {"error": {"message": "not yet"}}, {"x-should-retry": "false"})
        return echo(request)

    served = model_endpoint(answer)
    project.uses(served)
    project.pipeline(
        """
        inputs: {rows: {default: [a, b, c]}}
        steps: [{id: each, foreach: inputs.rows, retry: {attempts: 100}, prompt: "{{ item }}"}]
        """
    )
    with project.aish.start("run", "p.yaml") as running:
        served.wait_requests(4)
        running.interrupt()
        assert running.finish().code == 130
    assert not of_type(project.journal, "item.finished")

    broken.set()
    found = project.result("--resume")

    assert [row["text"] for row in found["steps"]["each"]["items"]] == ["<a>", "<b>", "<c>"]


def test_a_denied_item_makes_the_same_exit_code_before_and_after_a_resume(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    def answer(request: Any) -> Reply:
        if request["messages"][-1]["content"] == "deny":
            return tool_reply([("c1", "repo__file_read", '{"path": "x"}')])
        return echo(request)

    project.uses(model_endpoint(answer))
    project.write("data/x", "x\n")
    project.pipeline(
        """
        mcp: {servers: {repo: {pack: fs, root: data}}, auto_approve: []}
        inputs: {rows: {default: [deny, b, c, d, e]}}
        steps:
          - {id: each, foreach: inputs.rows, concurrency: 1, on_error: continue, on_denied: fail,
             prompt: "{{ item }}"}
        """
    )
    assert project.aish("run", "p.yaml", "--run-dir", "undisturbed").code == 3
    driven(project, "after:item.finished:2", "run", "p.yaml").finish()

    done = project.run("--resume")

    assert done.code == 3, done.stderr


@pytest.mark.parametrize("inner", [False, True])
def test_an_item_that_nobody_answered_leaves_the_tokens_of_the_others_known(
    project: Project, model_endpoint: ModelEndpoints, *, inner: bool
) -> None:
    def answer(request: Any) -> Reply:
        if "broken" in request["messages"][-1]["content"]:
            return json_reply(400, {"error": {"message": "no"}})
        return echo(request)

    project.uses(model_endpoint(answer))
    project.pipeline(
        'inputs: {word: {type: string}}\nsteps: [{id: say, prompt: "{{ inputs.word }}!"}]\n',
        "inner.yaml",
    )
    what = 'pipeline: inner.yaml, with: {word: "{{ item }}"}' if inner else 'prompt: "{{ item }}"'
    project.pipeline(
        f"""
        inputs: {{rows: {{default: [a, broken, b]}}}}
        steps: [{{id: each, foreach: inputs.rows, on_error: continue, {what}}}]
        """
    )

    for found in (project.result(), project.result("--resume")):
        assert found["exit"]["code"] == 1
        assert found["usage"]["input"] == 14
        assert found["steps"]["each"]["usage"] == found["usage"]
