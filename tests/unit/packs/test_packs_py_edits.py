"""Python code changed by symbol: what each edit makes of a file, byte by byte (K29-K35)."""

import ast
import re
import textwrap
from collections.abc import Callable
from functools import partial
from itertools import starmap
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import each_case, sampled

from aish.packs.pack_error import PackError
from aish.packs.py import code_edits as edits
from aish.packs.py.definitions import parse_module
from aish.packs.py.readers import definition


def apply(data: bytes, part: dict[str, Any]) -> bytes:
    end = len(data) - part["after"]
    return bytes(data[: part["before"]] + part["new"].encode("latin-1") + data[end:])


def update(code: str | bytes, name: str, content: str, line: int | None = None) -> bytes:
    data = encoded(code)
    part = edits.update_definition(data, path="a.py", name=name, line=line, content=content)
    return apply(data, part)


def sign(code: str | bytes, name: str, signature: str, line: int | None = None) -> bytes:
    data = encoded(code)
    part = edits.set_signature(data, path="a.py", name=name, line=line, content=signature)
    return apply(data, part)


def declare(code: str | bytes, name: str, declaration: str, line: int | None = None) -> bytes:
    data = encoded(code)
    part = edits.set_declaration(data, path="a.py", name=name, line=line, content=declaration)
    return apply(data, part)


def add(
    code: str | bytes,
    name: str,
    content: str,
    anchor_type: str = "bottom",
    anchor_symbol: str | None = None,
) -> bytes:
    data = encoded(code)
    part = edits.add_definition(
        data,
        path="a.py",
        name=name,
        content=content,
        anchor_type=anchor_type,
        anchor_symbol=anchor_symbol,
    )
    return apply(data, part)


def remove(code: str | bytes, name: str, line: int | None = None) -> bytes:
    data = encoded(code)
    part = edits.remove_definition(data, path="a.py", name=name, line=line)
    return apply(data, part)


def wrap(code: str | bytes, start_line: int, end_line: int, name: str = "N") -> bytes:
    data = encoded(code)
    part = edits.wrap_region(
        data,
        path="a.py",
        start_line=start_line,
        end_line=end_line,
        region_name=name,
    )
    return apply(data, part)


def move(
    code: str | bytes,
    target: str | bytes | None,
    name: str,
    new_name: str | None = None,
    anchor_type: str = "bottom",
    anchor_symbol: str | None = None,
    line: int | None = None,
) -> tuple[list[bytes], list[str]]:
    sources = [encoded(code)] if target is None else [encoded(code), encoded(target)]
    result = edits.move_definition(
        *sources,
        path="a.py",
        new_path="a.py" if target is None else "b.py",
        name=name,
        line=line,
        new_name=new_name,
        anchor_type=anchor_type,
        anchor_symbol=anchor_symbol,
    )
    changed = list(starmap(apply, zip(sources, result["changes"], strict=True)))
    return changed, result["unbound"]


def encoded(code: str | bytes) -> bytes:
    return code if isinstance(code, bytes) else code.encode()


def refused(call: Callable[[], object]) -> PackError:
    with pytest.raises(PackError) as caught:
        call()
    return caught.value


CLASS = '''class Box:
    """A box."""

    size = 1; kind = "a"

    @property
    # which one
    def width(self):
        return self.size  # in cm

    @width.setter
    def width(self, value):
        self.size = value


def main():
    print(Box().width)


if __name__ == "__main__":
    main()
'''


def test_a_definition_is_replaced_and_its_place_gives_the_indentation() -> None:
    new = update(CLASS, "Box.width", "def width(self):\n    return 2", line=9)
    assert new == CLASS.replace("return self.size  # in cm", "return 2").encode()
    new = update(CLASS, "main", "\n\n        def main():\n            print(1)\n\n")
    assert new == CLASS.replace("print(Box().width)", "print(1)").encode()


def test_content_without_decorators_keeps_the_old_ones_and_with_them_replaces_them() -> None:
    code = "@a\n@b(  # why\n    1)\n# c\ndef f(): pass\n"
    assert update(code, "f", "def f(x): return x") == (
        b"@a\n@b(  # why\n    1)\n# c\ndef f(x): return x\n"
    )
    assert update(code, "f", "# note\ndef f(x): return x") == (
        b"# note\n@a\n@b(  # why\n    1)\n# c\ndef f(x): return x\n"
    )
    assert update(code, "f", "@c\ndef f(x): return x") == b"@c\ndef f(x): return x\n"
    inner = "class A:\n\t@a\n\tdef f(self): pass\n"
    assert update(inner, "A.f", "def f(self):\n    return 1") == (
        b"class A:\n\t@a\n\tdef f(self):\n\t    return 1\n"
    )


def test_strings_keep_their_lines_and_docstrings_move_along() -> None:
    content = 'def f(self):\n    """One.\n\n    Two.\n    """\n    return """\nx\n"""'
    new = update("class A:\n    def f(self): pass\n", "A.f", content)
    assert new.decode() == (
        "class A:\n"
        '    def f(self):\n        """One.\n\n        Two.\n        """\n'
        '        return """\nx\n"""\n'
    )


@each_case(
    "content, code",
    [
        ("def g(): pass", "bad_content"),
        ("f = 1", "bad_content"),
        ("class B:\n    def f(self): pass", "bad_content"),
        ("def f(:\n    pass", "syntax"),
        ("    def f(): pass\nx = 1", "syntax"),
        ("def f(): pass\n  x = 1", "syntax"),
        ("", "bad_arguments"),
        (" \n", "bad_arguments"),
        ("def f(): '\0'", "bad_arguments"),
        ("def f(): '\ud800'", "bad_arguments"),
    ],
)
def test_content_that_is_not_the_definition_is_refused(content: str, code: str) -> None:
    assert refused(lambda: update("def f(): pass\n", "f", content)).code == code


@pytest.mark.requirement("K30")
def test_several_definitions_of_a_name_need_a_line() -> None:
    error = refused(lambda: remove(CLASS, "Box.width"))
    assert (error.code, error.details["lines"]) == ("ambiguous", [6, 11])
    for line in (6, 7, 8, 9):
        assert b"setter" in remove(CLASS, "Box.width", line)
    assert b"setter" not in remove(CLASS, "Box.width", 11)
    error = refused(lambda: remove(CLASS, "Box.width", 1))
    assert (error.code, error.details["lines"]) == ("no_match", [6, 11])
    twins = "if a:\n    def f(): pass\nelse:\n    def f():\n        def f(): pass\n"
    assert remove(twins, "f", 5) == remove(twins, "f", 4)
    assert remove(twins, "f.f", 5) == (
        b"if a:\n    def f(): pass\nelse:\n    def f():\n        pass\n"
    )


def test_a_name_that_is_not_there_is_answered_with_those_that_are() -> None:
    error = refused(lambda: remove(CLASS, "width"))
    assert (error.code, error.details["alike"]) == ("no_match", ["Box.width"])
    assert "there is `Box.width`" in error.message
    assert refused(lambda: remove(CLASS, "mian")).details["alike"] == ["main"]
    assert refused(lambda: remove(CLASS, " ")).code == "bad_arguments"
    # Python compares names in their NFKC form.
    assert remove("def ﬁ(): pass\nx = 1\n", "fi") == b"x = 1\n"


@pytest.mark.requirement("K32")
@pytest.mark.parametrize(
    ("signature", "expected"),
    [
        ("def f(a) -> int", "def f(a) -> int :  # c"),
        ("def f(a) -> int:", "def f(a) -> int :  # c"),
        ("async  def f(\n    *, a=lambda: 0,\n)", "async  def f(\n    *, a=lambda: 0,\n) :  # c"),
    ],
)
def test_a_signature_is_replaced_and_body_comments_and_decorators_stay(
    signature: str, expected: str
) -> None:
    code = "@a\ndef f(\n    b,  # d\n) :  # c\n    return 1  # e\n"
    assert sign(code, "f", signature).decode() == f"@a\n{expected}\n    return 1  # e\n"


@each_case(
    "signature, code",
    [
        ("def g()", "bad_content"),
        ("class f", "bad_content"),
        ("@a\ndef f()", "bad_content"),
        ("def f(): return 1\ndef f()", "bad_content"),
        ("f = lambda", "syntax"),
        ("def f(): x =", "syntax"),
        ("def f()  # c", "syntax"),
        ("def f(", "syntax"),
        ("", "bad_arguments"),
    ],
)
def test_what_is_not_one_signature_is_refused(signature: str, code: str) -> None:
    assert refused(lambda: sign("def f(): pass\n", "f", signature)).code == code


def test_the_signature_of_a_class_and_of_a_body_on_the_same_line() -> None:
    assert sign("class A: x = 1\n", "A", "class A(B, metaclass=M):") == (
        b"class A(B, metaclass=M): x = 1\n"
    )
    assert sign("class A:\n  def f(self) \\\n  : pass\n", "A.f", "def f(self, a)") == (
        b"class A:\n  def f(self, a) \\\n  : pass\n"
    )


@pytest.mark.requirement("K29")
def test_columns_of_assignments_are_exact() -> None:
    assert declare("x = 1; y = 2\n", "y", "y: int = 3") == b"x = 1; y: int = 3\n"
    assert declare("é = 'é'; y = 2  # c\n", "y", "y = 3") == "é = 'é'; y = 3  # c\n".encode()
    assert declare(CLASS, "Box.size", "size = 2  # new") == (
        CLASS.replace("size = 1", "size = 2").encode()
    )
    assert declare("x = 1\n", "x", "  x = 2  # two\n") == b"x = 2  # two\n"
    assert declare("x = 1;\n", "x", "x = 2;") == b"x = 2;\n"
    assert declare("(a, [b, *c]) = d = e\n", "c", "c = 1") == b"c = 1\n"


def test_assignments_are_found_by_dotted_names() -> None:
    code = "if a:\n    x = 1\nelse:\n    x = 2\nclass A:\n    x: int\n    def f(self): x = 3\n"
    assert refused(lambda: declare(code, "x", "x = 9")).code == "ambiguous"
    assert declare(code, "x", "x = 9", 4) == code.replace("x = 2", "x = 9").encode()
    assert declare(code, "A.x", "x = 9") == code.replace("x: int", "x = 9").encode()
    assert refused(lambda: declare(code, "A.f.x", "x = 9")).code == "no_match"
    for declaration in ("y = 1", "x", "x += 1", "x = 1; y = 2", "x = 1\ny = 2", "import x"):
        assert refused(partial(declare, "x = 1\n", "x", declaration)).code == "bad_content"


DEF = "def new():\n    pass"
MODULE = '''#!/usr/bin/env python
# -*- coding: utf-8 -*-
"""Doc."""

from __future__ import annotations

__all__ = ["f"]
import os
try:
    import a
except ImportError:
    a = None

X = 1


# about f
def f():
    pass


# start
if __name__ == '__main__':
    f()
'''


def test_top_is_after_docstring_and_imports_and_bottom_before_the_program() -> None:
    assert add(MODULE, "new", DEF, "top").decode() == MODULE.replace(
        "    a = None\n", f"    a = None\n\n\n{DEF}\n\n"
    )
    assert add(MODULE, "new", DEF).decode() == MODULE.replace("# start", f"{DEF}\n\n\n# start")
    assert add("x = 1\n", "new", DEF).decode() == f"x = 1\n\n\n{DEF}\n"
    assert add("x = 1", "new", DEF).decode() == f"x = 1\n\n\n{DEF}"
    assert add("", "new", DEF).decode() == f"{DEF}\n"
    assert add("#!/bin/python\nx = 1\n", "new", DEF, "top").decode() == (
        f"#!/bin/python\n\n\n{DEF}\n\n\nx = 1\n"
    )


@pytest.mark.parametrize(
    ("anchor_type", "symbol", "expected"),
    [
        ("before", "f", "X = 1\n\n\ndef new():\n    pass\n\n\n# about f\ndef f():"),
        ("after", "f", "pass\n\n\ndef new():\n    pass\n\n\n# start"),
        ("after", "X", "X = 1\n\n\ndef new():\n    pass\n\n\n# about f"),
        ("start_of", "f", "def f():\n    def new():\n        pass\n\n    pass\n"),
        ("end_of", "f", "def f():\n    pass\n\n    def new():\n        pass\n\n\n# start"),
    ],
)
def test_anchors_with_a_symbol(anchor_type: str, symbol: str, expected: str) -> None:
    assert expected in add(MODULE, "new", DEF, anchor_type, symbol).decode()


def test_a_dotted_name_goes_into_its_class() -> None:
    new = add(CLASS, "Box.new", "def new(self):\n    pass").decode()
    assert "        self.size = value\n\n    def new(self):\n        pass\n\n\ndef main" in new
    new = add(CLASS, "Box.new", "def new(self):\n    pass", "top").decode()
    assert '    """A box."""\n\n    def new(self):\n        pass\n\n    size = 1' in new
    assert refused(lambda: add(CLASS, "Box.new", DEF, "after", "main")).code == "bad_arguments"
    assert refused(lambda: add(CLASS, "Bix.new", DEF)).code == "no_match"


def test_a_body_on_the_line_of_its_header_gets_lines_of_its_own() -> None:
    assert add("class A: pass  # c\nx = 1\n", "A.new", DEF).decode() == (
        "class A:\n    pass  # c\n\n    def new():\n        pass\n\nx = 1\n"
    )
    assert add("if a:\n  class A: x = 1; y = 2", "A.new", DEF, "start_of", "A").decode() == (
        "if a:\n  class A:\n    def new():\n        pass\n\n    x = 1; y = 2"
    )


@each_case(
    "name, content, anchor_type, symbol, code",
    [
        ("main", "def main(): pass", "bottom", None, "exists"),
        ("size", "def size(self): pass", "end_of", "Box", "exists"),
        ("new", "def other(): pass", "bottom", None, "bad_content"),
        ("new", DEF, "before", None, "bad_arguments"),
        ("new", DEF, "bottom", "Box", "bad_arguments"),
        ("new", DEF, "after", "nothing", "no_match"),
        ("new", DEF, "after", "Box.width", "ambiguous"),
        ("new", "def new(:", "bottom", None, "syntax"),
    ],
)
def test_what_cannot_be_added_is_refused(
    name: str, content: str, anchor_type: str, symbol: str | None, code: str
) -> None:
    assert refused(lambda: add(CLASS, name, content, anchor_type, symbol)).code == code


def test_an_anchor_that_is_there_twice_is_told_without_a_line_to_give() -> None:
    error = refused(lambda: add(CLASS, "new", DEF, "after", "Box.width"))
    assert error.message.endswith("at lines 6, 11; name another anchor")


def test_a_twin_may_be_added_to_what_is_there() -> None:
    code = "class A:\n    @property\n    def x(self): return 1\n"
    content = "@x.setter\ndef x(self, value): pass"
    assert add(code, "A.x", content, "after", "A.x").decode() == (
        f"{code}\n    @x.setter\n    def x(self, value): pass\n"
    )
    assert refused(lambda: add(code, "A.x", "def x(self): pass")).code == "exists"
    assert refused(lambda: add("import os.path\n", "os", "def os(): pass")).code == "exists"


@each_case(
    "code, expected",
    [
        # Blank lines: the greater number of those around it stays.
        ("import a\n\n\ndef f(): pass\n\n\nx = 1\n", "import a\n\n\nx = 1\n"),
        ("import a\n\n\n\ndef f(): pass\n\nx = 1\n", "import a\n\n\n\nx = 1\n"),
        ("import a\ndef f(): pass\n\n\nx = 1\n", "import a\n\n\nx = 1\n"),
        ("x = 1\n\n\ndef f(): pass\n", "x = 1\n"),
        ("x = 1\n\n\ndef f(): pass", "x = 1"),
        ("def f(): pass\n\n\nx = 1\n", "x = 1\n"),
        ("def f(): pass\n", ""),
        # Comments directly above it go, others stay.
        ("# a\n\n# b\n@c\ndef f(): pass\n# d\nx = 1\n", "# a\n\n# d\nx = 1\n"),
        (
            "#!/bin/python\n# coding: utf-8\n# b\ndef f(): pass\n",
            "#!/bin/python\n# coding: utf-8\n",
        ),
        ("# region a\n# b\ndef f(): pass\n# endregion\n", "# region a\n# endregion\n"),
        ("x = '''\n# a\n'''\ndef f(): pass\n", "x = '''\n# a\n'''\n"),
        ("x = 1\ndef f():\n    pass\n    # e\n\n    # g\n# h\n", "x = 1\n# h\n"),
        # An emptied body.
        ("if a:\n  def f(): pass\nx = 1\n", "if a:\n  pass\nx = 1\n"),
        ("try:\n\tdef f(): pass\nfinally:\n\tpass", "try:\n\tpass\nfinally:\n\tpass"),
        ("if a: pass\nelse:\n  def f(): pass", "if a: pass\nelse:\n  pass"),
    ],
)
def test_removing_takes_comments_along_and_keeps_spacing(code: str, expected: str) -> None:
    assert remove(code, "f").decode() == expected


@pytest.mark.requirement("K33")
def test_methods_are_removed_with_the_blank_lines_of_their_place() -> None:
    code = (
        "class A:\n    def a(self): pass\n\n    def b(self): pass\n\n    def c(self): pass\n\n\nx\n"
    )
    assert remove(code, "A.a").decode() == code.replace("    def a(self): pass\n\n", "")
    assert remove(code, "A.b").decode() == code.replace("    def b(self): pass\n\n", "")
    assert remove(code, "A.c").decode() == code.replace("\n    def c(self): pass\n", "")
    alone = 'class A:\n    """Doc."""\n\n    def a(self): pass\n'
    assert remove(alone, "A.a").decode() == 'class A:\n    """Doc."""\n'


@pytest.mark.requirement("K34")
def test_a_definition_moves_to_another_file_with_its_comments() -> None:
    moved = "# about f\n@deco\ndef f(a: Text):\n    return os.path, f, a, LIMIT, len\n"
    code = f"import os\n\n\n{moved}\n\nx = 1\n"
    target = "from typing import Text\n\n\nclass B:\n    y = 1\n"
    (left, new), unbound = move(code, target, "f")
    assert left.decode() == "import os\n\n\nx = 1\n"
    assert new.decode() == f"{target}\n\n{moved}"
    assert unbound == ["LIMIT", "deco", "os"]
    (left, new), unbound = move(code, target, "f", "g", "end_of", "B")
    assert "    y = 1\n\n    # about f\n    @deco\n    def g(a: Text):\n" in new.decode()
    # Its own name is not rewritten.
    assert unbound == ["LIMIT", "deco", "f", "os"]


def test_what_the_other_file_binds_in_any_way_is_bound() -> None:
    names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"]
    code = f"def moved():\n    return {', '.join(names)}, z, __name__\n"
    target = (
        "import a\nfrom x import y as b\nfor c in (): pass\nwith x as (d, e): pass\n"
        "try: pass\nexcept E as f: pass\nmatch x:\n    case [g, *h]: pass\n"
        "    case {**i}: pass\n(j := 1)\ndef z0():\n    global k\n    k = 1\n"
    )
    _, unbound = move(code, target, "moved")
    assert unbound == ["z"]
    outer = "def outer(a, *b):\n    c = 1\n    pass\n"
    _, unbound = move("def moved(): return a, b, c, d\n", outer, "moved", None, "end_of", "outer")
    assert unbound == ["d"]


def test_names_of_inner_scopes_are_not_unbound() -> None:
    code = textwrap.dedent("""
        class A:
            def moved(self, x: T = D) -> R:
                nonlocal_ = [i for i in x if (j := i)]
                def inner(*args, **kw): return nonlocal_, args, kw, j, OUTER
                global G
                G = super().moved
                return lambda q: (q, inner, w)
        """)
    _, unbound = move(code, "", "A.moved")
    assert unbound == ["D", "OUTER", "R", "T", "w"]
    code = "def outer():\n    n = 1\n    def moved():\n        nonlocal n\n        n += m\n"
    error = refused(lambda: move(code, "", "outer.moved"))
    assert error.message.endswith("(line 2: no binding for nonlocal 'n' found)")


def test_a_definition_moves_within_its_file() -> None:
    code = "def a(): pass\n\n\ndef b(): pass\n\n\nclass C:\n    def a(self): pass\n"
    ((new,), unbound) = move(code, None, "a", anchor_type="after", anchor_symbol="b")
    assert new.decode() == (
        "def b(): pass\n\n\ndef a(): pass\n\n\nclass C:\n    def a(self): pass\n"
    )
    assert unbound == []
    ((new,), _) = move(code, None, "C.a", "d", anchor_type="before", anchor_symbol="C")
    assert new.decode().endswith("def d(self): pass\n\n\nclass C:\n    pass\n")
    assert refused(lambda: move(code, None, "C.a")).code == "exists"
    error = refused(lambda: move(code, None, "a", anchor_type="after", anchor_symbol="a"))
    assert error.code == "no_match"


@pytest.mark.parametrize("new_name", ["", "a b", "class", "1a", "a.b", "a\n"])
def test_a_new_name_has_to_be_one(new_name: str) -> None:
    error = refused(lambda: move("def f(): pass\n", "", "f", new_name))
    assert error.code == "bad_arguments"


def test_a_move_keeps_the_ways_of_each_file() -> None:
    code = 'class A:\r\n\tdef f(self):\r\n\t\t"""é\r\n\t\tb"""\r\n'
    target = "# coding: latin-1\nx = 'é'\n".encode("latin-1")
    (left, new), _ = move(code, target, "A.f")
    assert left == b"class A:\r\n\tpass\r\n"
    assert new == (
        '# coding: latin-1\nx = \'é\'\n\n\ndef f(self):\n\t"""é\n\tb"""\n'.encode("latin-1")
    )
    euro = "def f(): return '€'\n"
    assert refused(lambda: move(euro, target, "f")).code == "encoding"


@pytest.mark.requirement("K35")
def test_a_region_is_put_around_lines() -> None:
    assert wrap("a\nb\nc\n", 2, 2).decode() == "a\n# region N\nb\n# endregion N\nc\n"
    assert wrap("a\nif b:\n\n    c", 3, 4).decode() == (
        "a\nif b:\n    # region N\n\n    c\n    # endregion N"
    )
    assert wrap("a\r\nb\r\n", 1, 2, " x y ") == (b"# region x y\r\na\r\nb\r\n# endregion x y\r\n")
    # Within brackets it is a comment like any other.
    assert wrap("f(\n  a,\n  b)\n", 2, 2).decode() == (
        "f(\n  # region N\n  a,\n  # endregion N\n  b)\n"
    )


@each_case(
    "code, start, end, error",
    [
        ("x = '''\na\n'''\n", 2, 2, "syntax"),
        ("x = '''\na\n'''\n", 1, 2, "syntax"),
        ('"""\na\n"""\n', 2, 3, "syntax"),
        ("x = 1 + \\\n  2\n", 2, 2, "syntax"),
        ("x = 1 + \\\n  2\n", 1, 1, "syntax"),
        ("x = f'''{\na}'''\n", 2, 2, "syntax"),
        ("#!/bin/python\nx\n", 1, 2, "syntax"),
        ("a\n", 2, 2, "out_of_range"),
        ("a\n", 0, 1, "out_of_range"),
        ("a\nb\n", 2, 1, "out_of_range"),
        ("", 1, 1, "out_of_range"),
        ("x = (\n", 1, 1, "syntax"),
    ],
)
def test_a_region_that_would_change_the_code_is_refused(
    code: str, start: int, end: int, error: str
) -> None:
    assert refused(lambda: wrap(code, start, end)).code == error


@pytest.mark.parametrize("name", ["", " ", "a\nb", "a\x1bb", "a\u2028b", "a\u202eb"])
def test_the_name_of_a_region_is_on_one_line(name: str) -> None:
    assert refused(lambda: wrap("a\n", 1, 1, name)).code == "bad_arguments"


LINES = "class A:\n    x = '{}'\n\n    def f(self):\n        return 1\n\n\ny = 2\n"


@pytest.mark.parametrize("place", ["top", "bottom", "before", "after", "start_of", "end_of"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_what_is_put_in_has_the_line_ends_of_the_file(place: str, end: str) -> None:
    code = "import os\n\n\nclass A:\n    def f(self):\n        pass\n\n\ndef g():\n    pass\n"
    anchor = None if place in {"top", "bottom"} else "A"
    data = add(code.replace("\n", end), "x", "def x():\n    return 1\n", place, anchor)
    assert set(re.findall(rb"\r\n|\r|\n", data)) == {end.encode()}
    assert b"def x():" in data


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("def f(a, a):\n    pass", "line 1: duplicate argument 'a' in function definition"),
        ("def f():\n    pass\nreturn 1", "line 3: 'return' outside function"),
        ("def f():\n    break", "line 2: 'break' outside loop"),
    ],
)
@pytest.mark.parametrize("is_new", [True, False])
def test_what_python_does_not_compile_is_not_written(
    content: str, problem: str, *, is_new: bool
) -> None:
    change = partial(add, "") if is_new else partial(update, "def f():\n    pass\n")
    with pytest.raises(PackError, match=re.escape(problem)) as raised:
        change("f", content)
    assert raised.value.code == "syntax"
    # A file that did not compile before can be mended step by step.
    assert b"def g" in add("def f(a, a):\n    pass\n", "g", "def g():\n    pass")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("inside", ["\u2028", "\x0b", "\x0c", "\x85", "\x1c"])
def test_lines_end_where_python_ends_them(end: str, inside: str) -> None:
    code = LINES.format(inside).replace("\n", end)
    new = update(code, "A.f", "def f(self):\n    return (\n        2)")
    assert new.decode() == code.replace("return 1", f"return ({end}            2)")
    assert (
        wrap(code, 4, 5)
        == code.replace("    def f", f"    # region N{end}    def f")
        .replace(f"return 1{end}", f"return 1{end}    # endregion N{end}")
        .encode()
    )
    row = definition(code.encode(), path="a.py", name="A.f", line=None)
    assert row["definitions"] == [
        {"source": f"    def f(self):{end}        return 1", "start_line": 4, "end_line": 5}
    ]


def test_a_form_feed_before_a_definition_stays() -> None:
    code = "x = 1\n\x0c\ndef f(): pass\n\x0cdef g(): pass\n"
    assert update(code, "g", "def g(): return 1").decode() == code.replace(
        "g(): pass", "g(): return 1"
    )
    assert remove(code, "f").decode() == "x = 1\n\x0c\n\x0cdef g(): pass\n"


@pytest.mark.parametrize(
    ("before", "encoding"),
    [
        ("\ufeff", "utf-8"),
        ("# coding: latin-1\n", "latin-1"),
        ("#!/bin/sh\n# vim: set fileencoding=cp1252 :\n", "cp1252"),
        ("# -*- coding: shift_jis -*-\n", "shift_jis"),
        ("# coding: utf-8-sig\n", "utf-8"),
        ("\ufeff", "utf-16-le"),
        ("\ufeff", "utf-16-be"),
    ],
)
def test_encodings_and_marks_hold(before: str, encoding: str) -> None:
    letter = "ア" if encoding == "shift_jis" else "é"
    code = f"{before}x = '{letter}'\ndef f(): return '{letter}'\n"
    new = update(code.encode(encoding), "f", f"def f():\n    return '{letter}{letter}'")
    assert new == code.replace(
        f"f(): return '{letter}'", f"f():\n    return '{letter}{letter}'"
    ).encode(encoding)


@each_case(
    "data, content, code",
    [
        (b"# coding: latin-1\ndef f(): pass\n", "def f(): return '\u20ac'", "encoding"),
        (b"# coding: ascii\ndef f(): pass\n", "def f(): return '\xe9'", "encoding"),
        (b"# coding: nonsense\ndef f(): pass\n", "def f(): return 1", "encoding"),
        (b"# coding: hex\ndef f(): pass\n", "def f(): return 1", "encoding"),
        (b"# coding: ascii\nx = '\xe9'\ndef f(): pass\n", "def f(): return 1", "encoding"),
        (b"x = 1\0\ndef f(): pass\n", "def f(): return 1", "binary"),
        (b"\xff\xfed\x00e", "def f(): return 1", "encoding"),
        # The second line is where an encoding is named.
        (b"#\ndef f(): pass\n", "# coding: latin-1\ndef f(): pass", "encoding"),
    ],
)
def test_what_cannot_be_written_in_the_encoding_is_refused(
    data: bytes, content: str, code: str
) -> None:
    assert refused(lambda: update(data, "f", content)).code == code


@pytest.mark.requirement("K28")
def test_code_of_a_newer_python_is_changed_by_the_spans_of_tree_sitter() -> None:
    code = "type X[T] = list[T]\n\n\ndef f[T](a: T) -> T:\n    return a\n    # end\n\n\nx = 1\n"
    assert sign(code, "f", "def f[T: int](a: T)").decode() == code.replace(
        "def f[T](a: T) -> T", "def f[T: int](a: T)"
    )
    assert update(code, "f", "def f[U](b: U): pass").decode() == code.replace(
        "def f[T](a: T) -> T:\n    return a", "def f[U](b: U): pass"
    )
    assert declare(code, "X", "type X = int").decode() == code.replace(
        "type X[T] = list[T]", "type X = int"
    )
    assert remove(code, "f").decode() == "type X[T] = list[T]\n\n\nx = 1\n"
    (left, new), unbound = move(code, "type Y = int\n", "f")
    assert (left.decode(), unbound) == ("type X[T] = list[T]\n\n\nx = 1\n", [])
    assert new.decode().startswith("type Y = int\n\n\ndef f[T](a: T)")
    assert wrap(code, 4, 6).decode() == code.replace("def f", "# region N\ndef f").replace(
        "    # end\n", "    # end\n# endregion N\n"
    )
    assert refused(lambda: wrap(code + "y = 1 + \\\n  2\n", 11, 11)).code == "syntax"
    assert refused(lambda: update(code, "f", "def f[T(: pass")).code == "syntax"


def test_a_broken_file_is_not_changed_and_code_that_would_break_one_is_refused() -> None:
    for code in (
        "def f(): pass\nx = (\n",
        "def f(): pass\n)\n",
        b"def f(): pass\nx = '\xff'\ny = )\n",
    ):
        assert refused(partial(remove, code, "f")).code == "syntax"
    # A Python that reads the old code has to read the new one.
    if ast.__name__ and not hasattr(ast, "TypeAlias"):
        error = refused(lambda: update("def f(): pass\n", "f", "def f[T](): pass"))
        assert error.code == "syntax"


@pytest.mark.parametrize(
    "deep",
    sampled(
        [
            "-" * 200_000 + "1",
            "(" * 200_000 + ")" * 200_000,
            "+".join("1" * 100_000),
            "a" + ".b" * 200_000,
        ],
        often={1},
        reason="cases of the same kind",
    ),
)
def test_deep_code_is_changed_or_refused(deep: str) -> None:
    code = f"def f(): pass\nx = {deep}\n"
    assert update(code, "f", "def f(): return 1") == code.replace("pass", "return 1").encode()
    assert (
        refused(lambda: update("def f(): pass\n", "f", f"def f(): return {deep}")).code == "syntax"
    )


NAMES = st.sampled_from(["a", "b", "cc", "é"])
COMMENTS = st.sampled_from(["", "  # c", "  # é"])
SIMPLE = st.sampled_from(
    [
        "pass",
        "x = 1",
        "x = 1; y = 2;",
        "return",
        '"""doc\n  more\n"""',
        "y = (\n1,\n  2)",
        "z = '''\n # q\n'''",
    ]
)


@st.composite
def blocks(draw: st.DrawFn, depth: int, indent: str) -> list[str]:
    rows: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        rows += [""] * draw(st.integers(0, 2))
        if draw(st.booleans()):
            rows.append(f"{indent}# {draw(NAMES)}")
        kind = draw(st.sampled_from(["simple", "def", "class", "if", "try", "line"]))
        if depth == 0 or kind == "simple":
            rows.append(indent + draw(SIMPLE) + draw(COMMENTS))
            continue
        name, comment = draw(NAMES), draw(COMMENTS)
        if draw(st.booleans()) and kind in {"def", "class", "line"}:
            rows.append(f"{indent}@{name}(1)")
        if kind == "line":
            rows.append(f"{indent}def {name}(a, b=':'): pass; x = 1{comment}")
            continue
        head = {
            "def": f"async def {name}(\n  a):",
            "class": f"class {name}(b):",
            "if": "if a :",
            "try": "try:",
        }
        deeper = indent + draw(st.sampled_from([" ", "    ", "\t"]))
        rows.append(indent + head[kind] + comment)
        rows += draw(blocks(depth - 1, deeper))
        if kind == "if" and draw(st.booleans()):
            rows += [f"{indent}else:", *draw(blocks(depth - 1, deeper))]
        if kind == "try":
            rows += [f"{indent}finally:", *draw(blocks(depth - 1, deeper))]
        if draw(st.booleans()):
            rows.append(f"{deeper}# below")
    return rows


@st.composite
def programs(draw: st.DrawFn) -> bytes:
    code = "\n".join(draw(blocks(3, "")))
    code += "\n" * draw(st.integers(0, 2))
    return code.replace("\n", draw(st.sampled_from(["\n", "\r\n"]))).encode()


def tree_of(data: bytes) -> list[str]:
    return [ast.dump(each) for each in ast.parse(data).body]


@given(programs(), st.data())
def test_any_module_keeps_the_rest_of_its_tree(data: bytes, choice: st.DataObject) -> None:
    module = parse_module(data, "a.py", writing=True)
    if not module.definitions:
        return
    subject = choice.draw(st.sampled_from(module.definitions))
    line = module.source.line_of(subject.at)
    name = subject.dotted
    row = definition(data, path="a.py", name=name, line=line)["definitions"][0]
    assert update(data, name, row["source"], line) == data
    dedented = textwrap.dedent(row["source"].replace("\r\n", "\n"))
    if "'''" not in dedented and '"""' not in dedented:
        assert tree_of(update(data, name, dedented, line)) == tree_of(data)
    text = module.source.text(*module.signature_span(subject))
    assert sign(data, name, text, line) == data
    after = parse_module(remove(data, name, line), "a.py", writing=True)
    kept = [
        each.dotted for each in module.definitions if not subject.start <= each.at < subject.end
    ]
    assert [each.dotted for each in after.definitions] == kept
    anchor = choice.draw(
        st.sampled_from(["before", "after", "start_of", "end_of", "top", "bottom"])
    )
    symbol = None if anchor in {"top", "bottom"} else name
    if symbol and [each.dotted for each in module.definitions].count(name) > 1:
        return
    new = add(data, "new", "def new():\n    pass", anchor, symbol)
    one_more = parse_module(new, "a.py", writing=True)
    (added,) = [each for each in one_more.definitions if each.name == "new"]
    again = remove(new, added.dotted)
    assert tree_of(again) == tree_of(data)
    assert (
        again.replace(b"\r\n", b"").replace(b"\n", b"").split()
        == data.replace(b"\r\n", b"").replace(b"\n", b"").split()
    )
