"""Calls of a run that was interrupted: none is made twice without anybody's knowledge (B3)."""

import json
import signal
import sys
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, driven, of_type, stdio
from model_endpoint import Gate, Reply, json_reply, text_reply, tool_reply
from samples import sampled

from aish.journal.reader import read_journal

NOTE = """
    models: {}
    mcp: {auto_approve: [shell__run] RULES}
    steps:
      - {id: note, run: [PYTHON, note.py, once]}
      - {id: after, needs: [note], run: [cat, notes.txt]}
    """


SCRIPT = """\
import sys, time
with open("notes.txt", "a") as file:
    print(sys.argv[1], file=file)
if sys.argv[1] == "many":
    print(*range(1, 1000), sep="\\n")
if sys.argv[1] == "wait":
    time.sleep(600)
"""


def notes(project: Project) -> int:
    """How often the command was run."""
    path = project.folder / "notes.txt"
    return len(path.read_text("utf-8").splitlines()) if path.exists() else 0


def dies(project: Project, failpoint: str, *flags: str) -> None:
    done = driven(project, failpoint, "run", "p.yaml", *flags).finish()
    assert done.code == -signal.SIGKILL, done.stderr


def noting(project: Project, rules: str = "") -> None:
    pipeline(project, NOTE.replace("RULES", rules))


def pipeline(project: Project, text: str) -> None:
    project.write("note.py", SCRIPT)
    project.pipeline(text.replace("PYTHON", sys.executable))


def test_a_call_of_which_no_end_is_known_is_named_and_not_made_again(project: Project) -> None:
    noting(project)
    dies(project, "after:tool.started:1")

    done = project.run("--resume")

    assert done.code == 2
    assert "1 call started, with unknown outcome" in done.stderr
    assert "`shell__run` in step `note`" in done.stderr
    assert '"once"' in done.stderr
    assert "--retry-unknown" in done.stderr
    assert notes(project) == 0

    assert project.run("--resume", "--retry-unknown").code == 0
    assert notes(project) == 1


def test_the_known_result_of_a_call_is_that_of_its_step(project: Project) -> None:
    noting(project)
    dies(project, "after:tool.finished:1")
    for failpoint in ("after:step.started:1", "before:step.finished:1"):
        dies(project, failpoint, "--resume")

    done = project.run("--resume", "--format", "json")

    assert done.code == 0, done.stderr
    assert notes(project) == 1
    assert json.loads(done.stdout)["steps"]["note"]["output"]["exit_code"] == 0
    assert len(of_type(project.journal, "tool.finished")) == 2


def test_another_call_of_a_changed_step_is_made_and_the_one_before_is_told(
    project: Project,
) -> None:
    noting(project)
    dies(project, "after:tool.finished:1")
    pipeline(project, NOTE.replace("RULES", "").replace("once", "anew"))
    # Nothing is taken over, so both calls stay known.
    dies(project, "after:tool.finished:1", "--resume", "--force")
    pipeline(project, NOTE.replace("RULES", "").replace("once", "last"))
    named = project.run("--resume", "--force")
    assert named.code == 2, named.stderr
    assert '"once"' in named.stderr

    done = project.run("--resume", "--force", "--retry-unknown", "-q")

    assert done.code == 0, done.stderr
    assert "`shell__run` was called before this part of the run with" in done.stderr
    assert '"anew"' in done.stderr
    assert "takes over" not in done.stderr
    assert (project.folder / "notes.txt").read_text() == "once\nanew\nlast\n"


def test_a_call_of_a_step_that_became_another_one_is_named(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    telling(project, model_endpoint, text_reply("told"))
    dies(project, "after:tool.finished:1")
    text = (project.folder / "p.yaml").read_text()
    call = "steps: [{id: p, call: s__file_write, with: {path: b.txt, content: y}}]"
    project.write("p.yaml", text.replace("prompt: Write it down", call))

    done = project.run("--resume", "--force")

    assert done.code == 2, done.stderr
    assert "`s__file_write`" in done.stderr


def test_a_call_whose_result_is_not_whole_any_more_is_named(project: Project) -> None:
    pipeline(
        project,
        """
        models: {}
        mcp: {auto_approve: [shell__run]}
        steps: [{id: note, result_limit: 1KiB, run: [PYTHON, note.py, many]}]
        """,
    )
    dies(project, "after:tool.finished:1")
    (kept,) = (project.run_folders[0] / "files").iterdir()
    kept.rename(project.folder / "kept")

    done = project.run("--resume")

    assert done.code == 2
    assert "1 call would be made again" in done.stderr
    (project.folder / "kept").rename(kept)
    done = project.run("--resume")
    assert (done.code, done.stdout) == (0, "".join(f"{n}\n" for n in range(1, 1000)))
    assert notes(project) == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rule", ["idempotent", "parallel"])
@pytest.mark.parametrize("event", ["started", "finished"])
def test_what_may_be_called_again_is_called_again(project: Project, rule: str, event: str) -> None:
    noting(project)
    dies(project, f"after:tool.{event}:1")
    noting(project, f", {rule}: [shell__run]")

    done = project.run("--resume")

    assert done.code == 0, done.stderr
    assert notes(project) == 1


def test_a_step_that_is_done_is_not_called_again(project: Project) -> None:
    noting(project)
    dies(project, "after:step.finished:1")

    assert project.run("--resume").stdout == "once\n"
    assert notes(project) == 1


def test_a_command_that_failed_is_run_again(project: Project) -> None:
    pipeline(
        project,
        """
        models: {}
        mcp: {auto_approve: [shell__run]}
        steps:
          - {id: first, run: [PYTHON, note.py, first]}
          - {id: second, needs: [first], run: [cat, wanted.txt]}
        """,
    )
    assert project.run().code == 1
    project.write("wanted.txt", "here it is\n")

    done = project.run("--resume", "-q")

    assert done.stdout == "here it is\n"
    assert notes(project) == 1
    head, line = done.stderr.splitlines()
    assert head == "warning: 1 call may be made again, as their step failed by them:"
    assert line.startswith("  `shell__run` in step `second`, at 20")
    assert line.endswith('with {"argv": ["cat", "wanted.txt"]}')


def test_an_item_is_named_with_the_call_that_it_made(project: Project) -> None:
    pipeline(
        project,
        """
        models: {}
        mcp: {auto_approve: [shell__run]}
        steps:
          - {id: note, foreach: "['a', 'b', 'c']", key: item, concurrency: 1,
             run: [PYTHON, note.py, "{{ item }}"]}
        """,
    )
    dies(project, "after:tool.started:2")

    done = project.run("--resume")

    assert done.code == 2
    assert "in step `note`, item `b`" in done.stderr
    assert project.run("--resume", "--retry-unknown").code == 0
    assert (project.folder / "notes.txt").read_text() == "a\nb\nc\n"


def telling(project: Project, model_endpoint: ModelEndpoints, first: Reply) -> None:
    """A model that makes a call, then answers `first`; the next time it only answers."""
    tries = iter([first])

    def answer(body: Any) -> Reply:
        if body["messages"][-1]["role"] == "tool":
            return next(tries, text_reply("told"))
        return tool_reply([("c1", "s__file_write", '{"path": "a.txt", "content": "x"}')])

    project.uses(model_endpoint(answer))
    project.pipeline(
        """
        mcp: {servers: {s: {pack: [fs, edit], root: .}}, auto_approve: [s__file_write]}
        prompt: Write it down
        """
    )


def test_a_failed_step_whose_model_made_calls_waits_for_a_word(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    telling(project, model_endpoint, json_reply(400, {"error": {"message": "no"}}))
    assert project.run().code != 0

    done = project.run("--resume")

    assert done.code == 2
    assert "1 call would be made again" in done.stderr
    assert "`s__file_write`" in done.stderr
    assert project.run("--resume", "--retry-failed").stdout == "told\n"


def test_a_call_that_a_signal_cut_off_is_unknown(project: Project) -> None:
    project.pipeline(
        f"""
        models: {{}}
        mcp: {{servers: {{s: {{command: {stdio()}}}}}, auto_approve: [s__sleep]}}
        steps: [{{id: wait, call: s__sleep, with: {{ms: 600000}}}}]
        """
    )
    running = project.aish.start("run", "p.yaml", "--format", "jsonl")
    running.wait_for_line('"tool.started"', where="stdout")
    running.interrupt(signal.SIGINT)
    assert running.finish().code == 130

    done = project.run("--resume")

    assert done.code == 2
    assert "1 call started" in done.stderr


def test_failed_items_are_run_again_only_if_that_is_asked_for(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    mended = False

    def answer(body: Any) -> Reply:
        prompt = body["messages"][-1]["content"]
        bad = not mended and prompt in {"Row 2", "Row 5"}
        return json_reply(400, {"error": {"message": "no"}}) if bad else text_reply(f"<{prompt}>")

    endpoint = model_endpoint(answer)
    project.uses(endpoint)
    project.pipeline(
        """
        steps:
          - {id: rows, foreach: "range(8) | list", on_error: continue, prompt: "Row {{ item }}"}
        """
    )
    assert project.run().code == 1
    mended = True

    again = project.run("--resume")
    assert again.code == 1
    assert len(endpoint.requests) == 8

    done = project.run("--resume", "--retry-failed")
    assert done.code == 0, done.stderr
    assert len(endpoint.requests) == 10
    assert done.stdout == "".join(f"<Row {n}>\n" for n in range(8))
    (folder,) = project.run_folders
    with read_journal(folder / "events.jsonl") as reading:
        finished = of_type(list(reading), "item.finished")
    assert len(finished) == 10


ROWS = """
    steps:
      - {id: rows, foreach: "range(40) | list", concurrency: 4, on_error: continue,
         prompt: "Row {{ item }}"}
    """


def whole(project: Project) -> None:
    """See that a resumed run has every row once."""
    done = project.run("--resume")
    assert done.code == 0, done.stderr
    assert done.stdout == "".join(f"<Row {n}>\n" for n in range(40))


def row(body: Any) -> Reply:
    return text_reply(f"<{body['messages'][-1]['content']}>")


@pytest.mark.parametrize(
    ("kinds", "code"),
    [
        pytest.param([signal.SIGINT], 130, id="once"),
        pytest.param([signal.SIGINT, signal.SIGINT], 130, id="twice"),
        pytest.param([signal.SIGTERM], 143, id="term"),
    ],
)
def test_a_batch_that_a_signal_ended_goes_on(
    project: Project, model_endpoint: ModelEndpoints, kinds: list[signal.Signals], code: int
) -> None:
    gate = Gate()

    def answer(body: Any) -> Reply:
        return row(body).but(before_head=gate if "Row 9" in str(body) else None)

    endpoint = model_endpoint(answer)
    project.uses(endpoint)
    project.pipeline(ROWS)
    running = project.aish.start("run", "p.yaml")
    # The gate holds one row; the others are done, or never begun.
    endpoint.wait_requests(40)
    gate.wait_arrived()
    running.interrupt(kinds[0])
    if kinds[0] is signal.SIGINT:
        running.wait_for_line("under way", where="stderr")
    for kind in kinds[1:]:
        running.interrupt_again(kind)
    if kinds == [signal.SIGINT]:
        # What is under way has some seconds to come to its end.
        gate.open()
    assert running.finish().code == code
    gate.open()

    whole(project)
    assert len(endpoint.requests) <= 40 + 4
    endpoint.wait_closed()


@pytest.mark.requirement("B14")
def test_a_full_disk_ends_a_batch_that_then_goes_on(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(row)
    project.uses(endpoint)
    project.pipeline(ROWS)
    python = project.aish.python
    # In blocks of 512 bytes; what is larger fails as on a disk without room.
    project.through_shell('ulimit -f 24; exec "$@"')

    done = project.run()

    assert done.code == 1
    assert "cannot write the journal: File too large" in done.stderr
    assert "no more items are started" in done.stderr
    assert len(endpoint.requests) < 40
    project.aish.python = python
    whole(project)
    assert len(endpoint.requests) <= 40 + 2 * 4


@pytest.mark.parametrize(
    "files", sampled([8, 10, 20], often={1}, reason="each starts the real program")
)
def test_without_descriptors_a_run_copes_or_says_so_and_goes_on_later(
    project: Project, model_endpoint: ModelEndpoints, files: int
) -> None:
    project.uses(model_endpoint(row))
    model = 'models: {m: {base_url: "${MODEL_URL}", model: s, retry: {attempts: 1}}}'
    project.pipeline(f"    {model}" + ROWS.replace("concurrency: 4", "concurrency: 32"))
    python = project.aish.python
    project.through_shell(f'ulimit -n {files}; exec "$@"')

    done = project.run()

    # With few of them it sends less at a time, which may be enough.
    assert done.code in {0, 1}, done.stderr
    assert done.code == 0 or "too many open files" in done.stderr
    # The id of the run ends in random letters.
    assert "bug" not in project.tidy(done.stderr)
    project.aish.python = python
    again = project.run("--resume", "--retry-failed")
    assert again.code == 0, again.stderr
    assert again.stdout == "".join(f"<Row {n}>\n" for n in range(40))
