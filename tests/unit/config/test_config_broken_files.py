from pathlib import Path

import pytest
from samples import each_case
from syrupy.assertion import SnapshotAssertion

from aish.config.loader import load_pipeline
from aish.core.errors import PipelineError, Problem
from aish.engine.plan.validation.validate import check_file

BROKEN = Path(__file__).parent / "broken"
NAMES = sorted(path.name for path in BROKEN.iterdir() if path.suffix == ".yaml")


def shown(problems: tuple[Problem, ...]) -> str:
    lines: list[str] = []
    for problem in problems:
        lines.append(f"{'warning' if problem.warning else 'error'}: {problem}")
        if problem.hint:
            lines.append(f"  hint: {problem.hint}")
    return "\n".join(lines)


@pytest.mark.parametrize("name", NAMES)
def test_a_broken_file_is_told_everything_at_once(
    name: str, snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(BROKEN)
    _, problems = check_file(Path(name))
    assert shown(problems) == snapshot


@each_case("name", NAMES)
def test_problems_come_in_the_order_of_the_file(name: str) -> None:
    _, problems = check_file(BROKEN / name)
    assert problems
    files = [problem.position.file for problem in problems]
    assert sorted(files, key=files.index) == files
    for file in set(files):
        places = [
            (problem.position.line, problem.position.column)
            for problem in problems
            if problem.position.file == file
        ]
        assert places == sorted(places)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (".", "is a folder, not a file"),
        ("nowhere.yaml", "no such file"),
        ("list.yaml/under.yaml", "cannot be read: Not a directory"),
        ("a\0b", "is not the name of a file"),
        ("x" * 5000, "cannot be read: File name too long"),
    ],
)
def test_what_is_no_file_is_said_in_a_sentence(
    name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(BROKEN)
    with pytest.raises(PipelineError) as failed:
        load_pipeline(Path(name))
    assert [problem.message for problem in failed.value.problems] == [message]


def test_a_file_over_five_megabytes_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "large.yaml"
    file.write_bytes(b"aish: 1\n" + b"# padding\n" * 600_000)
    with pytest.raises(PipelineError, match="is larger than 5 MB"):
        load_pipeline(file)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "{" * 100_000,
        "- " * 100_000,
        "? " * 50_000,
        "a: " + "[[" * 50_000 + "]]" * 50_000,
        "".join(f"{' ' * depth}a:\n" for depth in range(1000)),
        "aish: 1\nname: " + "9" * 100_000,
        pytest.param(
            "a: [" + "x," * 300_000 + "]",
            marks=pytest.mark.slow(reason="reads the 200,000 values that are the bound"),
        ),
        "&a [*a]",
        "a: &a {b: *a}",
        "".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 9 if n else 'x'}]\n" for n in range(30)),
        'a: "\\U00110000"',
        "%YAML 9.9.9\n---\na",
        "%TAG ! x:\n---\na: !y z",
    ],
    ids=range(14),
)
def test_a_hostile_text_is_refused_soon(text: str, tmp_path: Path) -> None:
    file = tmp_path / "hostile.yaml"
    file.write_text(text)
    with pytest.raises(PipelineError) as failed:
        load_pipeline(file)
    assert len(failed.value.problems) < 10


def test_a_misspelt_key_does_not_hide_what_else_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        "aish: 1\nmodels: {a: {embedded: smollm2, visoin: true}}\nprompt: '{{ inputs.x }}'\n"
    )
    _, problems = check_file(file)
    assert [problem.message for problem in problems] == [
        "unknown key `visoin`",
        "`inputs.x` is not defined",
    ]


def test_what_follows_from_a_broken_key_is_not_said(tmp_path: Path) -> None:
    """Each line names something that may be in what cannot be read."""
    file = tmp_path / "p.yaml"
    file.write_text(
        "aish: 1\n"
        "models: {m: 5}\n"
        "inputs: [a]\n"
        "env: [A, {{ b }}]\n"
        "mcp: {servers: {s: {{ url }}}, auto_approve: [s__read]}\n"
        "steps:\n"
        "  - {id: a, prompt: 'x {{ inputs.a }} {{ env.B }}', model: m, needs: [c]}\n"
        "  - {id: b, foreach: 5, prompt: '{{ row }} {{ steps.c.text }}', as: row}\n"
        "  - [c]\n"
        "tests: [{name: t, inputs: {a: 1}, cassette: c.yaml}]\n"
    )
    _, problems = check_file(file)
    assert [(problem.position.line, problem.path) for problem in problems] == [
        (2, "models.m"),
        (3, "inputs"),
        (4, ""),
        (5, ""),
        (8, "steps[1].foreach"),
        (9, "steps[2]"),
    ]


def test_a_base_that_cannot_be_read_may_have_what_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        "aish: 1\nextends: gone.yaml\nmodel: m\nlimits: {time: soon}\n"
        "prompt: '{{ inputs.a }} {{ steps.b }} {% if %}'\n"
    )
    _, problems = check_file(file)
    assert [problem.path for problem in problems] == ["extends", "limits.time", "prompt"]
