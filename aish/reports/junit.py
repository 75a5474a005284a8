"""A run as JUnit XML: a suite for each step, a case for each step, item and expectation.

It has a failure or an error if and only if the exit code of the run is not 0: at the step or the
item that decided it, else in the suite `run`.

The counts precede the cases, and a resumed journal may replace cases: so they are written to a
temporary file as they arrive, and only their positions are kept in memory.
"""

import tempfile
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import field, replace
from itertools import chain
from struct import Struct
from typing import IO, Self

from aish.core.errors import ExitCode
from aish.core.events import ExpectChecked, ItemMoved, Stamped
from aish.core.frozen import frozen, slotted
from aish.core.json import json_text
from aish.core.phrases import first_lines, shorten
from aish.core.text import for_line
from aish.journal.history import CallRecord, Ended, Key, RunHistory, Unit
from aish.output.formats.junit import (
    CaseResult,
    Trouble,
    TroubleState,
    attributes,
    case_xml,
    name_apart,
)
from aish.output.status import call_status
from aish.reports.figures import iso_text
from aish.reports.outcome import WORDS, FailureReason, State, answer_of, reason_of, state_of

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
_AFTER_ITEMS = 1 << 40
_LONGEST_ARGUMENTS = 2_000
_MOST_CALLS = 20
_SHOWN_ERROR = 200
_NONE = -1


@frozen
class _CasePositions:
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
    trouble: int
    code: int
    index: int = _NONE


_PLACE = Struct("<qqqqqqdqqq")
_LARGEST = (1 << 63) - 1


def _pack(place: _CasePositions) -> bytes:
    values = (getattr(place, name) for name in _CasePositions.__match_args__)
    # A journal may contain numbers of any size.
    return _PLACE.pack(*(max(-_LARGEST, min(value, _LARGEST)) for value in values))


def _unpack(data: bytes) -> _CasePositions:
    return _CasePositions(*_PLACE.unpack(data))


@slotted
class _PackedCases:
    """The places of the cases by item, packed: a long batch has many.

    `names` says whose case has which name, both as hashes, but not for those that are the item.
    """

    began: float
    packed: dict[str | None, bytes] = field(default_factory=dict)
    names: dict[int, int] = field(default_factory=dict)

    def places(self) -> Iterator[_CasePositions]:
        return map(_unpack, self.packed.values())


class JUnitReport:
    """Takes the events of a run, and the units that ended with each in its `history`; then `xml`.

    Use it in a `with`.
    """

    def __init__(self, history: RunHistory) -> None:
        self._stack = ExitStack()
        self._history = history
        self._suites: dict[str, _PackedCases] = {}
        spool = tempfile.SpooledTemporaryFile(max_size=_SPOOLED)  # ruff: ignore[open-file-with-context-handler] - closed by the stack
        self._file: IO[bytes] = self._stack.enter_context(spool)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._stack.close()

    def take(self, stamped: Stamped, ended: Iterable[Ended]) -> None:
        event, step = stamped.event, stamped.event.place.step
        if step is not None and step not in self._suites:
            self._suites[step] = _PackedCases(stamped.time)
        if isinstance(event, ItemMoved) and step is not None:
            packed = self._suites[step].packed
            if (data := packed.get(event.place.item)) is not None:
                packed[event.place.item] = _pack(replace(_unpack(data), index=event.index))
        self.add(ended)

    def xml(self) -> Iterator[bytes]:
        segments = self._history.segments
        name = segments[0].started.pipeline if segments else "aish run"
        # `--force` resumes without steps that have been removed from the file.
        suites = {step: one for step, one in self._suites.items() if self._history.has(step)}
        run = self._run(name, {one.code for suite in suites.values() for one in suite.places()})
        if _RUN in suites:
            run = _apart(run, suites[_RUN], ((_RUN, None), -1))
        began = segments[0].began if segments else 0.0
        run_place = _place(0, b"", [run], ExitCode.OK, _NONE)
        counts = _counts(chain([run_place], *(suite.places() for suite in suites.values())))
        # `skipped` is no attribute of `testsuites` in the schema that most readers use.
        del counts["skipped"]
        yield b'<?xml version="1.0" encoding="utf-8"?>\n'
        yield _text(f"<testsuites{attributes(name=name, **counts)}>\n")
        yield _text(_suite_start(_RUN, began, [run_place]))
        yield _text("".join(case_xml(run)))
        yield b"  </testsuite>\n"
        for step, suite in suites.items():
            yield _text(_suite_start(step, suite.began, suite.places()))
            # Items in input order; others as they were written.
            for data in sorted(suite.packed.values(), key=_order):
                place = _unpack(data)
                self._file.seek(place.offset)
                yield self._file.read(place.size)
            yield b"  </testsuite>\n"
        yield b"</testsuites>\n"

    def _run(self, name: str, codes: Container[int]) -> CaseResult:
        """The case of the run, which reports what no step or item does."""
        end = self._history.finished
        seconds = 0.0 if end is None else end.seconds
        if end is None:
            trouble = Trouble("error", "no_end", "the run has no end: it was killed, or still runs")
        elif end.exit.code == ExitCode.OK or (
            (ExitCode.INTERRUPTED if end.status == "interrupted" else end.exit.code) in codes
        ):
            return CaseResult(name, _RUN, _clamp(seconds))
        else:
            reason = FailureReason(end.exit.name, end.exit.reason, end.exit.hint)
            trouble = _trouble(end.exit.code, reason)
        return CaseResult(name, _RUN, _clamp(seconds), troubles=(trouble,))

    def add(self, ended: Iterable[Ended]) -> None:
        """Write the cases of the units among what has ended."""
        for unit in ended:
            if not isinstance(unit, Unit):
                continue
            suite = self._suites.setdefault(unit.step, _PackedCases(unit.began))
            results = _cases(unit, told_within=self._is_reported_within(unit))
            cases = [_apart(case, suite, (unit.key, n)) for n, case in enumerate(results)]
            data = _text("".join(piece for case in cases for piece in case_xml(case)))
            offset = self._file.seek(0, 2)
            self._file.write(data)
            # The indexes of items within items are not unique.
            index = unit.index
            index = _NONE if "/" in unit.step or index is None else index
            place = _place(offset, data, cases, _code_of(unit), _trouble_of(unit), index)
            suite.packed[unit.item] = _pack(place)

    def _is_reported_within(self, unit: Unit) -> bool:
        """Return true if cases of its items, or of its pipeline's steps, report the failure."""
        reason = reason_of(unit)
        if reason is None:
            return False
        if unit.item is None and unit.step in self._suites:
            packed = self._suites[unit.step].packed
            # Its own place is that of an earlier part.
            troubles = [_unpack(data).trouble for item, data in packed.items() if item is not None]
            own = _trouble_of(unit)
            if any(one != _NONE and (reason.code in _OF_ITEMS or one == own) for one in troubles):
                return True
        # A pipeline has the status of the step that decided it, and names that step.
        within = (suite for step, suite in self._suites.items() if step.startswith(f"{unit.step}/"))
        inner = (suite.packed.get(unit.item) for suite in within)
        own_hash = hash(reason.message)
        return any(data is not None and _unpack(data).trouble == own_hash for data in inner)


def _apart(case: CaseResult, suite: _PackedCases, owner: tuple[Key, int]) -> CaseResult:
    """The case with a name that no case of its suite but its own earlier part has."""
    names, own, item = suite.names, hash(owner), owner[0][1]

    def is_taken(attribute: str) -> bool:
        if attribute == f' name="{item}"' and owner[1] == 0:
            # The item itself, in which nothing is escaped: its key in `packed` keeps the name.
            return hash(attribute) in names
        other = attribute.removeprefix(' name="').removesuffix('"')
        if other != item and other in suite.packed and attributes(name=other) == attribute:
            return True
        return names.setdefault(hash(attribute), own) != own

    return replace(case, name=name_apart(case.name, is_taken))


def _place(
    offset: int,
    data: bytes,
    cases: Sequence[CaseResult],
    code: int,
    trouble: int,
    index: int = _NONE,
) -> _CasePositions:
    states = Counter(trouble.state for case in cases for trouble in case.troubles)
    return _CasePositions(
        offset,
        len(data),
        tests=len(cases),
        failures=states["failure"],
        errors=states["error"],
        skipped=states["skipped"],
        seconds=cases[0].seconds,
        trouble=trouble,
        code=code,
        index=index,
    )


def _order(data: bytes) -> int:
    """A number and not a tuple: those of a long batch take megabytes."""
    place = _unpack(data)
    return _AFTER_ITEMS + place.offset if place.index == _NONE else place.index


def _code_of(unit: Unit) -> int:
    """The exit code of the unit; of one that was cut off that of an interrupted run."""
    end, state = unit.finished, state_of(unit)
    if state in {"ok", "skipped"}:
        return ExitCode.OK
    code = None if end is None else end.exit_code
    if code is None:
        code = _CODES.get(state, ExitCode.INTERRUPTED)
    return code if code or state == "denied" else ExitCode.INTERRUPTED


def _trouble_of(unit: Unit) -> int:
    reason = reason_of(unit)
    if unit.finished is None or reason is None or not _code_of(unit):
        return _NONE
    return hash(f"step `{unit.step}`: {reason.message}")


def _suite_start(name: str, began: float, places: Iterable[_CasePositions]) -> str:
    attributes_text = attributes(name=name, timestamp=iso_text(began), **_counts(places))
    return f"  <testsuite{attributes_text}>\n"


def _counts(places: Iterable[_CasePositions]) -> dict[str, str]:
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
    reason = reason_of(unit) or FailureReason(state, WORDS[state])
    unmet = reason.code == "expectation" and any(not check.ok for check in unit.checks)
    code = _code_of(unit)
    is_reported = state == "ok" or (bool(code) and (unmet or told_within))
    troubles = () if is_reported else (_trouble(code, reason, _denial_text(unit)),)
    answer = _answer_text(unit) if code else ""
    printed = "\n".join(filter(None, (*_bad_calls(unit), "" if unmet else answer)))
    yield CaseResult(name, unit.step, _clamp(seconds), troubles=troubles, system_out=printed)
    counts: Counter[str] = Counter()
    for check in unit.checks:
        counts[check.kind] += 1
        yield _expectation(f"{name}: {check.kind} {counts[check.kind]}", unit.step, check, answer)
        answer = answer if check.ok else ""


def _clamp(seconds: float) -> float:
    """A duration that can be written; a journal may contain anything."""
    return min(max(seconds, 0.0), _LONGEST) if seconds == seconds else 0.0  # ruff: ignore[comparison-with-itself] - NaN


def _bad_calls(unit: Unit) -> list[str]:
    """The calls that failed or were denied, and commands with another exit code than 0."""
    rows = []
    for call in unit.calls:
        end = call.finished
        if end is not None and call_status(end) not in {"ok", "denied"}:
            error = "" if end.exit_code else f": {shorten(for_line(end.content), _SHOWN_ERROR)}"
            rows.append(f"{call.tool}: {call_status(end)}{error}")
        elif end is not None and call.decided is not None and call.is_refused:
            hint = f"\nhint: {call.decided.hint}" if call.decided.hint else ""
            rows.append(f"{call.tool}: {for_line(end.content)}\n{_arguments_and_rule(call)}{hint}")
    return first_lines(rows, _MOST_CALLS)


def _denial_text(unit: Unit) -> str:
    """The call whose denial ended the unit: its arguments, and the rule or who denied it."""
    if state_of(unit) != "denied":
        return ""
    denied = [call for call in unit.calls if call.is_refused]
    if not denied or denied[-1].decided is None:
        return ""
    return f"tool: {denied[-1].tool}\n{_arguments_and_rule(denied[-1])}\n"


def _arguments_and_rule(call: CallRecord) -> str:
    """Return the arguments of a call, and the rule or who denied it."""
    arguments = shorten(json_text(call.arguments, spaced=True), _LONGEST_ARGUMENTS)
    return f"arguments: {arguments}\nrule: {call.decided.rule if call.decided else ''}"


def _answer_text(unit: Unit) -> str:
    answer = answer_of(unit)
    if answer is None:
        return ""
    text = answer if isinstance(answer, str) else json_text(answer, indent=2)
    left = len(text) - _LONGEST_ANSWER
    return text if left <= 0 else f"{text[:_LONGEST_ANSWER]}\n… and {left} more characters"


def _expectation(name: str, classname: str, check: ExpectChecked, answer: str) -> CaseResult:
    if check.ok:
        return CaseResult(name, classname, 0.0)
    first = check.message.partition("\n")[0]
    trouble = Trouble("failure", "expectation", first, check.message)
    return CaseResult(name, classname, 0.0, troubles=(trouble,), system_out=answer)


def _trouble(code: int, reason: FailureReason, call: str = "") -> Trouble:
    hint = "" if reason.hint is None else f"hint: {reason.hint}"
    text = f"{reason.message}\n{call}{hint}".rstrip("\n")
    first = for_line(reason.message.partition("\n")[0])
    kind: TroubleState = "failure" if code in FAILURES else "error" if code else "skipped"
    return Trouble(kind, reason.code, first, text)


def _text(text: str) -> bytes:
    return text.encode("utf-8", "replace")
