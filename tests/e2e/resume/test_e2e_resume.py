"""A run that was interrupted goes on: what is done is not done again (B3)."""

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, of_type
from model_endpoint import Gate, Reply, json_reply, text_reply

from aish.journal.reader import read_journal

THREE = """
    inputs: {tone: {type: string, default: dry}}
    steps:
      - {id: one, prompt: "One, {{ inputs.tone }}"}
      - {id: two, prompt: "Two after {{ steps.one.text }}"}
      - {id: three, prompt: "Three after {{ steps.two.text }}"}
    """
ROWS = 12
OVER_ROWS = """
    steps:
      - {id: rows, foreach: {file: rows.jsonl}, key: item.id, concurrency: 3, on_error: continue,
         prompt: "Row {{ item.id }}"}
      - {id: last, prompt: "All: {{ steps.rows | map(attribute='text') | join(', ') }}"}
    """


def asked(request: Any) -> str:
    """The prompt of a request's body."""
    return str(request["messages"][-1]["content"])


def echo(request: Any) -> Reply:
    """A model that says what it was asked, so that every run has the same answers."""
    return text_reply(f"<{asked(request)}>")


def journal_of(folder: Path) -> list[Any]:
    with read_journal(folder / "events.jsonl") as reading:
        return list(reading)


def rows(project: Project, count: int = ROWS) -> None:
    lines = "".join(json.dumps({"id": f"r{n}"}) + "\n" for n in range(count))
    project.write("rows.jsonl", lines)


def killed_at(project: Project, model_endpoint: ModelEndpoints, prompt: str, *flags: str) -> Any:
    """A run that is killed while the model is busy with a prompt; its endpoint."""
    gate = Gate()

    def answer(request: Any) -> Reply:
        stuck = asked(request).startswith(prompt) and not gate._opened.is_set()
        return echo(request).but(before_head=gate if stuck else None)

    endpoint = model_endpoint(answer)
    project.uses(endpoint)
    running = project.aish.start("run", "p.yaml", *flags)
    gate.wait_arrived()
    running.interrupt(signal.SIGKILL)
    running.finish()
    gate.open()
    return endpoint


@pytest.mark.requirement("B3")
def test_a_killed_run_goes_on_where_it_was(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.pipeline(THREE)
    endpoint = killed_at(project, model_endpoint, "Two")
    before = len(endpoint.requests)

    done = project.run("--resume")

    assert done.code == 0, done.stderr
    assert done.stdout == "<Three after <Two after <One, dry>>>\n"
    assert len(endpoint.requests) - before == 2
    (folder,) = project.run_folders
    events = journal_of(folder)
    assert [event["seq"] for event in events] == sorted({event["seq"] for event in events})
    starts = of_type(events, "run.started")
    assert [start.get("resumed_from") for start in starts] == [None, folder.name]
    assert Counter(event["step"] for event in of_type(events, "step.finished")) == {
        "one": 1,
        "two": 1,
        "three": 1,
    }
    assert "1 step is done" in done.stderr


def test_the_result_of_a_resumed_run_tells_of_the_whole_run(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.pipeline(THREE)
    killed_at(project, model_endpoint, "Two")

    resumed = project.result("--resume")
    project.aish("runs", "clean", "--all", "--yes")
    undisturbed = project.result()

    assert {id: step["text"] for id, step in resumed["steps"].items()} == {
        id: step["text"] for id, step in undisturbed["steps"].items()
    }
    assert resumed["usage"] == undisturbed["usage"]


def test_a_run_that_is_complete_is_not_run_again(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.pipeline(THREE)
    endpoint = model_endpoint(echo)
    project.uses(endpoint)
    first = project.run("--format", "json")
    before = (project.run_folders[0] / "events.jsonl").read_bytes()

    again = project.run("--resume", "--format", "json")

    assert again.code == 0
    assert again.stdout == first.stdout
    assert "is complete: nothing is left to do" in again.stderr
    assert len(endpoint.requests) == 3
    assert (project.run_folders[0] / "events.jsonl").read_bytes() == before


def test_a_run_that_is_complete_is_not_forced_to_take_what_changed(project: Project) -> None:
    project.write("rows.csv", "id\n1\n2\n")
    project.pipeline(
        "foreach: {file: rows.csv}\nkey: item.id\nrun: [echo, '{{ item.id }}']\n"
        "mcp: {auto_approve: [shell__run]}\n"
    )
    assert project.run().stdout == "1\n2\n"
    before = (project.run_folders[0] / "events.jsonl").read_bytes()
    project.write("rows.csv", "id\n1\n2\n3\n")

    forced = project.run("--resume", "--force")

    assert (forced.code, forced.stdout) == (2, "")
    assert (
        "is complete, and `--force` adds nothing to it, although the file `rows.csv` changed"
        in (forced.stderr)
    )
    assert "start a new run without `--resume`" in forced.stderr
    assert (project.run_folders[0] / "events.jsonl").read_bytes() == before


def test_a_batch_goes_on_with_the_items_that_are_not_done(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    rows(project)
    project.pipeline(OVER_ROWS)
    endpoint = killed_at(project, model_endpoint, "Row r7")

    done = project.run("--resume")

    assert done.code == 0, done.stderr
    everything = ", ".join(f"<Row r{n}>" for n in range(ROWS))
    assert done.stdout == f"<All: {everything}>\n"
    (folder,) = project.run_folders
    finished = Counter(event["key"] for event in of_type(journal_of(folder), "item.finished"))
    assert finished == {f"r{n}": 1 for n in range(ROWS)}
    times = Counter(asked(request.json) for request in endpoint.requests)
    assert sum(times.values()) <= ROWS + 1 + 3
    assert times["Row r7"] == 2


def test_a_changed_prompt_is_refused_and_named(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.pipeline(THREE)
    endpoint = killed_at(project, model_endpoint, "Two")
    before = len(endpoint.requests)
    project.pipeline(THREE.replace('"Two after', '"Two, after'))

    done = project.run("--resume")

    assert done.code == 2
    assert "`steps[1].prompt` changed" in done.stderr
    assert "p.yaml:" in done.stderr
    assert "--force" in done.stderr
    assert len(endpoint.requests) == before

    forced = project.run("--resume", "--force")

    assert forced.code == 0
    assert forced.stdout == "<Three after <Two, after <One, dry>>>\n"
    assert "although" in forced.stderr
    assert "`steps[1].prompt` changed" in forced.stderr


def test_what_may_change_may_change(project: Project, model_endpoint: ModelEndpoints) -> None:
    project.pipeline(THREE)
    killed_at(project, model_endpoint, "Two")
    changed = THREE.replace("{id: three,", "{id: three, timeout: 9m, retry: {attempts: 2},")
    project.pipeline(f"{changed}\n    description: Another\n    limits: {{time: 9m}}\n")

    assert project.run("--resume", "--timeout", "5m").code == 0


def test_inputs_need_not_be_given_again_and_may_not_be_others(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.pipeline(THREE)
    killed_at(project, model_endpoint, "Two", "-i", "tone=warm")

    other = project.run("--resume", "-i", "tone=cold")
    assert other.code == 2
    assert "`inputs.tone` changed" in other.stderr

    done = project.run("--resume")
    assert done.stdout == "<Three after <Two after <One, warm>>>\n"


def test_piped_text_is_kept_for_the_resumed_run(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.pipeline(
        """
        steps: [{id: one, prompt: "A {{ stdin }}"}, {id: two, prompt: "B {{ stdin }}"}]
        """
    )
    gate = Gate()

    def answer(request: Any) -> Reply:
        stuck = asked(request).startswith("B") and not gate._opened.is_set()
        return echo(request).but(before_head=gate if stuck else None)

    project.uses(model_endpoint(answer))
    running = project.aish.start("run", "p.yaml", stdin="the text")
    gate.wait_arrived()
    running.interrupt(signal.SIGKILL)
    running.finish()
    gate.open()

    assert project.run("--resume", stdin="another").code == 2
    assert project.run("--resume").stdout == "<B the text>\n"


def test_a_secret_input_is_asked_for_again(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.aish.env["TOKEN"] = "a-very-secret-value"
    project.pipeline(
        """
        secrets: [TOKEN]
        inputs: {token: {type: string}}
        steps: [{id: one, prompt: "A {{ inputs.token }}"}, {id: two, prompt: "B"}]
        """
    )
    killed_at(project, model_endpoint, "B", "-i", "token=a-very-secret-value")

    refused = project.run("--resume")
    assert refused.code == 2
    assert "`token`" in refused.stderr
    assert "a-very-secret-value" not in project.everything_written()

    assert project.run("--resume", "-i", "token=a-very-secret-value").code == 0


@pytest.mark.parametrize("flag", ["--retry-failed", "--retry-unknown", "--force"])
def test_what_belongs_to_resume_needs_it(project: Project, flag: str) -> None:
    project.pipeline("prompt: Hello")

    done = project.run(flag)

    assert done.code == 2
    assert "--resume" in done.stderr


def test_the_newest_run_of_this_very_pipeline_is_taken(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.pipeline(THREE)
    killed_at(project, model_endpoint, "Two")
    project.pipeline("prompt: Hello", name="other.yaml")
    assert project.aish("run", "other.yaml").code == 0

    (other,) = (folder for folder in project.run_folders if "other" in folder.name)
    wrong = project.run("--resume", other.name)
    assert wrong.code == 2
    assert "a run of the pipeline `other`" in wrong.stderr

    # Its runs are called as those of `p` are.
    project.pipeline("name: P!\nprompt: Hello", name="alike.yaml")
    assert project.aish("run", "alike.yaml").code == 0

    assert project.run("--resume").stdout == "<Three after <Two after <One, dry>>>\n"


def test_a_list_of_runs_has_a_resumed_run_once_and_as_it_ended_last(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.pipeline(THREE)
    gone = model_endpoint([text_reply("one"), json_reply(400, {"error": {"message": "no"}})])
    project.uses(gone)
    assert project.run().code == 1
    project.uses(model_endpoint(echo))
    assert project.run("--resume").code == 0

    (row,) = json.loads(project.aish("runs", "list", "--format", "json").stdout)
    shown = json.loads(project.aish("runs", "show", "latest", "--format", "json").stdout)

    assert (row["status"], row["steps"]) == ("ok", 3)
    assert [step["status"] for step in shown["steps"].values()] == ["ok", "ok", "ok"]


@pytest.mark.parametrize("flags", [["--ephemeral"], ["--record", "c.yaml"]])
def test_what_does_not_go_with_resume_is_said(project: Project, flags: list[str]) -> None:
    project.pipeline("prompt: Hello")

    done = project.run("--resume", *flags)

    assert done.code == 2
    assert "exclude each other" in done.stderr


def test_without_a_run_there_is_nothing_to_go_on_with(project: Project) -> None:
    project.pipeline("prompt: Hello")

    done = project.run("--resume")

    assert done.code == 2
    assert "no runs" in done.stderr


def test_resume_can_stand_before_the_file_and_take_the_end_of_an_id(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.pipeline(THREE)
    killed_at(project, model_endpoint, "Two")
    (folder,) = project.run_folders

    assert project.aish("run", "--resume", "p.yaml").code == 0
    assert project.run("--resume", folder.name[-4:]).code == 0
    assert project.run(f"--resume={folder.name}").code == 0


def test_who_resumes_a_run_that_is_being_written_hears_who_writes_it(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.pipeline(THREE)
    gate = Gate()
    project.uses(model_endpoint(lambda request: echo(request).but(before_head=gate)))
    running = project.aish.start("run", "p.yaml")
    gate.wait_arrived()

    done = project.run("--resume")

    assert done.code == 2
    assert f"is being written by process {running.process.pid}" in done.stderr
    gate.open()
    assert running.finish().code == 0


def _damaged(data: bytes) -> bytes:
    """One letter in the middle is another."""
    half = data.index(b"One", len(data) // 4)
    return data[:half] + b"X" + data[half + 1 :]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("harm", "said"),
    [
        pytest.param(_damaged, "checksum does not match", id="damaged"),
        pytest.param(lambda data: data.replace(b"\n", b"\r\n"), "CRLF", id="crlf"),
        pytest.param(
            lambda data: data.replace(b"\n", b"\0\n", 1), "NUL bytes", id="nul in the middle"
        ),
        pytest.param(lambda data: data[: data.index(b"\n") // 2], "before it started", id="cut"),
        pytest.param(lambda _: b"", "before it started", id="empty"),
        pytest.param(lambda _: b"a: 1\n", "no checksum", id="foreign"),
        pytest.param(
            lambda data: data + data.splitlines(keepends=True)[-1], "has the number", id="twice"
        ),
    ],
)
def test_a_journal_that_is_not_as_it_was_written_is_refused_and_left_alone(
    project: Project, model_endpoint: ModelEndpoints, harm: Any, said: str
) -> None:
    project.pipeline(THREE)
    endpoint = killed_at(project, model_endpoint, "Three")
    before = len(endpoint.requests)
    (folder,) = project.run_folders
    path = folder / "events.jsonl"
    path.write_bytes(harm(path.read_bytes()))
    harmed = path.read_bytes()

    done = project.run("--resume", folder.name)

    assert done.code == 2, done.stderr
    assert said in done.stderr
    assert path.read_bytes() == harmed
    assert len(endpoint.requests) == before


@pytest.mark.requirement("B2")
@pytest.mark.parametrize(
    "tail", [b'{"v":1,"seq":99,"ti', b"\0" * 5000, b'{"v":1,"seq":99,"ti' + b"\0" * 5000]
)
def test_a_torn_record_is_cut_off_and_kept(
    project: Project, model_endpoint: ModelEndpoints, tail: bytes
) -> None:
    project.pipeline(THREE)
    killed_at(project, model_endpoint, "Three")
    (folder,) = project.run_folders
    path = folder / "events.jsonl"
    with path.open("ab") as file:
        file.write(tail)

    done = project.run("--resume")

    assert done.code == 0
    size = f"{len(tail):,} bytes"
    assert f"the journal ends in {size} that are not a whole record" in done.stderr
    assert (folder / "events.jsonl.torn").read_bytes() == tail + b"\n"
    assert of_type(journal_of(folder), "run.finished")


def test_an_item_that_is_another_now_is_refused(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    rows(project)
    project.pipeline(OVER_ROWS)
    killed_at(project, model_endpoint, "Row r7")
    project.write("rows.jsonl", (project.folder / "rows.jsonl").read_text() + '{"id": "new"}\n')

    done = project.run("--resume")

    assert done.code == 2
    assert "the file `rows.jsonl` changed" in done.stderr
    forced = project.run("--resume", "--force")
    assert forced.code == 0, forced.stderr
    assert "<Row new>" in forced.stdout


def test_lost_results_of_items_are_written_again_from_the_journal(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    rows(project)
    project.pipeline(OVER_ROWS)
    killed_at(project, model_endpoint, "Row r7")
    (folder,) = project.run_folders
    (folder / "results.jsonl").unlink()

    assert project.run("--resume").code == 0

    lines = (folder / "results.jsonl").read_text("utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    assert sorted(row["index"] for row in found) == list(range(ROWS))
    assert {row["text"] for row in found} == {f"<Row r{n}>" for n in range(ROWS)}
    assert {json.dumps(row["item"]) for row in found} == {
        json.dumps({"id": f"r{n}"}) for n in range(ROWS)
    }


def test_each_shard_is_gone_on_with_by_itself(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    rows(project)
    project.pipeline(OVER_ROWS)
    bad = model_endpoint(lambda body: json_reply(400, {"error": {"message": str(body)[:9]}}))
    project.uses(bad)
    for number in (1, 2):
        assert project.run("--shard", f"{number}/2").code == 1
    project.uses(model_endpoint(echo))

    first = project.run("--resume", "--shard", "1/2", "--retry-failed")
    newest = project.run("--resume", "--retry-failed")

    assert (first.code, newest.code) == (0, 0), first.stderr + newest.stderr
    assert first.stdout != newest.stdout
    assert all(f"<Row r{n}>" in first.stdout + newest.stdout for n in range(ROWS))


def test_a_run_in_a_folder_of_its_own_is_found_there(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.pipeline(THREE)
    killed_at(project, model_endpoint, "Two", "--run-dir", "elsewhere")

    assert project.run("--resume").code == 2
    done = project.run("--resume", "--run-dir", "elsewhere", "-q")

    assert (done.code, done.stderr) == (0, "")
    assert done.stdout == "<Three after <Two after <One, dry>>>\n"
    assert len(list((project.folder / "elsewhere").iterdir())) == 1


@pytest.mark.parametrize("items", ["'[]'", "{file: rows.csv}"])
def test_a_step_without_items_is_a_list_in_a_resumed_run_too(project: Project, items: str) -> None:
    project.write("rows.csv", "id\n")
    project.write("sees.sh", 'echo "$1"\ntest -e ready\n')
    project.pipeline(
        f"""
        models: {{}}
        mcp: {{auto_approve: [shell__run]}}
        steps:
          - {{id: none, foreach: {items}, run: [echo, "{{{{ item }}}}"]}}
          - id: last
            run: [sh, sees.sh, "{{{{ steps.none is mapping }}}} {{{{ steps.none | length }}}}"]
        """
    )
    assert project.run().code == 1
    project.write("ready", "")

    done = project.run("--resume")

    assert (done.code, done.stdout) == (0, "false 0\n"), done.stderr
