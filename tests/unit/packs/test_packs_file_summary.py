"""Summaries of files by their language, made in the child that parses (K25)."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import given
from hypothesis import strategies as st
from pack_scenes import opened_packs
from syrupy.assertion import SnapshotAssertion

from aish.packs.pack_error import PackError
from aish.packs.parse_worker import ParseWorker
from aish.packs.workspace.file_summary import summary_of
from aish.system.process.reaper import Reaper

LANGUAGES = ("python", "toml", "yaml", "json", "jsonc", "markdown")


class Summaries:
    """The summaries of one worker."""

    def __init__(self, portal: BlockingPortal, worker: ParseWorker) -> None:
        self._portal = portal
        self._worker = worker

    def of(self, language: str, source: str | bytes) -> str:
        data = source.encode() if isinstance(source, str) else source
        return self._portal.call(summary_of, self._worker, "a", language, data)


@pytest.fixture(scope="module")
def summaries() -> Iterator[Summaries]:
    reaper = Reaper()
    try:
        with start_blocking_portal() as portal:
            worker = ParseWorker(reaper)
            yield Summaries(portal, worker)
            portal.call(worker.close)
    finally:
        reaper.close()


SOURCES = {
    "python": '''"""A module."""
from __future__ import annotations
import os, sys
from ..core import json as j
from . import near
try:
    import tomllib
except ImportError:
    import tomli as tomllib

LIMIT: int = 3
A, NAME = NAME = 1, 2
lower = 1
if sys.platform == "linux":
    ON_LINUX = True

class Plain: ...
class Shape(base.Shape[int], Generic[T], metaclass=M, other=call()):
    x = 1
    def area(self): ...
    @property
    def size(self): ...
    @size.setter
    def size(self, value): ...

async def fetch(url, /, *rest, timeout=1, **more): ...
def narrow(a, *, b): ...
''',
    "toml": """title = "x"
[project]
name = "a"
version = "1"
[project.scripts]
run = "a:b"
[[people]]
name = "x"
[[people]]
age = 1
[tool.ruff.lint]
select = []
""",
    "yaml": """# comment
name: &anchor x
on: {push: {branches: [main]}, pull_request: }
jobs:
  test:
    steps: [1, 2]
  lint: *anchor
matrix:
  - python: 3
    os: linux
  - python: 4
? [a, b]
: c
---
second: {a: 1}
""",
    "json": """{"name": "x", "scripts": {"a": 1, "b": {"c": 2}},
"files": [{"d": 1}, {"e": 2}], "n": [1]}""",
    "jsonc": '{ // comment\n "a//b": "/* no */", /* yes */ "c": {"d": 1,},\n}',
    "markdown": """---
title: front
---
# One #

Text
====

Two
words
---

```sh
# not a heading
```
~~~
## neither
```
~~~
## `Code` *emphasis*
 ### Third
####
    # indented
#hashtag
- item
---
| a |
|---|
""",
}  # fmt: skip


@pytest.mark.parametrize("language", SOURCES)
def test_a_file_is_summed_up_by_its_language(
    summaries: Summaries, snapshot: SnapshotAssertion, language: str
) -> None:
    assert summaries.of(language, SOURCES[language]) == snapshot


def test_c_has_its_outline_if_its_parser_is_installed(summaries: Summaries) -> None:
    pytest.importorskip("tree_sitter_c", reason="the extra `c` is not installed")
    source = "namespace a {\nint f() { return 1; }\n}\n"

    assert summaries.of("cpp", source) == ("namespace a, lines 1-3\n  function a::f, lines 2-2")
    assert summaries.of("c", "struct s;\n") == "struct declaration s, lines 1-1"
    assert summaries.of("c", "int f(void);\n" * 150).endswith("\n… 50 more")


@pytest.mark.parametrize("language", ["plaintext", "rust", "", "html"])
def test_other_languages_have_no_summary(summaries: Summaries, language: str) -> None:
    assert not summaries.of(language, "# Heading\n")


@pytest.mark.parametrize(
    ("language", "source", "told"),
    [
        ("python", "def f(:\n", "not valid Python: line 1"),
        ("python", "\0", "not valid Python"),
        ("python", "(" * 5000, "not valid Python"),
        ("toml", "a = \n", "not valid TOML: Invalid value"),
        ("toml", "a = " + "[" * 50_000, "not valid TOML"),
        ("yaml", "a: [\n", "not valid YAML: line 2"),
        ("yaml", "a: " + "[" * 500_000, "not valid YAML: nested too deeply"),
        ("yaml", "a: " + "[b, " * 500_000, "not valid YAML: nested too deeply"),
        ("yaml", "a: \x07", "not valid YAML"),
        ("yaml", "\0", "none, because it is not text"),
        ("json", '{"a": ', "not valid JSON: Expecting value"),
        ("json", "[" * 500_000, "not valid JSON"),
        ("json", '{"a\\nb": 1}', "a b"),
        ("json", "3", "a single value"),
        ("json", "[]", "a list of 0"),
        ("markdown", "", ""),
        ("python", "", ""),
        ("yaml", "", ""),
        ("toml", b"\xff = 1", "not valid TOML"),
        ("markdown", "# Über\n".encode("utf-16"), "line 1: # Über"),
        ("python", b"# -*- coding: latin-1 -*-\nX = '\xff'\n", "constants: X"),
    ],
)
def test_what_does_not_parse_is_said_so(
    summaries: Summaries, language: str, source: str | bytes, told: str
) -> None:
    assert summaries.of(language, source).startswith(told)


BOMBS = {
    "yaml": "a: &a [x, x]\n" + "".join(f"b{n}: &b{n} [*a, *a, *a]\n" for n in range(1000)),
    "json": '{"' + "k" * 500_000 + '": {"' + "l" * 500_000 + '": 1}}',
    "toml": "[" + "a." * 1000 + "b]\n" + 'c = "' + "x" * 500_000 + '"\n',
    "jsonc": "/*" * 500_000,
    "python": "".join(f"def f{n}({'a' * 1000}{n}): ...\n" for n in range(1000)),
    "markdown": "#" * 500_000 + "\n" + "# a\n" * 100_000 + "`" * 100_000,
}


@pytest.mark.parametrize("language", BOMBS)
def test_a_bomb_has_a_short_summary(summaries: Summaries, language: str) -> None:
    found = summaries.of(language, BOMBS[language])

    assert 0 < len(found) < 50_000
    assert found.count("\n") <= 100


def test_a_large_file_is_not_parsed(summaries: Summaries) -> None:
    found = summaries.of("json", b" " * (2 * 1024 * 1024 + 1))

    assert found == "none, because more than 2,097,152 bytes are not parsed"


def told_of(summaries: Summaries, source: str) -> str:
    try:
        return summaries.of("python", source)
    except PackError as error:
        return error.code


def test_code_that_crashes_its_parser_is_too_slow_and_the_next_one_is_parsed(
    summaries: Summaries,
) -> None:
    deep = "x = " + "-" * 1_000_000 + "1\n"

    # What happens depends on the version of Python: it may notice, or crash.
    assert told_of(summaries, deep).startswith(("not valid Python", "too_slow"))
    assert summaries.of("python", "LIMIT = 1\n") == "constants: LIMIT"


@given(language=st.sampled_from(LANGUAGES), source=st.binary(max_size=300))
def test_any_bytes_have_a_summary(summaries: Summaries, language: str, source: bytes) -> None:
    found = summaries.of(language, source)

    assert found.isprintable() or "\n" in found


@pytest.mark.requirement("K25")
def test_the_tool_shows_the_summary_above_the_first_lines(tmp_path: Path) -> None:
    with opened_packs(["fs"], tmp_path) as scene:
        scene.put("a.toml", '[project]\r\nname = "ü"\r\n')
        scene.put("notes.txt", "# no heading\n")
        scene.put("latin.py", b"# coding: latin-1\nLIMIT = '\xff'\n")
        scene.put("nul.md", "# Title\n" + "x" * 20_000 + "\0")

        assert scene.data("file_summary", path="a.toml")["summary"] == "project: name"
        text = scene.text("file_summary", path="a.toml")
        assert "\nsummary:\nproject: name\nfirst lines:\n[project]\r\n" in text
        assert not scene.data("file_summary", path="notes.txt")["summary"]
        assert "summary" not in scene.text("file_summary", path="notes.txt")
        assert scene.data("file_summary", path="latin.py")["summary"] == "constants: LIMIT"
        answer = scene.call("file_summary", path="nul.md")["structuredContent"]
        assert answer.get("summary") == "none, because it is not text" or "error" in answer
