"""Templates that compute without output: limits, time-outs and signals end them (F6, B8, B14)."""

import json
import signal

import pytest
from e2e_project import ModelEndpoints, Project, of_type, stdio, wait_file
from samples import sampled

LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
# A single expression, which has no output at all before it is done.
NUMBERS = "range(99999) | map('string')"
EXPRESSION = f"{NUMBERS} | select('in', {NUMBERS} | list) | list | length"
ENDS = [
    pytest.param(signal.SIGTERM, 143, id="SIGTERM"),
    pytest.param(signal.SIGHUP, 143, id="SIGHUP"),
    pytest.param(signal.SIGINT, 130, id="SIGINT"),
]


@pytest.fixture(
    params=[LOOPS, "{{ " + EXPRESSION + " }}"],
    ids=["loops", "expression"],
)
def template(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.requirement("F6")
def test_the_time_limit_ends_a_template_that_computes(project: Project, template: str) -> None:
    project.pipeline(f"limits: {{time: 300ms}}\nrun: [echo, {json.dumps(template)}]")

    done = project.run()

    assert done.code == 4
    assert "the time limit of 0.3 s is exceeded" in done.stderr
    assert "or `--timeout`; `--resume` continues the run" in done.stderr


def test_the_time_out_of_a_step_ends_a_template_that_computes(
    project: Project, template: str
) -> None:
    project.pipeline(
        f"""
        mcp: {{auto_approve: [shell__run]}}
        steps:
          - {{id: slow, timeout: 300ms, on_error: continue, run: [echo, {json.dumps(template)}]}}
          - {{id: after, needs: [slow], run: [echo, after]}}
        """
    )

    found = project.result()

    assert found["steps"]["slow"]["error"]["code"] == "timeout"
    assert found["steps"]["after"]["status"] == "ok"


@pytest.mark.parametrize("key", ["when", "foreach"])
def test_the_time_limit_ends_an_expression_that_decides(project: Project, key: str) -> None:
    project.pipeline(
        f"""
        limits: {{time: 300ms}}
        steps:
          - {{id: slow, {key}: {json.dumps(EXPRESSION)}, run: [echo, hello]}}
        """
    )

    done = project.run()

    assert done.code == 4
    assert "the time limit of 0.3 s is exceeded" in done.stderr


def test_the_time_limit_ends_outputs_that_compute(project: Project, template: str) -> None:
    project.pipeline(
        f"""
        mcp: {{auto_approve: [shell__run]}}
        limits: {{time: 300ms}}
        steps:
          - {{id: one, run: [echo, hello]}}
        outputs: {{slow: {json.dumps(template)}}}
        """
    )

    assert project.run().code == 4


@pytest.mark.parametrize(("number", "code"), ENDS)
def test_a_signal_ends_a_template_that_computes(
    project: Project, number: signal.Signals, code: int
) -> None:
    project.pipeline(f"run: [echo, '{{{{ {EXPRESSION.replace(chr(39), chr(34))} }}}}']")

    with project.aish.start("run", "p.yaml") as running:
        running.wait_for_line("main: started")
        running.interrupt(number)

        assert running.finish().code == code

    ends = of_type(project.journal, "run.finished")
    assert [end["exit"]["code"] for end in ends] == [code]
    assert project.run("--resume", "--timeout", "300ms").code == 4


def test_a_second_ctrl_c_ends_an_item_whose_template_computes(
    project: Project, template: str
) -> None:
    project.pipeline(
        f"""
        steps:
          - {{id: each, foreach: "[1, 2]", concurrency: 1, run: [echo, {json.dumps(template)}]}}
        """
    )

    with project.aish.start("run", "p.yaml") as running:
        running.wait_for_line("each: started")
        running.interrupt()
        running.wait_for_line("Ctrl-C again exits at once")
        running.interrupt()

        assert running.finish().code == 130


def test_an_item_that_computes_at_the_first_ctrl_c_comes_to_its_end(project: Project) -> None:
    # Computes until the file says that Ctrl-C has come.
    project.write("come", "no")
    computed = "(['come'] * 400000) | map('readfile') | select('eq', 'yes') | first == 'yes'"
    project.pipeline(
        f"""
        mcp: {{auto_approve: [shell__run]}}
        steps:
          - id: each
            foreach: "[1, 2]"
            concurrency: 1
            run: [echo, "{{{{ item }}}}"]
            expect: [{{expression: {json.dumps(computed)}}}]
        """
    )

    with project.aish.start("run", "p.yaml", "--format", "jsonl") as running:
        running.wait_for_line('"tool.finished"', where="stdout")
        running.interrupt()
        running.wait_for_line("Ctrl-C again exits at once")
        project.write("come", "yes")

        assert running.finish().code == 130

    assert [one["status"] for one in of_type(project.journal, "item.finished")] == ["ok"]


@pytest.mark.slow(reason="computes for the 5 s that are the bound")
def test_without_a_limit_a_template_that_computes_fails_after_its_own_bound(
    project: Project,
) -> None:
    project.pipeline(f"run: [echo, {json.dumps(LOOPS)}]")

    done = project.run()

    assert done.code == 1
    assert "rendering takes longer than 5 s" in done.stderr


ANNOTATED = f"""
mcp: {{auto_approve: [shell__run]}}
steps:
  - {{id: one, run: [echo, hello]}}
annotations:
  - {{path: first.py, message: it was seen}}
  - {{path: second.py, message: {json.dumps("{{ " + EXPRESSION + " }}")}}}
"""


@pytest.mark.slow(reason="computes for the 10 s that are the bound")
def test_annotations_that_compute_are_left_out_and_the_run_is_as_it_was(project: Project) -> None:
    project.pipeline(ANNOTATED)

    done = project.run()

    assert done.code == 0
    assert "it was seen" in done.stderr
    assert "rendering took longer than 10 s; the rest is left out" in done.stderr


def test_a_signal_ends_annotations_that_compute(project: Project) -> None:
    project.pipeline(ANNOTATED)

    with project.aish.start("run", "p.yaml") as running:
        running.wait_for_line("one: ok")
        running.interrupt(signal.SIGTERM)

        assert running.finish().code == 143

    (end,) = of_type(project.journal, "run.finished")
    assert end["exit"]["code"] == 143


NAMES_A_FILE = {
    "attach": 'prompt: hi you\nattach: "TEMPLATE"',
    "foreach.file": 'run: [echo, hello]\nforeach: {file: "TEMPLATE"}',
    "foreach.glob": 'run: [echo, hello]\nforeach: {glob: "TEMPLATE"}',
}


@pytest.fixture(params=NAMES_A_FILE)
def names_a_file(request: pytest.FixtureRequest) -> str:
    """A pipeline that computes the name of a file."""
    return NAMES_A_FILE[request.param].replace("TEMPLATE", LOOPS)


def test_the_time_limit_ends_the_name_of_a_file_that_computes(
    project: Project, model_endpoint: ModelEndpoints, names_a_file: str
) -> None:
    project.uses(model_endpoint([]))
    project.pipeline(f"limits: {{time: 300ms}}\n{names_a_file}")

    done = project.run()

    assert done.code == 4, done.stderr
    assert "the time limit of 0.3 s is exceeded" in done.stderr
    assert project.journal[0]["type"] == "run.started"
    assert len(of_type(project.journal, "run.started")) == 1


@pytest.mark.parametrize(
    ("number", "code"), sampled(ENDS, often={0}, reason="each computes until it is stopped")
)
def test_a_signal_ends_the_name_of_a_file_that_computes(
    project: Project, model_endpoint: ModelEndpoints, number: signal.Signals, code: int
) -> None:
    project.uses(model_endpoint([]))
    # The server is up before the run looks at what it is made of.
    up = project.folder / "up"
    server = stdio("--grandchild-note", up)
    attach = NAMES_A_FILE["attach"].replace("TEMPLATE", LOOPS)
    project.pipeline(f"mcp: {{servers: {{s: {{command: {server}}}}}}}\n{attach}")

    with project.aish.start("run", "p.yaml") as running:
        wait_file(up, whole=True)
        running.interrupt(number)

        assert running.finish().code == code

    (end,) = of_type(project.journal, "run.finished")
    assert end["exit"]["code"] == code


@pytest.fixture
def keyed(project: Project) -> Project:
    """A step whose items are known only in the run, with a key that computes for each of them."""
    rows = "\n".join(["id", *map(str, range(50))])
    project.write("rows.csv", rows)
    project.pipeline(
        f"""
        mcp: {{auto_approve: [shell__run]}}
        steps:
          - {{id: list, run: [echo, -n, rows.csv]}}
          - id: each
            foreach: {{file: "{{{{ steps.list.text }}}}"}}
            key: "item.id ~ ({EXPRESSION.replace(chr(39), chr(92) + chr(34))})"
            concurrency: 1
            run: [echo, "{{{{ item.id }}}}"]
        """
    )
    return project


@pytest.mark.parametrize("limit", ["the run", "the step"])
def test_the_time_limit_ends_the_look_at_keys_that_compute(keyed: Project, limit: str) -> None:
    limits = {
        "the run": ("--timeout", "3s"),  # it has to come as far as the keys
        "the step": ("--set", "steps.each.limits.time=300ms"),
    }

    done = keyed.run(*limits[limit])

    assert done.code == 4, done.stderr
    assert f"the time limit of {limit}" in done.stderr
    assert not of_type(keyed.journal, "item.started")


@pytest.mark.parametrize(("number", "code"), ENDS)
def test_a_signal_ends_the_look_at_keys_that_compute(
    keyed: Project, number: signal.Signals, code: int
) -> None:
    with keyed.aish.start("run", "p.yaml") as running:
        running.wait_for_line("list: ok")
        running.interrupt(number)

        assert running.finish().code == code

    (end,) = of_type(keyed.journal, "run.finished")
    assert end["exit"]["code"] == code
