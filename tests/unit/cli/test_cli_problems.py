"""How problems of files are shown: with the line, a caret under the place, and no credential."""

from pathlib import Path

import pytest

from aish.cli.problems import ProblemPrinter
from aish.core.errors import Position, Problem


def shown(text: str, line: int, column: int, folder: Path, hint: str | None = None) -> list[str]:
    file = folder / "p.yaml"
    file.write_bytes(text.encode())
    said: list[str] = []
    problem = Problem(Position(str(file), line, column), "a", "is wrong", hint)
    ProblemPrinter(said.append).say(problem, "error")
    assert said[0] == f"error: {file}:{line}:{column}: a: is wrong"
    return said[1:]


def test_the_line_stands_below_its_problem_with_a_caret(tmp_path: Path) -> None:
    text = "aish: 1\r\nrun: [echo]\r\nname: é\u202e x\r\n"
    assert shown(text, 2, 6, tmp_path) == ["  2 | run: [echo]", "    |      ^"]
    assert shown(text, 3, 10, tmp_path, "do this") == [
        "  3 | name: é\\u202e x",
        "    |               ^",
        "  hint: do this",
    ]


def test_of_a_long_line_the_place_is_shown(tmp_path: Path) -> None:
    line, caret = shown(f"a: {'x' * 500} y {'z' * 500}", 1, 505, tmp_path)
    assert len(line) == len("  1 | ") + 1 + 100 + 1
    assert line[caret.index("^")] == "y"
    assert (line[6], line[-1]) == ("…", "…")


@pytest.mark.parametrize(
    "text",
    [
        "auth_token: abc\n",
        "headers: {Authorization: Bearer abc}\n",
        "password: hunter2\n",
        f"note: sk-{'a1B2' * 10}\n",
        "{auth_tokn: abc}\n",
        "{auth_toke: abc, keyenv: b}\n",
        "headers: {Authorisation: Bearer abc}\n",
        "base_url: http://user:abc@host/v1\n",
        "base_url: http://abc@host/v1\n",
        "base_url: http://host/v1?api-version=1&key=abc\n",
        'command: [server, "--api-key", abc]\n',
        "command: [server, --token=abc]\n",
        "key_env: sk_abcdefghijklmnop1234\n",
    ],
)
def test_a_line_that_may_hold_a_credential_is_not_shown(text: str, tmp_path: Path) -> None:
    assert shown(text, 1, 3, tmp_path) == []


@pytest.mark.parametrize(
    "text",
    [
        "key: item.id\n",
        "key_env: NAME\n",
        "max_tokens: 5\n",
        "secrets: [NAME]\n",
        "{auth_env: MY_SERVICE_TOKEN_2024}\n",
        "tokenizer: 5\n",
        "url: http://host/v1?api-version=2024-05-01\n",
    ],
)
def test_names_of_variables_and_our_own_keys_are_no_credentials(text: str, tmp_path: Path) -> None:
    assert shown(text, 1, 3, tmp_path) != []


def test_what_is_in_no_file_has_no_line(tmp_path: Path) -> None:
    said: list[str] = []
    printer = ProblemPrinter(said.append)
    for file in ("--set", str(tmp_path), str(tmp_path / "gone.yaml")):
        printer.say(Problem(Position(file, 1, 1), "a", "is wrong"), "error")
    assert said == [
        f"error: {f}:1:1: a: is wrong" for f in ("--set", tmp_path, tmp_path / "gone.yaml")
    ]


def test_a_long_list_of_keys_is_printed_once(tmp_path: Path) -> None:
    hint = "known here: " + ", ".join(f"`key_{n}`" for n in range(44))
    said: list[str] = []
    printer = ProblemPrinter(said.append)
    for line in (1, 2, 3):
        printer.say(Problem(Position("--set", line, 1), "a", "is wrong", hint), "error")
    hints = [line for line in said if "hint" in line]
    assert hints == [f"  hint: {hint}"] + ["  hint: known here: as listed above"] * 2
