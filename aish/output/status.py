"""Short texts about a run: its result, tokens, durations, and its cassette."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import assert_never

from aish.core.events import (
    ApprovalAnswer,
    ApprovalAnswered,
    ApprovalAsked,
    AskEnded,
    AskReceived,
    CallCounts,
    CassetteInfo,
    CassetteMode,
    ChangedFile,
    ControlCalled,
    ControlEvent,
    Event,
    Exit,
    Failure,
    FilesChanged,
    HeldFlow,
    ModelInfo,
    OfControl,
    Retry,
    RunFinished,
    RunStarted,
    ServedModels,
    Stamped,
    StepFinished,
    StepStarted,
    ToolDecided,
    ToolFinished,
    ValueSet,
)
from aish.core.json import json_text
from aish.core.messages import Usage
from aish.core.phrases import backticked, counted, dollars, first_of, shorten
from aish.system.files import state_of_servers

_MINUTE = 60
_MOST_HINTS = 10
_TEN_SECONDS = 9.95


# Our own texts that contain a diff, line by line; untrusted texts have one line.
_BLOCKS = frozenset({"cassette", "comparison", "not_recorded", "unused_interactions"})

OF_ITEMS = frozenset({"items", "items_stopped", "max_failures"})
"""Codes of a step that failed by its items: what to do next is told again at the run's end."""


def lines_of(text: str, code: str) -> Sequence[str]:
    """A reason or a notice as shown: depending on `code`, in several lines or in one."""
    return text.split("\n") if code in _BLOCKS else (text,)


def retry_text(event: Retry, reason: str) -> str:
    """Say what is retried, why, and when."""
    again = f"attempt {event.attempt} in {seconds_text(event.delay)}"
    return f"retry: {event.endpoint}: {reason}; {again}"


def exit_lines(end: Exit) -> Sequence[str]:
    """Say why a run did not succeed, the exit code first."""
    first, *rest = lines_of(end.reason, end.name)
    return f"exit {end.code} ({end.name}): {first}", *rest


_MODES: Mapping[CassetteMode, str] = {
    "none": "replaying {}",
    "once": "replaying {}",
    "new_episodes": "replaying {}, and recording what it does not hold",
    "all": "recording to {}",
}


def cassette_text(info: CassetteInfo) -> str:
    """Say before a run what happens to its cassette: recording costs money."""
    return _MODES[info.mode].format(info.path)


ANSWERS: Mapping[ApprovalAnswer, str] = {
    "approve": "approved",
    "always": "approved, with the same call from now on,",
    "deny": "denied",
    "expired": "expired: nobody answered in time",
    "withdrawn": "withdrawn: the call is not made any more",
}
"""How a question ended, in words."""
_SHOWN_ID = 8
_LONGEST_REASON = 120
_REFUSED = 400
_UNANSWERED = 504
_MOST_QUESTIONS = 20
_MOST_SOURCES = 10


def short_id(id: str) -> str:
    """The first digits of a question's id: enough for `aish approve`, if no other begins so."""
    return id[:_SHOWN_ID]


def until_text(expires: str | None) -> str:
    """` until 2026-11-30 01:20 UTC`; empty if the question has no end."""
    if expires is None:
        return ""
    try:
        end = datetime.fromisoformat(expires).astimezone(UTC)
    except (ValueError, OverflowError):
        return f" until {expires}"
    return f" until {end:%Y-%m-%d %H:%M} UTC"


def question_text(event: ApprovalAsked) -> str:
    why = f": {shorten(event.reason, _LONGEST_REASON)}" if event.reason else ""
    until = until_text(event.expires)
    return f"{event.tool} waits for an answer{until} ({short_id(event.id)}){why}"


def flow_text(flow: HeldFlow) -> str:
    """Say what was read before a call, and which rule about flows holds it or warns of it."""
    return f"{flow.rule}: read {first_of(flow.sources, _MOST_SOURCES)}"


def control_text(event: OfControl) -> str | None:
    """Say what another program did over a socket; `None` where another event tells of it."""
    words = _control_words(event)
    return None if words is None else f"control API: {words}"


MINUS = "−"  # ruff: ignore[ambiguous-unicode-character-string] - the sign


def lines_text(file: ChangedFile) -> str:
    """The numbers of lines added and removed, or the words that a file is not compared."""
    if file.added is None or file.removed is None:
        return "not compared"
    return f"+{file.added:,} {MINUS}{file.removed:,}"


def changes_text(event: FilesChanged) -> str:
    """The number of files that a run has changed, and of lines."""
    place = "" if event.root == "." else f" in {event.root}"
    if event.problem is not None:
        return f"what changed{place} is not known: {event.problem}"
    count = len(event.files) + event.more
    if not count:
        return f"no file changed{place}"
    added, removed = (
        sum(getattr(file, name) or 0 for file in event.files) for name in ("added", "removed")
    )
    text = f"{counted(count, 'file')} changed{place}: +{added:,} {MINUS}{removed:,}"
    return text + (", on top of earlier changes" if event.dirty else "")


def _control_words(event: OfControl) -> str | None:
    match event:
        case ControlCalled():
            return _call_words(event)
        case ValueSet():
            value, was = (json_text(one, spaced=True) for one in (event.value, event.was))
            return f"`{event.path}` set to {value} by {event.by}, was {was}"
        case ControlEvent():
            return f"event `{event.name}` by {event.by}"
        case AskReceived():
            title = shorten(event.title or event.text, _LONGEST_REASON)
            return f"{event.by} asks ({short_id(event.request_id)}): {title}"
        case AskEnded():
            by = f" by {event.by}" if event.by else ""
            return f"question {short_id(event.request_id)} {event.end}{by}"
        case _:
            assert_never(event)


def _call_words(event: ControlCalled) -> str | None:
    done = event.status < _REFUSED
    is_told = done and (event.scope == "answer" or event.method == "PUT")
    if is_told or (event.path.endswith("/ask") and (done or event.status == _UNANSWERED)):
        return None
    by = f" by {event.by}" if event.by else ""
    return f"{event.method} {event.path}{by}: {'done' if done else 'refused'} ({event.status})"


def answer_text(event: ApprovalAnswered, tool: str) -> str:
    """The answer, who gave it, and what the person wrote about it."""
    words = ANSWERS[event.answer]
    if event.answer in {"approve", "always", "deny"}:
        note = f": {shorten(event.note, _LONGEST_REASON)}" if event.note else ""
        words += f" by {event.by} ({event.way}){note}"
    return f"{tool} ({short_id(event.id)}) {words}"


class OpenQuestions:
    """The questions of a run that have no answer yet, in the order in which they were asked."""

    def __init__(self) -> None:
        self._open: dict[str, ApprovalAsked] = {}

    def get(self, id: str) -> ApprovalAsked | None:
        """The question of this id, if it is open."""
        return self._open.get(id)

    def add(self, event: ApprovalAsked) -> str:
        """A question is open; returns the line for it."""
        self._open[event.id] = event
        return question_text(event)

    def remove(self, event: ApprovalAnswered) -> str:
        """A question has ended; returns the line for it."""
        asked = self._open.pop(event.id, None)
        return answer_text(event, "call" if asked is None else asked.tool)

    def lines_at_end(self, finished: RunFinished) -> Iterator[str]:
        """Yield what a paused run waits for, and the command that answers each call."""
        if finished.status == "paused":
            yield from question_lines(tuple(self._open.values()), finished)


def question_lines(asked: Sequence[ApprovalAsked], finished: RunFinished) -> Iterator[str]:
    """The calls that wait for an answer, each with its command, and how to continue."""
    if asked:
        verb = "waits" if len(asked) == 1 else "wait"
        yield f"{counted(len(asked), 'call')} {verb} for an answer:"
    hint = finished.exit.hint or ""
    for question in asked[:_MOST_QUESTIONS]:
        command = approve_command(question.id, finished) if finished.folder else ""
        how = f": `{command}`" if command and command not in hint else f" ({short_id(question.id)})"
        yield f"  {question.tool}{until_text(question.expires)}{how}"
    if len(asked) > _MOST_QUESTIONS:
        yield f"  and {len(asked) - _MOST_QUESTIONS} more: `aish runs pending` lists them"
    if finished.folder and "--resume" not in hint:
        yield "`aish run FILE --resume` continues the run after the answers"


def approve_command(id: str, part: RunStarted | RunFinished) -> str:
    """The command that answers a question of a run: the run's id is the name of its folder."""
    import shlex

    runs, _, run = (part.folder or "").rpartition("/")
    # There the command looks for runs by itself.
    elsewhere = f" --run-dir {shlex.quote(runs)}" if not _is_usual(runs) else ""
    return f"aish approve {run} {short_id(id)}{elsewhere}"


def _is_usual(runs: str) -> bool:
    # Where runs are looked for, and where servers are.
    if runs in {".aish/runs", "pipelines/.aish/runs"}:
        return True
    return runs in {str(state_of_servers(project)) for project in (Path(), Path("pipelines"))}


class DenialHints:
    """The hints by which denied calls would be approved, without what an error has told."""

    def __init__(self) -> None:
        self._tools: dict[str, str] = {}

    def take(self, event: Event) -> None:
        """Take the hint of a denied call, or an error that has it."""
        end: Failure | Exit | None = None
        match event:
            case ToolDecided() if event.hint and len(self._tools) < _MOST_HINTS:
                self._tools[event.hint] = event.tool
            case StepFinished():
                end = event.error
            case RunFinished():
                end = event.exit
            case _:
                pass
        hint_text = "" if end is None else end.hint or ""
        for hint in [text for text in self._tools if hint_text.startswith(text)]:
            del self._tools[hint]

    def of(self, tool: str) -> Sequence[str]:
        """The hints for the calls of a tool."""
        return [hint for hint, denied in self._tools.items() if denied == tool]


class Tally:
    """Counts steps, tool calls, and steps in which a model has answered."""

    def __init__(self) -> None:
        self._steps = 0
        self._resumed = False
        self._models: tuple[ModelInfo, ...] = ()
        self._asked: set[str | None] = set()
        self.answers = 0

    def take(self, stamped: Stamped) -> None:
        match stamped.event:
            case RunStarted(resumed_from=before, models=models):
                self._resumed, self._models = before is not None, models
            case StepStarted(place=place, kind="prompt"):
                self._asked.add(place.step)
            case StepFinished(place=place, status=status) if status != "skipped":
                self._steps += 1
                self.answers += status == "ok" and place.step in self._asked
                self._asked.discard(place.step)
            case _:
                pass

    def parts(self, finished: RunFinished) -> Sequence[str]:
        """The parts of the closing line, the status first."""
        parts = [finished.status, counted(self._steps, "step")]
        calls = "" if finished.calls is None else calls_text(finished.calls, "tool call")
        cost = dollars(finished.cost_usd) if finished.cost_usd else ""
        tokens = tokens_text(finished.usage, finished.cost_usd)
        whole = list(filter(None, (calls, tokens, cost)))
        if self._resumed and whole:
            # Steps and time are of this part alone.
            parts += [seconds_text(finished.seconds), f"whole run: {whole[0]}", *whole[1:]]
        else:
            parts += [*whole, seconds_text(finished.seconds)]
        if finished.folder:
            parts.append(finished.folder)
        if used := finished.cassette:
            what = counted(used.interactions, "interaction")
            place = "to" if used.use == "recorded" else "from"
            parts.append(f"{used.use} {what} {place} {used.path}")
        return parts

    def served_lines(self, finished: RunFinished) -> Iterator[str]:
        """Say which models have answered under another name than they were asked by."""
        asked = {model.alias: model.model for model in self._models if model.origin != "embedded"}
        for one in finished.served:
            names = backticked(one.names)
            if one.alias in asked and one.names not in {(), (asked[one.alias],)}:
                yield f"model {one.alias}: asked `{asked[one.alias]}`, answered {names}"


def served_cells(served: ServedModels | None) -> tuple[str, str]:
    """The names of what has answered under an alias, and its fingerprints."""
    if served is None:
        return "", ""
    names = ("no name" if name is None else name for name in served.models)
    return ", ".join(names), ", ".join(served.fingerprints)


def served_change(model: str, before: Sequence[str], now: Sequence[str]) -> str | None:
    """Say that other models have answered than in the baseline; `None` where neither is known."""
    if not before or not now or set(before) == set(now):
        return None
    names = f"{backticked(now)}, before {backticked(before)}"
    return f"{model}: answered by another model than the baseline: {names}"


def calls_text(calls: CallCounts, noun: str = "") -> str:
    """`3 tool calls (1 failed)`, or without a noun `3 (1 failed)`; empty if there are none."""
    if not calls.total:
        return ""
    count = counted(calls.total, noun) if noun else f"{calls.total:,}"
    more = problems_text(calls)
    return f"{count} ({more})" if more else count


def problems_text(calls: CallCounts | None) -> str:
    """`1 failed, 2 denied`; empty if all calls went well."""
    if calls is None:
        return ""
    counts = {"failed": calls.failed, "denied": calls.denied}
    parts = [f"{count:,} {word}" for word, count in counts.items() if count]
    if calls.exit_nonzero:
        parts.append(counted(calls.exit_nonzero, "nonzero exit"))
    return ", ".join(parts)


def call_status(event: ToolFinished) -> str:
    """`exit 1` for a command that ended so, else the kind of the result."""
    return f"exit {event.exit_code}" if event.exit_code else event.kind


def tokens_text(usage: Usage, cost: float | None = 0) -> str:
    """`412 in (75% cached) / 96 out tokens`; unknown values are `?`; empty if all are unknown.

    The share that was read from a cache is not shown where that saved nothing.
    """
    if usage.input is None and usage.output is None:
        return ""
    read, written = (
        "?" if count is None else f"{count:,}" for count in (usage.input, usage.output)
    )
    share = "" if cost == 0 else cached_share(usage)
    return f"{read} in{f' ({share} cached)' if share else ''} / {written} out tokens"


def cached_share(usage: Usage) -> str:
    """The part of the input that was read from the endpoint's cache, as `75%`; empty if none."""
    if not usage.cached or not usage.input:
        return ""
    # Neither all nor nothing is said of what is nearly that.
    share = min(99, max(1, round(100 * usage.cached / usage.input)))
    return "100%" if usage.cached >= usage.input else f"{share}%"


def seconds_text(seconds: float) -> str:
    """A readable duration: `0.03 s`, `1.8 s`, `2 min 5 s`."""
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < _TEN_SECONDS:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), _MINUTE)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
