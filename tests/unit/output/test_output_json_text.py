from samples import each_case

from aish.core.json import JsonValue, parse_structured


@each_case(
    "text, value",
    [
        ('{"a": [1, "x"]}', {"a": [1, "x"]}),
        (' ```json\n[{"a": 1}]\n``` ', [{"a": 1}]),
        ("Sure!", "Sure!"),
        ('Sure! {"a": 1}', 'Sure! {"a": 1}'),
        ('{"a": 1,}', '{"a": 1,}'),
        ('{"a": 1, "a": 2}', '{"a": 1, "a": 2}'),
        ('"a text"', '"a text"'),
        ("[]", "[]"),
        ("", ""),
        ("```", "```"),
        ("[" * 101 + "]" * 101, "[" * 101 + "]" * 101),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_a_text_that_is_an_object_or_a_list_is_read_as_one(text: str, value: JsonValue) -> None:
    assert parse_structured(text) == value
