import contextlib
import json
import re
import subprocess
import sys
from inspect import signature
from pathlib import Path
from typing import Any

import jinja2.filters
import pytest
from hypothesis import given
from hypothesis import strategies as st
from open_descriptors import opened_below
from samples import each_case
from work import work_of

from aish.core.errors import ExitCode
from aish.core.json import JsonValue
from aish.templates.limits import MAX_OUTPUT, TemplateError
from aish.templates.render import evaluate, render, render_tree, render_value
from aish.templates.sandbox import FILTERS, compile_template, sandbox
from aish.templates.values import ProjectNames, render_plain

NAMES: dict[str, JsonValue] = {
    "inputs": {
        "a": "x",
        "n": 3,
        "huge": 10**9,
        "none": None,
        "yes": True,
        "items": [1, {"k": "v"}],
        "hostile": "{{ inputs.a }}{% if %}",
        "d": {"k": [1, None], "keys": "mine"},
    },
    "env": {},
    "steps": {"notes": {"text": "t", "output": {"title": "T"}}, "my-step": {"text": "m"}},
    "stdin": "in",
}


@each_case(
    "source, text",
    [
        ("plain", "plain"),
        ("a } b } c", "a } b } c"),
        ("{{ inputs.a }}", "x"),
        ("<{{inputs.a}}> {{ stdin }}\n", "<x> in\n"),
        ("{{ steps['my-step'].text }}", "m"),
        ("{{ inputs.n }} {{ inputs.none }} {{ inputs.yes }}", "3 null true"),
        ("{{ inputs.d.k }} {{ steps.notes.output }}", '[1, null] {"title": "T"}'),
        ("{{ inputs.items }}", '[1, {"k": "v"}]'),
        ("{{ inputs.items[1].k }}", "v"),
        ("{{ inputs.d.keys }}", "mine"),
        ("{{ inputs.d.values() | list | length }}", "2"),
        ("{% for item in inputs.items %}{{ item }};{% endfor %}", '1;{"k": "v"};'),
        ("{{ 'é' ~ inputs.none ~ 1 }}", "énull1"),
        ("{{ [inputs.a, none] | join('-') }}", "x-null"),
        ("{{ [inputs.a, none] | join(d='-') }}", "x-null"),
        ("{{ 'one two three' | wordwrap(8, false) }}", "one two\nthree"),
        ("{{ 'abcdef a-b' | wordwrap(4, false, '|', false) }}", "abcdef|a-b"),
        ("{{ 'abcdef' | wordwrap(width=4, break_long_words=true, wrapstring='|') }}", "abcd|ef"),
        ("{{ inputs.nothing | default('d') }}", "d"),
        ("{{ inputs.nothing is defined }}", "false"),
        ("{{ range(3) | map('string') }}", '["0", "1", "2"]'),
        ("{# nothing #}", ""),
    ],
)
def test_a_template_puts_values_into_text(source: str, text: str) -> None:
    assert render(source, NAMES) == text


def test_each_filter_takes_the_keywords_that_it_has_in_jinja() -> None:
    for name, own in FILTERS.items():
        if (theirs := jinja2.filters.FILTERS.get(name)) is not None:
            passed = hasattr(theirs, "jinja_pass_arg")
            wanted = list(signature(theirs).parameters)[1 + passed :]
            assert list(signature(own).parameters)[1:] == wanted, name
    for name in jinja2.filters.FILTERS.keys() - sandbox(None).filters.keys():
        assert name in {"random", "pprint"}


def test_what_is_put_in_is_never_template_source_again() -> None:
    assert render("{{ inputs.hostile }}", NAMES) == "{{ inputs.a }}{% if %}"
    assert render("{{ inputs.hostile | upper }}", NAMES) == "{{ INPUTS.A }}{% IF %}"
    assert render_value("{{ inputs.hostile }}", NAMES) == "{{ inputs.a }}{% if %}"


@each_case(
    "source, value",
    [
        ("{{ inputs.n }}", 3),
        ("{{ inputs.none }}", None),
        ("{{inputs.yes}}", True),
        ("{{- inputs.n -}}", 3),
        ("{{ inputs.n + 1 }}", 4),
        ("{{ inputs.d }}", {"k": [1, None], "keys": "mine"}),
        ("{{ inputs.items | map(attribute='k', default=0) | list }}", [0, "v"]),
        ("{{ [1, 2] | map('string') }}", ["1", "2"]),
        ("{{ (1, 2) }}", [1, 2]),
        ("{{ inputs.n }} ", "3 "),
        ("{{ inputs.n }}{{ inputs.n }}", "33"),
        ("{{ inputs.n }}\n", "3\n"),
        ("{{ '}}' }}", "}}"),
        ("text", "text"),
    ],
)
def test_exactly_one_expression_keeps_its_type(source: str, value: JsonValue) -> None:
    found = render_value(source, NAMES)
    assert found == value
    assert type(found) is type(value)


def test_a_tree_is_rendered_in_its_texts_and_nowhere_else() -> None:
    tree: JsonValue = {"{{ inputs.a }}": ["{{ inputs.n }}", 5, {"x": "<{{ inputs.a }}>"}, None]}
    assert render_tree(tree, NAMES) == {"{{ inputs.a }}": [3, 5, {"x": "<x>"}, None]}


def test_an_expression_stands_without_braces() -> None:
    assert evaluate("inputs.items | length > 1", NAMES) is True
    with pytest.raises(TemplateError, match=r"`inputs\.b` is not defined"):
        evaluate("inputs.b", NAMES)


THERE = "`inputs` has `a`, `n`, `huge`, `none`, `yes`, `items`, `hostile`, `d`"


@each_case(
    "source, said, hint",
    [
        ("{{ steps.nots.text }}", "`steps.nots` is not defined", "did you mean `steps.notes`"),
        ("{{ inputs.d.keyz }}", "`inputs.d.keyz` is not defined", "did you mean `inputs.d.keys`"),
        ("{{ stps }}", "`stps` is not defined", "did you mean `steps`"),
        ("{{ [inputs.b] }}", "`inputs.b` is not defined", THERE),
        ("{{ inputs.items[inputs.b] }}", "`inputs.b` is not defined", THERE),
        ("{{ inputs[inputs[inputs.b]] }}", "`inputs.b` is not defined", THERE),
        ("{% if inputs.b %}{% endif %}", "`inputs.b` is not defined", THERE),
        ("{% for x in inputs.b %}{% endfor %}", "`inputs.b` is not defined", THERE),
        ("a\n\n{{ inputs.b }}", "`a`, line 3: `inputs.b` is not defined", THERE),
        ("{{ inputs.keys }}", "a method has no place", None),
        ("{{ 1 / 0 }}", "division by zero", None),
        ("{{ inputs.a + 1 }}", "can only concatenate", None),
        ("{{ x | nofilter }}", "there is no filter `nofilter`", None),
        ("{% if %}", "Expected an expression", None),
        ("{% include 'x' %}", "no loader", None),
    ],
)
def test_what_goes_wrong_is_said_with_its_name(source: str, said: str, hint: str | None) -> None:
    for way in (render, render_value):
        with pytest.raises(TemplateError) as failed:
            way(source, NAMES)
        assert said in failed.value.message
        assert failed.value.hint == hint
        assert failed.value.exit_code is ExitCode.FAILED


def test_a_value_that_stands_twice_is_called_as_the_template_calls_it() -> None:
    said = "one and the same"
    names: dict[str, JsonValue] = {"steps": {"a": {"text": said, "output": said}}}
    for field in ("text", "output"):
        with pytest.raises(TemplateError, match=rf"`steps\.a\.{field}\.x` is not defined"):
            render(f"{{{{ steps.a.{field}.x.y }}}}", names)


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("{{ inputs.a.word }}", "inputs.a.word"),
        ("{{ {}.word }}", "word"),
        ("{{ steps['b' ~ 'c'].word }}", "steps.bc.word"),
    ],
)
def test_a_name_that_is_not_defined_is_looked_for_in_bounds(source: str, path: str) -> None:
    def steps(count: int) -> int:
        large: dict[str, JsonValue] = {f"{n}": {f"k{n}": "v"} for n in range(count)}
        names: dict[str, JsonValue] = {"steps": {"bc": {"text": "x"}}, "inputs": {"a": large}}

        def fail() -> None:
            with pytest.raises(TemplateError, match=f"`{re.escape(path)}` is not defined"):
                render(source, names)

        return work_of(fail).steps

    steps(100)
    assert steps(200_000) < 3 * steps(20_000)


@pytest.mark.requirement("F6")
@each_case(
    "source",
    [
        "{{ inputs.a.__class__ }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ inputs.a.upper.__self__ }}",
        "{{ range.__init__.__globals__ }}",
        "{{ inputs.d.update({'k': 1}) }}",
        "{{ inputs.items.append(1) }}",
        "{{ inputs.d.pop('k') }}",
        "{{ inputs.d.clear() }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ self._TemplateReference__context }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ '{0.__class__}' | format(1) | format }}{{ ''.__doc__ }}",
        "{{ inputs | attr('__class__') }}",
        "{% import 'os' as os %}",
    ],
)
def test_a_template_stays_in_its_sandbox(source: str) -> None:
    before = json.dumps(NAMES)
    with pytest.raises(TemplateError):
        render(source, NAMES)
    assert json.dumps(NAMES) == before


DOUBLED = "{% set n = namespace(x='a' * 999) %}{% for i in range(60) %}"
BOMBS = [
    "{{ 'a' * inputs.huge }}",
    "{{ inputs.huge * 'a' }}",
    "{{ [0] * inputs.huge }}",
    "{{ inputs.huge ** inputs.huge }}",
    "{{ 9 ** (9 ** 9) }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%*d' % (inputs.huge, 1) }}",
    "{{ '%*d' | format(inputs.huge, 1) }}",
    "{{ '{:999999999}'.format(1) }}",
    "{{ '{:{}}'.format(1, inputs.huge) }}",
    "{{ '{:{w}}'.format(1, w=inputs.huge) }}",
    "{{ 'a' | center(inputs.huge) }}",
    "{{ 'a'.center(inputs.huge) }}",
    "{{ 'a'.ljust(inputs.huge) }}",
    "{{ 'a'.rjust(width=inputs.huge) if 0 else 'a'.rjust(inputs.huge) }}",
    "{{ 'a'.zfill(inputs.huge) }}",
    "{{ '\t\t'.expandtabs(inputs.huge) }}",
    "{{ 'a\nb' | indent(inputs.huge) }}",
    "{{ [1] | tojson(indent=inputs.huge) }}",
    "{{ [1] | batch(inputs.huge, 0) | list }}",
    "{{ [1] | slice(inputs.huge) | list }}",
    "{{ ('a' * 9999) | replace('a', 'b' * 9999) }}",
    "{{ ('a' * 9999).replace('a', 'b' * 9999) }}",
    "{{ range(9999) | join('b' * 9999) }}",
    "{{ ('b' * 9999).join(['a'] * 9999) }}",
    "{{ ('a b ' * 9999) | wordwrap(1, wrapstring='b' * 9999) }}",
    "{% for i in range(inputs.huge) %}{% endfor %}",
    "{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}",
    DOUBLED + "{% set n.x = n.x ~ n.x %}{% endfor %}",
    DOUBLED + "{% set n.x = n.x + n.x %}{% endfor %}",
    DOUBLED + "{% set n.x = [n.x, n.x] | join %}{% endfor %}",
    DOUBLED + "{% set n.x = n.x | replace('a', 'aa') %}{% endfor %}",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ " + "-" * 100_000 + "1 }}",
    "{% if 1 %}" * 500 + "{% endif %}" * 500,
]


@each_case("source", BOMBS)
def test_a_small_template_cannot_make_a_huge_text(source: str) -> None:
    for way in (render, render_value):
        with pytest.raises(TemplateError):
            way(source, NAMES)


def test_a_value_larger_than_an_output_is_refused_however_it_gets_in() -> None:
    names: dict[str, JsonValue] = {"stdin": "x" * (5 * 1024 * 1024)}
    for source in ("{{ stdin }}", "{{ stdin }}{{ stdin | upper }}"):
        with pytest.raises(TemplateError, match="larger than 4 MiB"):
            render(source, names)


@each_case(
    "source, text",
    [
        ("{{ inputs.d | tojson }}", '{"k": [1, null], "keys": "mine"}'),
        ("{{ 'é' | tojson }}", '"é"'),
        ("{{ [1] | tojson(indent=1) }}", "[\n 1\n]"),
        ("{{ inputs.d | toyaml }}", "k:\n  - 1\n  - null\nkeys: mine"),
        ("{{ 'a\nb' | indent(2) }}", "a\n  b"),
        ("{{ 'a\n\nb' | indent(2, first=true, blank=true) }}", "  a\n  \n  b"),
        ("{{ [1, 'a,b', none] | csv }}", '1,"a,b",'),
        ("{{ [[1, 2], ['x', true]] | csv }}", "1,2\nx,true"),
        ("{{ [{'a': 1}, {'a': 2, 'b': 'q\"'}] | csv }}", 'a,b\n1,\n2,"q"""'),
        ("{{ [] | csv }}", ""),
        (
            "{{ 'abc' | sha256 }}",
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        ),
        ("{{ '%s-%02d' | format('a', 5) }}", "a-05"),
        ("{{ '%(x)s' | format(x=1) }}", "1"),
        ("{{ '<b>' | e }}", "&lt;b&gt;"),
    ],
)
def test_filters_give_text(source: str, text: str) -> None:
    assert render(source, NAMES) == text


def test_readfile_of_a_file_over_the_bound_says_what_to_do_instead(tmp_path: Path) -> None:
    (tmp_path / "big.txt").write_bytes(b"x" * (MAX_OUTPUT + 1))
    names = ProjectNames({}, tmp_path)
    with pytest.raises(TemplateError, match="is larger than 4 MiB") as refused:
        render("{{ 'big.txt' | readfile }}", names)
    assert "`foreach: {file: rows.csv}`" in (refused.value.hint or "")
    assert "`{pack: fs}`" in (refused.value.hint or "")
    with pytest.raises(TemplateError, match="is not there") as refused:
        render("{{ 'none.txt' | readfile }}", names)
    assert refused.value.hint is None


def test_readfile_reads_inside_the_projects_folder_only(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "docs").mkdir(parents=True)
    (project / "docs/a.md").write_text("hello\n")
    (project / "latin1").write_bytes(b"\xe9")
    (tmp_path / "secret").write_text("secret")
    (project / "link").symlink_to(tmp_path / "secret")
    (project / "folder").symlink_to(tmp_path)
    names = ProjectNames({"inputs": {"name": "docs/a.md"}}, project)
    assert render("{{ inputs.name | readfile }}", names) == "hello\n"
    assert render_value("{{ './docs/a.md' | readfile }}", names) == "hello\n"
    for name in (
        *("../secret", "docs/../../secret", str(tmp_path / "secret"), "link", "folder/secret"),
        *("nowhere", "docs", "", ".", "latin1", "a\\0b", "x" * 5000, "/dev/zero"),
    ):
        with pytest.raises(TemplateError, match="readfile"):
            render(f"{{{{ '{name}' | readfile }}}}", names)
    assert opened_below(tmp_path) == []


LOOKUPS = st.sampled_from(
    [
        *("inputs.a", "inputs.n", "inputs.none", "inputs.items", "inputs.items[0]", "inputs.d.k"),
        *("inputs.items[1].k", "inputs.d.keys", "steps.notes.output", "stdin", "inputs.values"),
        *("inputs.b", "steps", "nothing", "none", "true", "inputs.a.x", "stdin[0]", "not", "env"),
        *("inputs.items[7]", "inputs.hostile", "range", "loop", "self", "inputs.d", "inputs.is"),
    ]
)
PLACES = st.builds(
    lambda before, name, after: "{{" + before + name + after + "}}",
    st.sampled_from(["", " ", "  ", "-", "- "]),
    LOOKUPS,
    st.sampled_from(["", " ", "  ", "-", " -"]),
)
TEXT = st.text(alphabet="ab {}%#\n\r-é'\"\\", max_size=8)


def by_jinja(source: str) -> Any:
    try:
        return "".join(compile_template(source, None).generate(NAMES))
    except Exception as error:
        return type(error)


@given(st.lists(PLACES | TEXT, max_size=6).map("".join))
def test_simple_templates_mean_the_same_without_jinja(source: str) -> None:
    quick = render_plain(source, NAMES)
    if quick is not None:
        assert quick == by_jinja(source)


@given(st.dictionaries(st.sampled_from(["a", "items", "keys", "x1"]), st.from_type(type(None))))
def test_a_key_goes_before_a_method_both_ways(names: dict[str, Any]) -> None:
    for key in ("a", "items", "keys", "x1"):
        source = f"{{{{ inputs.{key} }}}}"
        context: dict[str, JsonValue] = {"inputs": names}
        quick = render_plain(source, context)
        assert (quick is not None) == (key in names)
        if quick is not None:
            assert quick == "".join(compile_template(source, None).generate(context))


@given(st.text(alphabet="{}%# abinputs.|[]()'\"-~+*\n", max_size=40) | st.text())
def test_any_text_renders_or_says_why(source: str) -> None:
    with contextlib.suppress(TemplateError):
        assert isinstance(render(source, NAMES), str)


@pytest.mark.parametrize(
    ("source", "needed"), [("plain", False), ("{{ inputs.a }}", False), ("{{ 1 + 1 }}", True)]
)
def test_jinja_is_loaded_only_where_it_is_needed(source: str, *, needed: bool) -> None:
    program = (
        "import sys; from aish.templates.render import render, render_tree\n"
        "from aish.templates.render import references\n"
        f"render({source!r}, {{'inputs': {{'a': 1}}}}); references({source!r})\n"
        "print('jinja2' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(needed)
