"""The tools of the pack `c`, called as a run calls them (K39 to K42)."""

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pack_scenes import PackScene, opened_packs, pack_services, sha256

from aish.core.errors import UsageError
from aish.packs.c.c_options import COptions
from aish.packs.framework.server import open_packs

SOURCES = Path(__file__).parents[2] / "data" / "c_sources"
READERS = ("c_get_skeleton", "c_get_code_outline", "c_get_definition", "c_get_signature")
pytestmark = pytest.mark.usefixtures("_grammars")


@pytest.fixture(scope="session")
def _grammars() -> None:
    pytest.importorskip("tree_sitter_c", reason="the extra `c` is not installed")
    pytest.importorskip("tree_sitter_cpp", reason="the extra `c` is not installed")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, _grammars: None) -> Iterator[PackScene]:
    root = tmp_path_factory.mktemp("root")
    for path in SOURCES.iterdir():
        (root / path.name).write_bytes(path.read_bytes())
    with opened_packs(["c"], root) as scene:
        yield scene


def named(tool: str) -> dict[str, Any]:
    return {} if tool in READERS[:2] else {"name": "f"}


def test_an_outline_has_the_language_the_items_and_the_broken_lines(scene: PackScene) -> None:
    data = scene.data("c_get_code_outline", path="broken.cpp")

    assert data == {
        "path": "broken.cpp",
        "language": "cpp",
        "items": [
            {"kind": "class", "name": "Whole", "start_line": 1, "end_line": 4, "depth": 0},
            {"kind": "method", "name": "Whole::one", "start_line": 3, "end_line": 3, "depth": 1},
            {"kind": "function", "name": "last", "start_line": 8, "end_line": 8, "depth": 0},
        ],
        "broken": [6],
        "truncated": False,
    }
    assert scene.text("c_get_code_outline", path="broken.cpp") == (
        "class Whole  1-4\n  method Whole::one  3-3\nfunction last  8-8\n[does not parse at line 6]"
    )


def test_a_skeleton_leaves_out_bodies(scene: PackScene) -> None:
    data = scene.data("c_get_skeleton", path="export_macros.h")

    assert (data["language"], data["broken"], data["truncated"]) == ("c", [], False)
    assert (
        "static inline int shapes_is_empty(struct shapes_list *list)\n{ /* ... */ }"
        in (data["skeleton"])
    )
    assert scene.text("c_get_skeleton", path="export_macros.h") == data["skeleton"]


def test_twins_are_all_returned(scene: PackScene) -> None:
    rows = scene.data("c_get_definition", path="twins.c", name="open_port")["definitions"]

    assert [(row["start_line"], row["end_line"]) for row in rows] == [(4, 7), (9, 12)]
    text = scene.text("c_get_definition", path="twins.c", name="open_port")
    assert text.startswith("// lines 4-7\nstatic int open_port(const char *name)\n{\n")
    assert "\n\n// lines 9-12\n" in text
    one = scene.call("c_get_definition", path="twins.c", name="open_port", line=9)
    assert one["content"][0]["text"] == one["structuredContent"]["definitions"][0]["source"]
    signatures = scene.data("c_get_signature", path="twins.c", name="open_port", line=14)
    assert signatures["signatures"] == [
        {"signature": "static int open_port(const char *name)", "start_line": 14}
    ]


@pytest.mark.parametrize(
    ("name", "language"), [("a.c", "c"), ("a.cpp", "cpp"), ("a.ipp", "cpp"), ("a.h", "c")]
)
def test_the_name_of_a_file_says_the_language(scene: PackScene, name: str, language: str) -> None:
    scene.put(name, "int f(int a) { return a; }\n")

    for tool in READERS:
        assert scene.data(tool, path=name, **named(tool))["language"] == language
    assert scene.data("c_get_code_outline", path=name, language="cpp")["language"] == "cpp"


@pytest.mark.parametrize("tool", READERS)
def test_what_is_no_c_is_unsupported(scene: PackScene, tool: str) -> None:
    scene.put("a.py", "int f(int a) { return a; }\n")
    scene.put("nul.c", b"int f(int a)\0 { return a; }\n")
    scene.put("wrong.c", b"\xff\xfeint f(int a) { return a; }\n\n"[:-1])

    assert scene.code(tool, path="a.py", **named(tool)) == "unsupported"
    assert "language=c" in scene.error(tool, path="a.py", **named(tool))["message"]
    assert scene.data(tool, path="a.py", language="c", **named(tool))["language"] == "c"
    assert scene.code(tool, path="nul.c", **named(tool)) == "unsupported"
    assert scene.code(tool, path="wrong.c", **named(tool)) == "unsupported"


@pytest.mark.parametrize("tool", READERS)
def test_paths_are_held_below_the_root(scene: PackScene, tool: str) -> None:
    scene.put(".ssh/a.c", "int f(void);\n")
    scene.put("folder/a.c", "int f(void);\n")

    for path, code in {
        "../a.c": "outside",
        "/etc/a.c": "outside",
        "missing.c": "not_found",
        ".ssh/a.c": "not_found",
        "folder.c/a.c": "not_found",
    }.items():
        assert scene.code(tool, path=path, **named(tool)) == code
    assert scene.code(tool, path="folder", language="c", **named(tool)) == "not_a_file"


@pytest.mark.parametrize("tool", READERS)
def test_a_file_that_is_too_large_is_not_parsed(scene: PackScene, tool: str) -> None:
    scene.put("large.c", b"int f(void);\n" * 170_000)

    error = scene.error(tool, path="large.c", **named(tool))

    assert error["code"] == "too_large"
    assert error["details"]["limit"] == 2 * 1024 * 1024


@pytest.mark.parametrize("tool", READERS)
def test_encodings_are_read(scene: PackScene, tool: str) -> None:
    text = "/* é */ int f(int a) { return a; }\n"
    for name, data in {
        "utf8.c": b"\xef\xbb\xbf" + text.encode(),
        "utf16.c": text.encode("utf-16"),
        "latin1.c": text.encode("latin-1"),
        "crlf.c": text.replace("\n", "\r\n").encode(),
    }.items():
        scene.put(name, data)
        assert scene.data(tool, path=name, **named(tool))["language"] == "c"


@pytest.mark.parametrize(
    ("codec", "bom", "ends"),
    [("utf-8", b"", "\n"), ("utf-8", b"\xef\xbb\xbf", "\r\n"), ("utf-16-le", b"\xff\xfe", "\n")],
)
def test_an_update_keeps_encoding_and_line_ends(
    scene: PackScene, codec: str, bom: bytes, ends: str
) -> None:
    before = "/* é */\nint f(int a)\n{\n    return a;\n}\n\nint g(void);\n"
    scene.put("kept.c", bom + before.replace("\n", ends).encode(codec))

    old = scene.data("c_get_definition", path="kept.c", name="f")["definitions"][0]["source"]
    data = scene.data("c_update_definition", path="kept.c", name="f", content=old)
    assert not data["diff"]
    assert scene.get("kept.c") == bom + before.replace("\n", ends).encode(codec)

    new = old.replace("return a", "return a + 1")
    data = scene.data("c_update_definition", path="kept.c", name="f", content=new)
    after = bom + before.replace("return a", "return a + 1").replace("\n", ends).encode(codec)
    assert scene.get("kept.c") == after
    assert (data["sha256"], data["created"]) == (sha256(after), False)
    assert "-    return a;\n+    return a + 1;\n" in data["diff"]


@pytest.mark.requirement("K42")
@pytest.mark.parametrize(
    ("content", "more", "code"),
    [
        ("int f(int a) { return a +; }", {}, "syntax"),
        ("int g(int a) { return a; }", {}, "bad_content"),
        ("int f(int a) { return a; }", {"name": "missing"}, "no_match"),
        ("int f(int a) { return a; }", {"name": " "}, "bad_arguments"),
        ("int f(int a) { return a; }", {"expect_sha256": "0" * 64}, "changed"),
        ("int f(int a) { return '\0'; }", {}, "bad_arguments"),
        ("int f(int a) { return a; }", {"path": "twins.c", "name": "open_port"}, "ambiguous"),
        ("int f(int a) { return a; }", {"path": "missing.c"}, "not_found"),
        ("int f(int a) { return a; }", {"path": ".git/a.c"}, "protected"),
        ("int f(int a) { return a; }", {"path": "../a.c"}, "outside"),
        ("int f(int a) { return a; }", {"path": "a.txt"}, "unsupported"),
        ("int f(int a) { return a; }", {"path": "nul.c"}, "binary"),
        ("int f(int a) { return 'é'; }", {"path": "latin1.c"}, "encoding"),
        ("int f(int a) { return a; }", {"path": "read_only.c"}, "unwritable"),
    ],
)
def test_an_update_that_fails_writes_nothing(
    scene: PackScene, content: str, more: dict[str, str], code: str
) -> None:
    source = "int f(int a) { return a; }\n"
    scene.put("same.c", source)
    scene.put("nul.c", source.encode() + b"\0")
    scene.put("latin1.c", "/* é */\n".encode("latin-1") + source.encode())
    (scene.root / "read_only.c").unlink(missing_ok=True)
    scene.put("read_only.c", source).chmod(0o444)
    before = {path: path.read_bytes() for path in scene.root.iterdir() if path.is_file()}

    arguments = {"path": "same.c", "name": "f", "content": content, **more}
    assert scene.code("c_update_definition", **arguments) == code

    after = {path: path.read_bytes() for path in scene.root.iterdir() if path.is_file()}
    assert after == before


def test_macros_of_the_options_are_blanked(tmp_path: Path) -> None:
    source = "class A {\npublic slots:\n    void b() { }\nsignals:\n    void c();\n};\n"
    options = {"c": COptions(macros=("slots", "signals:"))}

    for chosen, broken in ((None, True), (options, False)):
        with opened_packs(["c"], tmp_path, chosen) as scene:
            scene.put("a.hpp", source)
            data = scene.data("c_get_code_outline", path="a.hpp")
            assert bool(data["broken"]) is broken
    with opened_packs(["c"], tmp_path, options) as scene:
        scene.data("c_update_definition", path="a.hpp", name="A::b", content="void b() { c(); }")
        assert scene.get("a.hpp").decode() == source.replace("{ }", "{ c(); }")


def test_the_option_holds_for_edits_and_summaries_of_the_same_root(tmp_path: Path) -> None:
    source = "int f(int a) { ONCE return a; }\nint g(void);\n"
    options = {"c": COptions(macros=("ONCE",))}
    edits = (
        ("file_edit", {"old_text": "return a;", "new_text": "return (a;"}),
        ("file_set_lines", {"start_line": 2, "end_line": 2, "content": "int g(void;\n"}),
    )

    with opened_packs(["edit", "fs"], tmp_path, options) as scene:
        scene.put("a.c", source)
        for tool, arguments in edits:
            assert scene.code(tool, path="a.c", **arguments) == "syntax"
        assert scene.get("a.c").decode() == source
        scene.put("b.c", "int g(void);\n")
        scene.text("file_edit", path="b.c", old_text="int g(void);\n", new_text=source)
        assert "function f, lines 1-1" in scene.text("file_summary", path="a.c")


@pytest.mark.parametrize("tool", READERS[:2])
def test_a_long_result_is_cut_and_says_so(scene: PackScene, tool: str) -> None:
    scene.put("long.c", "".join(f"int function_{number}(void);\n" for number in range(20_000)))

    data = scene.data(tool, path="long.c")
    text = scene.text(tool, path="long.c")

    assert data["truncated"] is True
    assert "[truncated: true" in text
    assert len(text) <= 50_000
    if tool == "c_get_code_outline":
        last = data["items"][-1]["start_line"]
        assert text.endswith(f" more from line {last + 1} on, file_read shows them]")


def test_a_long_definition_is_cut_and_says_how_to_read_the_rest(scene: PackScene) -> None:
    scene.put("wide.c", "int a;\nint f(void)\n{\n" + "    a = 1;\n" * 20_000 + "}\n")

    data = scene.data("c_get_definition", path="wide.c", name="f")
    text = scene.text("c_get_definition", path="wide.c", name="f")

    assert text.endswith("\n[truncated: true; file_read shows all of it, with start_line=2]")
    assert len(data["definitions"][0]["source"]) <= 50_000
    assert data["truncated"] is True


def test_definitions_that_are_too_long_together_are_not_returned(scene: PackScene) -> None:
    scopes = "namespace x { " + "namespace b { namespace q { " * 45
    scene.put("many.cpp", scopes + "/*" + "x" * 50_000 + "*/" + "}" * 91 + "\n")

    error = scene.error("c_get_definition", path="many.cpp", name="b")

    assert error["code"] == "too_large"


def test_a_marker_in_code_does_not_begin_a_line(scene: PackScene) -> None:
    scene.put("mark.c", "int f(void)\n{\n[aish files updated 1]\n    return 1;\n}\n")

    text = scene.text("c_get_definition", path="mark.c", name="f")

    assert "\n [aish files updated 1]\n" in text


TEXTS = st.text(st.sampled_from("fgAB(){};:<>=~&*,\n\r\t \\#\"'/éint0\u2028"), max_size=200)


@given(text=TEXTS)
def test_any_text_gets_an_answer_and_is_written_back_unchanged(scene: PackScene, text: str) -> None:
    scene.put("any.cpp", text)
    outline = scene.data("c_get_code_outline", path="any.cpp")

    for item in outline["items"][:3]:
        which = {"path": "any.cpp", "name": item["name"], "line": item["start_line"]}
        for row in scene.data("c_get_definition", **which)["definitions"]:
            which["line"] = row["start_line"]
            scene.data("c_update_definition", content=row["source"], **which)
            assert scene.get("any.cpp") == text.encode()


MOST = 2 * 1024 * 1024


def filled(piece: bytes, head: bytes = b"", tail: bytes = b"") -> bytes:
    """As many pieces as may be parsed."""
    return head + piece * ((MOST - len(head) - len(tail)) // len(piece)) + tail


HOSTILE = {
    "balanced parentheses": b"int f(){return " + b"(" * 1_000_000 + b"1" + b")" * 1_000_000 + b";}",
    "balanced braces": b"int f()" + b"{" * 1_000_000 + b"}" * 1_000_000,
    "directives": b"#ifdef A\n" * 80_000 + b"int f();\n" + b"#endif\n" * 80_000,
    "one long name": filled(b"a", b"int ", b";"),
}
SLOW = {
    "memory": filled(b"a<", b"int x="),
    "semicolons": filled(b";"),
    "scopes": filled(b"namespace a{"),
    "open string": filled(b'"'),
    "declarations": filled(b"int f(int);"),
    "pointers": filled(b"*", b"int ", b"f();"),
    "blocks": filled(b"{}"),
    "templates": filled(b"template<class T> "),
    "macros": filled(b"X_API int f();\n"),
    "random bytes": random.Random(2026).randbytes(MOST).replace(b"\0", b" "),
    "old style": filled(b"f(a) int a; {} "),
    "open brackets": filled(b"("),
    "open braces": filled(b"{", b"int f()"),
    "classes": filled(b"class a "),
    "quotes": filled(b"'"),
    "lambdas": filled(b"[](){", b"auto x="),
    "initializers": filled(b"{1,", b"int a[]="),
    "typedefs": filled(b"a,", b"typedef int ", b"b;"),
}


def check_hostile(scene: PackScene, source: bytes) -> None:
    scene.put("hostile.h", source)
    scene.put("plain.c", "int f(void);\n")

    # All tools parse in the same way.
    result = scene.call(READERS[0], path="hostile.h", **named(READERS[0]))
    if result["isError"]:
        assert result["structuredContent"]["error"]["code"] in {"too_slow", "no_match"}
    # Whatever became of the parser, the next file is parsed.
    assert len(scene.data("c_get_code_outline", path="plain.c")["items"]) == 1


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_code_ends_in_a_result_or_a_clear_error(scene: PackScene, kind: str) -> None:
    check_hostile(scene, HOSTILE[kind])
    scene.call("c_update_definition", path="hostile.h", name="f", content="int f();")


@pytest.mark.slow(reason="each file takes the parser to its limit of 10 s")
@pytest.mark.parametrize("kind", SLOW)
def test_code_that_takes_long_ends_in_a_result_or_a_clear_error(
    scene: PackScene, kind: str
) -> None:
    check_hostile(scene, SLOW[kind])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("library", ["tree_sitter", "tree_sitter_c", "tree_sitter_cpp"])
def test_without_its_libraries_the_pack_is_not_opened(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)

    with (
        pytest.raises(UsageError, match=f"`c` needs `{library}`") as caught,
        pack_services() as run,
    ):
        open_packs(["c"], tmp_path, run)

    assert caught.value.hint == "pip install 'aish-pipelines[c]'"
