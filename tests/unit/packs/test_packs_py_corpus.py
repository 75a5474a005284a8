"""The whole standard library through the pack `py`: what is read and written agrees (K89.3).

A sample of its files, the same in every run; all of them with `AISH_TEST_ALL=1`.
"""

import ast
import os
import random
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from samples import sampled

from aish.packs.pack_error import PackError
from aish.packs.py import readers
from aish.packs.py.code_edits import (
    with_addition,
    with_declaration,
    with_signature,
    with_update,
    without_statement,
)
from aish.packs.py.definitions import Module, Statement, parse_module

SAMPLE = 8
BATCHES = 16
EDITED = 8
EDITED_OF_ALL = 1
"""Definitions of each file that are taken out, and that others are put next to."""
ANCHORS = 2
"""Places at which something is added, for each definition that is taken out."""
ADDED = '''@decorated
def added_by_test(a, b=(1,)):
    """One line.

    More.
    """
    return """
not indented
"""
'''
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@cache
def standard_library() -> tuple[Path, ...]:
    """Its modules, without tests and without what was installed into it."""
    left_out = {"test", "tests", "site-packages", "__pycache__"}
    found: list[str] = []
    for folder, below, names in os.walk(sysconfig.get_path("stdlib")):
        below[:] = [name for name in below if name not in left_out]
        found += [f"{folder}/{name}" for name in names if name.endswith(".py")]
    return tuple(map(Path, sorted(found, key=lambda path: path.split("/"))))


def files() -> list[Any]:
    """A sample, file by file; and all the others in batches that are run with `AISH_TEST_ALL=1`."""
    every = standard_library()
    chosen = set(random.Random(7).sample(every, min(SAMPLE, len(every))))
    rest = [path for path in every if path not in chosen]
    slow = pytest.mark.slow(reason="reads the whole standard library")
    return [
        *(pytest.param([path], id=path.stem) for path in every if path in chosen),
        *(
            pytest.param(rest[start::BATCHES], id=f"batch-{start}", marks=slow)
            for start in range(BATCHES)
        ),
    ]


def nodes_of(data: bytes) -> Iterator[tuple[str, Any, int]]:
    """The definitions of a module by `ast`, with dotted name and depth."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(data)

    def inside(node: ast.AST, prefix: str, depth: int) -> Iterator[tuple[str, Any, int]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, DEFINITIONS):
                yield prefix + child.name, child, depth
                yield from inside(child, f"{prefix}{child.name}.", depth + 1)
            else:
                yield from inside(child, prefix, depth)

    return inside(tree, "", 0)


def names_of(module: Module) -> Counter[str]:
    return Counter(each.dotted for each in module.definitions)


def module_of(data: bytes) -> Module:
    return parse_module(data, "module.py", writing=True)


@pytest.mark.parametrize("paths", files())
def test_outlines_agree_with_ast_and_skeletons_parse(paths: list[Path]) -> None:
    for path in paths:
        check_readers(path)


def check_readers(path: Path) -> None:
    data = path.read_bytes()
    nodes = list(nodes_of(data))
    outline = readers.outline(data, path=path.name)
    assert outline["broken"] == []
    found = [
        (row["name"], row["start_line"], row["def_line"], row["end_line"], row["depth"])
        for row in outline["items"]
    ]
    expected = [
        (
            name,
            min([node.lineno, *(each.lineno for each in node.decorator_list)]),
            node.lineno,
            node.end_lineno,
            depth,
        )
        for name, node, depth in nodes
    ]
    assert found == sorted(expected, key=itemgetter(2))

    skeleton = readers.skeleton(data, path=path.name)["skeleton"]
    kept = [(name, ast.get_docstring(node)) for name, node, _ in nodes_of(skeleton.encode())]
    functions = {name for name, node, _ in nodes if not isinstance(node, ast.ClassDef)}
    assert kept == [
        (name, ast.get_docstring(node))
        for name, node, _ in nodes
        if not any(name.startswith(f"{each}.") for each in functions)
    ]


@pytest.mark.requirement("K31")
@pytest.mark.parametrize(
    "paths", sampled(files(), often={0}, reason="reads much of the standard library")
)
def test_what_is_read_and_written_back_changes_no_byte(paths: list[Path]) -> None:
    for path in paths:
        check_written_back(path, ways=3 if len(paths) == 1 else 1)


def check_written_back(path: Path, ways: int) -> None:
    """Write each definition back in so many of three ways, one after the other of them."""
    data = path.read_bytes()
    module = module_of(data)
    source = module.source
    for number, each in enumerate(module.definitions):
        line = source.line_of(each.at)
        text = source.text(*readers.definition_span(module, each))
        if number < EDITED:
            row = readers.definition(data, path=path.name, name=each.dotted, line=line)
            assert row["definitions"][0]["source"] == text
        for way in range(number, number + ways):
            match way % 3:
                case 0:
                    assert with_update(module, each.dotted, line, text) == data, (path, each.dotted)
                case 1:
                    # Without decorators the old ones stay.
                    start = each.at - len(module.indent(each) or b"")
                    bare = source.text(start, module.end_with_tail(each))
                    assert with_update(module, each.dotted, line, bare) == data, (path, each.dotted)
                case _:
                    signature = source.text(*module.signature_span(each))
                    assert with_signature(module, each.dotted, line, f"{signature}:") == data
    for name, each in module.declarations():
        text = source.text(each.start, each.end)
        assert with_declaration(module, name, source.line_of(each.start), text) == data


@pytest.mark.parametrize("paths", sampled(files(), often={1}, reason="reads the standard library"))
def test_removing_and_adding_keep_all_other_names_and_break_no_file(paths: list[Path]) -> None:
    for path in paths:
        check_removed_and_added(path, EDITED if len(paths) == 1 else EDITED_OF_ALL)


def check_removed_and_added(path: Path, most: int) -> None:
    data = path.read_bytes()
    module = module_of(data)
    before, tree = names_of(module), ast.dump(tree_of(data))
    chosen = random.Random(path.name)
    some = chosen.sample(module.definitions, min(most, len(module.definitions)))
    for each in some:
        after = names_of(module_of(without_statement(module, each)))
        assert after == before - inside(module, each)
    anchors: list[tuple[str, str | None]] = [("top", None), ("bottom", None)]
    anchors += [
        (anchor_type, each.dotted)
        for each in some
        if before[each.dotted] == 1
        for anchor_type in ("before", "after", "start_of", "end_of")
    ]
    for anchor_type, symbol in chosen.sample(anchors, min(most * ANCHORS, len(anchors))):
        check_added(module, tree, anchor_type, symbol)


def inside(module: Module, outer: Statement) -> Counter[str]:
    return Counter(each.dotted for each in module.definitions if outer.start <= each.at < outer.end)


def check_added(module: Module, tree: str, anchor_type: str, symbol: str | None) -> None:
    name = "added_by_test"
    with_one_more = with_addition(module, name, ADDED, anchor_type, symbol)
    after = module_of(with_one_more)
    (new,) = [each for each in after.definitions if each.name == name]
    assert names_of(after) - names_of(module) == Counter([new.dotted])
    # Taking it out again gives the same program.
    again = without_statement(after, new)
    assert ast.dump(tree_of(again)) == tree


def tree_of(data: bytes) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(data)


def test_the_standard_library_is_there() -> None:
    assert len(standard_library()) > 500
    with pytest.raises(PackError):
        module_of(b"def f(:\n")
