"""`aish test` and its processes: crashes, Ctrl-C, kill -9, what cases must not share."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cli_process import Running
from e2e_project import ModelEndpoints, Project, processes_in, stdio, wait_gone
from model_endpoint import text_reply

from aish.cassettes.format.file import load
from aish.cassettes.format.interaction import Interaction
from aish.cassettes.format.layout import whole
from aish.cassettes.record.recorder import LEFT

TWO = """
prompt: "Say {{ inputs.word }}"
inputs: {word: {type: string}}
tests:
  - {name: first, inputs: {word: a}, cassette: cassettes/a.yaml, expect: [{contains: fine}]}
  - {name: second, inputs: {word: b}, cassette: cassettes/b.yaml, expect: [{contains: fine}]}
  - {name: third, inputs: {word: c}, cassette: cassettes/c.yaml, expect: [{contains: fine}]}
"""
Change = Callable[[list[Interaction]], list[Interaction]]


@pytest.fixture
def recorded(project: Project, model_endpoint: ModelEndpoints) -> Project:
    """Three cases, each with its cassette."""
    project.pipeline(TWO)
    record(project, model_endpoint)
    return project


def record(project: Project, model_endpoint: ModelEndpoints, **env: str) -> None:
    endpoint = model_endpoint(lambda _: text_reply("All is fine"))
    env = {"MODEL_URL": endpoint.base_url, **env}
    done = project.aish("test", "--record-missing", env=env)
    assert done.code == 0, done.stdout + done.stderr
    endpoint.close()


def changed(path: Path, change: Change) -> None:
    """Write a cassette anew."""
    cassette = load(path)
    assert cassette.head is not None
    path.write_text(whole(cassette.head, change(list(cassette.interactions))), encoding="utf-8")


def left_open(interactions: list[Interaction]) -> list[Interaction]:
    """An answer of which nothing ever comes."""
    (one,) = interactions
    return [replace(one, response=replace(one.response, body=b"", chunks=(), broken=LEFT))]


def hanging(project: Project, *arguments: str) -> Running:
    """Tests of which the second never ends, after the first has ended."""
    changed(project.folder / "cassettes" / "b.yaml", left_open)
    running = project.aish.start("test", *arguments)
    running.wait_for_line("p.yaml::first PASSED", where="stdout")
    if arguments:
        running.wait_for_line("p.yaml::third PASSED", where="stdout")
    return running


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(word) for word in listed.split()]


@pytest.mark.parametrize("arguments", [[], ["-n", "2"]], ids=["alone", "processes"])
@pytest.mark.parametrize(("kind", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_all_of_them_and_says_what_was_done(
    recorded: Project, arguments: list[str], kind: signal.Signals, code: int
) -> None:
    running = hanging(recorded, *arguments)
    workers = children(running.pid)

    running.interrupt(kind)
    done = running.finish(20)

    assert done.code == code
    assert "Traceback" not in done.stdout + done.stderr
    passed, left = (2, 1) if arguments else (1, 2)
    last = done.stdout.splitlines()[-1]
    assert last.startswith(f"interrupted: {passed} passed, {left} not run in ")
    assert len(workers) == (2 if arguments else 1)
    for pid in workers:
        wait_gone(pid)


def test_ctrl_c_at_a_terminal_reaches_every_process_and_ends_all_in_order(
    recorded: Project,
) -> None:
    running = hanging(recorded, "-n", "2")
    workers = children(running.pid)

    os.killpg(running.pid, signal.SIGINT)
    done = running.finish(20)

    assert (done.code, done.stderr) == (130, "")
    for pid in workers:
        wait_gone(pid)


def test_a_process_that_dies_costs_its_case_and_is_replaced(recorded: Project) -> None:
    changed(recorded.folder / "cassettes" / "a.yaml", left_open)
    running = recorded.aish.start("test", "-n", "2")
    running.wait_for_line("p.yaml::third PASSED", where="stdout")

    # First the one that waits: with the end of the case that hangs, all of them may be gone.
    for pid in reversed(children(running.pid)):
        os.kill(pid, signal.SIGKILL)
    done = running.finish(20)

    assert done.code == 1
    assert "p.yaml::first ERROR" in done.stdout
    assert "the process that ran the case ended by SIGKILL" in done.stdout
    assert "2 passed, 1 error in " in done.stdout


def test_processes_end_with_a_parent_that_is_killed(recorded: Project) -> None:
    running = hanging(recorded, "-n", "2")
    workers = children(running.pid)
    assert len(workers) == 2

    running.process.kill()

    for pid in workers:
        wait_gone(pid)
    assert processes_in(recorded.folder) == []


def test_each_case_sees_the_variables_of_its_own_recording(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    for name in ("one", "two"):
        project.pipeline(
            f"""
            env: [NAMED]
            prompt: "Say {{{{ env.NAMED }}}}"
            cassette: cassettes/{name}.yaml
            tests: [{{name: says it, expect: [{{expression: env.NAMED == "{name}"}}]}}]
            """,
            f"{name}.yaml",
        )
        record(project, model_endpoint, NAMED=name)

    done = project.aish("test", env={"NAMED": "three"})
    turned = project.aish("test", "two.yaml", "one.yaml")

    assert (done.code, turned.code) == (0, 0), done.stdout + turned.stdout


def test_no_key_server_or_endpoint_is_needed(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(lambda _: text_reply("All is fine"))
    project.pipeline(
        f"""
        models: {{m: {{base_url: "{endpoint.base_url}", model: x, key_env: THE_KEY}}}}
        mcp: {{servers: {{s: {{command: {stdio()}, env: {{TOKEN: "${{THE_TOKEN}}"}}}}}},
          auto_approve: [s__echo]}}
        steps:
          - {{id: tell, call: s__echo, with: {{text: hello}}}}
          - {{id: ask, prompt: "Repeat: {{{{ steps.tell.text }}}} {{{{ stdin }}}}", tools: []}}
        cassette: cassettes/p.yaml
        tests:
          - {{name: all, stdin: piped, expect: [{{tool_called: s__echo}}, {{contains: fine}}]}}
        """
    )
    env = {"THE_KEY": "planted-key-0123456789", "THE_TOKEN": "planted-token-0123456789"}
    first = project.aish("test", "--record-missing", env=env)
    endpoint.close()

    done = project.aish("test", env={"PATH": ""})

    assert (first.code, done.code) == (0, 0), first.stdout + done.stdout
    assert "piped" in str(endpoint.asked[0]["messages"])


def test_what_a_case_leaves_unused_is_a_miss_unless_the_file_says_otherwise(
    recorded: Project,
) -> None:
    changed(recorded.folder / "cassettes" / "a.yaml", lambda rows: rows * 2)

    strict = recorded.aish("test")
    recorded.pipeline(TWO.replace("cassettes/a.yaml", "{path: cassettes/a.yaml, strict: false}"))
    lenient = recorded.aish("test")

    assert (strict.code, lenient.code) == (6, 0), strict.stdout + lenient.stdout
    assert "p.yaml::first MISS" in strict.stdout
    assert "1 cassette miss in " in strict.stdout


def test_a_cassette_that_cannot_be_read_is_an_error_of_its_case(recorded: Project) -> None:
    path = recorded.folder / "cassettes" / "a.yaml"
    path.write_bytes(path.read_bytes()[:-50])

    done = recorded.aish("test", "-n", "2")

    assert done.code == 2
    assert "p.yaml::first ERROR" in done.stdout
    assert "cassettes/a.yaml" in done.stdout
    assert "2 passed, 1 error in " in done.stdout


def test_inputs_that_do_not_fit_are_an_error(recorded: Project) -> None:
    recorded.pipeline(TWO.replace("inputs: {word: b}", "inputs: {ward: b}"))

    done = recorded.aish("test")

    assert done.code == 2
    assert "`ward`" in done.stdout


def test_a_case_without_a_cassette_is_an_error_that_says_where_to_name_one(
    recorded: Project,
) -> None:
    recorded.pipeline('prompt: Say x\ntests: [{name: "::error::a ##[b]"}]\n', "none.yaml")

    done = recorded.aish("test")

    assert done.code == 2
    assert "the test has no cassette to run on\nhint: name one under `cassette:`" in done.stdout
    assert "none.yaml::::error::a \\x23#[b] ERROR" in done.stdout
