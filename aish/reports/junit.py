"""A run as JUnit XML: a suite for each step, a case for each step, item and expectation (B11).

It has a failure or an error if and only if the exit code of the run is not 0: at the step or the
item that decided it, else in the suite `run`.

The counts precede the cases, and a resumed journal may replace cases: so they are written to a
temporary file as they arrive, and only their positions are kept in memory.
"""

import tempfile
from collections import Counter
from collections.abc import (
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack
from dataclasses import field
from typing import IO, Self

from aish.core.errors import ExitCode
from aish.core.events import ExpectChecked, ItemMoved, Stamped
from aish.core.frozen import slotted
from aish.core.json import json_text
from aish.core.phrases import first_lines, shorten
from aish.core.text import for_line
from aish.journal.history import Call, Ended, History, Unit
from aish.output.formats.junit import (
    CaseResult,
    Trouble,
    TroubleState,
    attributes,
    case_xml,
)
from aish.output.status import call_status
from aish.reports.figures import iso_text
from aish.reports.outcome import WORDS, Reason, State, answer_of, reason_of, state_of

_SPOOLED = 4_000_000
_LONGEST = 1e9
_LONGEST_ANSWER = 20_000
# The errors of a step over items that are caused by its items.
_OF_ITEMS = frozenset({"items", "items_stopped", "max_failures"})
FAILURES = frozenset({ExitCode.FAILED, ExitCode.DENIED, ExitCode.LOCK})
"""Exit codes by which a run is judged; any other says that something around it broke."""
# For journals of older versions, in which no step and no item has an exit code.
_CODES: Mapping[State, ExitCode] = {
    "failed": ExitCode.FAILED,
    "denied": ExitCode.DENIED,
    "skipped": ExitCode.OK,
    "ok": ExitCode.OK,
}
_RUN = "run"
_LONGEST_ARGUMENTS = 2_000
_MOST_CALLS = 20
_SHOWN_ERROR = 200


@slotted
class _Place:
    """The positions of the cases of a unit, and their counts.

    `trouble` identifies the message by which a container reports a failed unit, `code` is the exit
    code of one that did not succeed.
    """

    offset: int
    size: int
    tests: int
    failures: int
    errors: int
    skipped: int
    seconds: float
    trouble: int | None
    code: int
    index: int | None = None


@slotted
class _Suite:
    began: float
    places: dict[str | None, _Place] = field(default_factory=dict)


class JUnitReport:
    """Takes the events of a run, and the units that ended with each in its `history`; then `xml`.

    Use it in a `with`.
    """

    def __init__(self, history: History) -> None:
        self._stack = ExitStack()
        self._history = history
        self._suites: dict[str, _Suite] = {}
        spool = tempfile.SpooledTemporaryFile(max_size=_SPOOLED)  # ruff: ignore[open-file-with-context-handler] - closed by the stack
        self._file: IO[bytes] = self._stack.enter_context(spool)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._stack.close()

    def take(self, stamped: Stamped, ended: Iterable[Ended]) -> None:
        """One more event, and the units that ended with it."""
        event, step = stamped.event, stamped.event.place.step
        if step is not None and step not in self._suites:
            self._suites[step] = _Suite(stamped.time)
        if isinstance(event, ItemMoved) and step is not None:
            moved = self._suites[step].places.get(event.place.item)
            if moved is not None:
                moved.index = event.index
        self.add(ended)

    def xml(self) -> Iterator[bytes]:
        """The whole file, piece by piece."""
        segments = self._history.segments
        name = segments[0].started.pipeline if segments else "aish run"
        places = [place for suite in self._suites.values() for place in suite.places.values()]
        run = self._run(name, {place.code for place in places})
        began = segments[0].began if segments else 0.0
        places.append(run_place := _place(0, b"", [run], ExitCode.OK, None))
        counts = _counts(places)
        # `skipped` is no attribute of `testsuites` in the schema that most readers use.
        del counts["skipped"]
        yield b'<?xml version="1.0" encoding="utf-8"?>\n'
        yield _text(f"<testsuites{attributes(name=name, **counts)}>\n")
        yield _text(_opening(_RUN, began, [run_place]))
        yield _text("".join(case_xml(run)))
        yield b"  </testsuite>\n"
        for step, suite in self._suites.items():
            yield from self._suite(step, suite)
        yield b"</testsuites>\n"

    def _suite(self, step: str, suite: _Suite) -> Iterator[bytes]:
        yield _text(_opening(step, suite.began, suite.places.values()))
        # Items in input order; others as they were written.
        for place in sorted(suite.places.values(), key=_order):
            self._file.seek(place.offset)
            yield self._file.read(place.size)
        yield b"  </testsuite>\n"

    def _run(self, name: str, codes: Container[int]) -> CaseResult:
        """The case of the run, which reports what no step or item does."""
        segments = self._history.segments
        end = segments[-1].finished if segments else None
        seconds = 0.0 if end is None else end.seconds
        if end is None:
            trouble = Trouble("error", "no_end", "the run has no end: it was killed, or still runs")
        elif end.exit.code == ExitCode.OK or (
            (ExitCode.INTERRUPTED if end.status == "interrupted" else end.exit.code) in codes
        ):
            return CaseResult(name, _RUN, _bounded(seconds))
        else:
            reason = Reason(end.exit.name, end.exit.reason, end.exit.hint)
            trouble = _trouble(end.exit.code, reason)
        return CaseResult(name, _RUN, _bounded(seconds), troubles=(trouble,))

    def add(self, ended: Iterable[Ended]) -> None:
        """Write the cases of the units among what has ended."""
        for unit in ended:
            if not isinstance(unit, Unit):
                continue
            cases = list(_cases(unit, told_within=self._told_within(unit)))
            data = _text("".join(piece for case in cases for piece in case_xml(case)))
            offset = self._file.seek(0, 2)
            self._file.write(data)
            place = _place(offset, data, cases, _code_of(unit), _trouble_of(unit))
            # The indexes of items within items are not unique.
            place.index = None if "/" in unit.step else unit.index
            self._suites.setdefault(unit.step, _Suite(unit.began)).places[unit.item] = place

    def _told_within(self, unit: Unit) -> bool:
        """Whether cases of its items, or of the steps of its pipeline, report the failure."""
        reason = reason_of(unit)
        if reason is None:
            return False
        if unit.item is None and unit.step in self._suites:
            places = self._suites[unit.step].places
            # Its own place is that of an earlier part.
            found = [place.trouble for item, place in places.items() if item is not None]
            own = _trouble_of(unit)
            if any(one is not None and (reason.code in _OF_ITEMS or one == own) for one in found):
                return True
        # A pipeline has the status of the step that decided it, and names that step.
        within = (suite for step, suite in self._suites.items() if step.startswith(f"{unit.step}/"))
        inner = (suite.places.get(unit.item) for suite in within)
        return any(place is not None and place.trouble == hash(reason.message) for place in inner)


def _place(
    offset: int, data: bytes, cases: Sequence[CaseResult], code: int, trouble: int | None
) -> _Place:
    states = Counter(trouble.state for case in cases for trouble in case.troubles)
    return _Place(
        offset,
        len(data),
        tests=len(cases),
        failures=states["failure"],
        errors=states["error"],
        skipped=states["skipped"],
        seconds=cases[0].seconds,
        trouble=trouble,
        code=code,
    )


def _order(place: _Place) -> tuple[bool, int, int]:
    return place.index is None, place.index or 0, place.offset


def _code_of(unit: Unit) -> int:
    """The exit code of the unit; of one that was cut off that of an interrupted run."""
    end, state = unit.finished, state_of(unit)
    if state in {"ok", "skipped"}:
        return ExitCode.OK
    code = None if end is None else end.exit_code
    if code is None:
        code = _CODES.get(state, ExitCode.INTERRUPTED)
    return code if code or state == "denied" else ExitCode.INTERRUPTED


def _trouble_of(unit: Unit) -> int | None:
    reason = reason_of(unit)
    if unit.finished is None or reason is None or not _code_of(unit):
        return None
    return hash(f"step `{unit.step}`: {reason.message}")


def _opening(name: str, began: float, places: Iterable[_Place]) -> str:
    told = attributes(name=name, timestamp=iso_text(began), **_counts(places))
    return f"  <testsuite{told}>\n"


def _counts(places: Iterable[_Place]) -> dict[str, str]:
    tests = failures = errors = skipped = 0
    seconds = 0.0
    for place in places:
        tests += place.tests
        failures += place.failures
        errors += place.errors
        skipped += place.skipped
        seconds += place.seconds
    numbers = {"tests": tests, "failures": failures, "errors": errors, "skipped": skipped}
    return {name: str(number) for name, number in numbers.items()} | {"time": f"{seconds:.3f}"}


def _cases(unit: Unit, *, told_within: bool) -> Iterator[CaseResult]:
    """A case for the unit, and for each of its expectations; one of them reports the failure."""
    end = unit.finished
    seconds = unit.ended - unit.began if end is None else end.seconds
    name = unit.step if unit.item is None else unit.item
    state = state_of(unit)
    reason = reason_of(unit) or Reason(state, WORDS[state])
    unmet = reason.code == "expectation" and any(not check.ok for check in unit.checks)
    code = _code_of(unit)
    told = state == "ok" or (bool(code) and (unmet or told_within))
    troubles = () if told else (_trouble(code, reason, _denied_call(unit)),)
    answer = _answer_text(unit) if code else ""
    printed = "\n".join(filter(None, (*_bad_calls(unit), "" if unmet else answer)))
    yield CaseResult(name, unit.step, _bounded(seconds), troubles=troubles, system_out=printed)
    seen: Counter[str] = Counter()
    for check in unit.checks:
        seen[check.kind] += 1
        yield _expectation(f"{name}: {check.kind} {seen[check.kind]}", unit.step, check, answer)
        answer = answer if check.ok else ""


def _bounded(seconds: float) -> float:
    """A duration that can be written; a journal may contain anything."""
    return min(max(seconds, 0.0), _LONGEST) if seconds == seconds else 0.0  # ruff: ignore[comparison-with-itself] - NaN


def _bad_calls(unit: Unit) -> list[str]:
    """The calls that failed or were denied, and commands with another exit code than 0."""
    rows = []
    for call in unit.calls:
        end = call.finished
        if end is not None and call_status(end) not in {"ok", "denied"}:
            said = "" if end.exit_code else f": {shorten(for_line(end.content), _SHOWN_ERROR)}"
            rows.append(f"{call.tool}: {call_status(end)}{said}")
        elif end is not None and call.decided is not None and call.is_refused:
            hint = f"\nhint: {call.decided.hint}" if call.decided.hint else ""
            rows.append(f"{call.tool}: {for_line(end.content)}\n{_told_of_denied(call)}{hint}")
    return first_lines(rows, _MOST_CALLS)


def _denied_call(unit: Unit) -> str:
    """The call whose denial ended the unit: its arguments, and the rule or who denied it."""
    if state_of(unit) != "denied":
        return ""
    denied = [call for call in unit.calls if call.is_refused]
    if not denied or denied[-1].decided is None:
        return ""
    return f"tool: {denied[-1].tool}\n{_told_of_denied(denied[-1])}\n"


def _told_of_denied(call: Call) -> str:
    """Its arguments, and the rule or who denied it."""
    arguments = shorten(json_text(call.arguments, spaced=True), _LONGEST_ARGUMENTS)
    return f"arguments: {arguments}\nrule: {call.decided.rule if call.decided else ''}"


def _answer_text(unit: Unit) -> str:
    """The answer of a unit as readable text."""
    answer = answer_of(unit)
    if answer is None:
        return ""
    text = answer if isinstance(answer, str) else json_text(answer, indent=2)
    left = len(text) - _LONGEST_ANSWER
    return text if left <= 0 else f"{text[:_LONGEST_ANSWER]}\n… and {left} more characters"


def _expectation(name: str, classname: str, check: ExpectChecked, answer: str) -> CaseResult:
    """A separate case; that of the first unmet one contains the answer."""
    if check.ok:
        return CaseResult(name, classname, 0.0)
    first = check.message.partition("\n")[0]
    trouble = Trouble("failure", "expectation", first, check.message)
    return CaseResult(name, classname, 0.0, troubles=(trouble,), system_out=answer)


def _trouble(code: int, reason: Reason, call: str = "") -> Trouble:
    hint = "" if reason.hint is None else f"hint: {reason.hint}"
    text = f"{reason.message}\n{call}{hint}".rstrip("\n")
    first = for_line(reason.message.partition("\n")[0])
    kind: TroubleState = "failure" if code in FAILURES else "error" if code else "skipped"
    return Trouble(kind, reason.code, first, text)


def _text(text: str) -> bytes:
    return text.encode("utf-8", "replace")
