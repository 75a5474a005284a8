import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import each_case

from aish.config.yaml_tree import join
from aish.engine.expectations.subject import NotThereError, find, parse_path

KEYS = st.one_of(st.text(min_size=1, max_size=20), st.integers(0, 999_999))
PATHS = st.tuples(st.text(min_size=1, max_size=20), st.lists(KEYS, max_size=6))


def spelled(path: tuple[str | int, ...]) -> str:
    text = ""
    for key in path:
        text = f"{text}[{key}]" if isinstance(key, int) else join(text, key)
    return text


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("text", ("text",)),
        ("outputs.notes.markdown", ("outputs", "notes", "markdown")),
        ("steps.my-step.output[0].title", ("steps", "my-step", "output", 0, "title")),
        ('outputs["odd key"][2]["a\\"b"].c', ("outputs", "odd key", 2, 'a"b', "c")),
        ("output.überschrift", ("output", "überschrift")),
    ],
)
def test_a_path_is_names_and_places(text: str, path: tuple[str | int, ...]) -> None:
    assert parse_path(text) == path


@each_case(
    "text",
    [
        "",
        ".",
        "a.",
        ".a",
        "a..b",
        "a b",
        "a[",
        "a[]",
        "a[-1]",
        "a[x]",
        "[0]",
        "a[0]b",
        'a["x]',
        "a]",
    ],
)
def test_what_is_no_path_is_told(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a path at|does not begin with a name"):
        parse_path(text)


@given(PATHS)
def test_every_path_that_messages_spell_is_read_as_it_was(
    path: tuple[str, list[str | int]],
) -> None:
    whole = (path[0], *path[1])

    assert parse_path(spelled(whole)) == whole


@given(st.text(max_size=40))
def test_no_text_does_more_than_not_be_a_path(text: str) -> None:
    try:
        path = parse_path(text)
    except ValueError:
        return
    assert isinstance(path[0], str)


def test_what_is_not_there_says_how_far_the_path_leads() -> None:
    value = {"a": [{"title": 1}], "n": None, "t": "text"}

    assert find(("a", 0, "title"), value) == 1
    for path, said in (
        (("b",), "nothing at `b`"),
        (("a", 1), "nothing at `a[1]`: the list has 1"),
        (("a", "title"), "`a`, which is a list and not a mapping"),
        (("a", 0, "titel"), "nothing at `a[0].titel`, did you mean `title`"),
        (("n", "x"), "`n`, which is null and not a mapping"),
        (("t", 0), "`t`, which is text and not a list"),
    ):
        with pytest.raises(NotThereError) as failed:
            find(path, value)
        assert str(failed.value) == said
