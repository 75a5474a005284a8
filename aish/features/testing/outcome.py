"""Data of `aish test`: files, cases, outcomes, and the exit code."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from aish.config.model import Case, CassetteSettings, Pipeline
from aish.core.errors import ExitCode
from aish.core.frozen import frozen
from aish.engine.expectations.check import CheckedExpectation
from aish.engine.final import NAMES, PRECEDENCE

Verdict = Literal["passed", "failed", "miss", "error"]
"""`miss`: the cassette does not fit; `error`: the case could not be tried."""


@frozen
class TestedFile:
    """A pipeline file; `name` is its path for display.

    `problems` prevent its cases from running; `pipeline` is set if there are none. One without
    steps has no cases, but may have a `cassette`, as a file that is served.
    """

    name: str
    path: Path
    pipeline: Pipeline | None = None
    problems: tuple[str, ...] = ()
    cassette: Path | None = None


@frozen
class CaseJob:
    """A case of a file, to be run."""

    file: str
    pipeline: Pipeline
    case: Case

    @property
    def id(self) -> str:
        return f"{self.file}::{self.case.name}"

    @property
    def cassette(self) -> CassetteSettings | None:
        """Its own cassette, else the file's."""
        return self.case.cassette or self.pipeline.cassette


@frozen
class CaseOutcome:
    """The outcome of a case.

    `code` is the one of the run, `reason` says why it is not 0; `trace` is a bug's traceback;
    `written` are snapshots that were updated; `unreadable` says that the reason is a missing or
    broken cassette.
    """

    verdict: Verdict
    seconds: float = 0.0
    code: ExitCode = ExitCode.OK
    reason: str = ""
    hint: str | None = None
    checked: tuple[CheckedExpectation, ...] = ()
    written: tuple[str, ...] = ()
    trace: str = ""
    unreadable: bool = False

    @property
    def is_stale(self) -> bool:
        return self.verdict == "miss" or self.unreadable

    @property
    def unmet(self) -> tuple[CheckedExpectation, ...]:
        return tuple(check for check in self.checked if not check.ok)


@frozen
class Tried:
    """A case, or a whole file (then `case` is empty), and its outcome."""

    file: str
    case: str
    outcome: CaseOutcome

    @property
    def id(self) -> str:
        return f"{self.file}::{self.case}" if self.case else self.file


@frozen
class AllOutcomes:
    """All outcomes; `left_out` counts the cases after the first failure (`-x`).

    `stopped` is the code of a signal that ended it early.
    """

    tried: Sequence[Tried] = ()
    seconds: float = 0.0
    deselected: int = 0
    left_out: int = 0
    untested: tuple[str, ...] = ()
    recorded: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()
    orphans_fail: bool = False
    stopped: ExitCode | None = None


def explanation(outcome: CaseOutcome, *, verbose: bool = False) -> Iterator[str]:
    """Yield why a case did not pass: the failed expectations, the result of its run."""
    for check in outcome.unmet:
        yield f"{check.where} {check.kind}: {check.message}"
    if outcome.verdict == "failed" and outcome.code is not ExitCode.OK:
        yield f"the run ended with {int(outcome.code)} ({NAMES[outcome.code]}): {outcome.reason}"
    elif outcome.reason:
        yield outcome.reason
    if outcome.hint:
        yield f"hint: {outcome.hint}"
    if outcome.trace:
        yield outcome.trace if verbose else "hint: `-v` shows the details; please report it"


def verdict_of(code: ExitCode, checked: Iterable[CheckedExpectation]) -> Verdict:
    """The verdict on a case, from the end of its run and its expectations."""
    if code is ExitCode.CASSETTE:
        return "miss"
    if code in {ExitCode.USAGE, ExitCode.INTERNAL, ExitCode.INTERRUPTED, ExitCode.TERMINATED}:
        return "error"
    held = code is ExitCode.OK and all(check.ok for check in checked)
    return "passed" if held else "failed"


def exit_code(session: AllOutcomes) -> ExitCode:
    """The total exit code: the first that applies, in the order of `PRECEDENCE`."""
    codes = {_code_of(tried.outcome) for tried in session.tried}
    if session.orphans and session.orphans_fail:
        codes.add(ExitCode.FAILED)
    if session.stopped is not None:
        codes.add(session.stopped)
    return next((code for code in PRECEDENCE if code in codes), ExitCode.OK)


def _code_of(outcome: CaseOutcome) -> ExitCode:
    match outcome.verdict:
        case "passed":
            return ExitCode.OK
        case "failed":
            return ExitCode.FAILED
        case "miss":
            return ExitCode.CASSETTE
        case "error":
            return outcome.code
