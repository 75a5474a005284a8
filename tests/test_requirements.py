"""The requirement numbers of the design and the tests that carry them, in both directions."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from requirements_table import REQUIREMENTS

TESTS = Path(__file__).parent


def carried(source: str) -> Iterator[tuple[int, str | None]]:
    """Line and number of each `requirement(...)`; `None` for one that cannot be read off."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr != "requirement":
            continue
        for argument in node.args or [ast.Constant(None)]:
            literal = argument.value if isinstance(argument, ast.Constant) else None
            yield node.lineno, literal if isinstance(literal, str) else None


def all_carried() -> Iterator[tuple[str, str | None]]:
    for path in sorted(TESTS.rglob("*.py")):
        for line, number in carried(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(TESTS)}:{line}", number


def test_every_requirement_has_a_test() -> None:
    present = {number for _, number in all_carried()}

    missing = [
        f"{number}: {title}" for number, title in REQUIREMENTS.items() if number not in present
    ]

    assert missing == []


def test_every_number_a_test_carries_is_a_requirement() -> None:
    strange = [
        f"{place}: {number}" for place, number in all_carried() if number not in REQUIREMENTS
    ]

    assert strange == []


@pytest.mark.parametrize(
    ("source", "numbers"),
    [
        ('@pytest.mark.requirement("L7", "X4")\ndef test(): ...', ["L7", "X4"]),
        ('pytest.param(1, marks=pytest.mark.requirement("Q12"))', ["Q12"]),
        ('pytestmark = [mark.requirement("K1")]', ["K1"]),
        ("@pytest.mark.requirement(NUMBER)\ndef test(): ...", [None]),
        ("@pytest.mark.requirement()\ndef test(): ...", [None]),
        ('@pytest.mark.other("L7")\ndef test(): ...', []),
    ],
)
def test_numbers_are_read_off_the_marks(source: str, numbers: list[str | None]) -> None:
    assert [number for _, number in carried(source)] == numbers
