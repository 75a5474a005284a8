"""Tests with `foreach`: each row of a file is a case."""

from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, without_source
from model_endpoint import Reply, text_reply

PIPELINE = """
name: replies
inputs:
  question: {type: string}
  most: {type: integer, default: 9}
prompt: "{{ inputs.most }} words: {{ inputs.question }}"
expect: [{contains: "{{ inputs.question }}"}]
tests:
  - name: answers
    foreach: {file: cases.csv}
    key: item.id
    cassette: cassettes/{{ key }}.yaml
    expect:
      - contains: "{{ item.word }}"
      - max_tool_calls: "{{ index }}"
      - expression: item.question == inputs.question
"""
CASES = "id,question,word,most\nrefund,money back?,back,\nhours,open when?,4 words,4\n"


def echo(request: Any) -> Reply:
    return text_reply(f"You said: {request['messages'][-1]['content']}")


@pytest.fixture
def tested(project: Project, model_endpoint: ModelEndpoints) -> Project:
    """The cases, recorded; the endpoint is gone."""
    project.pipeline(PIPELINE, "pipelines/replies.yaml")
    project.write("pipelines/cases.csv", CASES)
    endpoint = model_endpoint(echo)
    done = project.aish("test", "--record-missing", env={"MODEL_URL": endpoint.base_url})
    endpoint.close()
    assert done.code == 0, done.stdout + done.stderr
    return project


def names(text: str) -> list[str]:
    rows = [line for line in text.splitlines() if line.startswith("pipelines/")]
    return [row.partition("::")[2].rsplit(" ", 2)[0] for row in rows if row.endswith(" s")]


def test_each_row_is_a_case_on_a_cassette_of_its_own(tested: Project) -> None:
    done = tested.aish("test")

    assert (done.code, done.stderr) == (0, "")
    assert names(done.stdout) == ["answers[refund] PASSED", "answers[hours] PASSED"]
    folder = tested.folder / "pipelines" / "cassettes"
    assert sorted(path.name for path in folder.iterdir()) == ["hours.yaml", "refund.yaml"]
    # The column `most` is a number to the input of that name, and an empty cell is left out.
    assert "4 words: open when?" in (folder / "hours.yaml").read_text("utf-8")
    assert "9 words: money back?" in (folder / "refund.yaml").read_text("utf-8")


def test_what_a_case_expects_is_that_of_its_row(tested: Project) -> None:
    changed = CASES.replace("4 words,4", "5 words,4")
    tested.write("pipelines/cases.csv", changed)

    done = tested.aish("test")

    assert done.code == 1
    assert names(done.stdout) == ["answers[refund] PASSED", "answers[hours] FAILED"]
    assert "expected the text to contain `5 words`; got `You said: 4 words: open" in done.stdout


def test_rows_are_selected_by_their_names_and_leave_no_orphans(tested: Project) -> None:
    done = tested.aish("test", "-k", "refund")

    assert (done.code, names(done.stdout)) == (0, ["answers[refund] PASSED"])

    tested.write("pipelines/cases.csv", CASES.rpartition("hours")[0])
    done = tested.aish("test")

    assert done.code == 1
    assert "cassettes that no test uses:\n  pipelines/cassettes/hours.yaml" in done.stdout


@pytest.mark.parametrize(
    ("name", "source", "cases"),
    [
        ("cases.csv", '{file: cases.csv, delimiter: ";"}', CASES.replace(",", ";")),
        ("cases.tsv", "{file: cases.tsv}", CASES.replace(",", "\t")),
        (
            "cases.jsonl",
            "{file: cases.jsonl}",
            (
                '{"id": "refund", "question": "money back?", "word": "back"}\n'
                '{"id": "hours", "question": "open when?", "word": "4 words", "most": 4}\n'
            ),
        ),
    ],
)
def test_rows_may_stand_in_files_of_other_formats(
    tested: Project, name: str, source: str, cases: str
) -> None:
    text = PIPELINE.replace("{file: cases.csv}", source)
    tested.pipeline(text, "pipelines/replies.yaml")
    tested.write(f"pipelines/{name}", cases)

    done = tested.aish("test")

    assert done.code == 0, done.stdout
    assert names(done.stdout) == ["answers[refund] PASSED", "answers[hours] PASSED"]


def test_the_check_of_cassettes_knows_those_of_rows(tested: Project) -> None:
    done = tested.aish("cassette", "check", "pipelines/replies.yaml")

    assert done.code == 0, done.stdout + done.stderr
    assert "refund.yaml" in done.stdout
    assert "hours.yaml" in done.stdout


def test_a_run_does_not_read_the_rows_of_tests(project: Project) -> None:
    project.pipeline(
        "name: p\nrun: [echo, hello]\nmcp: {auto_approve: [shell__run]}\n"
        "tests: [{name: t, foreach: {file: gone.csv}, cassette: '{{ key }}.yaml'}]\n"
    )

    assert project.run("-q").stdout == "hello\n"
    done = project.aish("validate", "p.yaml")
    assert done.code == 2
    assert "tests[0].foreach.file: gone.csv: the items cannot be read: No such file" in done.stderr


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("change", "cases", "said"),
    [
        (("item.word", "item.wrod"), CASES, "`item.wrod` is not defined\n  hint: did you mean"),
        (("key: item.id", "key: itm.id"), CASES, "tests[0].key: `itm` is not defined"),
        (("", ""), CASES.replace("hours", "refund"), "rows 1 and 2 have the same key `refund`"),
        (("", ""), CASES.replace(",4\n", ",many\n"), "row 2: the input `most` does not fit"),
        (("", ""), CASES.replace("question", "questoin"), "the input is missing: `question`"),
        (("", ""), "id,question,word,most\n", "there are no rows, so the test has no cases"),
        (
            ("{{ key }}", "{{ item.word }}"),
            "id,question,word\na,b,../../../c\n",
            "leads out of the",
        ),
        (("{{ key }}", "all"), CASES, "2 cases make different requests, and one cassette holds"),
        (("foreach: {file: cases.csv}", "inputs: {question: x}"), CASES, "is for tests with"),
    ],
)
def test_rows_that_make_no_cases_are_found(
    project: Project, change: tuple[str, str], cases: str, said: str
) -> None:
    project.pipeline(PIPELINE.replace(*change) if change[0] else PIPELINE)
    project.write("cases.csv", cases)

    done = project.aish("validate", "--strict", "p.yaml")

    assert done.code == 2
    assert said in without_source(done.stderr)


def test_braces_of_a_row_without_rows_are_an_error(project: Project) -> None:
    project.pipeline(
        'name: p\ninputs: {a: {type: string}}\nprompt: "{{ inputs.a }}"\n'
        "cassette: c-{{ key }}.yaml\n"
        'tests: [{name: t, inputs: {a: "{{ item.a }}"}, expect: [{contains: "{{ item.b }}"}]}]\n'
    )

    done = project.aish("validate", "p.yaml")

    assert done.code == 2
    assert "tests[0].inputs.a: `{{ item.a }}` is not rendered: the test has no `fo" in done.stderr
    assert "tests[0].expect[0].contains: `item` is not defined" in done.stderr
    assert "cassette: `c-{{ key }}.yaml` is not rendered here" in done.stderr
