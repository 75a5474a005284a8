"""Types and functions of C and C++ code: what is found, shown and replaced (K40, K42, K89.4)."""

import os
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from aish.packs.pack_error import PackError

SOURCES = Path(__file__).parents[2] / "data" / "c_sources"
LANGUAGES = {".c": "c", ".h": "either", ".hpp": "cpp", ".cpp": "cpp"}
QT = ["slots", "signals:"]


@pytest.fixture(scope="module")
def c() -> ModuleType:
    pytest.importorskip("tree_sitter_c", reason="the extra `c` is not installed")
    pytest.importorskip("tree_sitter_cpp", reason="the extra `c` is not installed")
    from aish.packs.c import c_symbols

    return c_symbols


def language_of(path: Path) -> str:
    return LANGUAGES.get(path.suffix, "cpp")


def splice(source: bytes, answer: dict[str, Any]) -> bytes:
    content: bytes = answer["content"].encode("utf-8", "surrogateescape")
    return source[: answer["start"]] + content + source[answer["end"] :]


@pytest.mark.parametrize("path", sorted(SOURCES.iterdir()), ids=lambda path: path.name)
def test_the_outline_and_the_skeleton_of_a_file(
    c: ModuleType, snapshot: SnapshotAssertion, path: Path
) -> None:
    source = path.read_bytes()
    options = {"language": language_of(path), "macros": QT}

    outline = c.outline(source, **options)
    rows = [
        f"{row['start_line']:>3}-{row['end_line']:<3} "
        + "  " * row["depth"]
        + f"{row['kind']} {row['name']}"
        for row in outline["items"]
    ]

    assert "\n".join([outline["language"], *rows, f"broken: {outline['broken']}"]) == snapshot
    assert c.skeleton(source, **options)["skeleton"] == snapshot


@pytest.mark.parametrize(
    ("file", "name", "lines"),
    [
        ("templates.hpp", "data::detail::Ring::push", [17]),
        ("templates.hpp", "Ring::push", [17]),
        ("templates.hpp", "push", [17]),
        ("templates.hpp", "::data::detail::Ring :: push", [17]),
        ("templates.hpp", "Ring", [5]),
        ("templates.hpp", "Ring::Ring", [12, 13, 14]),
        # Both are definitions; the declaration within the class is not.
        ("templates.hpp", "Ring::operator==", [51, 57]),
        ("templates.hpp", "Ring<T, N>::operator ==", [51]),
        ("templates.hpp", "Ring<int,2>::operator==", [57]),
        ("templates.hpp", "operator<", [26]),
        ("templates.hpp", "operator bool", [27]),
        ("templates.hpp", "operator const T*", [28]),
        ("templates.hpp", "Ring::operator new []", [29]),
        ("templates.hpp", "Ring::operator()", [30]),
        ("templates.hpp", "hash::operator()", [62]),
        ("templates.hpp", "hash<Ring<int, 4>>", [60]),
        ("templates.hpp", 'operator "" _kib', [72]),
        ("templates.hpp", 'v2::operator""_kib', [72]),
        ("templates.hpp", "Ring::~Ring", [46]),
        ("templates.hpp", "Ring::Slot::age", [37]),
        ("templates.hpp", "swap", [32]),
        ("templates.hpp", "hidden", [76]),
        ("templates.hpp", "Ring::Mode", [10]),
        ("templates.hpp", "Small", [68]),
        ("templates.hpp", "Sized", [65]),
        ("templates.hpp", "Missing::find", [81]),
        ("templates.hpp", "data::detail", [3]),
        ("templates.hpp", "from_c", [85]),
        ("templates.hpp", "declared_in_c", [87]),
        ("twins.c", "open_port", [4, 9]),
        ("twins.c", "port", [17]),
        ("old_style.c", "copy", [8]),
        ("old_style.c", "twice", [15]),
        ("old_style.c", "first", [22]),
        ("export_macros.h", "shapes_name", [19]),
        ("export_macros.h", "shapes_count", [20]),
        ("export_macros.h", "shapes_area", [21]),
        ("export_macros.h", "shapes_unit", [15]),
        ("export_macros.h", "shapes_find", [36]),
        ("qt_widget.h", "ui::Panel", [7]),
        ("qt_widget.h", "Panel::count", [15]),
        ("qt_widget.h", "Panel::refreshed", [21]),
        ("broken.cpp", "Whole::one", [3]),
        ("broken.cpp", "last", [8]),
    ],
)
def test_names_that_are_found(c: ModuleType, file: str, name: str, lines: list[int]) -> None:
    path = SOURCES / file
    options = {"language": language_of(path), "macros": QT, "name": name, "line": None}

    found = c.definitions(path.read_bytes(), **options)["definitions"]
    signatures = c.signatures(path.read_bytes(), **options)["signatures"]

    assert [row["start_line"] for row in found] == lines
    assert [row["start_line"] for row in signatures] == lines
    for row, signature in zip(found, signatures, strict=True):
        assert row["source"].lstrip().startswith(signature["signature"])
        assert row["source"].count("\n") == row["end_line"] - row["start_line"]


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("export_macros.h", "shapes_hook"),
        ("export_macros.h", "SHAPES_EACH"),
        ("templates.hpp", "not_a_function"),
        ("templates.hpp", "Ring<int>::operator=="),
        ("templates.hpp", "ing::push"),
        ("twins.c", "flags"),
    ],
)
def test_names_that_are_not_found(c: ModuleType, file: str, name: str) -> None:
    path = SOURCES / file

    with pytest.raises(PackError) as caught:
        c.definitions(path.read_bytes(), language=language_of(path), name=name, line=None)

    assert caught.value.code == "no_match"


def test_a_head_with_macros_names_the_option(c: ModuleType) -> None:
    source = b"EXPORT int CALLCONV MORE(3) f(int a)\n{ return a; }\nint g(void) { return 1; }\n"
    with pytest.raises(PackError) as caught:
        c.definitions(source, language="c", name="f", line=None)
    assert "line 1 does not parse" in caught.value.message
    assert "option `c.macros`" in caught.value.message
    with pytest.raises(PackError) as caught:
        c.definitions(source, language="c", name="h", line=None)
    assert caught.value.message == "there is no `h`"
    found = c.definitions(source, language="c", name="f", line=None, macros=("CALLCONV", "MORE()"))
    assert found["definitions"][0]["start_line"] == 1


def test_near_names_are_offered(c: ModuleType) -> None:
    source = (SOURCES / "templates.hpp").read_bytes()

    with pytest.raises(PackError, match="there is `data::detail::Ring::push`") as caught:
        c.definitions(source, language="cpp", name="Rong::PUSH", line=None)

    assert caught.value.details["names"] == ["data::detail::Ring::push"]


@pytest.mark.parametrize(
    ("file", "name", "line", "rows"),
    [
        ("templates.hpp", "push", None, ["template <typename U>", "    bool push(U &&value)"]),
        (
            "templates.hpp",
            "Ring",
            None,
            ["template <typename T, int N = 4>", "class Ring final : public Base<T>"],
        ),
        ("templates.hpp", "Ring::Ring", 12, ["Ring() = default"]),
        ("templates.hpp", "Ring::Ring", 14, ["explicit Ring(Mode mode)"]),
        ("templates.hpp", "from_c", None, ['extern "C" int from_c(void)']),
        ("old_style.c", "add", None, ["int add(a, b)", "    int a;", "    int b"]),
        (
            "old_style.c",
            "copy",
            None,
            ["char *copy(from, size)", "    char *from;", "    int size"],
        ),
        (
            "export_macros.h",
            "shapes_area",
            None,
            ["SHAPES_EXPORT", "double shapes_area(struct shapes_list *list, shapes_unit unit)"],
        ),
        ("export_macros.h", "shapes_unit", None, ["typedef enum shapes_unit"]),
        (
            "export_macros.h",
            "shapes_compare",
            None,
            ["typedef int (*shapes_compare)(const void *, const void *)"],
        ),
        ("export_macros.h", "shapes_list", None, ["struct shapes_list"]),
    ],
)
def test_a_signature_ends_where_the_body_begins(
    c: ModuleType, file: str, name: str, line: int | None, rows: list[str]
) -> None:
    path = SOURCES / file
    found = c.signatures(path.read_bytes(), language=language_of(path), name=name, line=line)

    assert [row["signature"] for row in found["signatures"]] == ["\n".join(rows)]


@pytest.mark.requirement("K40")
def test_twins_are_all_read_and_need_a_line_to_be_written(c: ModuleType) -> None:
    source = (SOURCES / "twins.c").read_bytes()
    content = b"static int open_port(const char *name)\n{\n    return 3;\n}"

    with pytest.raises(PackError) as caught:
        c.update(source, content, name="open_port", line=None, language="c")
    assert caught.value.code == "ambiguous"
    assert caught.value.details["lines"] == [4, 9]

    # Any line of the definition will do, and with one a declaration can be meant.
    for line, old in ((4, b"return 1;"), (11, b"return 2;")):
        edited = splice(
            source, c.update(source, content, name="open_port", line=line, language="c")
        )
        assert edited == source.replace(old, b"return 3;")
    declared = b"static int open_port(const char *name, int flags);"
    edited = splice(source, c.update(source, declared, name="open_port", line=14, language="c"))
    assert edited == source.replace(
        b"open_port(const char *name);", b"open_port(const char *name, int flags);"
    )
    with pytest.raises(PackError, match="is at line 2") as caught:
        c.update(source, content, name="open_port", line=2, language="c")
    assert caught.value.code == "no_match"


MEMBER = b"""class A {
    int f()
    {
        return 1;
    }
    int g() { return 2; }
};
"""


INDENTED = b"    int f()\n    {\n        return 3;\n    }"
AS_WRITTEN = {
    "as it is returned": (INDENTED, INDENTED),
    "without indentation": (b"int f()\n{\n    return 3;\n}", INDENTED),
    "without that of the first line": (INDENTED.lstrip() + b"\n", INDENTED),
    "with another one": (
        b"\n\n\tint f()\n\t{\n\t\treturn 3;\n\t}\n\n",
        b"    int f()\n    {\n    \treturn 3;\n    }",
    ),
    "directives stay where they are": (
        b"int f()\n{\n#if X\n    return 3;\n#endif\n\n}",
        b"    int f()\n    {\n#if X\n        return 3;\n#endif\n\n    }",
    ),
    "raw strings keep their text": (
        b'int f()\n{\n    g(R"(a\nb)");\n}',
        b'    int f()\n    {\n        g(R"(a\nb)");\n    }',
    ),
    "more than the definition": (
        b"// What it does.\nint f() {}\nint h();",
        b"    // What it does.\n    int f() {}\n    int h();",
    ),
}


@pytest.mark.parametrize("case", AS_WRITTEN)
def test_new_text_is_indented_like_its_place(c: ModuleType, case: str) -> None:
    content, expected = AS_WRITTEN[case]
    old = MEMBER[MEMBER.index(b"    int f") : MEMBER.index(b"    int g") - 1]

    edited = splice(MEMBER, c.update(MEMBER, content, name="A::f", line=None, language="cpp"))

    assert edited == MEMBER.replace(old, expected)


def test_a_definition_within_a_line_is_replaced_as_it_is(c: ModuleType) -> None:
    source = b"struct A { int f() { return 1; } int g() { return 2; } };\n"

    edited = splice(
        source, c.update(source, b"int g()\n{ return 3; }", name="g", line=None, language="cpp")
    )

    assert edited == b"struct A { int f() { return 1; } int g()\n{ return 3; } };\n"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"int f() { return 3;", "syntax"),
        (b"int f() { return 3; } }", "syntax"),
        (b"int f( {", "syntax"),
        (b"The function returns three.", "syntax"),
        # Each of these parses, and takes in what follows or what is around it.
        (b"int f() { return 3; } /*", "syntax"),
        (b"int f() { return 3; } }; class B { void h() {}", "syntax"),
        (b'int f() { return g("a); } int h() { return 1; }', "syntax"),
        (b"#if 0\nint f() { return 3; }", "syntax"),
        (b"int f() { return 3; } // \\", "syntax"),
        (b"", "bad_content"),
        (b"  \n\n ", "bad_content"),
        (b"// int f() { return 3; }", "bad_content"),
        (b"int other() { return 3; }", "bad_content"),
        (b"int f();", "bad_content"),
        (b"int x;", "bad_content"),
        (b"struct B { int f() { return 3; } };", "bad_content"),
    ],
)
def test_an_update_that_is_refused(c: ModuleType, content: bytes, code: str) -> None:
    with pytest.raises(PackError) as caught:
        c.update(MEMBER, content, name="A::f", line=None, language="cpp")

    assert caught.value.code == code
    assert caught.value.message.startswith("nothing was written")


def test_a_line_comment_does_not_take_in_the_rest_of_its_line(c: ModuleType) -> None:
    source = b"int f() { return 1; } int g() { return 2; }\n"

    with pytest.raises(PackError) as caught:
        c.update(source, b"int f() { return 3; } // new", name="f", line=None, language="c")
    assert caught.value.code == "syntax"

    edited = c.update(source, b"int g() { return 3; } // new", name="g", line=None, language="c")
    assert splice(source, edited).endswith(b"int g() { return 3; } // new\n")


def test_a_broken_file_is_edited_as_long_as_it_gets_no_worse(c: ModuleType) -> None:
    source = (SOURCES / "broken.cpp").read_bytes()

    edited = splice(
        source,
        c.update(source, b"int one() { return 3; }", name="one", line=None, language="cpp"),
    )

    assert edited == source.replace(b"return 1", b"return 3")
    with pytest.raises(PackError) as caught:
        c.update(source, b"int one() { return 3 +; }", name="one", line=None, language="cpp")
    assert caught.value.code == "syntax"
    assert "line 3" in caught.value.message


def test_a_parameter_of_a_template_may_be_renamed_and_a_specialization_not(c: ModuleType) -> None:
    source = b"template <class T> int V<T>::size() { return 1; }\n"
    content = b"template <class U> int V<U>::size() { return 2; }"

    edited = c.update(source, content, name="V::size", line=None, language="cpp")
    assert splice(source, edited) == content + b"\n"
    with pytest.raises(PackError) as caught:
        c.update(source, content, name="V<T>::size", line=None, language="cpp")
    assert caught.value.code == "bad_content"


def test_export_macros_belong_to_what_they_precede(c: ModuleType) -> None:
    source = (SOURCES / "export_macros.h").read_bytes()

    for name in ("shapes_name", "shapes_count", "shapes_area"):
        options: dict[str, Any] = {"name": name, "line": None, "language": "either"}
        (row,) = c.definitions(source, **options)["definitions"]
        assert "SHAPES_" in row["source"]
        assert c.update(source, row["source"].encode(), **options)["content"] == row["source"]


def symbols(c: ModuleType, source: bytes, language: str) -> list[Any]:
    from aish.packs.c.c_parser import parse

    found: list[Any] = c.symbols_of(parse(source, language))
    return found


def check_file(c: ModuleType, source: bytes, language: str, most: int) -> int:
    """Every property that holds for any file; the number of definitions that were written back."""
    from aish.packs.c.c_parser import parse

    parsed = parse(source, language)
    language = parsed.language
    found = c.symbols_of(parsed)
    lines = source.count(b"\n") + 1
    for symbol in found:
        assert 0 <= symbol.start < symbol.body <= symbol.end <= len(source)
        assert symbol.line == source.count(b"\n", 0, symbol.start) + 1
        assert symbol.last == source.count(b"\n", 0, symbol.end) + 1 <= lines
    skeleton = c.skeleton(source, language=language)["skeleton"]
    short = parse(skeleton.encode("utf-8", "surrogateescape"), language)
    if not parsed.errors:
        assert short.errors == 0
        assert [(one.kind, one.name) for one in c.symbols_of(short)] == [
            (one.kind, one.name) for one in found
        ]
    written = 0
    for symbol in random.Random(2026).sample(found, min(most, len(found))):
        options = {"name": symbol.name, "line": symbol.line, "language": language}
        for row in c.definitions(source, **options)["definitions"]:
            content = row["source"].encode("utf-8", "surrogateescape")
            options["line"] = row["start_line"]
            assert splice(source, c.update(source, content, **options)) == source
            written += 1
    return written


HEADER_PARTS = 4


def headers() -> Iterator[tuple[Path, str]]:
    """The headers of Python, which are C, and those of Eigen, which are C++."""
    for path in sorted(Path(sysconfig.get_path("include")).rglob("*.h")):
        yield path, "either"
    eigen = Path(sysconfig.get_path("purelib")) / "cmeel.prefix" / "include" / "eigen3" / "Eigen"
    for path in sorted(eigen.rglob("*")):
        if path.is_file():
            yield path, "either" if path.suffix == ".h" else "cpp"


def test_every_source_of_the_tests_is_written_back_unchanged(c: ModuleType) -> None:
    for path in SOURCES.iterdir():
        assert check_file(c, path.read_bytes(), language_of(path), 100) > 0


@pytest.mark.slow(reason="reads many headers")
def test_definitions_of_a_sample_of_real_headers_are_written_back_unchanged(c: ModuleType) -> None:
    rows = list(headers())
    if not any("eigen3" in path.parts for path, _ in rows):
        pytest.skip("the headers of Eigen are not installed: make .venv/.development")

    written = sum(
        check_file(c, path.read_bytes(), language, 3)
        for path, language in random.Random(2026).sample(rows, 40)
        if path.stat().st_size < 100_000
    )

    assert written > 60


@pytest.mark.slow(reason="reads and writes back the definitions of more than 600 headers")
@pytest.mark.parametrize("part", range(HEADER_PARTS))
def test_definitions_of_all_headers_are_written_back_unchanged(c: ModuleType, part: int) -> None:
    rows = [row for row in headers() if row[0].stat().st_size <= 2 * 1024 * 1024]
    assert len(rows) > 500

    mine = rows[part::HEADER_PARTS]
    written = sum(check_file(c, path.read_bytes(), language, 4) for path, language in mine)

    assert written > 1000 / HEADER_PARTS


_PIECES = st.sampled_from(
    [
        *("int f(int a) { return a; }\n", "struct A { int b; };\n", "class B : A { void c(); };\n"),
        *("template <class T> ", "namespace n {\n", "}\n", "#ifdef X\n", "#else\n", "#endif\n"),
        *("typedef struct { int a; } t;\n", "int g(a) int a; { }\n", "char *h(a) int a; { }\n"),
        *("operator==", "operator bool() { }", " A::f() {}", "friend ", 'extern "C" ', "/* ", "*/"),
        *("static ", "\t", "    ", "\n", "\r\n", ";", "{", "}", "(", ")", '"', "é", "X_API "),
        *("enum E { P };\n", "using Q = int;\n", "~A();", "<", ">", "::", "x", "= delete;", "//"),
        *("\\\n", "concept C = true;\n", 'R"(', ')"', "union U { int a; } u;\n"),
    ]
)


@given(pieces=st.lists(_PIECES, max_size=40), language=st.sampled_from(["c", "cpp", "either"]))
@settings(max_examples=4 * settings().max_examples)
def test_any_text_has_an_outline_and_is_written_back_unchanged(
    c: ModuleType, pieces: list[str], language: str
) -> None:
    check_file(c, "".join(pieces).encode(), language, 10)


def test_a_broken_definition_with_the_end_of_its_line_is_written_back_unchanged(
    c: ModuleType,
) -> None:
    assert check_file(c, b"namespace n {\n#else\n", "cpp", 10) == 1


def test_a_name_after_several_scope_operators_is_found_by_its_line(c: ModuleType) -> None:
    source = b"int f() { return 1; }\nint ::::f() { return 2; }\n"

    assert [row["name"] for row in c.outline(source, language="cpp")["items"]] == ["f", "f"]
    assert check_file(c, source, "cpp", 10) == 2


_FUNCTIONS = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True)


@given(names=_FUNCTIONS, indent=st.sampled_from(["", "    ", "\t"]), data=st.data())
def test_an_update_changes_its_definition_and_nothing_else(
    c: ModuleType, names: list[str], indent: str, data: st.DataObject
) -> None:
    rows = [
        f"{indent}int {name}()\n{indent}{{\n{indent}    return 1;\n{indent}}}\n" for name in names
    ]
    head, tail = ("class A {\n", "};\n") if indent else ("", "")
    source = (head + "\n".join(rows) + tail).encode()
    name = data.draw(st.sampled_from(names))
    index = names.index(name)

    content = f"int {name}()\n{{\n    return 2;\n}}\n".encode()
    edited = splice(source, c.update(source, content, name=name, line=None, language="cpp"))

    rows[index] = rows[index].replace("return 1", "return 2")
    assert edited.decode() == head + "\n".join(rows) + tail


def test_a_name_that_is_too_long_is_cut(c: ModuleType) -> None:
    source = b"namespace " + b"n" * 100_000 + b" { " + b"int f(); " * 1000 + b"}\n"

    items = c.outline(source, language="cpp")["items"]

    assert len(items) == 1001
    assert max(len(row["name"]) for row in items) <= 1000


def test_scopes_within_scopes_are_looked_into_to_a_limit(c: ModuleType) -> None:
    depth = 20_000
    source = b"namespace a { " * depth + b"int f();" + b"}" * depth

    outline = c.outline(source, language="cpp")

    assert 90 < len(outline["items"]) < 110
    assert c.skeleton(source, language="cpp")["skeleton"].encode() == source


# A quarter of it is far deeper than any stack already.
SHARE = 1 if os.environ.get("AISH_TEST_ALL") == "1" else 4


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "source",
    [
        b"int f() { return "
        + b"(" * (200_000 // SHARE)
        + b"1"
        + b")" * (200_000 // SHARE)
        + b"; }\n",
        b"int f() " + b"{" * (200_000 // SHARE) + b"}" * (200_000 // SHARE),
        b"int " + b"*" * (200_000 // SHARE) + b"f();\n",
        b"int " + b"(" * (50_000 // SHARE) + b"f" + b")" * (50_000 // SHARE) + b"(int);\n",
        b"template <class T> " * (20_000 // SHARE) + b"int f();\n",
        b"struct { " * (5_000 // SHARE) + b"int a;" + b"};" * (5_000 // SHARE),
        b"#if A\n" * (20_000 // SHARE) + b"int f();\n" + b"#endif\n" * (20_000 // SHARE),
        b"a::" * (50_000 // SHARE) + b"f() {}",
        b"int f();" * (30_000 // SHARE),
        b"typedef int " + b"a, " * (30_000 // SHARE) + b"b;\n",
        b"int f() {}\n" + b"{}" * (30_000 // SHARE),
        b"\0" * 1000 + b"int f();\n",
        "int f(void);\n".encode("utf-16"),
        random.Random(2026).randbytes(64) * 500,
    ],
    ids=lambda source: repr(source[:12]),
)
def test_hostile_code_has_an_outline(c: ModuleType, source: bytes) -> None:
    outline = c.outline(source, language="either")
    c.skeleton(source, language="either")

    assert len(outline["items"]) <= 30_001
    assert len(outline["broken"]) <= 100
