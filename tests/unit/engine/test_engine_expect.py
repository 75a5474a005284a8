from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from expect_scenes import call, checked, expectation, record, run

from aish.core.json import JsonObject, JsonValue
from aish.core.messages import Usage
from aish.engine.expectations.check import check_all
from aish.engine.expectations.subject import Subject
from aish.templates.values import ProjectNames

NOTES: JsonValue = {
    "markdown": "# Notes\n\nFixed the door.\n",
    "tags": ["fix", "door"],
    "count": 3,
    "none": None,
}
CALLS = (
    call("repo__git_log", {"since": "v1"}),
    call("repo__file_read", {"path": "docs/a/b.md", "lines": 4}),
    call("repo__file_write", {"path": "src/x.py"}, kind="denied"),
    call("repo__file_write", {"path": "docs/new.md", "content": "x" * 5000}),
)


def subject(**changes: Any) -> Subject:
    first = record("rows", kind="run", output={"exit_code": 0}, text="rows\n", usage=Usage())
    text = changes.pop("text", "Hello world\nFixed: the door\n")
    last = record("ask", text=text, output=text, calls=CALLS, **changes)
    return run(first, last, outputs={"notes": NOTES})


@pytest.mark.parametrize(
    "text",
    [
        "contains: 'Fixed: the'",
        "contains: {path: outputs.notes.markdown, value: '# Notes'}",
        "contains: {path: outputs.notes.tags, value: door}",
        "contains: {path: 'outputs.notes.tags[1]', value: oo}",
        "contains: {path: steps.rows.text, value: rows}",
        "not_contains: TODO",
        "not_contains: {path: outputs.notes.tags, value: doo}",
        'equals: "Hello world\\nFixed: the door"',
        "equals: {path: outputs.notes.count, value: 3.0}",
        "equals: {path: outputs.notes.none, value: null}",
        "equals: {path: outputs.notes.tags, value: [fix, door]}",
        "matches: ^Hello",
        "matches: door\\n$",
        "matches: (?m)^Fixed",
        "matches: (?i)hello (?!there)",
        'matches: {path: outputs.notes.markdown, regex: "^# "}',
        "schema: {type: object, required: [notes]}",
        "schema: {path: outputs.notes.count, schema: {type: integer}}",
        "schema: {path: outputs.notes, schema: {not: {required: [title]}}}",
        "expression: outputs.notes.tags | length == 2",
        "expression: text.startswith('Hello') and tool_calls[0].tool == 'repo__git_log'",
        "expression: inputs.since == 'v1' and steps.rows.output.exit_code == 0",
        "expression: usage.input + usage.output < 500 and seconds < 3 and status == 'ok'",
        "tool_called: repo__git_log",
        "tool_called: '*__git_*'",
        "tool_called: {tool: repo__file_read, with: {path: 'docs/**', lines: 4}}",
        "tool_called: {tool: repo__file_read, with: {path: docs/a/b.md}}",
        "tool_not_called: repo__file_delete",
        "tool_not_called: {tool: repo__file_read, with: {path: '*.md'}}",
        "tool_not_called: {tool: repo__file_read, with: {pth: '*'}}",
        "tool_not_called: {tool: repo__file_write, with: {content: x}}",
        "tool_sequence: [repo__git_log, repo__file_write]",
        "tool_sequence: {tools: ['*__*', repo__file_read, '*__*'], exact: true}",
        "max_tool_calls: 4",
        "max_tokens: 490",
        "max_seconds: 2",
        "max_seconds: 2.5",
    ],
)
def test_what_is_as_expected_holds(text: str, tmp_path: Path) -> None:
    found = checked(expectation(text, tmp_path), subject())

    assert found.ok, found.message
    assert found.message.startswith("expected ")
    assert "; got" not in found.message
    assert found.where == "expect[0]"
    assert found.kind == text.partition(":")[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "contains: Broken",
            "expected the text to contain `Broken`; got `Hello world ⏎ Fixed: the door`",
        ),
        (
            "contains: {path: outputs.notes.count, value: '3'}",
            "expected `outputs.notes.count` to contain `3`; got a number and no text: `3`",
        ),
        (
            "contains: {path: outputs.notes.none, value: a}",
            "expected `outputs.notes.none` to contain `a`; got no text at all",
        ),
        (
            "contains: {path: outputs.notes.markdwon, value: a}",
            (
                "expected something at `outputs.notes.markdwon`; "
                "got nothing at `outputs.notes.markdwon`, did you mean `markdown`"
            ),
        ),
        (
            "not_contains: door",
            "expected the text not to contain `door`; got `Hello world ⏎ Fixed: the door`",
        ),
        (
            "not_contains: {path: 'outputs.notes.tags[7]', value: a}",
            (
                "expected something at `outputs.notes.tags[7]`; "
                "got nothing at `outputs.notes.tags[7]`: the list has 2"
            ),
        ),
        (
            "not_contains: {path: outputs.notes.count.x, value: a}",
            (
                "expected something at `outputs.notes.count.x`; "
                "got `outputs.notes.count`, which is a number and not a mapping"
            ),
        ),
        (
            "equals: Hello",
            (
                "expected the text to be `Hello`; got another text (`-` expected, `+` got):\n"
                "  line 1:\n  -Hello\n  +Hello world\n  +Fixed: the door"
            ),
        ),
        (
            "equals: {path: steps.rows.text, value: columns}",
            "expected `steps.rows.text` to be `columns`; got `rows`",
        ),
        (
            "equals: {path: outputs.notes.count, value: '3'}",
            "expected `outputs.notes.count` to be `3`; got `3`",
        ),
        (
            "equals: {path: steps.rows.text, value: 3}",
            "expected `steps.rows.text` to be `3`; got text: `rows`",
        ),
        (
            "equals: {path: outputs.notes.tags, value: [fix, window]}",
            (
                'expected `outputs.notes.tags` to be `["fix", "window"]`; '
                "got another text (`-` expected, `+` got):\n"
                '  line 2:\n     "fix",\n  -  "window"\n  +  "door"\n   ]'
            ),
        ),
        (
            "matches: ^world",
            "expected the text to match `^world`; got `Hello world ⏎ Fixed: the door`",
        ),
        (
            "matches: {path: outputs.notes, regex: a}",
            None,
        ),
        (
            "schema: {type: object, required: [title]}",
            "expected the output to fit its schema; got title: is required",
        ),
        (
            "schema: {path: outputs.notes.tags, schema: {items: {type: integer}}}",
            (
                "expected `outputs.notes.tags` to fit its schema; "
                "got [0]: 'fix' is not of type 'integer'; [1]: 'door' is not of type 'integer'"
            ),
        ),
        (
            "expression: outputs.notes.count > 3",
            (
                "expected `outputs.notes.count > 3` to be true; "
                "got `false`; `outputs.notes.count` is `3`"
            ),
        ),
        (
            "expression: outputs.notes.cuont > 3",
            None,
        ),
        (
            "tool_called: repo__file_delete",
            (
                "expected a call of `repo__file_delete`; got calls of `repo__git_log`, "
                "`repo__file_read`, `repo__file_write` (denied), `repo__file_write`"
            ),
        ),
        (
            "tool_called: {tool: repo__file_read, with: {path: '*.md'}}",
            (
                'expected a call of `repo__file_read` with `{"path": "*.md"}`; '
                'got `repo__file_read` with `{"path": "docs/a/b.md", "lines": 4}`'
            ),
        ),
        (
            "tool_not_called: {tool: repo__file_write, with: {path: '**/*.py'}}",
            (
                'expected no call of `repo__file_write` with `{"path": "**/*.py"}`; '
                'got `repo__file_write` with `{"path": "src/x.py"}` (denied)'
            ),
        ),
        (
            "tool_sequence: [repo__file_read, repo__git_log]",
            (
                "expected calls of `repo__file_read`, `repo__git_log` in this order; "
                "got calls of `repo__git_log`, `repo__file_read`, `repo__file_write`"
            ),
        ),
        (
            "tool_sequence: {tools: [repo__git_log, repo__file_read], exact: true}",
            (
                "expected calls of `repo__git_log`, `repo__file_read` in this order and no others; "
                "got calls of `repo__git_log`, `repo__file_read`, `repo__file_write`"
            ),
        ),
        ("max_tool_calls: 3", "expected at most 3 tool calls; got 4"),
        ("max_tokens: 489", "expected at most 489 tokens; got 490 (400 in, 90 out)"),
        ("max_seconds: 1.5", "expected at most 1.5 s; got 2.00 s"),
    ],
)
def test_what_is_not_as_expected_is_said_with_what_there_is(
    text: str, message: str | None, tmp_path: Path
) -> None:
    found = checked(expectation(text, tmp_path), subject())

    assert not found.ok
    assert message is None or found.message == message


def test_an_unknown_number_of_tokens_is_not_a_small_one(tmp_path: Path) -> None:
    wanted = expectation("max_tokens: 1000000", tmp_path)

    found = checked(wanted, subject(usage=Usage(400, None)))

    assert not found.ok
    assert "a model did not say how many there were" in found.message


def test_where_no_model_was_asked_no_tokens_were_used(tmp_path: Path) -> None:
    wanted = expectation("max_tokens: 0", tmp_path)

    assert checked(wanted, run(record("ls", kind="run", usage=Usage()))).ok


def test_what_is_denied_has_not_been_called_and_yet_was_asked_for(tmp_path: Path) -> None:
    asked = run(record(calls=(call("s__x", kind="denied"), call("s__y", "{", "bad_arguments"))))

    for name in ("s__x", "s__y"):
        assert not checked(expectation(f"tool_called: {name}", tmp_path), asked).ok
        assert not checked(expectation(f"tool_not_called: {name}", tmp_path), asked).ok
    assert not checked(expectation("tool_sequence: [s__x]", tmp_path), asked).ok
    assert not checked(expectation("max_tool_calls: 1", tmp_path), asked).ok


def test_a_call_that_is_too_long_to_compare_counts_against_what_is_not_to_be_called(
    tmp_path: Path,
) -> None:
    long = run(record(calls=(call("s__x", {"text": "a" * 5000}),)))
    match = "{tool: s__x, with: {text: 'b*'}}"

    assert not checked(expectation(f"tool_called: {match}", tmp_path), long).ok
    assert not checked(expectation(f"tool_not_called: {match}", tmp_path), long).ok


def test_a_pattern_without_end_is_an_expectation_that_does_not_hold(tmp_path: Path) -> None:
    wanted = expectation("matches: (a|a)*$", tmp_path)

    found = checked(wanted, subject(text="a" * 60 + "b"))

    assert found.message.endswith("got no answer: looking for it took too long")


def test_a_text_that_is_json_may_fit_a_schema_as_such_or_as_text(tmp_path: Path) -> None:
    said = run(record(text='```json\n{"title": "a"}\n```', output='{"title": "a"}'))

    for schema, ok in (
        ("{type: string}", True),
        ("{type: object, required: [title]}", True),
        ("{type: object, required: [name]}", False),
        ("{type: array}", False),
    ):
        assert checked(expectation(f"schema: {schema}", tmp_path), said).ok is ok


def test_a_long_text_is_cut_and_a_long_diff_too(tmp_path: Path) -> None:
    lines = [f"line {number} " + "x" * 300 for number in range(2000)]
    wanted = expectation("contains: '?'", tmp_path)

    cut = checked(wanted, subject(text="\n".join(lines))).message

    assert len(cut) < 250
    assert cut.endswith("characters)")
    snapshot = tmp_path / "s.txt"
    snapshot.write_text("\n".join(reversed(lines)))
    differ = checked(expectation("snapshot: s.txt", tmp_path), subject(text="\n".join(lines)))
    assert not differ.ok
    assert len(differ.message.splitlines()) < 40
    assert max(map(len, differ.message.splitlines())) < 250


def test_a_diff_begins_where_texts_begin_to_differ(tmp_path: Path) -> None:
    text = "\n".join(f"line {number}" for number in range(1, 900))
    (tmp_path / "s.txt").write_text(text.replace("line 801\n", "line eight hundred one\n"))

    found = checked(expectation("snapshot: s.txt", tmp_path), subject(text=text))

    assert "\n  line 800:\n   line 800\n  -line eight hundred one\n  +line 801\n" in found.message


def test_a_difference_that_no_line_shows_is_named(tmp_path: Path) -> None:
    found = checked(expectation(r'equals: "a\nb"', tmp_path), subject(text="a\x0cb"))

    assert not found.ok
    assert "only white space or line ends" in found.message


def test_all_are_checked_in_their_order(tmp_path: Path) -> None:
    wanted = [
        expectation(text, tmp_path) for text in ("contains: no", "max_seconds: 9", "contains: Fix")
    ]

    async def unused(schema: JsonObject, value: JsonValue) -> tuple[()]:
        await anyio.lowlevel.checkpoint()
        raise AssertionError(schema, value)

    found = anyio.run(check_all, wanted, subject(), unused)

    assert [(one.kind, one.ok) for one in found] == [
        ("contains", False),
        ("max_seconds", True),
        ("contains", True),
    ]


TEMPLATES = [
    "contains: 'Fixed: the {{ item.noun }}'",
    "contains: {path: 'outputs.notes.{{ item.list }}', value: '{{ item.noun }}'}",
    "contains: {path: outputs.notes.numbers, value: '{{ item.count }}'}",
    "not_contains: '{{ item.list }}x'",
    "equals: {path: outputs.notes.count, value: '{{ item.count }}'}",
    "equals: {path: outputs.notes.tags, value: [fix, '{{ item.noun }}']}",
    "matches: '(?m)^{{ item.verb }}:'",
    "schema: {path: outputs.notes, schema: {properties: {count: {const: '{{ item.count }}'}}}}",
    "expression: item.noun in text",
    "tool_called: 'repo__{{ item.tool }}'",
    "tool_called: {tool: repo__file_read, with: {lines: '{{ item.lines }}'}}",
    "tool_not_called: 'repo__{{ item.noun }}'",
    "tool_sequence: ['repo__{{ item.tool }}', {tool: '*__*', with: {lines: '{{ item.lines }}'}}]",
    "max_tool_calls: '{{ item.lines }}'",
    "max_tokens: '{{ item.tokens }}'",
    "max_seconds: '{{ inputs.most | default(2) }}'",
]
ROW: JsonValue = {
    "noun": "door",
    "verb": "Fixed",
    "list": "tags",
    "tool": "git_log",
    "count": 3,
    "lines": 4,
    "tokens": "490",
    "none": "",
    "many": [1],
}


def of_row(row: JsonValue = ROW) -> Subject:
    found = subject()
    outputs = found.names["outputs"]
    assert isinstance(outputs, dict)
    assert isinstance(outputs["notes"], dict)
    notes: JsonValue = {**outputs["notes"], "numbers": [1, 3]}
    names = {**found.names, "item": row, "outputs": {"notes": notes}}
    return replace(found, names=names)


@pytest.mark.parametrize("text", TEMPLATES)
def test_a_template_in_any_value_sees_the_row(text: str, tmp_path: Path) -> None:
    found = checked(expectation(text, tmp_path), of_row())

    assert found.ok, found.message
    assert "{{" not in found.message


@pytest.mark.parametrize("text", TEMPLATES)
def test_a_template_that_gives_something_else_does_not_hold(text: str, tmp_path: Path) -> None:
    other: JsonValue = {
        "noun": "git_log" if "not_called" in text else "window",
        "verb": "Added",
        "list": "none",
        "tool": "git_push",
        "count": 5,
        "lines": 1,
        "tokens": "1",
        "greeting": "Hello",
    }
    text = text.replace("default(2)", "default(1)").replace(
        "{{ item.list }}x", "{{ item.greeting }}"
    )

    assert not checked(expectation(text, tmp_path), of_row(other)).ok


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("contains: '{{ item.none }}'", "`{{ item.none }}`, which gives empty text"),
        ("not_contains: '{{ item.gone }}'", "`item.gone` is not defined"),
        ("matches: '{{ item.none }}'", "gives empty text"),
        ("matches: '({{ item.noun }}'", "`(door`, which is not a valid regular expression"),
        ("tool_not_called: '{{ item.none }}'", "gives empty text"),
        ("max_tool_calls: '{{ item.many }}'", "`{{ item.many }}`, which does not give a number"),
        ("max_tokens: '{{ item.noun }}'", "does not give a number"),
        ("schema: {path: text, schema: {const: '{{ item.gone }}'}}", "is not defined"),
        ("snapshot: '{{ item.none }}'", "gives empty text"),
        ("snapshot: '../../{{ item.noun }}.md'", "snapshots have to be inside the project"),
    ],
)
def test_a_template_that_gives_nothing_to_expect_does_not_hold(
    text: str, said: str, tmp_path: Path
) -> None:
    place = tmp_path / "a" / "b"
    place.mkdir(parents=True)
    (place / ".git").mkdir()
    found = of_row()
    names = ProjectNames(found.names, place)

    outcome = checked(expectation(text, place), replace(found, names=names))

    assert not outcome.ok
    assert said in outcome.message


def test_what_a_template_puts_in_is_no_template(tmp_path: Path) -> None:
    found = checked(expectation("contains: '{{ item }}'", tmp_path), of_row("{{ gone }}"))

    assert "expected the text to contain `{{ gone }}`; got" in found.message


def test_a_snapshot_is_named_by_the_row(tmp_path: Path) -> None:
    (tmp_path / "door.md").write_text("Hello world\nFixed: the door\n", "utf-8")
    (tmp_path / ".git").mkdir()
    found = of_row()
    named = replace(found, names=ProjectNames(found.names, tmp_path))

    assert checked(expectation("snapshot: '{{ item.noun }}.md'", tmp_path), named).ok
