"""Output of `aish test`: a line or a dot per case, then the failures, then a summary.

For programs: one JSON object, one JUnit file. Names, answers and messages come from files and
models; each passes `for_ci_log`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from aish.cli.boundary import say
from aish.cli.printer import write_line
from aish.core.errors import ExitCode
from aish.core.events import plain
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.phrases import counted
from aish.core.text import for_ci_log, for_line
from aish.features.testing.outcome import (
    AllOutcomes,
    CaseOutcome,
    Tried,
    Verdict,
    exit_code,
    explanation,
)
from aish.output.formats.junit import CaseResult, CaseSuite, Trouble
from aish.output.status import seconds_text
from aish.output.style import Look, Style, look_of
from aish.system.files import atomic_write

_DOTS: Mapping[Verdict, str] = {"passed": ".", "failed": "F", "miss": "M", "error": "E"}
_STYLES: Mapping[Verdict, Style] = {
    "passed": "green",
    "failed": "red",
    "miss": "yellow",
    "error": "red",
}
_WIDEST = 100


@frozen
class Manners:
    look: Look
    quiet: bool = False
    verbose: bool = False


def manners_for(out: TextIO, environ: Mapping[str, str], *, quiet: bool, verbose: bool) -> Manners:
    """Colours at a terminal only, and not in a CI log unless it enables them."""
    look = look_of(out, environ)
    in_ci = environ.get("CI", "").lower() in {"1", "true", "yes"}
    if in_ci and environ.get("FORCE_COLOR", "") in {"", "0", "false"}:
        look = replace(look, color=False)
    return Manners(look, quiet=quiet, verbose=verbose)


class CasePrinter:
    """Prints lines about cases; a closed output loses the rest and nothing else."""

    def __init__(self, out: TextIO, manners: Manners) -> None:
        self._out = out
        self._manners = manners
        self._column = 0

    def _print(self, line: str) -> None:
        write_line(self._out, f"{line}\n")
        self._column = 0

    def _print_checks(self, outcome: CaseOutcome) -> None:
        for one in outcome.checked if self._manners.verbose else ():
            self._print(f"  {'ok' if one.ok else 'no'} {log_line(f'{one.kind}: {one.message}')}")


class CaseLines(CasePrinter):
    """Prints each case as it ends."""

    def recording(self, cassette: str) -> None:
        if not self._manners.quiet:
            self._print(f"recording {log_line(cassette)}")

    def ended(self, tried: Tried) -> None:
        outcome, look = tried.outcome, self._manners.look
        style = _STYLES[outcome.verdict]
        if self._manners.quiet:
            write_line(self._out, look.paint(style, _DOTS[outcome.verdict]))
            self._column += 1
            if self._column == self._manners.look.width:
                self._print("")
            return
        word = look.paint(style, outcome.verdict.upper())
        self._print(f"{log_line(tried.id)} {word} {seconds_text(outcome.seconds)}")
        self._print_checks(outcome)

    def close(self, session: AllOutcomes) -> None:
        if self._column:
            self._print("")
        for line in summary_lines(session, self._manners):
            self._print(line)


def summary_lines(session: AllOutcomes, manners: Manners) -> Iterator[str]:
    look = manners.look
    bad = [tried for tried in session.tried if tried.outcome.verdict != "passed"]
    if bad:
        yield ""
        yield look.paint("bold", rule(look, "failures", "="))
    for tried in bad:
        style = _STYLES[tried.outcome.verdict]
        yield look.paint(style, rule(look, log_line(tried.id), "_"))
        yield from map(for_ci_log, explanation(tried.outcome, verbose=manners.verbose))
    written = tuple(path for tried in session.tried for path in tried.outcome.written)
    yield from _list("snapshots written", tuple(dict.fromkeys(written)))
    if not manners.quiet:
        yield from _list("no tests", session.untested)
    if session.orphans:
        kind = "error" if session.orphans_fail else "warning"
        yield from _list(f"{kind}: cassettes that no test uses", session.orphans)
        if session.orphans_fail:
            yield "hint: delete them, or `--allow-orphans`"
    yield ""
    worst = any(tried.outcome.verdict != "passed" for tried in session.tried) or session.stopped
    yield look.paint("red" if worst else "green", summary(session))


def summary(session: AllOutcomes) -> str:
    """`3 passed, 1 failed, 1 cassette miss in 0.45 s`."""
    verdicts = [tried.outcome.verdict for tried in session.tried]
    passed, failed = verdicts.count("passed"), verdicts.count("failed")
    parts = [f"{passed} passed"] if passed or not verdicts else []
    parts += [f"{failed} failed"] if failed else []
    if misses := verdicts.count("miss"):
        parts.append("1 cassette miss" if misses == 1 else f"{misses} cassette misses")
    if errors := verdicts.count("error"):
        parts.append(counted(errors, "error"))
    if session.deselected:
        parts.append(f"{session.deselected} deselected")
    if session.left_out:
        parts.append(f"{session.left_out} not run")
    if session.orphans:
        parts.append(counted(len(session.orphans), "unused cassette"))
    stop = "interrupted: " if session.stopped is not None else ""
    return f"{stop}{', '.join(parts)} in {seconds_text(session.seconds)}"


def _list(title: str, rows: Sequence[str]) -> Iterator[str]:
    if rows:
        yield ""
        yield f"{title}:"
        yield from (f"  {log_line(row)}" for row in rows)


def log_line(text: str) -> str:
    """Untrusted text on one line of a CI log."""
    return for_ci_log(for_line(text))


def rule(look: Look, title: str, sign: str) -> str:
    width = min(look.width, _WIDEST)
    return f" {title} ".center(width, sign) if len(title) + 4 < width else f"{sign} {title} {sign}"


_VERSION = 1
# A file that cannot be loaded has no case to name.
_WHOLE = "(the file)"


def session_json(session: AllOutcomes) -> JsonObject:
    """Everything about a session; keys are only added in later versions."""
    verdicts = [tried.outcome.verdict for tried in session.tried]
    return {
        "v": _VERSION,
        "exit": int(exit_code(session)),
        "seconds": session.seconds,
        "passed": verdicts.count("passed"),
        "failed": verdicts.count("failed"),
        "misses": verdicts.count("miss"),
        "errors": verdicts.count("error"),
        "deselected": session.deselected,
        "not_run": session.left_out,
        "interrupted": session.stopped is not None,
        "cases": [_case_json(tried) for tried in session.tried],
        "untested": list(session.untested),
        "recorded": list(session.recorded),
        "orphans": list(session.orphans),
    }


def _case_json(tried: Tried) -> JsonValue:
    outcome = tried.outcome
    return {
        "id": tried.id,
        "file": tried.file,
        "name": tried.case or None,
        "verdict": outcome.verdict,
        "code": int(outcome.code),
        "reason": outcome.reason,
        "hint": outcome.hint,
        "seconds": outcome.seconds,
        "expectations": plain(outcome.checked),
        "snapshots_written": list(outcome.written),
    }


def write_file(option: str, path: Path, data: bytes) -> bool:
    """Write a report to the file that an option names; false if that failed, which is printed."""
    try:
        atomic_write(path, data, shared=True)
    except OSError as error:
        say(f"error: {option} {path}: cannot be written: {error.strerror or error}")
        return False
    return True


def tell_github(line: str, suites: Sequence[CaseSuite]) -> None:
    """Write the step summary, with the result in short, and annotations of GitHub Actions."""
    from aish.cli.github import file_in_repository, job
    from aish.reports.github.report import case_annotations, cases_summary

    step = job()
    step.annotate(case_annotations(suites, file_in_repository))
    step.summarise(lambda limit: cases_summary(line, suites, limit))


def suites_of(session: AllOutcomes) -> list[CaseSuite]:
    files = dict.fromkeys(tried.file for tried in session.tried)
    suites = [
        CaseSuite(file, tuple(_case(result) for result in session.tried if result.file == file))
        for file in files
    ]
    if session.orphans and session.orphans_fail:
        suites.append(CaseSuite("cassettes", tuple(map(_orphan, session.orphans))))
    return suites


def _case(tried: Tried) -> CaseResult:
    return CaseResult(
        name=tried.case or _WHOLE,
        classname=tried.file,
        seconds=tried.outcome.seconds,
        file=tried.file,
        troubles=tuple(_troubles(tried.outcome)),
    )


def _troubles(outcome: CaseOutcome) -> Iterable[Trouble]:
    """At most one: many readers support only one per case."""
    if outcome.verdict == "passed":
        return
    text = "\n".join(explanation(outcome, verbose=True))
    first = text.partition("\n")[0]
    match outcome.verdict:
        case "failed":
            kind = "run" if outcome.code is not ExitCode.OK else "expectation"
            yield Trouble("failure", kind, first, text)
        case "miss":
            yield Trouble("error", "cassette_miss", first, text)
        case "error":
            yield Trouble("error", "internal" if outcome.trace else "usage", first, text)


def _orphan(path: str) -> CaseResult:
    message = "no test uses this cassette"
    return CaseResult(path, "cassettes", 0.0, path, (Trouble("failure", "orphan", message),))
