import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import each_case

from aish.config.fields import expand, find_malformed, variables


@each_case(
    "text, value",
    [
        ("plain", "plain"),
        ("${A}", "one"),
        ("x${A}y${A}", "xoneyone"),
        ("${B:-two}", "two"),
        ("${A:-two}", "one"),
        ("${EMPTY:-two}", "two"),
        ("${EMPTY}", ""),
        ("${B:-}", ""),
        ("${B:-http://h:1/p?a=b}", "http://h:1/p?a=b"),
        ("$${A}", "${A}"),
        ("$$${A}", "$${A}"),
        ("$A", "$A"),
        ("${HOSTILE}", "${A} $${A}"),
    ],
)
def test_a_reference_is_replaced_once(text: str, value: str) -> None:
    environ = {"A": "one", "EMPTY": "", "HOSTILE": "${A} $${A}"}
    assert expand(text, environ) == value


def test_a_variable_that_is_not_set_is_for_the_caller_to_say() -> None:
    assert variables("${A}${B:-x}$${C}${D:-}") == (("A", None), ("B", "x"), ("D", ""))
    with pytest.raises(KeyError):
        expand("${A}", {})


@pytest.mark.parametrize("text", ["${}", "${a b}", "${A", "x ${1}", "${A-b}", "${A:b}"])
def test_what_only_looks_like_a_reference_is_found(text: str) -> None:
    assert find_malformed(text) is not None
    assert variables(text) == ()


@given(st.text(alphabet="$${}AB:-x", max_size=20))
def test_any_text_expands_where_its_variables_are_set(text: str) -> None:
    environ = {name: "v" for name, _ in variables(text)}
    expanded = expand(text, environ)
    if "${" not in text:
        assert expanded == text
