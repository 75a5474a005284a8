from dataclasses import replace
from pathlib import Path

import pytest

from aish.config.loader import load_pipeline
from aish.config.model import Case, CassetteSettings, Expectation, ToolMatch
from aish.core.errors import PipelineError

GOOD = Path(__file__).parent / "good"


def test_a_whole_file_has_its_tests_and_expectations() -> None:
    pipeline = load_pipeline(GOOD / "release.yaml")

    assert pipeline.cassette == CassetteSettings(
        GOOD / "cassettes/release.yaml",
        ("$.seed",),
        strict=False,
        allow=("sk-example-*",),
        name="cassettes/release.yaml",
    )
    first, second = pipeline.tests
    schema = {"type": "object", "required": ["sections"]}
    assert first.expect == (
        Expectation("tool_called", where="tests[0].expect[0]", tools=(ToolMatch("repo__git_log"),)),
        Expectation("matches", "^# ", "tests[0].expect[1]", path="outputs.notes.markdown"),
        replace(first.expect[2], kind="schema", where="tests[0].expect[2]", path="outputs.notes"),
        Expectation(
            "tool_sequence",
            where="tests[0].expect[3]",
            tools=(ToolMatch("repo__git_log"), ToolMatch("repo__file_write")),
            exact=True,
        ),
        Expectation("max_tool_calls", 4, "tests[0].expect[4]"),
        Expectation(
            "snapshot",
            "snapshots/notes.md",
            where="tests[0].expect[5]",
            file=GOOD / "snapshots/notes.md",
        ),
    )
    assert isinstance(first.expect[2].value, dict)
    assert set(first.expect[2].value) >= set(schema) - {"required"}
    assert second == Case(
        name="says nothing of what it does not know",
        stdin="some text",
        cassette=CassetteSettings(GOOD / "cassettes/unknown.yaml", name="cassettes/unknown.yaml"),
        expect=(Expectation("equals", None, "tests[1].expect[0]", path="outputs.notes"),),
        where="tests[1]",
    )
    assert pipeline.steps[1].expect == (
        Expectation("contains", "fix", "steps[1].expect[0]"),
        Expectation(
            "tool_called",
            where="steps[1].expect[1]",
            tools=(ToolMatch("shell__run", {"command": "git *"}),),
        ),
    )


def test_one_step_at_the_top_has_its_expectations_there(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("aish: 1\nrun: ls\nexpect: [{max_seconds: 1.5}]\n")

    assert load_pipeline(file).steps[0].expect == (Expectation("max_seconds", 1.5, "expect[0]"),)


def test_paths_are_relative_to_the_file_they_stand_in(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "s.json").write_text('{"type": "object"}')
    (base / "b.yaml").write_text(
        "cassette: c.yaml\n"
        "tests:\n"
        "  - name: a\n"
        "    cassette: {path: t/c.yaml}\n"
        "    expect: [{schema: s.json}, {snapshot: {path: text, file: s.md}}]\n"
    )
    (tmp_path / "p.yaml").write_text("extends: base/b.yaml\naish: 1\nrun: ls\n")

    pipeline = load_pipeline(tmp_path / "p.yaml")

    assert pipeline.cassette == CassetteSettings(base / "c.yaml", name="c.yaml")
    (case,) = pipeline.tests
    assert case.cassette == CassetteSettings(base / "t/c.yaml", name="t/c.yaml")
    assert case.expect[0].value == {"type": "object"}
    assert case.expect[1].file == base / "s.md"


def test_a_value_of_a_test_is_replaced_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p.yaml").write_text(
        "aish: 1\nrun: ls\ncassette: {path: c.yaml}\n"
        "tests: [{name: a, expect: [{contains: x}]}, {name: b}]\n"
    )
    monkeypatch.chdir(tmp_path)

    pipeline = load_pipeline(
        tmp_path / "p.yaml",
        overrides=(
            "cassette.strict=true",
            "cassette.path=d.yaml",
            "tests.b.stdin=text",
            "tests[0].expect[0].contains=y",
        ),
    )

    assert pipeline.cassette == CassetteSettings(tmp_path / "d.yaml", strict=True, name="d.yaml")
    assert pipeline.tests[1].stdin == "text"
    assert pipeline.tests[0].expect[0].value == "y"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{}", ["expect[0]: an expectation is a mapping with one kind, and this has none"]),
        (
            "{contains: a, equals: b}",
            [
                (
                    "expect[0].equals: an expectation is a mapping with one kind, "
                    "and this has `contains` and `equals`"
                )
            ],
        ),
        (
            "{judge: nice}",
            ["expect[0].judge: a mapping is expected here, and this is text"],
        ),
        (
            "{judge: {model: a}}",
            ["expect[0].judge: the key `rubric` is missing"],
        ),
        ("{contain: a}", ["expect[0].contain: unknown key `contain`"]),
        ("contains", ["expect[0]: a mapping is expected here, and this is text"]),
        ("{contains: ''}", ["expect[0].contains: the text must not be empty"]),
        (
            "{equals: 3}",
            ["expect[0].equals: text or a mapping is expected here, and this is the number 3"],
        ),
        ("{contains: {path: a}}", ["expect[0].contains: the key `value` is missing"]),
        ("{max_tokens: 1.5}", ["expect[0].max_tokens: a whole number or text is expected here"]),
        (
            "{max_seconds: 5s}",
            ["expect[0].max_seconds: expected a number or a template of one, found `5s`"],
        ),
        ("{tool_sequence: []}", ["expect[0].tool_sequence: the list must not be empty"]),
        ("{schema: nowhere.json}", ["expect[0].schema: the file `nowhere.json` is not there"]),
        (
            "{tool_called: {with: {}}}",
            ["expect[0].tool_called: the key `tool` is missing"],
        ),
    ],
)
def test_an_expectation_that_is_none_is_told(text: str, found: list[str], tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(f"aish: 1\nrun: ls\nexpect: [{text}]\n")

    with pytest.raises(PipelineError) as failed:
        load_pipeline(file)

    said = [f"{problem.path}: {problem.message}" for problem in failed.value.problems]
    assert len(said) == len(found)
    for problem, beginning in zip(said, found, strict=True):
        assert problem.startswith(beginning)
    if "unknown key" in found[0]:
        later = text.partition(":")[0].strip("{")
        hint = failed.value.problems[0].hint
        assert hint == (
            "did you mean `contains`"
            if later == "contain"
            else f"`{later}` is not supported by this version"
        )


def test_a_schema_may_have_a_property_called_path(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("aish: 1\nrun: ls\nexpect: [{schema: {properties: {path: {type: string}}}}]\n")

    (found,) = load_pipeline(file).steps[0].expect

    assert found.path is None
    assert found.value == {"properties": {"path": {"type": "string"}}}
