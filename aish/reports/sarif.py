"""The annotations of a run as SARIF 2.1.0, for code scanning and editors.

Pure: events in, one JSON document out. A result for each annotation, all of one rule with the
pipeline's name; the failure of the run itself is part of its invocation, and so is each annotation
without a file of the repository: code scanning refuses a file of which one result has no location.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import quote

from aish.core.events import AnnotationAdded, AnnotationLevel, Notice, Stamped
from aish.core.json import JsonObject, JsonValue, json_text
from aish.core.phrases import counted
from aish.core.text import for_terminal
from aish.journal.history import Ended, Key, RunHistory, Unit
from aish.reports.figures import iso_text
from aish.reports.outcome import reason_of, state_of

_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_LEVELS: dict[AnnotationLevel, str] = {"error": "error", "warning": "warning", "notice": "note"}
_MOST_NOTICES = 100
# A judgement of what was examined: the examination itself succeeded.
_VERDICTS = frozenset({"expectation", "items", "items_stopped", "max_failures"})
_FAILED = 1
_BAD = frozenset({"failed", "error", "denied", "cut_off"})
_BRACKET = re.compile(r"(\\*)([\[\]])")
_CLOSED = re.compile(r"(?<!\\)\]")


class SarifReport:
    """Takes the events of a run, and the units that ended with each in its `history`; then `json`.

    `name` returns a file as the repository names it.
    """

    def __init__(
        self, history: RunHistory, run: str, name: Callable[[str], str | None] = str
    ) -> None:
        self._run = run
        self._name = name
        self._history = history
        self._bad: dict[Key, str] = {}
        self._notices: list[Notice] = []

    def take(self, stamped: Stamped, ended: Iterable[Ended]) -> None:
        event = stamped.event
        if isinstance(event, Notice) and event.level != "info":
            self._notices.append(event)
            del self._notices[_MOST_NOTICES:]
        self.add(ended)

    def add(self, ended: Iterable[Ended]) -> None:
        """Note which units among what has ended did not succeed."""
        for unit in ended:
            if not isinstance(unit, Unit):
                continue
            self._bad.pop(unit.key, None)
            reason = reason_of(unit)
            if state_of(unit) in _BAD and reason is not None:
                self._bad[unit.key] = reason.code

    def json(self) -> Iterator[bytes]:
        document: JsonObject = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [self._whole()]}
        yield f"{json_text(document, indent=2)}\n".encode()

    def _whole(self) -> JsonObject:
        segments = self._history.segments
        rule = segments[0].started.pipeline if segments else "aish"
        described = f"Annotations of the pipeline {rule}"
        driver: dict[str, JsonValue] = {"name": "aish"}
        if segments:
            driver["version"] = segments[-1].started.aish
        driver["rules"] = [{"id": rule, "shortDescription": _message(described)}]
        annotations = self._history.annotations.found
        results = (self._result(one, rule) for one in annotations if self._file(one) is not None)
        return {
            "tool": {"driver": driver},
            "automationDetails": {"id": f"{rule}/{self._run}"},
            "columnKind": "unicodeCodePoints",
            "invocations": [self._invocation()],
            "results": list(results),
        }

    def _invocation(self) -> JsonObject:
        segments = self._history.segments
        end = self._history.finished
        left_out = self._history.annotations.left_out
        notifications: list[JsonValue] = [
            *(_aside(one) for one in self._history.annotations.found if not self._file(one)),
            *(
                _notification("error" if notice.level == "error" else "warning", notice.text)
                for notice in self._notices
            ),
        ]
        if left_out:
            notifications.append(
                _notification("warning", f"{counted(left_out, 'more annotation')} left out")
            )
        invocation: dict[str, JsonValue] = {"executionSuccessful": self._went_well()}
        if end is not None:
            invocation |= {"exitCode": end.exit.code, "exitCodeDescription": end.exit.name}
            if end.exit.code:
                # A paused run is not over: it has not failed.
                level = "warning" if end.status == "paused" else "error"
                notifications.insert(0, _notification(level, end.exit.reason))
        if segments:
            invocation["startTimeUtc"] = f"{iso_text(segments[0].began)}Z"
            invocation["endTimeUtc"] = f"{iso_text(segments[-1].ended)}Z"
        return {**invocation, "toolExecutionNotifications": notifications}

    def _went_well(self) -> bool:
        """Return true if the run has examined everything, whatever its verdict."""
        end = self._history.finished
        if end is None or end.exit.code not in {0, _FAILED}:
            return False
        return not end.exit.code or _VERDICTS.issuperset(self._bad.values())

    def _file(self, annotation: AnnotationAdded) -> str | None:
        return None if annotation.path is None else self._name(annotation.path)

    def _result(self, annotation: AnnotationAdded, rule: str) -> JsonObject:
        uri = quote(self._file(annotation) or "", safe="/~!$&'()*+,;=@", errors="replace")
        # An annotation of a whole file is shown at its first line.
        region: dict[str, JsonValue] = {"startLine": annotation.line or 1}
        if annotation.end_line is not None:
            region["endLine"] = annotation.end_line
        artifact: dict[str, JsonValue] = {"uri": uri, "uriBaseId": "%SRCROOT%"}
        return {
            "ruleId": rule,
            "ruleIndex": 0,
            "level": _LEVELS[annotation.level],
            "message": _message(annotation.message),
            "locations": [{"physicalLocation": {"artifactLocation": artifact, "region": region}}],
        }


def _aside(found: AnnotationAdded) -> JsonObject:
    """An annotation that has no place in the repository."""
    place = [] if found.path is None else [found.path, *([str(found.line)] if found.line else [])]
    return _notification(
        _LEVELS[found.level], ": ".join(filter(None, (":".join(place), found.message)))
    )


def _notification(level: str, text: str) -> JsonObject:
    return {"level": level, "message": _message(text)}


def _message(text: str) -> JsonObject:
    """The text only: without placeholders and embedded links."""
    literal = text.replace("{", "{{").replace("}", "}}")
    *pieces, rest = literal.split("](")
    return {"text": for_terminal(f"{''.join(map(_no_link, pieces))}{rest}")}


def _no_link(piece: str) -> str:
    """Escape what comes before `](`, and these, where it would be the text of a link."""
    start = max((closed.end() for closed in _CLOSED.finditer(piece)), default=0)
    text = f"{piece[start:]}]"
    if "[" in text:
        text = _BRACKET.sub(r"\1\1\\\2", text)
    return f"{piece[:start]}{text}("
