"""Results as JUnit XML: suites of cases, supported by all CI systems.

A *failure* is an expectation that was not met, an *error* a problem outside of it, and *skipped*
what was not run. Pure: data in, bytes out.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Literal

from aish.core.frozen import frozen
from aish.core.text import for_xml

TroubleState = Literal["failure", "error", "skipped"]
_LONGEST = 100_000
_LONGEST_NAME = 99_000
_STATES = {"failure": "failures", "error": "errors", "skipped": "skipped"}


@frozen
class Trouble:
    """The reason why a case did not pass: `message` in one line, `text` in full."""

    state: TroubleState
    kind: str
    message: str
    text: str = ""


@frozen
class CaseResult:
    """A case; most viewers group by `classname`; `system_out` is its output."""

    name: str
    classname: str
    seconds: float
    file: str | None = None
    troubles: tuple[Trouble, ...] = ()
    system_out: str = ""


@frozen
class CaseSuite:
    """The cases of one file."""

    name: str
    cases: tuple[CaseResult, ...]

    @property
    def seconds(self) -> float:
        return sum(case.seconds for case in self.cases)

    def count(self, state: str) -> int:
        return sum(any(trouble.state == state for trouble in case.troubles) for case in self.cases)


def junit_xml(name: str, suites: Sequence[CaseSuite]) -> bytes:
    taken: set[tuple[str, str]] = set()
    apart = [
        CaseSuite(suite.name, tuple(_apart(case, taken) for case in suite.cases))
        for suite in suites
    ]
    return "".join(_document(name, apart)).encode("utf-8", "replace")


def _apart(case: CaseResult, taken: set[tuple[str, str]]) -> CaseResult:
    name = name_apart(case.name, lambda written: (case.classname, written) in taken)
    taken.add((case.classname, attributes(name=name)))
    return replace(case, name=name)


def name_apart(name: str, is_taken: Callable[[str], bool]) -> str:
    """The name, with a number if another case of its class is written with the same one.

    Readers show such cases as one, and lose the failure. `is_taken` gets the attribute.
    """
    begin = unique = name[:_LONGEST_NAME]
    numbers = count(2)
    while is_taken(attributes(name=unique)):
        unique = f"{begin} ({next(numbers)})"
    return unique


def _document(name: str, suites: Sequence[CaseSuite]) -> Iterator[str]:
    yield '<?xml version="1.0" encoding="utf-8"?>\n'
    totals = {state: sum(suite.count(state) for suite in suites) for state in _STATES}
    cases = sum(len(suite.cases) for suite in suites)
    seconds = sum(suite.seconds for suite in suites)
    yield f"<testsuites{attributes(name=name, **_numbers(cases, totals, seconds))}>\n"
    for suite in suites:
        counts = {state: suite.count(state) for state in _STATES}
        numbers = _numbers(len(suite.cases), counts, suite.seconds)
        yield f"  <testsuite{attributes(name=suite.name, **numbers)}>\n"
        for case in suite.cases:
            yield from case_xml(case)
        yield "  </testsuite>\n"
    yield "</testsuites>\n"


def _numbers(cases: int, counts: dict[str, int], seconds: float) -> dict[str, str]:
    named = {_STATES[state]: str(count) for state, count in counts.items()}
    return {"tests": str(cases), **named, "time": _time(seconds)}


def case_xml(case: CaseResult) -> Iterator[str]:
    names = {"classname": case.classname, "name": case.name}
    if case.file is not None:
        names["file"] = case.file
    opening = f"    <testcase{attributes(**names, time=_time(case.seconds))}"
    if not (case.troubles or case.system_out):
        yield f"{opening}/>\n"
        return
    yield f"{opening}>\n"
    for trouble in case.troubles:
        told_of = attributes(message=trouble.message, type=trouble.kind)
        text = for_xml(trouble.text[:_LONGEST])
        yield f"      <{trouble.state}{told_of}>{text}</{trouble.state}>\n"
    if case.system_out:
        yield f"      <system-out>{for_xml(case.system_out[:_LONGEST])}</system-out>\n"
    yield "    </testcase>\n"


def attributes(**values: str) -> str:
    """The attributes of an element, with any text as value."""
    return "".join(f' {name}="{_attribute(value)}"' for name, value in values.items())


def _attribute(text: str) -> str:
    """XML readers replace a raw line end in an attribute by a space."""
    return for_xml(text[:_LONGEST]).replace("\n", "&#10;").replace("\t", "&#9;")


def _time(seconds: float) -> str:
    return f"{seconds:.3f}"
