"""Steps as a graph: what is ready runs together, and what is left out is told (F3, F4)."""

import json
import sys

import pytest
import work
from e2e_project import ModelEndpoints, Project, of_type
from model_endpoint import Gate, Reply, text_reply
from syrupy.assertion import SnapshotAssertion

SHELL = "mcp: {auto_approve: [shell__*]}"


def held(gate: Gate, text: str) -> Reply:
    """An answer that waits at a gate before its head is sent."""
    return text_reply(text).but(before_head=gate)


def ends(project: Project) -> dict[str, tuple[str, str | None]]:
    """How each step of the only run ended: its status and the code of its error."""
    return {
        event["step"]: (event["status"], event["error"] and event["error"]["code"])
        for event in of_type(project.journal, "step.finished")
    }


@pytest.mark.requirement("F3")
def test_steps_that_do_not_need_each_other_run_at_the_same_time(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    barrier = Gate(opens_at=3)
    endpoint = model_endpoint(lambda request: held(barrier, request["messages"][-1]["content"]))
    project.uses(endpoint)
    project.pipeline(
        """
        steps:
          - {id: a, prompt: from a}
          - {id: b, prompt: from b}
          - {id: c, prompt: from c}
        outputs: {all: "{{ steps.a.text }}, {{ steps.b.text }}, {{ steps.c.text }}"}
        """
    )

    found = project.result()

    assert found["outputs"] == {"all": "from a, from b, from c"}


def test_a_step_waits_for_what_it_needs_and_what_it_reads(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(lambda request: text_reply("x" + request["messages"][0]["content"]))
    project.uses(endpoint)
    project.pipeline(
        """
        steps:
          - {id: last, prompt: "{{ steps.middle.text }}", when: steps.first.status == "ok"}
          - {id: middle, prompt: b b, needs: [first]}
          - {id: first, prompt: a a}
        """
    )

    assert project.run().stdout == "xxb b\n"
    started = [event["step"] for event in of_type(project.journal, "step.started")]
    assert started == ["first", "middle", "last"]


def test_no_more_units_are_in_flight_than_the_command_line_allows(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply(str(number)) for number in range(4)])
    project.uses(endpoint)
    steps = "\n".join(f"  - {{id: s{number}, prompt: say hi}}" for number in range(4))
    project.pipeline(f"steps:\n{steps}\n")

    assert project.run("--concurrency", "1").code == 0
    kinds = [e["type"] for e in project.journal if e["type"] in {"step.started", "step.finished"}]
    assert kinds == ["step.started", "step.finished"] * 4


def test_what_is_left_out_says_why_and_a_when_decides_itself(project: Project) -> None:
    project.pipeline(
        f"""
        {SHELL}
        steps:
          - {{id: a, run: [echo, a], when: 1 > 2}}
          - {{id: b, run: [echo, b], needs: [a]}}
          - {{id: c, run: [echo, c], needs: [b]}}
          - id: d
            run: [echo, "{{{{ steps.a.text is none }}}}"]
            when: steps.a.status == "skipped"
        """
    )

    done = project.run()

    assert (done.code, done.stdout) == (0, "true\n")
    assert ends(project) == {
        "a": ("skipped", "when"),
        "b": ("skipped", "need_skipped"),
        "c": ("skipped", "need_skipped"),
        "d": ("ok", None),
    }
    assert "b: skipped: it needs `a`, which was skipped" in done.stderr


def test_a_step_that_fails_ends_the_run_unless_the_file_says_to_go_on(project: Project) -> None:
    project.pipeline(
        f"""
        {SHELL}
        steps:
          - {{id: bad, run: ["false"], on_error: continue}}
          - {{id: after, run: [echo, "{{{{ steps.bad.status }}}}"]}}
          - {{id: worse, run: ["false"], needs: [after]}}
          - {{id: never, run: [echo, never], needs: [worse]}}
        """
    )

    done = project.run()

    assert done.code == 1
    assert ends(project) == {
        "bad": ("failed", "handler_error"),
        "after": ("ok", None),
        "worse": ("failed", "handler_error"),
        "never": ("skipped", "run_ended"),
    }


@pytest.mark.requirement("F4")
def test_a_step_is_tried_again_and_its_tokens_are_those_of_all_attempts(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("no"), text_reply("no"), text_reply("yes")])
    project.uses(endpoint)
    project.pipeline(
        """
        prompt: say yes
        retry: {attempts: 3, on: [expectation]}
        expect: [{equals: "yes"}]
        """
    )

    found = project.result("--set", "models.m.retry.attempts=1")

    assert (found["status"], found["steps"]["main"]["text"]) == ("ok", "yes")
    retries = of_type(project.journal, "retry")
    assert [(retry["attempt"], retry["endpoint"]) for retry in retries] == [
        (2, "step main"),
        (3, "step main"),
    ]
    turns = of_type(project.journal, "turn.finished")
    assert [turn["turn"] for turn in turns] == [1, 2, 3]
    assert found["usage"]["input"] == sum(turn["usage"]["input"] for turn in turns)


def test_a_failure_that_retry_does_not_name_is_not_tried_again(project: Project) -> None:
    project.pipeline(f'{SHELL}\nrun: ["false"]\nretry: {{attempts: 3, on: [timeout]}}\n')

    assert project.run().code == 1
    assert not of_type(project.journal, "retry")


def test_a_step_that_takes_too_long_has_failed(project: Project) -> None:
    project.pipeline(f"{SHELL}\nrun: [sleep, '60']\ntimeout: 100ms\n")

    done = project.run()

    assert done.code == 1
    assert ends(project) == {"main": ("failed", "timeout")}
    assert "it took longer than 0.1 s" in done.stderr


def test_a_command_that_takes_too_long_keeps_what_it_printed(project: Project) -> None:
    project.write("hangs.sh", "echo half; echo no >&2; touch late; exec sleep 600\n")
    project.pipeline(f"{SHELL}\nrun: [sh, hangs.sh]\ntimeout: 20s\n")
    project.times_out(20, "late")

    found = project.result()["steps"]["main"]

    assert (found["status"], found["text"]) == ("failed", "half\n")
    assert found["output"] == {"exit_code": None, "stdout": "half\n", "stderr": "no\n"}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("{id: a, run: [ls], when: '{{ x }}'}", "an expression is written without braces"),
        ("{id: a, run: [ls], when: nothing}", "`nothing` is not defined"),
        ("{id: a, run: [ls], key: item}", "`key` is for steps with `foreach`"),
        ("{id: a, run: ['{{ item }}']}", "`item` is not defined"),
        ("{id: a, run: [ls], foreach: {}}", "`{file: …}` or `{glob: …}`"),
        ("{id: a, run: [ls], foreach: inputs, as: steps}", "reserved name in templates"),
        ("{id: a, run: [ls], foreach: '[1]', max_failures: 101%}", "not a percentage such as `5%`"),
    ],
)
def test_what_cannot_run_is_told_before_anything_is_contacted(
    project: Project, step: str, said: str
) -> None:
    project.pipeline(f"{SHELL}\nsteps: [{step}]\n")

    done = project.aish("validate", "p.yaml")

    assert done.code == 2
    assert said in done.stderr


@pytest.mark.parametrize("form", ["text", "mermaid"])
def test_a_plan_draws_the_graph(project: Project, form: str, snapshot: SnapshotAssertion) -> None:
    project.write("rows.csv", "id\nx1\nx2\n")
    project.pipeline(
        f"{SHELL}\ninputs: {{n: {{type: string}}}}\nrun: [echo, '{{{{ inputs.n }}}}']\n",
        "inner.yaml",
    )
    project.pipeline(
        f"""
        {SHELL}
        steps:
          - {{id: fetch, run: [echo, rows]}}
          - id: each
            foreach: {{file: rows.csv}}
            concurrency: 4
            prompt: "{{{{ item.id }}}} of {{{{ steps.fetch.text }}}}"
            key: item.id
            max_failures: 5%
            retry: {{attempts: 3, on: [timeout, schema]}}
            on_error: continue
            limits: {{time: 90s, turns: 20}}
            context: {{max_tokens: 32000, keep: 2}}
          - {{id: sub, pipeline: inner.yaml, with: {{n: "{{{{ steps.fetch.text }}}}"}}}}
          - id: end
            run: [echo, done]
            needs: [each, sub]
            when: steps.fetch.text != "<b>\\"x\\"</b>"
        """
    )
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:9/v1"

    done = project.aish("plan", "p.yaml", "--offline", "--format", form)

    assert done.code == 0, done.stderr
    assert project.tidy(done.stdout) == snapshot


def test_a_plan_counts_what_the_inputs_of_a_sub_pipeline_name(project: Project) -> None:
    project.write("rows.csv", "id\nx1\nx2\n")
    project.pipeline(
        """
        models: {m: {base_url: http://127.0.0.1:9/v1, model: m, price: {input: 0, output: 0}}}
        inputs: {table: {type: string}}
        steps:
          - {id: each, foreach: {file: "{{ inputs.table }}"}, prompt: "{{ item.id }}"}
        """,
        "inner.yaml",
    )
    outer = """
        inputs: {{table: {{type: string, default: others.csv}}}}
        mcp: {{auto_approve: [{{tool: shell__run, command: [echo, "*"]}}]}}
        steps:
          - {{id: name, run: [echo, rows.csv]}}
          - {{id: sub, pipeline: inner.yaml, with: {{table: "{table}"}}}}
        """
    project.pipeline(outer.format(table="rows.csv"), "known.yaml")
    project.pipeline(outer.format(table="{{ steps.name.text | trim }}"), "unknown.yaml")

    known = project.aish("plan", "known.yaml")
    unknown = project.aish("plan", "unknown.yaml")

    assert "pipeline inner.yaml" in known.stdout
    assert "model requests  2 at least, 2 at most" in known.stdout
    assert "cost  unknown" not in known.stdout
    said = "model requests  0 at least; the number of items of `sub/each` is known only in the run"
    assert said in unknown.stdout


def test_a_plan_takes_a_limit_on_turns_for_the_most_requests(project: Project) -> None:
    project.pipeline(
        """
        models: {m: {base_url: http://127.0.0.1:9/v1, model: m}}
        mcp: {auto_approve: [{tool: shell__run, command: [echo, "*"]}]}
        limits: {turns: 7}
        steps:
          - {id: list, run: [echo, "[1, 2]"]}
          - {id: each, foreach: steps.list.output.stdout, prompt: "{{ item }}"}
        """
    )

    done = project.aish("plan", "p.yaml")

    assert "model requests  0 at least, 7 at most" in done.stdout


@pytest.mark.slow(reason="runs thousands of steps")
def test_many_steps_do_not_look_at_each_other_again_and_again(project: Project) -> None:
    counted = project.folder / "counted"
    project.aish.python = (sys.executable, work.__file__, str(counted))

    def run(count: int) -> int:
        steps = "".join(
            f"  - {{id: s{n}, when: 'false', run: [echo, x{n}]}}\n" for n in range(count)
        )
        project.pipeline(f"{SHELL}\nsteps:\n{steps}")
        done = project.aish("run", "p.yaml", "-q")
        assert done.code == 0, done.stderr
        return int(counted.read_text())

    # To look at every template after every step would cost the square of the steps.
    assert run(200) < 8 * run(40)


def test_a_plan_says_where_a_verdict_waits_for_other_steps(project: Project) -> None:
    project.pipeline(
        """
        mcp: {auto_approve: [{tool: shell__run, command: [echo, "*"]}]}
        steps:
          - {id: fetch, run: [echo, rows]}
          - {id: tell, run: [echo, "{{ steps.fetch.text | trim }}"]}
        """
    )

    view = json.loads(project.aish("plan", "p.yaml", "--format", "json").stdout)

    first, second = (step["reason"] for step in view["steps"])
    assert "may change that" not in first
    assert second.endswith("(what it waits for may change that)")
