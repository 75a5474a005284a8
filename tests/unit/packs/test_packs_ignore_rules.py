"""What `.gitignore` files exclude, compared with what git itself says."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ignored_paths import excluded, excluded_by_git
from samples import each_case
from work import work_of

from aish.packs.workspace.ignore_rules import NOTHING_IGNORED
from aish.packs.workspace.path_glob import path_glob

PATHS = [
    "a",
    "b.py",
    "b.pyc",
    "build/x",
    "src/build/x",
    "src/a/b/c.o",
    "src/keep.o",
    "doc/frotz/x",
    "a/doc/frotz",
    "foo/bar/baz",
    "foo/x/bar",
    "abc/inner/deep/z",
    "#hash",
    "!bang",
    "space ",
    "tail",
    "x[1]",
    "z7",
    "zA",
    "q-",
    "back\\slash",
    ".hidden",
    "log.txt",
    "logs/debug.log",
    "logs/keep.log",
    "sub/logs/debug.log",
    "caf\u00e9.txt",
]
CASES = [
    "a\n",
    "*.pyc\n",
    "build/\n",
    "/build\n",
    "/a\nb.*\n!b.py\n",
    "doc/frotz\n",
    "doc/frotz/\n",
    "**/foo\n",
    "foo/**/bar\n",
    "foo/**\n!foo/x/\n",
    "abc/**\n",
    "**/inner/**\n",
    "/**/build\n",
    "\\#hash\n",
    "\\!bang\n",
    "# a\n!a\n",
    "space\\ \n",
    "tail   \n",
    "x\\[1\\]\n",
    "x[[]1]\n",
    "z[0-9]\n",
    "z[!0-9]\n",
    "z[^0-9]\n",
    "z[[:digit:]]\n",
    "z[[:nothing:]]\n",
    "q[]-]\n",
    "q[a\n",
    "back\\\\slash\n",
    "back\\\n",
    ".*\n",
    "*\n!*/\n!*.log\n",
    "logs/*.log\n!logs/keep.log\n",
    "l*s\n",
    "**\n",
    "src/*/b\n",
    "src/**/*.o\n",
    "?\n",
    "a\r\nb.py\r\n",
    "\ufeffa\n",
    "caf?.txt\n",
    "caf\u00e9*\n",
    "*a*b*\n",
    "log.txt/\n",
    "src//build\n",
    "/\n",
    "a**\n",
]


@pytest.mark.sampled(16)
@pytest.mark.parametrize("text", CASES)
def test_patterns_mean_what_they_mean_to_git(tmp_path: Path, text: str) -> None:
    files = {".gitignore": text.encode()}
    paths = [path for path in PATHS if path != "a" and not path.startswith("a/")]
    for some in ([*paths, "a"], [*paths, "a/doc/frotz"]):
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        root.mkdir()
        assert excluded(files, some) == excluded_by_git(root, files, some)


def test_a_file_further_down_decides_over_those_above(tmp_path: Path) -> None:
    files = {
        ".gitignore": b"*.log\n/sub/x\nkept/\n",
        "sub/.gitignore": b"!debug.log\n/y\n!x\n",
        "sub/deep/.gitignore": b"debug.log\n!kept/\n",
    }
    paths = [
        f"{folder}{name}"
        for folder in ("", "sub/", "sub/deep/")
        for name in ("debug.log", "other.log", "x", "y", "kept/z")
    ]
    assert excluded(files, paths) == excluded_by_git(tmp_path, files, paths)


@given(st.text("ab*?[]!-\\/.", max_size=12), st.text("ab.-", min_size=1, max_size=6))
def test_no_pattern_is_an_error(pattern: str, name: str) -> None:
    excluded({".gitignore": pattern.encode()}, [f"{name}/{name}"])


@pytest.mark.parametrize(
    "line", ["*a" * 400 + "b", "**/a" * 200, "[a-z]*" * 150, "a*" * 300 + "/b", "?*" * 400]
)
def test_hostile_patterns_take_time_in_proportion_to_their_length(line: str) -> None:
    name = "a" * 60

    def work(count: int) -> int:
        rules = NOTHING_IGNORED.with_rules(f"{line}\n".encode() * count)
        return work_of(lambda: rules.excludes(name, is_folder=False)).steps

    one, many = work(1), work(10)
    assert many <= 12 * one + 1000


@pytest.mark.parametrize("line", ["*" + "a" * 200 + "b", "[!b]*" * 100, "/*a*a" * 30, "a*/"])
def test_a_name_takes_a_few_steps_for_each_letter_however_many_patterns_there_are(
    line: str,
) -> None:
    def work(length: int) -> int:
        return work_of(lambda: rules.excludes("a" * length, is_folder=False)).steps

    rules = NOTHING_IGNORED.with_rules(f"{line}\n".encode() * 2_000)
    work(1)
    assert work(250) < 20 * 250


@pytest.mark.parametrize(
    ("text", "left_out"),
    [
        ("a*b\n" * 2_000, 0),
        ("a*b\n" * 2_001, 1),
        (f"a*{'b' * 1_000}\na\n", 1),
        ("a*?" * 300 + "b\n", 0),
        (("a*?" * 300 + "b\n") * 40, 7),
        ("a\n" + "#" * (256 * 1024), 1),
        ("# only a comment\n\n[\n", 0),
    ],
)
def test_patterns_that_are_not_followed_are_counted(text: str, left_out: int) -> None:
    rules = NOTHING_IGNORED.with_rules(text.encode())
    assert rules.left_out == left_out
    assert rules.with_rules(b"c\n").left_out == left_out


@each_case(
    "glob, matching, other",
    [
        ("*.py", ["a.py", "x/y/a.py"], ["a.pyc", "a.py/b"]),
        ("README*", ["README", "docs/README.md"], ["XREADME"]),
        ("**/*.py", ["a.py", "x/y/a.py"], ["a.txt"]),
        ("src/*.py", ["src/a.py"], ["a.py", "src/x/a.py", "x/src/a.py"]),
        ("src/**", ["src/a", "src/x/y"], ["src", "a"]),
        ("src/**/*.py", ["src/a.py", "src/x/y/a.py"], ["srcx/a.py"]),
        ("**/test/**/a?", ["test/ab", "x/test/y/ab"], ["test/a", "ab"]),
        ("/a", ["a"], ["b/a"]),
        ("./docs/*", ["docs/a"], ["docs/x/a"]),
        ("**", ["a", "x/y"], []),
        ("*", ["a", "x/y"], []),
        ("[ab]", ["[ab]"], ["a"]),
        ("a**b/c", ["axb/c"], ["a/b/c"]),
    ],
)
def test_a_glob_matches_whole_paths(glob: str, matching: list[str], other: list[str]) -> None:
    compiled = path_glob(glob)
    assert [path for path in matching if not compiled.matches(path)] == []
    assert [path for path in other if compiled.matches(path)] == []


def test_a_hostile_glob_takes_time_in_proportion_to_its_length() -> None:
    path = "a/" * 120 + "b"
    short = work_of(lambda: path_glob("**/a/" * 20 + "c").matches(path)).steps
    long = work_of(lambda: path_glob("**/a/" * 200 + "c").matches(path)).steps
    assert long < 20 * short
