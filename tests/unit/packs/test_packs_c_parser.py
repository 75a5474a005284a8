"""How C and C++ are parsed: grammars, macros that are blanked, and errors (K39, K41)."""

from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def parser() -> ModuleType:
    pytest.importorskip("tree_sitter_c", reason="the extra `c` is not installed")
    pytest.importorskip("tree_sitter_cpp", reason="the extra `c` is not installed")
    from aish.packs.c import c_parser

    return c_parser


GUARDED = b"""#ifdef __cplusplus
extern "C" {
#endif
int f(int a);
#if defined(__cplusplus) /* the end */
}  // extern "C"
#endif
"""
WIDGET = b"""#define FOO_API __attribute__((x))
#ifdef FOO_API
class FOO_API Widget : public Base {
    Q_OBJECT
public:
    FOO_EXPORT int size() const;
};
#endif
"""


@pytest.mark.requirement("K39")
@pytest.mark.parametrize(
    ("source", "language"),
    [
        (b"struct a { int b; };\nint f(struct a *b);\n", "c"),
        (b"int f(a) int a; { return a; }\n", "c"),
        (b"namespace a { int f(); }\n", "cpp"),
        (b"template <class T> T f(T a) { return a; }\n", "cpp"),
        # The grammar of C has no error in it: `class` could be a type.
        (b"class A { int b; };\n", "cpp"),
        (b"class A { public: int b; };\n", "cpp"),
        # In a comment of C the word says nothing.
        (b"/* the class of a namespace */\nint f(void);\n", "c"),
        (GUARDED, "c"),
        (GUARDED.replace(b"the end", b"\xff"), "c"),
        (WIDGET, "cpp"),
        (b"", "c"),
    ],
)
def test_a_header_is_of_the_language_with_fewer_errors(
    parser: ModuleType, source: bytes, language: str
) -> None:
    found = parser.parse(source, "either")

    assert (found.language, found.errors) == (language, 0)


@pytest.mark.requirement("K41")
def test_export_macros_are_blanked_where_that_leaves_fewer_errors(parser: ModuleType) -> None:
    found = parser.parse(WIDGET, "cpp")

    assert found.errors == 0
    assert [WIDGET[start:end] for start, end in found.blanked] == [
        b"FOO_API",
        b"Q_OBJECT",
        b"FOO_EXPORT",
    ]
    assert found.source is WIDGET


def test_code_without_errors_is_parsed_as_it_is(parser: ModuleType) -> None:
    source = b"#define X_API\nint X_API;\nint f(int X_API) { return X_API; }\n"

    assert parser.parse(source, "c").blanked == ()


@pytest.mark.parametrize(
    ("macros", "source"),
    [
        (["DEPRECATED()"], b'DEPRECATED(("old" ")"), 1) int f(int a) WARN { return a; }\n'),
        (["WARN"], b"int WARN a WARN;\n"),
        (
            ["slots", "signals:"],
            b"class A {\npublic slots:\n void b();\nsignals:\n void c();\n};\n",
        ),
        (["  SPACED  ", ""], b"int f(void) SPACED SPACED SPACED;int g(void) SPACED 1;\n"),
    ],
)
def test_macros_of_the_options_are_blanked_too(
    parser: ModuleType, macros: list[str], source: bytes
) -> None:
    language = "cpp" if b"class" in source else "c"

    assert parser.parse(source, language).errors > 0
    blanked, ranges = parser.blank_out(source, macros)
    assert len(blanked) == len(source)
    assert blanked.count(b"\n") == source.count(b"\n")
    assert ranges
    assert parser.parse(source, language, macros).errors < parser.parse(source, language).errors


DEAD = b"""int a;
#if 0  /* not C */
it's prose( {
#ifdef X
X_API
#else
#endif
#else
int X_API b;
#endif
#if 0
#endif
#if 01
int c;
#endif
#if 0
the rest is open
"""


def test_code_that_is_never_compiled_is_blanked_too(parser: ModuleType) -> None:
    text, ranges = parser.blank_out(DEAD, ())

    assert [DEAD[start:end] for start, end in ranges] == [
        b"\nit's prose( {\n#ifdef X\nX_API\n#else\n#endif\n",
        b"X_API",
        b"\n",
    ]
    assert len(text) == len(DEAD)
    closed = DEAD[: DEAD.rindex(b"#if 0")]
    assert parser.parse(closed, "c").errors == 0


def test_a_macro_before_the_name_of_a_class_is_blanked_whatever_its_name(
    parser: ModuleType,
) -> None:
    source = b"class CORE_EXPORTS A : public B {\npublic:\n  int f() const;\n};\nclass UPPER {};\n"
    found = parser.parse(source, "cpp")

    assert found.errors == 0
    assert [source[start:end] for start, end in found.blanked] == [b"CORE_EXPORTS"]


def test_arguments_without_an_end_are_left_as_they_are(parser: ModuleType) -> None:
    source = b"OLD(" * 30_000

    blanked, ranges = parser.blank_out(source, ["OLD()"])

    assert ranges[0] == (0, 3)
    assert blanked.count(b"(") == 30_000


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        (b"int a;\n\nint f(void) { return 1; }\n", b"int a;\n\nint f(void) { return 1;\n", "`}`"),
        (b"int a;\n", b"int a;\nint b = = 2;\n", "line 2"),
        (b"int a;\n", b"int b;\n", ""),
        (b"int = a = ;\n", b"int = = = a b;\n", ""),
        (GUARDED, GUARDED.replace(b"f(int a)", b"g(int a, ...)"), ""),
    ],
)
def test_the_first_error_of_an_edit_is_named_if_there_was_none_before(
    parser: ModuleType, before: bytes, after: bytes, problem: str
) -> None:
    found = parser.new_problem(before, after, language="either")

    assert problem in found
    assert bool(problem) == bool(found)


def test_errors_are_counted_and_have_their_lines(parser: ModuleType) -> None:
    source = b"int a;\nint f( { }\nint b;\nint g() {\n"
    found = parser.parse(source, "c")

    assert found.errors > 0
    assert parser.error_lines(found)
    assert parser.error_lines(found, 1) == parser.error_lines(found)[:1]


_PIECES = st.sampled_from(
    [
        *(b"int ", b"class ", b"A_API ", b"Q_OBJECT", b"#define ", b"\\\n", b"\n", b"{", b"}"),
        *(b"(", b")", b";", b"#ifdef __cplusplus\n", b'extern "C" {\n', b"#endif\n", b'"', b"/*"),
        *(b"#if 0\n", b"#else\n", b"#ifdef A\n"),
        *(b"*/", b"template<", b">", b"\xff", b"f", b"OLD(", b"'"),
    ]
)


@given(pieces=st.lists(_PIECES, max_size=60), macros=st.lists(st.text(max_size=6), max_size=3))
@settings(max_examples=2 * settings().max_examples)
def test_blanking_keeps_every_offset_and_every_line(
    parser: ModuleType, pieces: list[bytes], macros: list[str]
) -> None:
    source = b"".join(pieces)

    blanked, ranges = parser.blank_out(source, [*macros, "OLD()"])

    assert len(blanked) == len(source)
    position = 0
    for start, end in ranges:
        assert position <= start < end
        assert blanked[position:start] == source[position:start]
        assert set(blanked[start:end]) <= set(b" \r\n")
        assert blanked[start:end].count(b"\n") == source[start:end].count(b"\n")
        position = end
    assert blanked[position:] == source[position:]
    found = parser.parse(source, "either", macros)
    assert found.errors <= parser.parse(source, "c").errors
