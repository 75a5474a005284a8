"""What `aish test` shows: hostile text is harmless, the sum is right."""

from io import StringIO
from typing import Any

import pytest

from aish.cli.case_report import CaseLines, Manners, manners_for, summary
from aish.core.errors import ExitCode
from aish.engine.expectations.check import CheckedExpectation
from aish.features.testing.outcome import AllOutcomes, CaseOutcome, Tried, Verdict, exit_code
from aish.output.style import Look

HOSTILE = "::error::a\n::set-output name=x::y\x1b[2J\u202e ##[group]z"


def tried(verdict: Verdict, **fields: Any) -> Tried:
    return Tried("p.yaml", f"case {verdict}", CaseOutcome(verdict, 0.1, **fields))


def screen(session: AllOutcomes, **manners: bool) -> str:
    out = StringIO()
    lines = CaseLines(out, Manners(Look(width=60), **manners))
    for one in session.tried:
        lines.ended(one)
    lines.close(session)
    return out.getvalue()


@pytest.mark.parametrize("manners", [{}, {"quiet": True}, {"verbose": True}], ids=str)
def test_no_text_of_strangers_commands_a_terminal_or_a_runner(manners: dict[str, bool]) -> None:
    checked = (CheckedExpectation("contains", ok=False, message=HOSTILE, where=HOSTILE),)
    outcome = CaseOutcome("failed", 0.1, ExitCode.FAILED, HOSTILE, HOSTILE, checked, (HOSTILE,))
    crashed = CaseOutcome("error", 0.1, ExitCode.INTERNAL, HOSTILE, trace=HOSTILE)
    session = AllOutcomes(
        tried=(Tried(HOSTILE, HOSTILE, outcome), Tried(HOSTILE, HOSTILE, crashed)),
        untested=(HOSTILE,),
        orphans=(HOSTILE,),
        orphans_fail=True,
    )

    shown = screen(session, **manners)

    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "##[" not in shown
    assert not any(line.lstrip().startswith("::") for line in shown.splitlines())


def test_the_sum_names_what_there_is_and_nothing_else() -> None:
    passed, failed, missed, broken = tried("passed"), tried("failed"), tried("miss"), tried("error")

    assert summary(AllOutcomes((passed,), 0.45)) == "1 passed in 0.45 s"
    assert summary(AllOutcomes((failed,), 0.45)) == "1 failed in 0.45 s"
    assert summary(AllOutcomes((), 0.45, stopped=ExitCode.INTERRUPTED, left_out=2)) == (
        "interrupted: 0 passed, 2 not run in 0.45 s"
    )
    everything = AllOutcomes((passed, passed, failed, missed, missed, broken), 75.0, 4, 0)
    assert summary(everything) == (
        "2 passed, 1 failed, 2 cassette misses, 1 error, 4 deselected in 1 min 15 s"
    )


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ((), 0),
        ((CaseOutcome("passed"),), 0),
        ((CaseOutcome("failed", code=ExitCode.DENIED),), 1),
        ((CaseOutcome("failed"), CaseOutcome("miss", code=ExitCode.CASSETTE)), 6),
        (
            (
                CaseOutcome("miss", code=ExitCode.CASSETTE),
                CaseOutcome("error", code=ExitCode.USAGE),
            ),
            2,
        ),
        (
            (
                CaseOutcome("error", code=ExitCode.USAGE),
                CaseOutcome("error", code=ExitCode.INTERNAL),
            ),
            70,
        ),
    ],
)
def test_the_first_code_that_applies_is_taken(outcomes: tuple[CaseOutcome, ...], code: int) -> None:
    assert exit_code(AllOutcomes(tuple(Tried("f", "c", one) for one in outcomes))) == code


def test_unused_cassettes_fail_only_where_they_may() -> None:
    assert exit_code(AllOutcomes(orphans=("a.yaml",))) == 0
    assert exit_code(AllOutcomes(orphans=("a.yaml",), orphans_fail=True)) == 1


def test_dots_fill_lines() -> None:
    session = AllOutcomes(tuple(Tried("f", str(n), CaseOutcome("passed")) for n in range(130)))

    shown = screen(session, quiet=True).splitlines()

    assert [len(line) for line in shown[:3]] == [60, 60, 10]


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a terminal has one that cannot be set
        return "utf-8"

    def fileno(self) -> int:
        raise OSError


@pytest.mark.parametrize(
    ("environ", "colour"),
    [
        ({}, True),
        ({"CI": "true"}, False),
        ({"CI": "true", "FORCE_COLOR": "1"}, True),
        ({"NO_COLOR": "1"}, False),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
    ],
    ids=str,
)
def test_colours_at_a_terminal_but_not_in_ci(environ: dict[str, str], *, colour: bool) -> None:
    environ = {"TERM": "xterm", **environ}

    assert manners_for(Terminal(), environ, quiet=False, verbose=False).look.color is colour
