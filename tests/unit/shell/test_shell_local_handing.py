"""What a model reads of a local command, and the template that makes the same of a `run` step."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aish.core.json import JsonValue
from aish.shell.local.shell import (
    cut_short,
    literal,
    not_run,
    run_report,
    run_report_template,
)
from aish.templates.render import references, render
from aish.templates.values import ProjectNames

TEXTS = st.text(
    st.sampled_from("{}%#\"'\\\n\r\t \x00\x1bé雪\u2028\U0001f600[]") | st.characters(codec="utf-8"),
    max_size=60,
)


def names(stdout: str = "", stderr: str = "", exit_code: int = 0) -> Mapping[str, JsonValue]:
    output: JsonValue = {"exit_code": exit_code, "stdout": stdout, "stderr": stderr}
    return ProjectNames({"steps": {"run-1": {"output": output}}}, Path("/"))


@pytest.mark.parametrize(
    ("stdout", "stderr", "code", "text"),
    [
        ("a\nb\n", "", 0, "[local command: x]\na\nb\n[exit code 0]"),
        ("a", "bad\n\n", 2, "[local command: x]\na\n[stderr]\nbad\n[exit code 2]"),
        ("", "bad", 127, "[local command: x]\n[stderr]\nbad\n[exit code 127]"),
        ("", "", 0, "[local command: x]\n[aish] (no output)\n[exit code 0]"),
        ("  a", "", -9, "[local command: x]\n  a\n[exit code -9]"),
    ],
)
def test_output_and_end_of_a_command_are_handed_over(
    stdout: str, stderr: str, code: int, text: str
) -> None:
    assert run_report("x", code, stdout, stderr) == text


def test_what_did_not_end_or_not_begin_says_so() -> None:
    assert cut_short("x", "so far\n", "") == "[local command: x]\nso far\n[aish] interrupted"
    assert not_run("x", "[aish] no") == "[local command: x]\n[aish] no"


@given(command=TEXTS, stdout=TEXTS, stderr=TEXTS, code=st.integers(-64, 255))
@example(command="echo {{ inputs.x }}", stdout="{{ 7 * 7 }}\n\n", stderr="{% raw %}", code=0)
@example(command="a {# b #} {% c\r\n", stdout="\n", stderr="\n\n", code=1)
@example(command="{", stdout="", stderr="", code=0)
@example(command="'}}' \"{{\" \\", stdout="x", stderr="", code=0)
@example(command="{{\x85\u2028\U0001f600", stdout="x", stderr="", code=0)
def test_a_template_says_what_was_handed_over(
    command: str, stdout: str, stderr: str, code: int
) -> None:
    source = run_report_template("run-1", command)

    assert render(source, names(stdout, stderr, code)) == run_report(command, code, stdout, stderr)
    assert any(found.startswith("steps.run-1") for found in references(source))


def test_templates_of_several_commands_stand_in_one_text() -> None:
    both = "\n\n".join(run_report_template(step, step) for step in ("run-1", "run-2"))
    outputs: dict[str, JsonValue] = {
        step: {"output": {"exit_code": 0, "stdout": f"{step} out", "stderr": ""}}
        for step in ("run-1", "run-2")
    }

    text = render(both, ProjectNames({"steps": outputs}, Path("/")))

    assert text == "\n\n".join(
        run_report(step, 0, f"{step} out", "") for step in ("run-1", "run-2")
    )


@given(TEXTS)
@example("{{ a }}")
@example("ends in {")
def test_a_literal_is_rendered_as_itself(text: str) -> None:
    assert render(literal(text), names()) == text


def test_half_a_surrogate_pair_can_be_sent() -> None:
    run_report("\ud800", 0, "", "").encode()
    not_run("\ud800", "\udfff").encode()
