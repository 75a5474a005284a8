"""The results of `aish test` for programs: one JSON object, one JUnit file (C12)."""

from collections.abc import Iterable
from pathlib import Path

from aish.cli.testing_text import explanation, summary
from aish.core.errors import ExitCode
from aish.core.json import JsonObject, JsonValue
from aish.features.testing.outcome import Outcome, Session, Tried, exit_code
from aish.output.formats.junit import CaseResult, Suite, Trouble, junit_xml
from aish.system.files import atomic_write

_VERSION = 1
# Of a file that cannot be loaded there is no case to name.
_WHOLE = "(the file)"


def session_json(session: Session) -> JsonObject:
    """Everything about a session; keys are only ever added."""
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
        "expectations": [
            {"kind": one.kind, "ok": one.ok, "message": one.message, "where": one.where}
            for one in outcome.checked
        ],
        "snapshots_written": list(outcome.written),
    }


def write_junit(path: Path, session: Session) -> None:
    """Write the JUnit file, whole or not at all."""
    atomic_write(path, junit_xml("aish test", _suites(session)), shared=True)


def tell_github(session: Session) -> None:
    """Write the step summary and annotations of GitHub Actions."""
    from aish.cli.github import file_in_repository, job
    from aish.reports.github.report import case_annotations, cases_summary

    step, suites = job(), _suites(session)
    names = {tried.file: file_in_repository(tried.file) for tried in session.tried}
    step.annotate(case_annotations(suites, names))
    step.summarise(lambda limit: cases_summary(summary(session), suites, limit))


def _suites(session: Session) -> list[Suite]:
    files = dict.fromkeys(tried.file for tried in session.tried)
    suites = [
        Suite(file, tuple(_case(one) for one in session.tried if one.file == file))
        for file in files
    ]
    if session.orphans and session.orphans_fail:
        suites.append(Suite("cassettes", tuple(map(_orphan, session.orphans))))
    return suites


def _case(tried: Tried) -> CaseResult:
    return CaseResult(
        name=tried.case or _WHOLE,
        classname=tried.file,
        seconds=tried.outcome.seconds,
        file=tried.file,
        troubles=tuple(_troubles(tried.outcome)),
    )


def _troubles(outcome: Outcome) -> Iterable[Trouble]:
    """At most one: many readers know no more of a case."""
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
    said = "no test uses this cassette"
    return CaseResult(path, "cassettes", 0.0, path, (Trouble("failure", "orphan", said),))
