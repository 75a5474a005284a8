"""What is said of a `foreach` that is not written as it should be, and what next."""

from pathlib import Path

import pytest

from aish.engine.plan.validation.validate import check_file

HEAD = "aish: 1\nname: p\nmodels: {local: {embedded: smollm2}}\n"
LISTED = "`.csv`, `.tsv`, `.jsonl`, `.ndjson`, `.json`"


def said(text: str, folder: Path) -> list[tuple[str, str, str | None]]:
    file = folder / "p.yaml"
    file.write_text(HEAD + text)
    return [(one.path, one.message, one.hint) for one in check_file(file)[1]]


@pytest.mark.parametrize(
    ("text", "path", "message", "hint"),
    [
        (
            "foreach: data/rows.csv\nprompt: a {{ item }}",
            "foreach",
            "`data/rows.csv` is a file, and an expression is expected here",
            "`foreach: {file: data/rows.csv}`",
        ),
        (
            "foreach: [a, b]\nprompt: a {{ item }}",
            "foreach",
            "text or a mapping is expected here, and this is a list",
            "a list is an expression, as text: `foreach: \"['a', 'b']\"`",
        ),
        (
            "foreach: {file: rows.xlsx}\nprompt: a {{ item }}",
            "foreach.file",
            f"items are read from {LISTED}, by the ending of the name",
            "save the sheet as CSV",
        ),
        (
            "foreach: {file: rows.csv}\nas: row\nprompt: a {{ item }}",
            "prompt",
            "`item` is not defined",
            "the item is called `row` here",
        ),
        (
            "foreach: {file: rows.csv}\nas: row\nkey: id\nprompt: a {{ row.text }}",
            "key",
            "`id` is not defined",
            "did you mean `row.id`",
        ),
        (
            "foreach: {file: rows.csv}\nas: row\nprompt: a {{ text }}",
            "prompt",
            "`text` is not defined",
            "did you mean `row.text`",
        ),
        (
            "prompt: a {{ item }}",
            "prompt",
            "`item` is not defined",
            "items are in steps with `foreach`",
        ),
        (
            "foreach: {file: rows.csv}\nmax_failures: 5 percent\nprompt: a {{ item }}",
            "max_failures",
            "`5 percent` is not a number, or a percentage such as `5%`",
            None,
        ),
        (
            "retry: 3\nprompt: a b",
            "retry",
            "a mapping is expected here, and this is the number 3",
            "`retry: {attempts: 3}`",
        ),
        (
            "steps: [{id: a, pipeline: gone.yaml}]",
            "steps[0].pipeline",
            "no such file: `gone.yaml`",
            None,
        ),
    ],
)
def test_it_is_said_how_it_is_written(
    text: str, path: str, message: str, hint: str | None, tmp_path: Path
) -> None:
    assert (path, message, hint) in said(text, tmp_path)


@pytest.mark.parametrize("name", ["rows.csv", "rows.JSONL", "{{ env.ROWS }}"])
def test_a_file_of_a_known_or_of_an_open_ending_is_fine(name: str, tmp_path: Path) -> None:
    text = f"env: [ROWS]\nforeach: {{file: '{name}'}}\nprompt: a {{{{ item }}}}"

    assert said(text, tmp_path) == []


def test_a_result_whose_field_is_named_like_an_ending_is_no_file(tmp_path: Path) -> None:
    text = (
        "steps: [{id: a, prompt: a b}, {id: b, foreach: steps.a.output.csv, prompt: '{{ item }}'}]"
    )

    assert said(text, tmp_path) == []
