"""`aish test` as a process: cases on their cassettes, what is printed, how it ends."""

import json
from typing import Any
from xml.etree import ElementTree as ET  # ruff: ignore[suspicious-xml-etree-import] - reads what we wrote

import pytest
from cli_process import Done
from e2e_project import ModelEndpoints, Project
from model_endpoint import Reply, text_reply
from samples import sampled
from syrupy.assertion import SnapshotAssertion

NOTES = """
name: notes
inputs: {word: {type: string, default: hello}}
prompt: |
  Say the word.
  {{ inputs.word }}
cassette: ../cassettes/notes.yaml
tests:
  - name: says it
    expect: [{contains: hello}]
  - name: says no more
    expect: [{not_contains: bye}, {max_tool_calls: 0}]
"""
BYE = """
name: bye
prompt: "Say bye"
tests:
  - name: says bye
    cassette: ../cassettes/bye.yaml
    expect: [{contains: bye}]
"""
UNTESTED = 'prompt: "Say nothing"\n'


def echo(request: Any) -> Reply:
    return text_reply(f"You said: {request['messages'][-1]['content']}")


@pytest.fixture
def tested(project: Project, model_endpoint: ModelEndpoints) -> Project:
    """Two pipelines with tests and their cassettes; the endpoint is gone."""
    project.pipeline(NOTES, "pipelines/notes.yaml")
    project.pipeline(BYE, "pipelines/bye.yaml")
    record(project, model_endpoint)
    return project


def record(project: Project, model_endpoint: ModelEndpoints) -> None:
    """Record what is missing; the variable that names the endpoint is not set afterwards."""
    endpoint = model_endpoint(echo)
    done = project.aish("test", "--record", env={"MODEL_URL": endpoint.base_url})
    endpoint.close()
    assert done.code in {0, 1}, done.stdout + done.stderr


def told(project: Project, done: Done) -> str:
    """What was printed, without what differs from run to run."""
    return project.tidy(done.stdout + done.stderr)


def lines(done: Done) -> list[str]:
    """The lines of the cases, without their times."""
    rows = [line for line in done.stdout.splitlines() if line.startswith("pipelines/")]
    return [row.rsplit(" ", 2)[0] for row in rows if row.endswith(" s")]


@pytest.mark.requirement("C12")
def test_cases_run_on_their_cassettes_without_endpoint_or_key(
    tested: Project, snapshot: SnapshotAssertion
) -> None:
    tested.pipeline(UNTESTED, "pipelines/untested.yaml")

    done = tested.aish("test")

    assert (done.code, done.stderr) == (0, "")
    assert told(tested, done) == snapshot
    assert not (tested.folder / "pipelines" / ".aish").exists()


def test_a_changed_prompt_is_a_miss_that_shows_the_changed_line(
    tested: Project, snapshot: SnapshotAssertion
) -> None:
    changed = NOTES.replace("Say the word.", "Say the word twice.")
    tested.pipeline(changed, "pipelines/notes.yaml")

    done = tested.aish("test")

    assert done.code == 6
    assert "  - Say the word.\n  + Say the word twice.\n" in done.stdout
    assert told(tested, done) == snapshot


def test_an_expectation_that_does_not_hold_is_a_failure(
    tested: Project, snapshot: SnapshotAssertion
) -> None:
    tested.pipeline(NOTES.replace("contains: hello", "contains: farewell"), "pipelines/notes.yaml")

    done = tested.aish("test", "-v")
    quiet = tested.aish("test", "-q")

    assert (done.code, quiet.code) == (1, 1)
    assert told(tested, done) == snapshot(name="verbose")
    assert told(tested, quiet) == snapshot(name="quiet")


def test_a_run_that_fails_is_a_failed_case_that_says_why(tested: Project) -> None:
    checked = 'prompt: "Say bye"\nexpect: [{contains: adieu}]'
    tested.pipeline(BYE.replace('prompt: "Say bye"', checked), "pipelines/bye.yaml")

    done = tested.aish("test", "-k", "bye")

    assert done.code == 1
    assert "the run ended with 1 (failed): step `main`: " in done.stdout
    assert "expected the text to contain `adieu`" in done.stdout


def test_a_broken_file_is_an_error_and_the_others_still_run(
    tested: Project, snapshot: SnapshotAssertion
) -> None:
    changed = NOTES.replace("Say the word.", "Say the word twice.")
    tested.pipeline(changed, "pipelines/notes.yaml")
    tested.pipeline('prompt: "{{ nothing }}"\ntests: [{name: a}]\n', "pipelines/broken.yaml")
    tested.write("pipelines/worse.yaml", "aish: 1\ntests: [\n")
    tested.write("pipelines/base.yaml", "aish: 1\nname: a base that does nothing alone\n")

    done = tested.aish("test")

    assert done.code == 2
    assert told(tested, done) == snapshot


def test_a_miss_of_a_shared_cassette_says_that_cases_may_need_their_own(tested: Project) -> None:
    more = NOTES + "  - name: says another\n    inputs: {word: other}\n"
    tested.pipeline(more, "pipelines/notes.yaml")

    done = tested.aish("test", "-k", "another")

    assert done.code == 6
    assert "hint: cases with different requests need a `cassette` each; if" in done.stdout


def test_misses_outweigh_failures(tested: Project) -> None:
    tested.pipeline(NOTES.replace("contains: hello", "contains: x"), "pipelines/notes.yaml")
    tested.pipeline(BYE.replace("Say bye", "Say adieu"), "pipelines/bye.yaml")

    done = tested.aish("test")

    assert done.code == 6
    assert done.stdout.splitlines()[-1].startswith("1 passed, 1 failed, 1 cassette miss in ")


def test_a_text_selects_the_cases_whose_names_contain_it(tested: Project) -> None:
    some = tested.aish("test", "-k", "Notes.yaml::says it")
    none = tested.aish("test", "-k", "notes and not more")

    assert some.code == 0
    assert lines(some) == ["pipelines/notes.yaml::says it PASSED"]
    assert "1 passed, 2 deselected in " in some.stdout
    assert none.code == 2
    assert "-k: none of 3 cases is selected" in none.stderr


def test_the_first_failure_ends_it_if_asked(tested: Project) -> None:
    tested.pipeline(BYE.replace("contains: bye", "contains: x"), "pipelines/bye.yaml")

    done = tested.aish("test", "-x")

    assert done.code == 1
    assert lines(done) == ["pipelines/bye.yaml::says bye FAILED"]
    assert "1 failed, 2 not run in " in done.stdout


def objects(done: Done) -> Any:
    """The object of `--format json` without times."""
    found = json.loads(done.stdout)
    found.pop("seconds")
    for case in found["cases"]:
        case.pop("seconds")
    return found


def test_processes_give_the_same_result_as_one(tested: Project) -> None:
    tested.pipeline(NOTES.replace("contains: hello", "contains: x"), "pipelines/notes.yaml")
    tested.pipeline(BYE.replace("Say bye", "Say adieu"), "pipelines/bye.yaml")
    tested.pipeline("prompt: [\ntests: [{name: a}]\n", "pipelines/broken.yaml")

    alone = tested.aish("test", "--format", "json")
    both = tested.aish("test", "--format", "json", "-n", "2")
    many = tested.aish("test", "--format", "json", "-n", "auto", "-q")

    assert alone.code == both.code == many.code == 2
    assert objects(alone) == objects(both) == objects(many)
    assert sorted(alone.stderr.splitlines()[:4]) != []


def test_the_object_says_everything(tested: Project, snapshot: SnapshotAssertion) -> None:
    tested.pipeline(NOTES.replace("contains: hello", "contains: x"), "pipelines/notes.yaml")

    done = tested.aish("test", "--format", "json", "-q")

    assert done.code == 1
    assert tested.tidy(done.stdout) == snapshot
    assert done.stderr.startswith(".F.\n")


def test_the_junit_file_can_be_read_whatever_the_texts_are(
    tested: Project, model_endpoint: ModelEndpoints
) -> None:
    hostile = r"]]><x a='\"'>&amp; \u001b[31m \u202e \uFFFE::error::x"
    text = NOTES.replace("says it", "HOSTILE").replace("contains: hello", 'contains: "HOSTILE"')
    text = text.replace("name: HOSTILE", 'name: "HOSTILE"').replace("HOSTILE", hostile)
    tested.pipeline(text, "pipelines/notes.yaml")

    done = tested.aish("test", "--junit", "report.xml")

    assert done.code == 1
    assert "\x1b" not in done.stdout
    root = ET.parse(tested.folder / "report.xml").getroot()  # ruff: ignore[suspicious-xml-element-tree-usage] - the same
    assert [suite.get("name") for suite in root] == ["pipelines/bye.yaml", "pipelines/notes.yaml"]
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("3", "1", "0")
    (case,) = [case for case in root.iter("testcase") if len(case)]
    assert "]]><x a='\"'>&amp; \\x1b[31m \\u202e" in str(case.get("name"))
    assert case[0].tag == "failure"
    assert case[0].get("message", "").startswith("tests[0].expect[0] contains: expected the text")


def test_the_junit_file_tells_misses_broken_files_and_orphans(tested: Project) -> None:
    tested.pipeline(BYE.replace("Say bye", "Say adieu"), "pipelines/bye.yaml")
    tested.pipeline("prompt: [\ntests: [{name: a}]\n", "pipelines/broken.yaml")
    tested.aish("test", "--junit", "report.xml")
    root = ET.parse(tested.folder / "report.xml").getroot()  # ruff: ignore[suspicious-xml-element-tree-usage] - the same
    errors = {error.get("type"): error.text or "" for error in root.iter("error")}

    assert set(errors) == {"cassette_miss", "usage"}
    assert "- Say bye" in errors["cassette_miss"]
    assert "broken.yaml:" in errors["usage"]


def test_a_report_that_cannot_be_written_is_found_out_before(tested: Project) -> None:
    done = tested.aish("test", "--junit", "no/such/report.xml")

    assert (done.code, done.stdout) == (2, "")
    assert "--junit no/such/report.xml: its folder does not exist" in done.stderr


def test_cassettes_that_no_case_uses_are_a_failure_of_the_whole_set(
    tested: Project, snapshot: SnapshotAssertion
) -> None:
    cassettes = tested.folder / "cassettes"
    (cassettes / "old.yaml").write_bytes((cassettes / "bye.yaml").read_bytes())

    whole = tested.aish("test")
    folder = tested.aish("test", "pipelines")
    allowed = tested.aish("test", "--allow-orphans")
    part = tested.aish("test", "-k", "notes")
    one = tested.aish("test", "pipelines/notes.yaml")

    assert [done.code for done in (whole, folder, allowed, part, one)] == [1, 1, 0, 0, 0]
    assert told(tested, whole) == snapshot(name="whole")
    assert told(tested, allowed) == snapshot(name="allowed")
    assert "warning: cassettes that no test uses:\n  cassettes/old.yaml\n" in part.stdout
    assert "old.yaml" not in one.stdout


def test_two_files_of_one_name_are_two(tested: Project, model_endpoint: ModelEndpoints) -> None:
    tested.pipeline(BYE, "pipelines/deep/bye.yaml")
    record(tested, model_endpoint)

    done = tested.aish("test", "-k", "bye", "--junit", "report.xml")

    assert done.code == 0
    names = ["pipelines/bye.yaml::says bye PASSED", "pipelines/deep/bye.yaml::says bye PASSED"]
    assert lines(done) == names


def test_missing_cassettes_are_recorded_first_if_asked(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.pipeline(NOTES, "pipelines/notes.yaml")
    project.pipeline(BYE, "pipelines/bye.yaml")
    plain = project.aish("test")
    endpoint = model_endpoint(echo)
    env = {"MODEL_URL": endpoint.base_url}
    first = project.aish("test", "--record", "-n", "2", env=env)
    asked = len(endpoint.requests)
    second = project.aish("test", "--record", env=env)

    assert plain.code == 2
    assert "no such cassette: `cassettes/bye.yaml`" in plain.stdout
    assert "hint: `aish test pipelines/bye.yaml --record` records it, live" in plain.stdout
    assert (first.code, second.code) == (0, 0)
    told = ["recording cassettes/bye.yaml", "recording cassettes/notes.yaml"]
    assert first.stdout.splitlines()[:2] == told
    # The two cases of one file share a cassette, which is recorded once.
    assert (asked, len(endpoint.requests)) == (2, 2)
    assert "recording" not in second.stdout


def test_a_recording_that_fails_leaves_no_cassette(project: Project) -> None:
    text = BYE.replace("name: bye", "name: bye\nlimits: {time: 20s}")
    project.pipeline(text, "pipelines/bye.yaml")
    env = {"MODEL_URL": "http://127.0.0.1:9/v1"}

    done = project.aish("test", "--record", env=env)

    assert done.code == 5, done.stdout
    assert "`cassettes/bye.yaml` could not be recorded: " in done.stdout
    assert not (project.folder / "cassettes" / "bye.yaml").exists()


@pytest.mark.parametrize(
    ("flag", "recorded"),
    sampled(
        [
            ("--record", ["cassettes/bye.yaml"]),
            ("--record=changed", ["cassettes/bye.yaml"]),
            ("--record=missing", []),
            ("--record-missing", []),
            ("--record=all", ["cassettes/bye.yaml", "cassettes/notes.yaml"]),
        ],
        often={1, 4},
        reason="cases of the same kind",
    ),
)
def test_cassettes_that_do_not_match_are_recorded_again(
    project: Project, model_endpoint: ModelEndpoints, flag: str, recorded: list[str]
) -> None:
    project.pipeline(NOTES, "pipelines/notes.yaml")
    project.pipeline(BYE, "pipelines/bye.yaml")
    endpoint = model_endpoint(echo)
    env = {"MODEL_URL": endpoint.base_url}
    first = project.aish("test", "--record", env=env)
    asked = len(endpoint.requests)
    project.pipeline(BYE.replace("Say bye", "Say bye now"), "pipelines/bye.yaml")

    done = project.aish("test", flag, "-n", "2", env=env)

    assert first.code == 0, first.stdout
    assert done.code == (0 if recorded else 6), done.stdout
    told = [line for line in done.stdout.splitlines() if line.startswith("recording ")]
    assert told == [f"recording {name}" for name in recorded]
    assert len(endpoint.requests) - asked == len(recorded)


def test_a_cassette_that_cannot_be_read_is_recorded_again(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.pipeline(BYE, "pipelines/bye.yaml")
    project.write("cassettes/bye.yaml", "metadata:\n  complete: false\ninteractions: []\n")
    endpoint = model_endpoint(echo)

    done = project.aish("test", "--record", env={"MODEL_URL": endpoint.base_url})

    assert done.code == 0, done.stdout
    assert "recording cassettes/bye.yaml" in done.stdout


def test_a_recording_that_fails_keeps_the_older_cassette(tested: Project) -> None:
    text = BYE.replace("Say bye", "Say bye now").replace(
        "name: bye", "name: bye\nlimits: {time: 20s}"
    )
    tested.pipeline(text, "pipelines/bye.yaml")
    place = tested.folder / "cassettes" / "bye.yaml"
    before = place.read_bytes()

    done = tested.aish("test", "-k", "bye", "--record", env={"MODEL_URL": "http://127.0.0.1:9/v1"})

    assert done.code == 5, done.stdout
    assert "`cassettes/bye.yaml` could not be recorded: " in done.stdout
    assert place.read_bytes() == before
    assert not list(place.parent.glob("*.partial"))


def test_snapshots_are_written_anew_on_demand_and_only_then(tested: Project) -> None:
    text = BYE.replace("expect: [{contains: bye}]", "expect: [{snapshot: snapshots/bye.md}]")
    tested.pipeline(text, "pipelines/bye.yaml")
    kept = tested.folder / "pipelines" / "snapshots" / "bye.md"

    missing = tested.aish("test", "-k", "bye")
    written = tested.aish("test", "-k", "bye", "--update-snapshots")
    again = tested.aish("test", "-k", "bye", "--update-snapshots")
    holds = tested.aish("test", "-k", "bye")
    kept.write_text("Something else\n", encoding="utf-8")
    differs = tested.aish("test", "-k", "bye")

    codes = [done.code for done in (missing, written, again, holds, differs)]
    assert codes == [1, 0, 0, 0, 1]
    assert "\nsnapshots written:\n  pipelines/snapshots/bye.md\n" in written.stdout
    assert "snapshots written" not in again.stdout + holds.stdout
    assert "got `You said: Say bye`" in differs.stdout or "+You said: Say bye" in differs.stdout
    assert kept.read_text(encoding="utf-8") == "Something else\n"


def test_snapshots_of_steps_are_written_anew_too(tested: Project) -> None:
    step = 'prompt: "Say bye"\nexpect: [{snapshot: snapshots/step.md}]'
    tested.pipeline(BYE.replace('prompt: "Say bye"', step), "pipelines/bye.yaml")

    missing = tested.aish("test", "-k", "bye")
    written = tested.aish("test", "-k", "bye", "--update-snapshots")
    holds = tested.aish("test", "-k", "bye")

    assert [done.code for done in (missing, written, holds)] == [1, 0, 0]
    assert "the run ended with 1 (failed): step `main`: " in missing.stdout
    kept = tested.folder / "pipelines" / "snapshots" / "step.md"
    assert kept.read_text(encoding="utf-8") == "You said: Say bye\n"


def test_nothing_to_test_does_not_look_like_success(project: Project) -> None:
    empty = project.aish("test")
    project.pipeline(UNTESTED)
    untested = project.aish("test")
    gone = project.aish("test", "gone.yaml")

    assert [done.code for done in (empty, untested, gone)] == [2, 2, 2]
    assert "no pipeline files in `.`" in empty.stderr
    assert "no tests in 1 pipeline file" in untested.stderr
    assert "gone.yaml: there is no such file or folder" in gone.stderr
    assert all("hint: " in done.stderr for done in (empty, untested))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", ["0", "-1", "two", "²", "9" * 5_000])
def test_a_strange_number_of_processes_is_a_mistake(project: Project, number: str) -> None:
    done = project.aish("test", "-n", number)

    assert done.code == 2
    assert f"-n: `{number}` is not a number of processes" in done.stderr


def test_colours_are_for_terminals_and_who_asks(tested: Project) -> None:
    plain = tested.aish("test", "-k", "bye")
    forced = tested.aish("test", "-k", "bye", env={"FORCE_COLOR": "1"})
    neither = tested.aish("test", "-k", "bye", env={"FORCE_COLOR": "1", "NO_COLOR": "1"})

    assert "\x1b[" not in plain.stdout + neither.stdout
    assert "\x1b[32mPASSED\x1b[0m" in forced.stdout


def test_a_reader_who_leaves_changes_nothing_about_the_end(tested: Project) -> None:
    tested.pipeline(NOTES.replace("contains: hello", "contains: x"), "pipelines/notes.yaml")
    tested.through_shell('"$@" | true; exit "${PIPESTATUS[0]}"')
    shell, *rest = tested.aish.python
    assert shell == "sh"
    tested.aish.python = ("bash", *rest)

    done = tested.aish("test", "--junit", "report.xml")

    assert (done.code, done.stderr) == (1, "")
    assert (tested.folder / "report.xml").exists()


def test_a_case_without_the_stdin_that_its_file_needs_is_an_error(tested: Project) -> None:
    reading = NOTES.replace("{{ inputs.word }}", "{{ inputs.word }}{{ stdin }}")
    tested.pipeline(reading, "pipelines/notes.yaml")

    done = tested.aish("test", "pipelines/notes.yaml")

    assert done.code == 2
    assert "the file reads `{{ stdin }}`, and nothing is piped in" in told(tested, done)
    assert "give the case a `stdin:`" in told(tested, done)
