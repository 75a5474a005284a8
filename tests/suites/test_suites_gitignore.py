"""What `.gitignore` files exclude: generated ones, with git as the judge.

`make test` reads a part of the files that `make suites` reads.
"""

import os
import random
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from ignored_paths import excluded, excluded_by_git

FILES = 5_000 if os.environ.get("AISH_TEST_ALL") == "1" else 250
NAMES = ["a", "b", "c", "ab", "ba", "a.o", ".o", "abc", "7", "-", "*", "[", "]", "a b", "\\", "é"]
PATHS = 60
PIECES = [
    *("a", "b", "c", "ab", ".o", "a", "b", "7", "-", ".", "..", "é", " ", "\t", "#", "!"),
    *("*", "*", "*", "**", "***", "****", "?", "?", "/", "/", "/", "//", "/**", "**/", "/**/"),
    *("[ab]", "[!a]", "[^b]", "[a-c]", "[c-a]", "[a-]", "[]a]", "[!]a]", "[a/b]", "[.-0]"),
    *("[", "]", "[a", "[]", "[!", "[\\]]", "[\\a-c]", "[a-\\c]", "[a-c-e]", "[--a]", "[[-a]"),
    *(
        "[[:alpha:]]",
        "[[:digit:]a]",
        "[![:upper:]]",
        "[[:xdigit:]-z]",
        "[[:punct:]]",
        "[[:print:]]",
    ),
    *("[[:nothing:]]", "[[:a]", "[[:]", "[[::]]", "[[:alpha]b:]]", "[a[:digit:]", "[:alpha:]"),
    *("\\*", "\\?", "\\[", "\\\\", "\\a", "\\ ", "\\/", "\\", "\\#", "\\!"),
]


def generated_files(count: int) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Each in a folder of its own; some have another one below them."""
    chance = random.Random(27)

    def patterns() -> bytes:
        lines = []
        for _ in range(chance.choice([1, 1, 1, 2, 3])):
            line = "".join(chance.choices(PIECES, k=chance.randint(1, 6)))
            lines.append(chance.choice(["", "", "", "/", "!"]) + line)
            lines[-1] += chance.choice(["", "", "", "", "/", " ", "\r", "\0a"])
        return "\n".join([*chance.choice([[], [], ["*"], ["/*", "!b"]]), *lines, ""]).encode()

    for number in range(count):
        files = {f"{number}/.gitignore": patterns()}
        if chance.random() < 0.3:
            files[f"{number}/a/.gitignore"] = patterns()
        yield str(number), files


def generated_paths(count: int) -> list[str]:
    chance = random.Random(7)
    found = {
        "/".join(chance.choices(NAMES, weights=[4, 4, 2, 2, *[1] * 12], k=chance.randint(1, 4)))
        for _ in range(2 * count)
    }
    return sorted(found - {"a"})[:: len(found) // count]


def test_generated_files_exclude_what_git_excludes(tmp_path: Path) -> None:
    """Two or more stars, classes of POSIX, slashes within classes (issue 27, C)."""
    trees = dict(generated_files(FILES))
    below = generated_paths(PATHS)
    paths = [f"{folder}/{path}" for folder in trees for path in below]
    files = {name: data for tree in trees.values() for name, data in tree.items()}

    said = excluded_by_git(tmp_path, files, paths)
    found = set()
    for folder, tree in trees.items():
        found |= excluded(tree, [f"{folder}/{path}" for path in below])

    different = sorted(said ^ found, key=lambda path: path.split("/")[0])
    assert [
        (trees[folder], list(some))
        for folder, some in groupby(different, key=lambda path: path.split("/")[0])
    ] == []


def test_a_class_has_the_letters_that_it_has_to_git(tmp_path: Path) -> None:
    """Each class of POSIX (issue 27, C)."""
    names = [chr(code) for code in range(1, 128) if chr(code) not in "/."] + ["é"]
    classes = "alnum alpha blank cntrl digit graph lower print punct space upper xdigit nothing"
    files = {
        f"{number}/.gitignore": f"{pattern}\n".encode()
        for number, pattern in enumerate(
            f"{start}[:{name}:]]" for name in classes.split() for start in ("[", "[!")
        )
    }
    paths = [f"{number}/{name}" for number in range(len(files)) for name in names]

    assert excluded(files, paths) == excluded_by_git(tmp_path, files, paths)
