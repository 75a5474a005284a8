"""What is read without a grammar is what Python's own parser and tokenizer say (K36, K37).

Over the standard library: a sample of its files, the same in every run; all of them with
`AISH_TEST_ALL=1`.
"""

import ast
import io
import os
import random
import re
import sysconfig
import tokenize
import warnings
from pathlib import Path
from typing import Any

import pytest

from aish.packs.py.code_text import LineIndex, code_only, decode_module
from aish.packs.py.module_facts import facts

SAMPLE = 60
NAME = re.compile(r"(?<![\w.])(?:[^\W\d]\w*)")
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def corpus() -> list[Path]:
    """The files of the standard library that this Python can parse."""
    library = Path(sysconfig.get_path("stdlib"))
    files = [path for path in sorted(library.rglob("*.py")) if "site-packages" not in path.parts]
    if os.environ.get("AISH_TEST_ALL") != "1":
        files = random.Random(36).sample(files, SAMPLE)
    return files


def parsed(source: bytes) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError):
            return None


@pytest.mark.slow(reason="reads much of the standard library")
def test_names_are_those_of_the_tokenizer() -> None:
    checked = 0
    for path in corpus():
        text = decode_module(path.read_bytes())
        if parsed(path.read_bytes()) is None:
            continue
        starts, strings, expected = LineIndex(text), [], set()
        for each in tokenize.generate_tokens(io.StringIO(text).readline):
            start = starts.start(each.start[0]) + each.start[1]
            if each.type == tokenize.NAME:
                expected.add((start, each.string))
            elif each.type == tokenize.STRING:
                strings.append(range(start, starts.start(each.end[0]) + each.end[1]))
        code = code_only(text)
        assert len(code) == len(text)
        inside = {place for one in strings for place in one}
        # Fields of f-strings are one token with the string before Python 3.12; `1e5` is a number.
        found = {
            (match.start(), match[0])
            for match in re.finditer(r"[^\W\d]\w*", code)
            if match.start() not in inside
        }
        numbers = {one for one in found - expected if re.search(r"[\d.]$", code[: one[0]])}
        assert found - numbers == expected, path
        checked += 1
    assert checked


@pytest.mark.slow(reason="reads much of the standard library")
def test_definitions_imports_and_calls_are_those_of_the_parser() -> None:
    checked = 0
    for path in corpus():
        source = path.read_bytes()
        tree = parsed(source)
        (found,) = facts(source, calls=True)
        (light,) = facts(source, calls=False)
        if tree is None:
            continue
        scopes = found["scopes"][1:]
        assert {
            (each["kind"], each["name"], each["line"], each["start"], each["end"])
            for each in scopes
        } == set(definitions(tree, "")), path
        classes = [each for each in scopes if each["kind"] == "class"]
        assert [(each["name"], each["bases"]) for each in classes] == [
            (each["name"], each["bases"]) for each in light["scopes"] if each["kind"] == "class"
        ]
        assert imports_of_facts(found["scopes"]) == imports(tree), path
        if not any(len(each["calls"]) >= 2_000 for each in found["scopes"]):
            called = sum(len(each["calls"]) for each in found["scopes"])
            assert abs(called - sum(isinstance(each, ast.Call) for each in ast.walk(tree))) <= 1
        checked += 1
    assert checked


def definitions(node: ast.AST, above: str) -> list[tuple[str, str, int, int, int]]:
    rows = []
    for each in ast.iter_child_nodes(node):
        if not isinstance(each, DEFINITIONS):
            rows += definitions(each, above)
            continue
        name = f"{above}.{each.name}" if above else each.name
        start = min([one.lineno for one in each.decorator_list] + [each.lineno])
        kind = "class" if isinstance(each, ast.ClassDef) else "function"
        rows.append((kind, name, each.lineno, start, each.end_lineno or 0))
        rows += definitions(each, name)
    return rows


def imports(tree: ast.Module) -> set[tuple[str, str, str]]:
    found = set()
    for each in ast.walk(tree):
        if isinstance(each, ast.ImportFrom) and each.names[0].name != "*":
            module = "." * each.level + (each.module or "")
            found |= {(one.asname or one.name, module, one.name) for one in each.names}
        elif isinstance(each, ast.Import):
            for one in each.names:
                first = one.name if one.asname else one.name.partition(".")[0]
                found.add((one.asname or first, first, ""))
    return found


def imports_of_facts(scopes: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    return {
        (name, binding[1], binding[2])
        for scope in scopes
        for name, bindings in scope["binds"].items()
        for binding in bindings
        if binding[0] == "import"
    }
