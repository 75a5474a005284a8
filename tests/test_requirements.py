"""The requirement numbers of the design and their acceptance tests, in both directions."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from requirement_marks import marked_requirements, read_off
from samples import COLLECTED

TESTS = Path(__file__).parent
ROOT = TESTS.parent
SUBJECTS = json.loads((ROOT / "docs" / "requirements.json").read_text("utf-8"))
REQUIREMENTS: Mapping[str, str] = {
    number: text for rows in SUBJECTS.values() for number, text in rows.items()
}
PAGE = ROOT / "docs" / "reference" / "requirements.md"


@pytest.fixture(scope="module")
def tests_by_number(request: pytest.FixtureRequest) -> Mapping[str, list[str]]:
    """The tests that carry each number; collected anew where only some tests were asked for."""
    if _is_whole(request.session):
        collected = request.config.stash[COLLECTED]
        pairs = list(marked_requirements(collected))
    else:
        pairs = list(read_off(_collect(TESTS, "-p", "requirement_marks")))
    found: dict[str, list[str]] = {}
    for test, number in pairs:
        found.setdefault(number, []).append(test)
    return found


def _is_whole(session: pytest.Session) -> bool:
    options = session.config.option
    files = {item.path for item in session.config.stash[COLLECTED]}
    return files == set(TESTS.rglob("test_*.py")) and not options.keyword and not options.markexpr


def _collect(where: Path, *options: str) -> str:
    # Without syrupy, which fails where tests are collected and no snapshot is used.
    options = ("--collect-only", "-q", "-p", "no:syrupy", *options)
    command = [sys.executable, "-m", "pytest", *options, str(where)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    return done.stdout


def test_every_requirement_has_a_test(tests_by_number: Mapping[str, list[str]]) -> None:
    missing = [
        f"{number}: {title}"
        for number, title in REQUIREMENTS.items()
        if number not in tests_by_number
    ]

    assert missing == []


def test_every_requirement_has_a_test_that_runs_on_each_change(
    request: pytest.FixtureRequest,
) -> None:
    if not _is_whole(request.session):
        pytest.skip("only some tests were asked for")

    missing = REQUIREMENTS.keys() - {
        number for _, number in marked_requirements(request.session.items)
    }

    assert missing == set()


def test_every_number_a_test_carries_is_a_requirement(
    tests_by_number: Mapping[str, list[str]],
) -> None:
    strange = {
        number: tests for number, tests in tests_by_number.items() if number not in REQUIREMENTS
    }

    assert strange == {}


def test_a_number_is_carried_by_its_acceptance_test_alone(
    tests_by_number: Mapping[str, list[str]],
) -> None:
    """Two are allowed, for a requirement that needs a unit test beside the end-to-end one."""
    crowded = {number: _names(tests) for number, tests in tests_by_number.items()}

    assert {number: names for number, names in crowded.items() if len(names) > 2} == {}


def test_the_reference_names_the_tests_that_carry_each_number(
    tests_by_number: Mapping[str, list[str]],
) -> None:
    rows = [line.split(" | ") for line in PAGE.read_text("utf-8").split("\n") if " | " in line]
    shown = {row[0].removeprefix("| "): row[-1].removesuffix(" |") for row in rows}

    assert {number: shown[number] for number in REQUIREMENTS} == {
        number: ", ".join(f"`{name}`" for name in _names(tests))
        for number, tests in tests_by_number.items()
    }


def _names(tests: list[str]) -> list[str]:
    functions = (test.partition("[")[0].partition("::") for test in tests)
    return sorted({f"{Path(path).stem}::{name}" for path, _, name in functions})


def test_numbers_are_read_off_marks_wherever_they_stand(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "pytestmark = [pytest.mark.requirement('K1')]\n"
        "mark = pytest.mark.requirement\n"
        "@mark('L7', 'X4')\n"
        "def test_two(): ...\n"
        "@pytest.mark.parametrize('x', [pytest.param(1, id='one', marks=mark('Q12')), 2])\n"
        "def test_rows(x): ...\n"
        "@mark(7)\n"
        "def test_odd(): ...\n"
        "@pytest.mark.requirement\n"
        "def test_bare(): ...\n"
    )

    output = _collect(tmp_path, "-p", "requirement_marks", "-c", str(ROOT / "pyproject.toml"))

    found = {(test.rpartition("::")[2], number) for test, number in read_off(output)}
    assert found == {
        *((test, "K1") for test in ("test_two", "test_rows[one]", "test_rows[2]")),
        *((test, "K1") for test in ("test_odd", "test_bare")),
        ("test_two", "L7"),
        ("test_two", "X4"),
        ("test_rows[one]", "Q12"),
        ("test_odd", "7"),
        ("test_bare", "None"),
    }
