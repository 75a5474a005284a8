"""The table of languages: whole name, longest extension, first line (K26)."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import each_case

from aish.packs.workspace.languages import LANGUAGES, language_of, program_of


def test_the_table_has_at_least_sixty_languages_and_names_nothing_twice() -> None:
    assert len(LANGUAGES) >= 60
    for column in ("id", "name"):
        found = Counter(getattr(language, column) for language in LANGUAGES)
        assert [text for text, count in found.items() if count > 1] == []
    for column in ("extensions", "filenames", "programs"):
        found = Counter(text for language in LANGUAGES for text in getattr(language, column))
        assert [text for text, count in found.items() if count > 1] == []


def test_every_row_is_found_by_each_of_its_spellings() -> None:
    for language in LANGUAGES:
        for filename in language.filenames:
            assert language_of(f"some/folder/{filename}", None) == (language.id, "filename")
        for extension in language.extensions:
            assert extension.startswith(".")
            assert language_of(f"a{extension}", None) == (language.id, "extension")
        for program in language.programs:
            first = f"#!/usr/bin/{program} -x\n".encode()
            assert language_of("tool", first) == (language.id, "first_line")


@pytest.mark.requirement("K26")
@each_case(
    "name, first_line, expected",
    [
        ("Dockerfile", None, ("dockerfile", "filename")),
        ("dockerfile", None, ("dockerfile", "filename")),
        ("CMakeLists.txt", None, ("cmake", "filename")),
        ("notes.txt", None, ("plaintext", "extension")),
        ("types.d.ts", None, ("typescript", "extension")),
        ("page.blade.php", None, ("blade", "extension")),
        ("page.old.php", None, ("php", "extension")),
        ("a.c", None, ("c", "extension")),
        ("a.C", None, ("cpp", "extension")),
        ("README.MD", None, ("markdown", "extension")),
        (".bashrc", None, ("shellscript", "filename")),
        (".py", None, ("plaintext", "default")),
        ("folder.py/", None, ("python", "extension")),
        ("a.py", b"#!/bin/sh\n", ("python", "extension")),
        ("tool", b"#!/bin/sh\n", ("shellscript", "first_line")),
        ("tool.unknown", b"#!/usr/bin/python3.11\n", ("python", "first_line")),
        ("tool", b"\xef\xbb\xbf#!/usr/bin/env perl", ("perl", "first_line")),
        ("tool", b"text", ("plaintext", "default")),
        ("tool", b"", ("plaintext", "default")),
        ("", None, ("plaintext", "default")),
        ("...", None, ("plaintext", "default")),
    ],
)
def test_the_whole_name_comes_before_the_extension_and_that_before_the_first_line(
    name: str, first_line: bytes | None, expected: tuple[str, str]
) -> None:
    assert language_of(name, first_line) == expected


@each_case(
    "line, program",
    [
        (b"#! /usr/bin/env -S node --harmony\n", "node"),
        (b"#!/usr/bin/env -Sdeno run\n", "deno"),
        (b"#!/usr/bin/env -i A=b -u HOME python3 -I\n", "python"),
        (b"#!/usr/bin/env\n", ""),
        (b"#!\n", ""),
        (b"#!/usr/bin/ruby2.7", "ruby"),
        (b"#!/bin/bash\r\n", "bash"),
        (b"#!/\xff\xfe", "\ufffd\ufffd"),
        (b" #!/bin/sh", ""),
    ],
)
def test_a_first_line_names_its_program(line: bytes, program: str) -> None:
    assert program_of(line) == program


@given(st.text(), st.none() | st.binary())
def test_any_name_and_any_first_line_have_a_language(name: str, first_line: bytes | None) -> None:
    language, by = language_of(name, first_line)

    assert language in {row.id for row in LANGUAGES}
    assert by in {"filename", "extension", "first_line", "default"}
