"""The process that parses for packs ends with the run, however the run ends (K16, K21)."""

import signal

import pytest
from cli_process import Running
from e2e_project import ModelEndpoints, Project, of_type, wait_gone
from model_endpoint import Gate, delta, sse, stream_reply, tool_reply
from parse_workers import stopped, wait_asked, workers_below

pytestmark = pytest.mark.real_process

PIPELINE = """
mcp: {servers: {box: {pack: py, root: .}}, auto_approve: ["box__py_*"]}
prompt: Where is it used?
"""
CALL = '{"path": ".", "name": "found"}'


def parsing(project: Project, model_endpoint: ModelEndpoints, gate: Gate) -> tuple[Running, int]:
    """A run whose packs have parsed, in the middle of the next answer; and what parsed."""
    beginning = sse([delta(role="assistant", content="It is used")], done=False)
    answers = [tool_reply([("c1", "box__py_find_usages", CALL)]), stream_reply(beginning, gate)]
    project.uses(model_endpoint(answers))
    project.write("a.py", "found = 1\n")
    project.pipeline(PIPELINE)
    running = project.aish.start("run", "p.yaml", "--format", "jsonl")
    running.wait_for_line("It is used", where="stdout")
    (worker,) = workers_below(running.pid)
    return running, worker


@pytest.mark.requirement("K16")
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_what_parses_too(
    project: Project, model_endpoint: ModelEndpoints, kind: signal.Signals
) -> None:
    running, worker = parsing(project, model_endpoint, Gate())

    running.interrupt(kind)
    running.finish()

    wait_gone(worker)
    finished = of_type(project.journal, "tool.finished")
    assert [event["kind"] for event in finished] == ["ok"]


def test_what_parses_ends_with_the_run(project: Project, model_endpoint: ModelEndpoints) -> None:
    gate = Gate()
    running, worker = parsing(project, model_endpoint, gate)

    gate.open()
    running.finish()

    wait_gone(worker)


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_ends_in_the_middle_of_a_parse_leaves_nothing(
    project: Project, model_endpoint: ModelEndpoints, kind: signal.Signals
) -> None:
    gate = Gate()
    call = tool_reply([("c1", "box__py_find_usages", CALL)])
    again = tool_reply([("c2", "box__py_find_usages", CALL)])
    project.uses(model_endpoint([call, again.but(before_head=gate)]))
    project.write("a.py", "found = 1\n")
    project.pipeline(PIPELINE)
    running = project.aish.start("run", "p.yaml", "--format", "jsonl")
    gate.wait_arrived()
    (worker,) = workers_below(running.pid)
    with stopped(worker) as given:
        gate.open()
        wait_asked(given)

    running.interrupt(kind)
    running.finish()

    # It stands still, so it cannot have noticed that nobody listens any more.
    wait_gone(worker)
