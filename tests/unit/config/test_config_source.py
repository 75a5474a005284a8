import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import each_case

from aish.config.documents import UnreadableError, as_text
from aish.config.loader import load_pipeline
from aish.config.yaml_tree import MappingNode, parse_yaml, positions_of, to_data
from aish.core.errors import PipelineError
from aish.core.json import JsonValue
from aish.engine.plan.validation.validate import check_file


def data_of(text: str) -> JsonValue:
    parsed = parse_yaml(text, "f")
    assert parsed.problems == ()
    assert parsed.root is not None
    return to_data(parsed.root)


@each_case(
    "text, value",
    [
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("22:22", "22:22"),
        ("2026-01-01", "2026-01-01"),
        ("012", 12),
        ("+3", 3),
        ("-0", 0),
        ("0x1F", 31),
        ("0o17", 15),
        ("0b1", "0b1"),
        ("1_000", "1_000"),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("5.", 5.0),
        (".", "."),
        ("1.2.3", "1.2.3"),
        ("~", None),
        ("null", None),
        ("Null", None),
        ("nULL", "nULL"),
        ("TRUE", True),
        ("tRUE", "tRUE"),
        ("=", "="),
        ("'1'", "1"),
        ('"true"', "true"),
    ],
)
def test_scalars_follow_the_core_schema_only(text: str, value: JsonValue) -> None:
    found = data_of(f"- {text}\n")
    assert isinstance(found, list)
    assert found == [value]
    assert type(found[0]) is type(value)


def test_keys_are_text_as_written() -> None:
    assert data_of("1: a\ntrue: b\n2026-01-01: c\nno: d") == {
        "1": "a",
        "true": "b",
        "2026-01-01": "c",
        "no": "d",
    }


def test_characters_that_json_writes_as_two_halves_are_one() -> None:
    value = {"a\U0001f600": ["\U0001f600 and \U000e0041", "plain"]}

    assert data_of(json.dumps(value)) == value


@pytest.mark.parametrize("half", [r"\ud83d", r"\ude00", r"\ude00\ud83d", r"\ud83d x \ude00"])
def test_half_a_character_is_a_problem_with_its_place(half: str) -> None:
    for text in (f'a: "b {half}"', f'"b {half}": a'):
        problems = parse_yaml(text, "f").problems
        assert [one.message for one in problems] == ["half of a surrogate pair"], text
        assert problems[0].position.line == 1


def test_an_alias_gives_the_same_value_again() -> None:
    assert data_of("a: &x {b: [1, 2]}\nc: *x\nd: *x") == {key: {"b": [1, 2]} for key in "acd"}


def test_each_key_and_item_has_its_place() -> None:
    root = parse_yaml("a:\n  b: 1\n  c d: [x, {y: 2}]\n", "f").root
    assert isinstance(root, MappingNode)
    places = {path: (p.line, p.column) for path, p in positions_of(root).items()}
    assert places == {
        "a": (1, 1),
        "a.b": (2, 6),
        'a["c d"]': (3, 8),
        'a["c d"][0]': (3, 9),
        'a["c d"][1]': (3, 12),
        'a["c d"][1].y': (3, 16),
    }


@pytest.mark.parametrize("mark", ["{{", "{%"])
@pytest.mark.parametrize("form", ["a: {} x }}", "- {} x", "a: [{} x]", "a: {{b: {} x }}}}", "{} x"])
def test_an_unquoted_template_is_found_wherever_it_begins(mark: str, form: str) -> None:
    text = form.replace("{{b", "{b").replace("{}", mark, 1)
    if mark == "{%" and form == "a: [{} x]":
        text = text.replace("]", "%}]")
    problems = parse_yaml(text, "f").problems
    assert f"an unquoted `{mark}`" in problems[0].message
    assert problems[0].position.column == text.index(mark) + 1


@pytest.mark.parametrize("text", ["a: |\n  x\ty\n", "a: 'x\ty'\n", "a: 1 # x\ty\n", "#\tx\na: 1\n"])
def test_tabs_that_are_text_or_comment_are_fine(text: str) -> None:
    assert parse_yaml(text, "f").problems == ()


@each_case(
    "text, value",
    [
        ("a: x\t# c\nb: y\t\nc:\tz\n", {"a": "x", "b": "y", "c": "z"}),
        ("a\t: 'x'\t# c\n-b:\t[x\t,\ty]\t\n\t\n", {"a": "x", "-b": ["x", "y"]}),
        ("-\tx\ty \t\n- z\n", ["x\ty", "z"]),
        ("a: {?foo: bar, b: ?c}\n", {"a": {"?foo": "bar", "b": "?c"}}),
        ("a: {:b: :c}\nd: [:e, -f]\n", {"a": {":b": ":c"}, "d": [":e", "-f"]}),
        ("a: ['b':c, \"d\":e]\n", {"a": [{"b": "c"}, {"d": "e"}]}),
        ("a: |\n \n\n  x\nb: >\n\n    y\n", {"a": "\n\nx\n", "b": "\ny\n"}),
        ("a: x\u2028y\nb: 'x \x85 y'\nc: |\n  \u2029z\n", None),
    ],
)
def test_forms_that_libraries_read_in_several_ways_are_read_as_yaml_1_2(
    text: str, value: JsonValue
) -> None:
    """Tabs, signs in braces, empty lines before a text (issue 27, C)."""
    parsed = parse_yaml(text, "f")
    expected = value or {"a": "x\u2028y", "b": "x \x85 y", "c": "\u2029z\n"}
    assert parsed.problems == ()
    assert parsed.root is not None
    assert to_data(parsed.root) == expected


@each_case(
    "text, said",
    [
        ("a:\n\tb: 1\n", "f:2:1: a tab: YAML is indented with spaces"),
        ("a:\n  -\tb: 1\n", "f:2:4: a tab: YAML is indented with spaces"),
        ("a: 1\n\t# c\n", "f:2:1: a tab: YAML is indented with spaces"),
        ("a: |\t\n  x\n", "f:1:5: a tab: YAML allows only spaces here"),
        ("a: |\n    \n  x\n", "f:3:3: an empty line is indented more than the text below it"),
        ("a: 'x'#c\n", "f:1:7: text cannot begin with `#`"),
        ("a: [-]\n", "f:1:5: text cannot begin with `-`"),
        ("a: {?}\n", "f:1:5: text cannot begin with `?`"),
        ("a: \u2028b\nb: @c\n", "f:2:4: text cannot begin with `@`"),
    ],
)
def test_what_yaml_1_2_refuses_is_refused_with_its_place(text: str, said: str) -> None:
    assert str(parse_yaml(text, "f").problems[0]) == said


def json_values() -> st.SearchStrategy[JsonValue]:
    leaves: st.SearchStrategy[JsonValue] = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.text(),
        st.floats(allow_nan=False, allow_infinity=False),
    )
    return st.recursive(
        leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12
    )


@given(json_values())
def test_json_means_the_same_as_yaml(value: JsonValue) -> None:
    # Lone surrogates and control characters are escaped by JSON; YAML reads the escapes alike.
    text = json.dumps(value)
    parsed = parse_yaml(text, "f")
    if "\\ud" in text or "\\u00" in text or parsed.problems:
        return
    assert parsed.root is not None
    assert to_data(parsed.root) == value


PIECES = st.sampled_from(
    [
        *(
            "aish: 1\n",
            "prompt: ",
            "steps:\n",
            "  - id: a\n",
            "    call: x\n",
            "models: {a: {",
            "}",
        ),
        *(
            "{{",
            "}}",
            "{% if x %}",
            "\t",
            "\n",
            " ",
            "- ",
            "? ",
            ": ",
            "&a ",
            "*a",
            "!!str ",
            "<<: ",
        ),
        *("|", ">", "'", '"', "#", "[", "]", ",", "%YAML 1.1\n", "---\n", "...\n", "\\", "\x00"),
        *("\ufeff", "\u2028", "\x85", "é", "inputs: {x: {default: 1}}\n", "extends: [p.yaml]\n"),
        *(
            "outputs: {a: '{{ steps.a.text }}'}\n",
            "mcp: {auto_approve: [a__b]}\n",
            "9" * 50,
            ".inf",
        ),
    ]
)
TEXTS = st.lists(PIECES, max_size=25).map("".join) | st.text()


@settings(max_examples=3 * settings().max_examples)
@given(data=TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary())
def test_no_bytes_do_more_than_make_problems(
    data: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / "p.yaml"
    file.write_bytes(data)
    pipeline, problems = check_file(file)
    assert pipeline is not None or problems
    for problem in problems:
        assert problem.position.line >= 1
        assert problem.position.column >= 1
        assert problem.message


KEYS = st.sampled_from(
    [
        *("aish", "name", "inputs", "models", "model", "mcp", "servers", "steps", "id", "prompt"),
        *("call", "run", "with", "output", "schema", "limits", "time", "a", "embedded", "base_url"),
        *("prompts", "user", "file", "auto_approve", "tool", "when", "timeout", "retry", "default"),
        *("url", "command", "pack", "env", "needs", "outputs", "policy_tests", "expect", "extends"),
    ]
)
VALUES = st.sampled_from(
    [1, 0, True, None, "a", "x y", "{{ inputs.a }}", "{{ steps.a.b }}", "90s", "a__b", "*__*", "{{"]
)


@settings(max_examples=3 * settings().max_examples)
@given(
    value=st.recursive(
        VALUES,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6),
        max_leaves=25,
    )
)
def test_no_tree_does_more_than_make_problems(
    value: JsonValue, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / "tree.yaml"
    whole = {"aish": 1, **value} if isinstance(value, dict) else value
    file.write_text(json.dumps(whole))
    pipeline, problems = check_file(file)
    assert pipeline is not None or problems


def test_a_byte_order_mark_is_left_out() -> None:
    assert as_text(b"\xef\xbb\xbfa: 1", "f") == "a: 1"


def test_the_place_of_a_bad_byte_counts_characters() -> None:
    with pytest.raises(UnreadableError) as failed:
        as_text("a: 1\né: ".encode() + b"\xff", "f")
    assert str(failed.value.problem.position) == "f:2:4"


def test_positions_of_an_unreadable_file_are_its_own(tmp_path: Path) -> None:
    with pytest.raises(PipelineError) as failed:
        load_pipeline(tmp_path / "x.yaml")
    assert failed.value.problems[0].position.file == str(tmp_path / "x.yaml")
