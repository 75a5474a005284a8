import json
import unicodedata
from functools import partial

import anyio
import pytest
from agent_fakes import check_here
from hypothesis import given
from hypothesis import strategies as st
from samples import each_case
from work import work_of

from aish.core.json import JsonObject, JsonValue
from aish.engine.answer_schema import Judged, correction_request, judge, parse_answer, parse_whole
from aish.system.schema.check import TOO_LONG, SchemaProblem

VALUE = '{"kind": "bug", "of": [1, {"a": "}"}]}'
KINDS: JsonObject = {
    "type": "object",
    "properties": {"kind": {"enum": ["bug", "wish"]}, "count": {"type": "integer"}},
    "required": ["kind"],
    "additionalProperties": False,
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
WORDS = st.text(st.characters(exclude_characters='[]{}"`', exclude_categories=["Cs"]), max_size=30)


@each_case(
    "text",
    [
        VALUE,
        f"\n  {VALUE}\n\n",
        f"```json\n{VALUE}\n```",
        f"```\n{VALUE}\n```\n",
        f"``` JSON\n{VALUE}```",
        f"```json {VALUE} ```",
        f"Here it is:\n\n```json\n{VALUE}\n```\nTell me if you need more.",
        f"Sure! {VALUE}",
        f"{VALUE}\n\nThis says that it is a bug.",
        f"As you asked [see above] {{so}}: {VALUE} (the kinds are {{bug}} and [wish])",
        f"\ufeff{VALUE}",
    ],
)
def test_one_value_is_found_in_a_fence_and_among_words(text: str) -> None:
    assert parse_answer(text) == json.loads(VALUE)


def test_a_value_that_is_no_object_stands_alone_or_in_a_fence() -> None:
    for text, value in (('"a word"', "a word"), ("42", 42), ("```json\nnull\n```", None)):
        assert parse_answer(text) == value
    for text in ("The answer is 42", "it is true", '"a" and "b"'):
        with pytest.raises(ValueError, match="line 1 column"):
            parse_answer(text)


def test_a_fence_within_the_value_is_part_of_it() -> None:
    value = {"markdown": "```sh\nls\n```"}
    for text in (
        json.dumps(value),
        f"```json\n{json.dumps(value)}\n```",
        f"So: {json.dumps(value)}.",
    ):
        assert parse_answer(text) == value


@each_case(
    "text, why",
    [
        ("", "it is empty"),
        (" \n", "it is empty"),
        ("rather good, I think", "Expecting value: line 1 column 1"),
        ('{"a": 1}\n{"b": 2}', "several JSON values"),
        ('Either {"a": 1} or {"a": 2}', "several JSON values"),
        ('```json\n{"a": 1}\n```\nor\n```json\n{"a": 1}\n```', "several JSON values"),
        ('As in [1]: {"a": 1}', "several JSON values"),
        ('{"a": 1,}', "line 1 column 9"),
        ('Here: {"a": 1', "line 1 column 14"),
        ('{"a": {"b": 1}, oops}', "line 1 column 17"),
        ('[{"a": 1}, {"b": ', "line 1 column 18"),
        ('{"a": 1}}', "a `}` too many"),
        ('"a": {"b": 1}}', "a `}` too many"),
        ('so [it goes: {"a": 1}', "Expecting value: line 1 column 1"),
        ('{"a": 1} and then [so on', "a bracket around it is not closed"),
        ("{'a': 1}", "line 1 column"),
        ('{"a": 1, "a": 2}', "duplicate key `a`"),
        ('So: {"a": 1, "a": 2}', "duplicate key `a`"),
        ("So: " + "[" * 70 + "]" * 70, "nested more than 64 deep"),
        ("So: " + "[" * 200_000, "nested more than 64 deep"),
        ('{"a": NaN}', "`NaN` is not a JSON number"),
    ],
)
def test_what_is_not_exactly_one_value_is_none(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_answer(text)
    assert why in str(caught.value)


@given(JSON, WORDS, WORDS)
def test_words_around_a_value_do_not_change_it(value: JsonValue, before: str, after: str) -> None:
    text = json.dumps([value])
    assert parse_answer(f"{before}{text}{after}") == [value]
    with pytest.raises(ValueError, match="several"):
        parse_answer(f"{before} {text} {after} {text}")


@given(JSON, st.integers(0, 200))
def test_no_part_of_a_value_that_was_cut_off_is_taken_for_it(value: JsonValue, cut: int) -> None:
    text = json.dumps({"it": [value, value]})
    with pytest.raises(ValueError, match=r"."):
        parse_answer(text[: cut % len(text)])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("piece", ["[", "{", '{"', '["]",', '[1,"', "[x] ", '{"a":', '{"a" ', "`"])
def test_a_long_answer_is_read_in_no_time(piece: str) -> None:
    text = f"So: {piece * (1_000_000 // len(piece))}"

    def read() -> None:
        with pytest.raises(ValueError, match=r"."):
            parse_answer(text)

    work = work_of(read)
    assert work.steps < 5 * len(text)
    assert work.text < 500 * len(text)


def test_an_expectation_of_a_text_reads_it_more_strictly() -> None:
    assert parse_whole(f"```json\n{VALUE}\n```") == json.loads(VALUE)
    with pytest.raises(ValueError, match="Expecting value"):
        parse_whole(f"Here: {VALUE}")


def test_the_model_hears_what_is_wrong_and_not_its_own_words_again() -> None:
    judged = anyio.run(judge, '{"kind": "query", "number": 1}', KINDS, check_here)

    assert judged.value == {"kind": "query", "number": 1}
    assert judged.mendable
    assert correction_request(judged) == (
        "That answer cannot be used:\n"
        "- kind: 'query' is not one of 'bug', 'wish'\n"
        "- number: is not a known key; known here: kind, count\n"
        "Answer again with one JSON value and nothing else: no explanation, no code fence."
    )
    broken = anyio.run(judge, '{"kind": "bug"', KINDS, check_here)
    assert correction_request(broken).splitlines()[1] == (
        "- it is not JSON: Expecting ',' delimiter: line 1 column 15 (char 14)"
    )
    assert '{"' not in correction_request(broken)


@given(st.lists(st.text(max_size=2000), max_size=40))
def test_what_the_model_hears_is_short_and_without_control_characters(told: list[str]) -> None:
    said = correction_request(Judged(None, "why", tuple(told)))
    assert len(said) < 4000
    assert said.count("\n") <= 10
    assert not any(
        unicodedata.category(letter) in {"Cc", "Cf"} for letter in said if letter != "\n"
    )
    said.encode()


def test_what_is_wrong_is_said_in_bounded_length() -> None:
    long = "x" * 100_000
    for said in (f'{{"{long}": 1, "{long}": 2}}', f'{{"{long}": 1}}', f'{{"kind": "{long}"}}'):
        assert len(anyio.run(judge, said, KINDS, check_here).why) < 1000


def test_an_answer_whose_schema_cannot_be_checked_is_not_asked_for_again() -> None:
    async def never(schema: JsonObject, value: JsonValue) -> tuple[SchemaProblem, ...]:
        await anyio.lowlevel.checkpoint()
        return (TOO_LONG,)

    judged = anyio.run(judge, "{}", KINDS, never)

    assert (judged.mendable, judged.why) == (
        False,
        "the answer does not fit its schema: schema took too long",
    )


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('Here is [1] the result: {"kind": "bug", "count": 1}', "bug"),
        ('As in [1, 2] and []: {"kind": "wish", "count": 1}. See [3].', "wish"),
        ('{"note": "a draft"} becomes {"kind": "bug", "count": 1}', "bug"),
        ('Here is [1] the result: {"kind": "query", "count": 1}', None),
        ('Either {"kind": "bug", "count": 1} or {"kind": "wish", "count": 1}', None),
        ("[1] and [2]", None),
        ("[1] " * 30 + '{"kind": "bug", "count": 1}', None),
    ],
)
def test_the_answer_that_fits_is_found_beside_brackets_in_prose(
    text: str, kind: str | None
) -> None:
    judged = anyio.run(judge, text, KINDS, check_here)

    found = None if judged.why else judged.value
    assert found == (None if kind is None else {"kind": kind, "count": 1})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the answer is empty"),
        (" \n", "the answer is empty"),
        (
            "Sure! Here is\nthe JSON.",
            'the answer is not JSON; it begins: "Sure! Here is⏎the JSON."',
        ),
        ("x" * 200, f'the answer is not JSON; it begins: "{"x" * 120}…"'),
        ("a\x1b[2Jb", 'the answer is not JSON; it begins: "a\\x1b[2Jb"'),
        (
            '{"kind": "bug",}',
            (
                "the answer is not JSON: Expecting property name enclosed in double quotes: line 1"
                ' column 16 (char 15); it begins: "{"kind": "bug",}"'
            ),
        ),
        (
            "[1] [2]",
            (
                "the answer is not JSON: there are several JSON values, and one is expected;"
                ' it begins: "[1] [2]"'
            ),
        ),
    ],
)
def test_a_person_reads_how_an_answer_begins_that_is_not_json(text: str, why: str) -> None:
    judged = anyio.run(judge, text, KINDS, check_here)

    assert judged.why == why
    # A model knows what it has said, and is told where it went wrong.
    assert all("begins" not in told for told in judged.told)


NOTES: JsonObject = {
    "type": "object",
    "properties": {
        "kind": {"type": "string"},
        "count": {"type": "integer"},
        "of": {"type": "array", "items": {"$ref": "#/$defs/Note"}},
        "by": {"anyOf": [{"$ref": "#/$defs/Note"}, {"type": "null"}]},
        "next": {"$ref": "#"},
        "end": {"type": ["string", "null"]},
    },
    "required": ["kind"],
    "$defs": {"Note": {"type": "object", "properties": {"by": {"type": "string"}}}},
}


def judge_filled(text: str) -> Judged:
    """The judgement of an answer whose schema had null for what may be missing."""
    return anyio.run(partial(judge, text, NOTES, check_here, nulls_for_absent=True))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"kind": "bug", "count": null}', {"kind": "bug"}),
        ('{"kind": "bug", "of": [{"by": null}]}', {"kind": "bug", "of": [{}]}),
        ('{"kind": "bug", "by": {"by": null}}', {"kind": "bug", "by": {}}),
        (
            '{"kind": "bug", "next": {"kind": "x", "count": null}}',
            {"kind": "bug", "next": {"kind": "x"}},
        ),
        (
            '{"kind": "bug", "count": null, "end": null, "by": null}',
            {"kind": "bug", "end": None, "by": None},
        ),
    ],
)
def test_null_in_place_of_what_need_not_be_there_is_left_out(text: str, value: JsonValue) -> None:
    assert judge_filled(text) == Judged(value)
    assert anyio.run(judge, text, NOTES, check_here).why


def test_null_in_place_of_what_must_be_there_is_wrong() -> None:
    assert judge_filled('{"kind": null, "count": null}').why


def test_null_of_a_property_that_the_schema_does_not_know_stays() -> None:
    value = {"kind": "bug", "odd": None}
    assert judge_filled('{"kind": "bug", "odd": null}') == Judged(value)
    assert judge_filled('{"kind": "bug", "odd": null, "count": null}') == Judged(value)
