import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import each_case

from aish.core.errors import UsageError
from aish.templates.render import references, references_of_expression


@each_case(
    "source, names",
    [
        ("plain", set()),
        ("{{ inputs.a }} {{ stdin }}", {"inputs.a", "stdin"}),
        ("{{ steps.a.tool_calls[0].content }}", {"steps.a.tool_calls"}),
        ("{{ steps['my-step'].text | upper }}", {"steps.my-step.text"}),
        ("{{ steps[inputs.which].text }}", {"steps", "inputs.which"}),
        ("{{ inputs.a.strip().lower() }}", {"inputs.a"}),
        ("{{ inputs.items() }}", {"inputs"}),
        ("{{ f(inputs.a, x=inputs.b) }}", {"f", "inputs.a", "inputs.b"}),
        ("{% for i in inputs.rows %}{{ i.x }}{{ env.A }}{% endfor %}", {"inputs.rows", "env.A"}),
        ("{% set x = inputs.a %}{{ x.y }}", {"inputs.a"}),
        (
            "{% if steps.a.status == 1 %}{{ inputs.b }}{% endif %}",
            {"steps.a.status", "inputs.b"},
        ),
        ("{{ inputs.a if inputs.b else inputs.c }}", {"inputs.a", "inputs.b", "inputs.c"}),
        ("{{ inputs.a ~ inputs['b'] }}", {"inputs.a", "inputs.b"}),
        ("{{ inputs | tojson }}", {"inputs"}),
        ("{{ inputs.a[1:inputs.n] }}", {"inputs.a", "inputs.n"}),
        ("{# {{ inputs.a }} #}", set()),
        ("{% raw %}{{ inputs.a }}{% endraw %}", set()),
    ],
)
def test_the_names_a_template_reads_are_found(source: str, names: set[str]) -> None:
    assert references(source) == names


@pytest.mark.parametrize(
    ("source", "said", "hint"),
    [
        ("a\n{% if %}", "line 2: Expected an expression", None),
        ("{{ a | tojsn }}", "line 1: there is no filter `tojsn`", "did you mean `tojson`"),
        ("{{ a", "line 1: ", None),
        ("{% include 'x' %}", "a template cannot load another one", "use the filter `readfile`"),
        ("{{ " + "(" * 5000 + ")" * 5000 + " }}", "it is too deep or too large", None),
    ],
)
def test_what_is_no_template_is_said(source: str, said: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as failed:
        references(source)
    assert str(failed.value).startswith(said)
    assert failed.value.hint == hint


def test_an_expression_has_its_names_too() -> None:
    assert references_of_expression("steps.a.output | length > 0") == {"steps.a.output"}


@given(st.text(alphabet="{}%# abinputs.|[]()'\"-~+*\n", max_size=40) | st.text())
def test_any_text_has_names_or_is_no_template(source: str) -> None:
    try:
        names = references(source)
    except UsageError:
        return
    assert all(names)
