from pathlib import Path

import pytest

from aish.config.loader import load_pipeline
from aish.engine.plan.order import in_order, uses_stdin
from aish.engine.plan.validation.validate import check_file, cross_check

HEAD = """\
aish: 1
models: {local: {embedded: smollm2}}
mcp: {servers: {repo: {pack: fs, root: .}}}
inputs: {since: {type: string}, n: {type: integer, default: 1}}
steps:
  - id: ask
    prompt: Say {{ inputs.since }} {{ inputs.n }}
    expect: [EXPECT]
outputs: {note: "{{ steps.ask.text }}"}
cassette: a.yaml
tests:
  - name: one
    inputs: {since: v1}
    expect: [TESTED]
"""


def problems(text: str, folder: Path) -> list[str]:
    file = folder / "p.yaml"
    file.write_text(text)
    return [
        f"{problem.path}: {problem.message}" + (f" ({problem.hint})" if problem.hint else "")
        for problem in cross_check(load_pipeline(file))
    ]


def in_step(text: str) -> str:
    return HEAD.replace("EXPECT", text).replace("TESTED", "")


def in_test(text: str) -> str:
    return HEAD.replace("TESTED", text).replace("EXPECT", "")


RIGHT = [
    "contains: a",
    "contains: {path: text, value: a}",
    "contains: {path: output.any.thing, value: a}",
    "contains: {path: 'steps.ask.tool_calls[0].tool', value: a}",
    "matches: '^a|b$'",
    "schema: {type: object}",
    "expression: text | length > 1 and usage.output < 5 and seconds < 9 and not tool_calls",
    "expression: steps.ask.output.title == inputs.since",
    "tool_called: 'r*__*'",
    "tool_not_called: {tool: shell__run, with: {argv: [ls]}}",
    "tool_sequence: [repo__a, {tool: repo__b}]",
    "max_tokens: 0",
    "snapshot: {path: text, file: a.md}",
]


@pytest.mark.parametrize("text", RIGHT)
def test_what_can_hold_is_no_problem(text: str, tmp_path: Path) -> None:
    assert problems(in_step("{" + text + "}"), tmp_path) == []
    assert problems(in_test("{" + text + "}"), tmp_path) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "contains: {path: steps.aks.text, value: a}",
            "contains.path: `steps.aks` is not defined (did you mean `steps.ask`)",
        ),
        (
            "contains: {path: steps.ask.txt, value: a}",
            "contains.path: `steps.ask.txt` is not defined (did you mean `steps.ask.text`)",
        ),
        (
            "equals: {path: outptu.a, value: a}",
            "equals.path: `outptu` is not defined (did you mean `output`)",
        ),
        (
            "equals: {path: inputs.sinc, value: a}",
            "equals.path: `inputs.sinc` is not defined (did you mean `inputs.since`)",
        ),
        (
            "snapshot: {path: 'a..b', file: a}",
            (
                "snapshot.path: `a..b` is not a path at `..b` "
                "(a path looks like `outputs.notes[0].title`)"
            ),
        ),
        (
            "matches: (a",
            (
                "matches: `(a` is not a valid regular expression at character 1: "
                "missing ), unterminated subpattern"
            ),
        ),
        (
            "matches: {path: text, regex: '*'}",
            (
                "matches.regex: `*` is not a valid regular expression at character 1: "
                "nothing to repeat"
            ),
        ),
        (
            "schema: {type: strin}",
            (
                "schema.type: the expected schema is not a JSON Schema: "
                "unknown type `strin` (did you mean `string`)"
            ),
        ),
        (
            "schema: {path: text, schema: {minimum: a}}",
            (
                "schema.schema.minimum: the expected schema is not a JSON Schema: "
                "'a' is not of type 'number'"
            ),
        ),
        (
            "expression: txet == 'a'",
            "expression: `txet` is not defined (did you mean `text`)",
        ),
        (
            "expression: text ==",
            "expression: not an expression: unexpected end",
        ),
        (
            "expression: '{{ text }}'",
            (
                "expression: not an expression: expected token ':', got '}' "
                "(an expression is written without braces)"
            ),
        ),
        (
            "expression: text | lenght > 2",
            "expression: not an expression: there is no filter `lenght` (did you mean `length`)",
        ),
        (
            "tool_called: rpeo__file_read",
            (
                "tool_called: `rpeo__file_read` can match no server of this file "
                "(did you mean `repo`)"
            ),
        ),
        (
            "tool_not_called: {tool: web__x}",
            ("tool_not_called.tool: `web__x` can match no server of this file (servers: `repo`)"),
        ),
        (
            "tool_called: file_read",
            (
                "tool_called: `file_read` has no `__` between server and tool (write "
                "`file_read__*` for every tool of a server, `*__file_read` for one on any server)"
            ),
        ),
        (
            "tool_sequence: {tools: [repo__a, {tool: web__b}]}",
            (
                "tool_sequence.tools[1].tool: `web__b` can match no server of this file "
                "(servers: `repo`)"
            ),
        ),
    ],
)
def test_what_can_never_hold_is_found_before_anything_runs(
    text: str, found: str, tmp_path: Path
) -> None:
    assert problems(in_step("{" + text + "}"), tmp_path) == [f"steps[0].expect[0].{found}"]
    assert problems(in_test("{" + text + "}"), tmp_path) == [f"tests[0].expect[0].{found}"]


def test_the_items_of_a_step_have_no_snapshot_in_common(tmp_path: Path) -> None:
    text = in_step("{snapshot: kept.md}").replace(
        "    expect:", "    foreach: '[1, 2]'\n    expect:", 1
    )

    assert problems(text, tmp_path)[0] == (
        "steps[0].expect[0].snapshot: a snapshot holds one result, and this step has one for each "
        "item (put the snapshot into a test, for the `outputs` of all items)"
    )


def test_outputs_are_known_to_tests_alone(tmp_path: Path) -> None:
    reads = "{expression: outputs.note}, {expression: outputs.nte}"

    assert problems(in_test(reads), tmp_path) == [
        "tests[0].expect[1].expression: `outputs.nte` is not defined (did you mean `outputs.note`)"
    ]
    assert problems(in_step("{expression: outputs.note}"), tmp_path) == [
        "steps[0].expect[0].expression: `outputs` is not defined (did you mean `output`)"
    ]
    without = in_test(reads).replace("outputs: {note:", "description: '").replace('text }}"}', "'")
    assert problems(without, tmp_path)[0] == (
        "tests[0].expect[0].expression: "
        "`outputs` is not defined: the file has none (`steps.ID.output`)"
    )


def test_tests_that_cannot_run_are_found_before(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        "aish: 1\n"
        "inputs: {since: {type: string}, n: {type: integer, default: 1}}\n"
        "run: [echo, '{{ inputs.since }}', '{{ inputs.n }}']\n"
        "tests:\n"
        "  - name: one\n"
        "    inputs: {sinc: a, n: x}\n"
        "    cassette: {path: a.yaml, ignore: [$.seed, a.b]}\n"
        "  - name: one\n"
        "    inputs: {since: a}\n"
    )

    _, found = check_file(file)

    assert [
        (problem.position.line, problem.path, problem.message, problem.hint, problem.warning)
        for problem in found
    ] == [
        (6, "tests[0].inputs", "the input is missing: `since`", None, False),
        (6, "tests[0].inputs.sinc", "unknown input `sinc`", "did you mean `since`", False),
        (
            6,
            "tests[0].inputs.n",
            "the input does not fit its schema: 'x' is not of type 'integer'",
            None,
            False,
        ),
        (
            7,
            "tests[0].cassette.ignore[1]",
            "`a.b` is not a path that can be ignored",
            "paths look like `$.metadata.date` or `$.messages[*].name`",
            False,
        ),
        (
            8,
            "tests[1]",
            "the test `one` has no cassette",
            "name one under `cassette:`, here or at the top; `aish test --record` records it",
            True,
        ),
        (8, "tests[1].name", "the name `one` is also used by test 1", None, False),
    ]


def test_a_step_that_an_expectation_reads_comes_first(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        "aish: 1\nsteps:\n"
        "  - {id: a, run: ls, expect: [{expression: steps.b.text == text}]}\n"
        "  - {id: b, run: ls, expect: [{equals: {path: steps.c.text, value: ''}}]}\n"
        "  - {id: c, run: ls, expect: [{expression: steps.c.status == 'ok'}]}\n"
    )

    assert [step.id for step in in_order(load_pipeline(file))] == ["c", "b", "a"]


def test_steps_whose_expectations_need_each_other_go_in_a_circle(tmp_path: Path) -> None:
    text = (
        "aish: 1\nsteps:\n"
        "  - {id: a, run: ls, expect: [{expression: steps.b.text}]}\n"
        "  - {id: b, run: ls, needs: [a]}\n"
    )

    assert problems(text, tmp_path) == [
        "steps[0]: circular dependency between steps: `a` → `b` → `a`"
    ]


def test_an_input_or_stdin_that_only_an_expectation_reads_is_used(tmp_path: Path) -> None:
    text = (
        "aish: 1\ninputs: {a: {default: 1}}\nrun: ls\n"
        "expect: [{expression: inputs.a == 1 or stdin == ''}]\n"
    )

    assert problems(text, tmp_path) == []
    assert uses_stdin(load_pipeline(tmp_path / "p.yaml"))


@pytest.mark.parametrize("stdin", [None, "''", "' '"])
def test_a_case_without_the_stdin_that_the_file_needs_is_odd(
    tmp_path: Path, stdin: str | None
) -> None:
    case = "{name: a, cassette: c.yaml}" if stdin is None else f"{{name: a, stdin: {stdin}}}"
    text = f"aish: 1\ncassette: c.yaml\nrun: [echo, '{{{{ stdin }}}}']\ntests: [{case}]\n"

    (found,) = problems(text, tmp_path)
    assert found.startswith("tests[0]: the test `a` has no `stdin`, and the file needs it")
    assert problems(f"{text}stdin: optional\n", tmp_path) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "contains: '{{ inputs.sinc }}'",
            "contains: `inputs.sinc` is not defined (did you mean `inputs.since`)",
        ),
        (
            "equals: {path: text, value: [a, '{{ itm }}']}",
            "equals: `itm` is not defined",
        ),
        (
            "tool_called: {tool: repo__a, with: {path: '{{ inputs.since'}}",
            (
                "tool_called.with.path: not a template in line 1: unexpected end of template, "
                "expected 'end of print statement'"
            ),
        ),
        (
            "matches: '{% if %}'",
            (
                "matches: not a template in line 1: Expected an expression, got "
                "'end of statement block'"
            ),
        ),
        (
            "judge: {model: '{{ inputs.since }}', rubric: good}",
            "judge.model: unknown model `{{ inputs.since }}` (models: `local`)",
        ),
        (
            "schema: kept.json",
            (
                "schema: `{{ item.title }}` is not rendered: the schema is in a file of its own "
                "(write the schema into the expectation; a pattern has `\\{` for a brace)"
            ),
        ),
        (
            "max_tokens: many",
            "max_tokens: expected a number or a template of one, found `many`",
        ),
    ],
)
def test_braces_that_are_never_rendered_are_found(text: str, found: str, tmp_path: Path) -> None:
    schema = '{"title": "{{ x }}", "properties": {"a": {"const": "{{ item.title }}"}}}'
    (tmp_path / "kept.json").write_text(schema)
    file = tmp_path / "p.yaml"
    file.write_text(in_test("{" + text + "}"))

    _, problems = check_file(file)

    said = [
        f"{one.path}: {one.message}" + (f" ({one.hint})" if one.hint else "") for one in problems
    ]
    assert [one for one in said if one.startswith("tests[0]")] == [f"tests[0].expect[0].{found}"]


def test_the_expectations_of_items_see_the_item(tmp_path: Path) -> None:
    text = in_step("{contains: '{{ row.word }}'}, {expression: 'row.n > index'}").replace(
        "    expect:", "    foreach: '[1, 2]'\n    as: row\n    expect:", 1
    )
    text = text.replace("{{ steps.ask.text }}", "{{ steps.ask }}")

    assert problems(text, tmp_path) == []
    assert problems(text.replace("as: row", "as: line"), tmp_path) != []


def test_a_step_waits_for_what_its_expectations_name(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        "aish: 1\nsteps:\n"
        "  - {id: late, run: ls, expect: [{contains: '{{ steps.first.text }}'}]}\n"
        "  - {id: first, run: ls}\n"
    )

    assert [step.id for step in in_order(load_pipeline(file))] == ["first", "late"]


VERDICT = """
aish: 1
models: {m: {embedded: smollm2}}
steps:
  - id: ask
    prompt: Say hello
    output:
      schema:
        type: object
        properties:
          verdict: {enum: [good, bad]}
          rows: {type: array, items: {$ref: '#/$defs/row'}}
          free: {type: object}
        $defs: {row: {type: object, properties: {title: {}}}}
        CLOSED
    expect: [EXPECT]
cassette: c.yaml
tests: [{name: t, expect: [TESTED]}]
"""


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("place", ["EXPECT", "TESTED"])
@pytest.mark.parametrize(
    ("path", "missing", "near"),
    [
        ("output.verdct", "output.verdct", "output.verdict"),
        ("output.rows[0].titel", "output.rows[0].titel", "output.rows[0].title"),
        ("steps.ask.output.verdct", "steps.ask.output.verdct", "steps.ask.output.verdict"),
        ("output.verdict", "", ""),
        ("output.free.anything", "", ""),
        ("output.rows[0].title.of", "", ""),
    ],
)
def test_a_path_that_the_schema_of_the_answer_does_not_have_is_found(
    path: str, missing: str, near: str, place: str, *, closed: bool, tmp_path: Path
) -> None:
    text = VERDICT.replace("CLOSED", "additionalProperties: false" if closed else "")
    text = text.replace(place, f"{{contains: {{path: '{path}', value: a}}}}")
    file = tmp_path / "p.yaml"
    file.write_text(text.replace("EXPECT", "").replace("TESTED", ""))
    found = cross_check(load_pipeline(file))
    key = missing.rpartition(".")[2]
    said = [(one.message, one.hint) for one in found]
    assert said == [
        (
            f"`{missing}` is not defined: the schema of the answer has no `{key}`",
            f"did you mean `{near}`",
        )
    ] * bool(missing)
    # A definition within says nothing of other keys.
    assert [one.warning for one in found] == [not closed or "rows" in path] * bool(missing)
