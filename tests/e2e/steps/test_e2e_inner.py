"""A pipeline as a step of another (F2)."""

import pytest
from e2e_project import ModelEndpoints, Project, of_type, stdio
from model_endpoint import text_reply, tool_reply

SHELL = "mcp: {auto_approve: [shell__*]}"
INNER = f"""
{SHELL}
inputs: {{n: {{type: string}}, tone: {{enum: [dry, warm], default: dry}}}}
steps:
  - {{id: one, run: [echo, "n={{{{ inputs.n }}}}"]}}
  - {{id: two, run: [echo, "{{{{ inputs.tone }}}} {{{{ steps.one.text }}}}"]}}
outputs: {{said: "{{{{ steps.two.text }}}}"}}
"""


@pytest.mark.requirement("F2")
def test_a_pipeline_runs_another_with_inputs_and_has_its_outputs(project: Project) -> None:
    project.pipeline(INNER, "inner.yaml")
    project.pipeline(
        """
        steps:
          - {id: sub, pipeline: inner.yaml, with: {n: "7"}}
        outputs: {found: "{{ steps.sub.output.said }}"}
        """
    )

    found = project.result()

    assert found["outputs"]["found"].split() == ["dry", "n=7"]
    started = [(event["step"], event["kind"]) for event in of_type(project.journal, "step.started")]
    assert started == [("sub", "pipeline"), ("sub/one", "run"), ("sub/two", "run")]


def test_the_head_of_a_run_names_the_models_and_limits_of_inner_files(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([text_reply("Hello.")]))
    project.write(
        "inner.yaml",
        """
        aish: 1
        models: {deep: {base_url: "${MODEL_URL}", model: deep-one}}
        steps: [{id: ask, prompt: {user: Hello}, limits: {turns: 3}}]
        """,
    )
    project.write("p.yaml", "aish: 1\nsteps: [{id: sub, pipeline: inner.yaml}]\n")

    assert project.run().code == 0

    [head] = of_type(project.journal, "run.started")
    assert [(one["alias"], one["model"]) for one in head["models"]] == [("sub/deep", "deep-one")]
    assert list(head["limits"]["steps"]) == ["sub", "sub/ask"]
    assert head["limits"]["steps"]["sub/ask"]["turns"] == 3


def test_a_pipeline_runs_once_for_each_item_and_has_items_of_its_own(project: Project) -> None:
    project.pipeline(
        f"""
        inputs: {{n: {{type: string}}}}
        {SHELL}
        steps:
          - {{id: each, foreach: "['a', 'b']", run: [echo, "{{{{ inputs.n }}}}{{{{ item }}}}"]}}
        outputs: {{all: "{{{{ steps.each | map(attribute='text') | map('trim') | list }}}}"}}
        """,
        "inner.yaml",
    )
    project.pipeline(
        """
        steps:
          - {id: sub, foreach: "['1', '2']", pipeline: inner.yaml, with: {n: "{{ item }}"}}
        outputs: {all: "{{ steps.sub | map(attribute='output.all') | list }}"}
        """
    )

    assert project.result()["outputs"]["all"] == [["1a", "1b"], ["2a", "2b"]]
    keys = {(event["step"], event["key"]) for event in of_type(project.journal, "item.finished")}
    places = {event["item"] for event in of_type(project.journal, "item.started")}
    assert ("sub", "0") in keys
    assert {"0", "1", "0/0", "0/1", "1/0", "1/1"} == places


def test_what_the_outer_file_denies_is_denied_inside_too(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([tool_reply([("c1", "child__echo", '{"text": "x"}')])]))
    project.pipeline(
        f"""
        mcp: {{servers: {{child: {{command: {stdio()}}}}}, auto_approve: ["child__*"]}}
        prompt: go on
        """,
        "inner.yaml",
    )
    project.pipeline('mcp: {deny: ["*__echo"]}\nsteps: [{id: sub, pipeline: inner.yaml}]\n')

    done = project.run()

    assert done.code == 3
    assert "denied by rule *__echo" in done.stderr


def test_a_server_of_an_inner_file_that_is_missing_ends_the_run_before_it_costs_anything(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("paid for")])
    project.uses(endpoint)
    project.pipeline('mcp: {servers: {gone: {command: ["false"]}}}\nprompt: go on\n', "inner.yaml")
    project.pipeline(
        """
        steps:
          - {id: first, prompt: go on}
          - {id: sub, pipeline: inner.yaml, needs: [first]}
        """
    )

    done = project.run()

    assert done.code == 5
    assert not endpoint.asked
    servers = of_type(project.journal, "run.started")[0]["servers"]
    assert [(server["alias"], server["state"]) for server in servers] == [("sub/gone", "failed")]


def test_a_failure_inside_fails_the_step_and_only_the_step(project: Project) -> None:
    project.pipeline(f'{SHELL}\nsteps: [{{id: bad, run: ["false"]}}]\n', "inner.yaml")
    project.pipeline(
        f"""
        {SHELL}
        steps:
          - {{id: sub, pipeline: inner.yaml, on_error: continue}}
          - {{id: after, run: [echo, "{{{{ steps.sub.status }}}}"]}}
        """
    )

    done = project.run()

    assert (done.code, done.stdout) == (1, "failed\n")
    assert "step `sub/bad`: the command ended with exit code 1" in done.stderr


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("{id: sub, pipeline: gone.yaml}", "gone.yaml"),
        ("{id: sub, pipeline: inner.yaml}", "the input is missing: `n`"),
        ("{id: sub, pipeline: inner.yaml, with: {m: a}}", "`inner.yaml` has no input `m`"),
        ("{id: sub, pipeline: inner.yaml, with: {n: 7}}", "the input `n`:"),
        ("{id: sub, pipeline: p.yaml}", "circular dependency between pipelines"),
        ("{id: sub, pipeline: broken.yaml}", "broken.yaml:2:1: promt: unknown key"),
    ],
)
def test_what_is_wrong_with_an_inner_file_is_told_with_its_place(
    project: Project, step: str, said: str
) -> None:
    project.pipeline(INNER, "inner.yaml")
    project.write("broken.yaml", "aish: 1\npromt: x\n")
    project.pipeline(f"steps: [{step}]\n")

    done = project.aish("validate", "p.yaml")

    assert done.code == 2
    assert said in done.stderr


def test_an_input_that_does_not_fit_fails_the_step(project: Project) -> None:
    project.pipeline(INNER, "inner.yaml")
    project.pipeline(
        """
        inputs: {tone: {type: string, default: loud}}
        steps: [{id: sub, pipeline: inner.yaml, with: {n: a, tone: "{{ inputs.tone }}"}}]
        """
    )

    done = project.run()

    assert done.code == 1
    assert "the input `tone` of `inner.yaml` does not fit" in done.stderr


@pytest.mark.parametrize("command", ["validate", "run", "plan"])
def test_an_inner_file_is_named_as_a_person_would_type_it(project: Project, command: str) -> None:
    project.pipeline("steps: [{id: one, prompt: Hi, tols: []}]", "sub/inner.yaml")
    project.pipeline("steps: [{id: sub, pipeline: sub/inner.yaml}]")
    found = project.aish(command, "p.yaml")

    assert "sub/inner.yaml:" in found.stderr
    assert str(project.folder) not in found.stderr + found.stdout
