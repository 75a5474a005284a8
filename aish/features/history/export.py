"""Exports a past run: views of its journal, as files in a new folder.

The journal is read once, from the first record on. The output depends only on it and on the files
of the run's folder: the same run gives the same bytes. Memory grows with the open
conversations, not with the length of the run.

The secrets of a run are masked in its journal, so they are in the views. Names of files
never contain text of a model or a server.
"""

import os
import shlex
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from aish.agent.turn_json import STEP_OUTPUT, structured_from_event
from aish.core.errors import AishError, ExitCode, UsageError
from aish.core.events import (
    ApprovalAnswered,
    ApprovalAsked,
    AskEnded,
    AskReceived,
    ControlCalled,
    ControlEvent,
    Fallback,
    ModelChosen,
    Notice,
    Place,
    QuestionAsked,
    Retry,
    RuleAdded,
    RunFinished,
    RunStarted,
    ServerConnected,
    Stamped,
    TextWithdrawn,
    ToolDecided,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    TurnStarted,
    ValueSet,
    Verdict,
    plain,
    rfc3339,
)
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonObject, JsonValue, json_text
from aish.core.phrases import shorten
from aish.core.text import for_ci_log, for_line, markdown_block, markdown_code
from aish.engine.run_folder import read_kept
from aish.features.history.messages import ReadFile, whole_message
from aish.features.history.run_store import RunStore, open_subfolder
from aish.features.history.summary import State, records, require_past
from aish.journal.history import CallRecord, Ended, Key, RunHistory, Unit
from aish.journal.writer import JournalError
from aish.output.status import call_status, control_text, flow_text, retry_text
from aish.policy.rules import LOCAL_COMMAND
from aish.system.files import open_new, private_folder

_COMMS, _TOOL_CALLS = "comms.jsonl", "toolcalls.md"
_CONTROL, _COMMANDS = "control.log", "commands.jsonl"
_FILES = (_COMMS, _TOOL_CALLS, _CONTROL, _COMMANDS)
SCRIPTS = "scripts"
_BUFFER = 1 << 16
_LONGEST = 200
_MOST_PROCESSES = 1_000
_PACK = "pack"
_SHELL = "shell_run"
_START = "process_start"
_ABOUT_PROCESSES = frozenset({"process_input", "process_output", "process_stop", "process_kill"})
_SHELLS: Mapping[str, tuple[str, ...]] = {
    "sh": ("/bin/sh", "-c"),
    "bash": ("bash", "-c"),
    "pwsh": ("pwsh", "-NoProfile", "-NonInteractive", "-Command"),
}
_SIGNALS: Mapping[int, str] = {
    ExitCode.INTERRUPTED: "SIGINT",
    ExitCode.TERMINATED: "SIGTERM or SIGHUP",
}


@frozen
class ExportSummary:
    """An export: the number of entries of each file, and the state of the run.

    `problem` is damage of the journal: what precedes it was exported.
    """

    counts: Mapping[str, int]
    state: State
    writer: str | None
    problem: JournalError | None


def export_run(store: RunStore, id: str, wanted: Path) -> ExportSummary:
    """Write the views of a run into the folder `wanted`, which is new or empty.

    If they cannot be written, nothing of them is left.

    Raises:
        UsageError: the run has no journal, or the folder cannot be used.
        AishError: a file cannot be written, as on a full disk.
    """
    run_folder = store.path / id
    with ExitStack() as stack:
        journal = require_past(store, id, stack)
        folder = stack.enter_context(_new_folder(wanted))
        views = _Views(id, folder, lambda name: read_kept(run_folder, name))
        problem = end = None
        try:
            for record, stamped in records(journal.reading):
                views.take(record, stamped)
                if stamped is not None:
                    end = stamped.event if isinstance(stamped.event, RunFinished) else None
        except JournalError as error:
            problem = error
        views.close()
        state: State = "unreadable" if problem is not None else journal.state(end)
        return ExportSummary(views.counts, state, journal.writer(end), problem)


# --- The folder and its files -----------------------------------------------------------------


class _File:
    """A new private file of an export; an error names it."""

    def __init__(self, name: str, folder: int, shown: Path) -> None:
        self._shown = str(shown)
        with _write_errors(self._shown):
            self._file = os.fdopen(open_new(Path(name), folder), "wb", buffering=_BUFFER)

    def write(self, text: str) -> None:
        with _write_errors(self._shown):
            self._file.write(text.encode("utf-8", "replace"))

    def close(self) -> None:
        with _write_errors(self._shown):
            self._file.close()


@contextmanager
def _write_errors(shown: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise AishError(f"cannot write: {error.strerror}", where=shown) from error


@slotted
class _ExportFolder:
    """The open folder of an export; no path is looked up again, so no link can be put in it."""

    path: Path
    descriptor: int
    scripts: int

    def file(self, name: str) -> _File:
        return _File(name, self.descriptor, self.path / name)

    def write_script(self, name: str, text: str) -> None:
        file = _File(name, self.scripts, self.path / SCRIPTS / name)
        try:
            file.write(text)
        finally:
            file.close()


@contextmanager
def _new_folder(wanted: Path) -> Generator[_ExportFolder]:
    """The folder for an export, emptied again if that fails.

    Raises:
        UsageError: it is not empty, a link, not a folder, or cannot be made.
    """
    path = wanted.absolute()
    path = path.resolve() if path.name == ".." else path.parent.resolve() / path.name
    is_new = not os.path.lexists(path)
    with ExitStack() as stack:
        held = _open_empty(path, wanted, stack, made=is_new)
        stack.enter_context(_empty_on_error(path, held, made=is_new))
        with _write_errors(str(wanted / SCRIPTS)):
            os.mkdir(SCRIPTS, 0o700, dir_fd=held)
            scripts = open_subfolder(held, SCRIPTS, wanted / SCRIPTS)
        stack.callback(os.close, scripts)
        yield _ExportFolder(wanted, held, scripts)


def _open_empty(path: Path, shown_path: Path, stack: ExitStack, *, made: bool) -> int:
    try:
        if made:
            private_folder(path)
        above = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, above)
        held = open_subfolder(above, path.name or ".", shown_path)
    except OSError as error:
        why = f"cannot make or open the folder: {error.strerror}"
        raise UsageError(why, where=str(shown_path)) from error
    stack.callback(os.close, held)
    with os.scandir(held) as entries:
        if next(entries, None) is not None:
            hint = "name a new folder, or an empty one"
            raise UsageError("the folder is not empty", where=str(shown_path), hint=hint)
    if not made:
        os.fchmod(held, 0o700)
    return held


@contextmanager
def _empty_on_error(path: Path, held: int, *, made: bool) -> Generator[None]:
    try:
        yield
    except BaseException:
        # The error is what matters, even if a file cannot be deleted.
        with suppress(OSError):
            for folder, _, names, inner in os.fwalk(".", topdown=False, dir_fd=held):
                for name in names:
                    os.unlink(name, dir_fd=inner)
                if folder != ".":
                    os.rmdir(folder, dir_fd=held)
            if made:
                path.rmdir()
        raise


# --- The views --------------------------------------------------------------------------------


@frozen
class _ExportRecord:
    """A record of the journal: its event, and what it ended."""

    data: JsonObject
    stamped: Stamped
    ended: Sequence[Ended]


class _Views:
    """All views of one run, written as its records come; `counts` has the entries of each file."""

    def __init__(self, id: str, folder: _ExportFolder, read_file: ReadFile) -> None:
        self.counts = dict.fromkeys((*_FILES, SCRIPTS), 0)
        self._history = RunHistory()
        self._files = {name: folder.file(name) for name in _FILES}
        self._commands = _CommandExport(self._history, folder.write_script, read_file)
        self._read_file = read_file
        self._who = ""
        self._files[_TOOL_CALLS].write(f"# Tool calls of the run {markdown_code(id)}\n")

    def take(self, data: JsonObject, stamped: Stamped | None) -> None:
        if stamped is None:
            return
        record = _ExportRecord(data, stamped, self._history.take(stamped))
        self._write_calls(record.ended)
        for line in _comms_lines(record, self._history, self._read_file):
            self._add(_COMMS, f"{line}\n")
        for line in self._commands.lines(record):
            self._add(_COMMANDS, f"{line}\n")
        event = stamped.event
        if isinstance(event, RunStarted):
            uid = "an unknown user" if event.uid is None else f"uid {event.uid}"
            self._who = uid if event.user is None else f"user {event.user} (uid {event.uid})"
        parts = (part for part in (event.place.step, event.place.item) if part is not None)
        place = " · ".join(parts)
        head = f"{rfc3339(stamped.time)} {place}{': ' if place else ''}"
        for line in _control_lines(stamped, self._who):
            self._add(_CONTROL, f"{for_ci_log(for_line(head + line))}\n")

    def close(self) -> None:
        """Write units that never ended, and buffered lines."""
        rest = self._history.rest()
        self._write_calls(rest)
        for line in self._commands.ended(rest, {}):
            self._add(_COMMANDS, f"{line}\n")
        self.counts[SCRIPTS] = self._commands.scripts
        for file in self._files.values():
            file.close()

    def _add(self, name: str, text: str) -> None:
        self.counts[name] += 1
        self._files[name].write(text)

    def _write_calls(self, ended: Sequence[Ended]) -> None:
        for record in ended:
            if isinstance(record, CallRecord):
                number = self.counts[_TOOL_CALLS] + 1
                self._add(_TOOL_CALLS, _call_section(record, number, self._read_file))


def _place_object(place: Place) -> dict[str, JsonValue]:
    return {"step": place.step, "item": place.item, "turn": place.turn, "call": place.call}


def _content(finished: ToolFinished, read_file: ReadFile) -> tuple[str, bool]:
    """The whole text of a result; and whether it was cut and its file is missing."""
    if finished.full is None:
        return finished.content, False
    data = read_file(finished.full)
    if data is None:
        return finished.content, True
    return data.decode("utf-8", "replace"), False


# --- comms.jsonl: what was sent to models and tools, and what they answered -------------------


def _comms_lines(record: _ExportRecord, history: RunHistory, read_file: ReadFile) -> Iterator[str]:
    event = record.stamped.event
    payload: JsonObject
    match event:
        case TurnStarted():
            request = history.open_request(event.place, event.purpose)
            if request is not None:
                payload = _fields(request, *_OF_REQUEST)
                messages = [whole_message(message, read_file) for message in request.messages]
                yield _comms_line(record, "out", "request", {**payload, "messages": messages})
        case TurnFinished():
            yield _comms_line(record, "in", "response", _fields(event, *_OF_RESPONSE))
        case ToolStarted():
            call = history.open_call(event.place)
            if call is not None:
                payload = {"tool": call.tool, "arguments": call.arguments}
                yield _comms_line(record, "out", "tool_call", payload)
        case ToolFinished():
            for entry in record.ended:
                # A call that was refused has reached no tool.
                if isinstance(entry, CallRecord) and entry.sent is not None:
                    content, truncated = _content(event, read_file)
                    payload = {
                        "tool": event.tool,
                        "kind": event.kind,
                        "exit_code": event.exit_code,
                        "content": content,
                        "truncated": truncated,
                        "structured": structured_from_event(record.data, None, read_file),
                        "seconds": event.seconds,
                    }
                    yield _comms_line(record, "in", "tool_result", payload)
        case _:
            pass


def _comms_line(record: _ExportRecord, direction: str, kind: str, payload: JsonObject) -> str:
    stamped = record.stamped
    return json_text(
        {
            "seq": stamped.seq,
            "time": rfc3339(stamped.time),
            **_place_object(stamped.event.place),
            "direction": direction,
            "kind": kind,
            "payload": payload,
        }
    )


_OF_REQUEST = ("model", "purpose", "attempt", "count", "earlier", "rewritten")
_OF_RESPONSE = (
    *("model", "purpose", "finish", "text", "calls", "usage"),
    *("cost_usd", "first_token_seconds", "seconds"),
)


def _fields(of: object, *names: str) -> JsonObject:
    return {name: plain(getattr(of, name)) for name in names}


# --- toolcalls.md: each tool call for people --------------------------------------------------


_DECISIONS: Mapping[Verdict, str] = {
    "auto": "approved",
    "ask-yes": "approved after a question",
    "ask-no": "not approved",
    "deny": "denied",
    "staged": "stored for review",
}


def _call_section(call: CallRecord, number: int, read_file: ReadFile) -> str:
    """A section of Markdown, in which untrusted text is inert."""
    lines = ["", f"## {number}. {markdown_code(call.tool)}", ""]
    named = _place_object(call.place)
    lines += [
        f"- {name}: {markdown_code(str(value))}"
        for name, value in named.items()
        if value is not None
    ]
    lines.append(f"- time: {rfc3339(call.began)}")
    if call.decided is not None:
        decision = _DECISIONS[call.decided.verdict]
        lines.append(f"- decision: {decision} ({markdown_code(call.decided.rule)})")
        if call.decided.flow is not None:
            lines.append(f"- sources: {markdown_code(flow_text(call.decided.flow))}")
    arguments = call.arguments
    text = arguments if isinstance(arguments, str) else json_text(arguments, indent=2)
    finished = call.finished
    if finished is None:
        lines += ["- result: none, the run ended first", *_block("Arguments", text)]
        return "\n".join(lines) + "\n"
    lines.append(f"- result: {call_status(finished)}, after {finished.seconds:.3f} s")
    content, truncated = _content(finished, read_file)
    lines += _block("Arguments", text)
    note = " (cut: the file with all of it is missing)" if truncated else ""
    lines += _block(f"Result{note}", content)
    return "\n".join(lines) + "\n"


def _block(title: str, text: str) -> Iterator[str]:
    yield from ("", f"{title}:", "", markdown_block(text))


# --- control.log: who decided what, and when --------------------------------------------------


def _control_lines(stamped: Stamped, who: str) -> Iterator[str]:  # ruff: ignore[complex-structure, too-many-branches] - a table of events
    event = stamped.event
    match event:
        case RunStarted():
            of = f", resumed from {event.resumed_from}" if event.resumed_from else ""
            yield f"run of {event.pipeline} started by {who}, aish {event.aish}{of}"
        case QuestionAsked():
            yield f"question of {who}: {event.text}"
        case ToolDecided():
            arguments = shorten(json_text(event.arguments, spaced=True), _LONGEST)
            decided = f"{event.verdict} ({event.rule})"
            if event.flow is not None:
                decided += f", {flow_text(event.flow)}"
            yield f"decision about {event.tool} {arguments}: {decided}, digest {event.digest}"
        case ApprovalAsked():
            arguments = shorten(json_text(event.arguments, spaced=True), _LONGEST)
            asked = f"approval {event.id} asked for {event.tool} {arguments}"
            yield f"{asked}: expires {event.expires}, digest {event.digest}"
        case ApprovalAnswered():
            note = f": {event.note}" if event.note else ""
            who_said = f"{event.answer} by {event.by} ({event.way})"
            yield f"approval {event.id} answered: {who_said}{note}"
        case ControlCalled() | ValueSet() | ControlEvent() | AskReceived() | AskEnded():
            if done := control_text(event):
                yield done
        case RuleAdded():
            yield f"rule of {who}: {event.list}: {event.tool}"
        case ServerConnected():
            where = event.url or shlex.join(event.command)
            yield f"server {event.alias} connected by {who}: {where}"
        case ModelChosen():
            yield f"model {event.model} chosen by {who}"
        case Retry():
            yield retry_text(event, event.reason)
        case Fallback():
            yield f"fallback: {event.source} to {event.target}: {event.reason}"
        case TextWithdrawn():
            yield "the answer so far is withdrawn"
        case Notice():
            yield f"{event.level}: {event.text} ({event.code})"
        case RunFinished():
            if (name := _SIGNALS.get(event.exit.code)) is not None:
                yield f"signal: {name}"
            end = event.exit
            why = f": {end.reason}" if end.reason else ""
            yield f"run finished: {event.status}, exit {end.code} ({end.name}){why}"
        case _:
            pass


# --- commands.jsonl and scripts: the commands of `run` steps and of packs ---------------------


@frozen
class _Program:
    """The program that a call runs: its words, its text as a script, and its folder."""

    argv: tuple[str, ...]
    text: str
    suffix: str = "sh"
    cwd: str | None = None


def _of_step(arguments: JsonObject) -> _Program:
    line = arguments.get("command")
    if isinstance(line, str):
        return _Program((*_SHELLS["sh"], line), line)
    argv = _words(arguments.get("argv"))
    return _Program(argv, shlex.join(argv))


def _of_shell(arguments: JsonObject) -> _Program:
    line, shell = str(arguments.get("command")), str(arguments.get("shell") or "sh")
    suffix = "ps1" if shell == "pwsh" else "sh"
    argv = (*_SHELLS.get(shell, (shell,)), line)
    return _Program(argv, line, suffix, str(arguments.get("cwd") or "."))


def _of_process(arguments: JsonObject) -> _Program:
    argv = (str(arguments.get("command")), *_words(arguments.get("args")))
    return _Program(argv, shlex.join(argv), cwd=str(arguments.get("cwd") or "."))


@frozen
class _SentCommand:
    """A command before its result.

    `script` is the file of the call that made it, `process` the id of a process that keeps running
    between calls, in calls about it.
    """

    argv: tuple[str, ...] | None
    cwd: str | None
    stdin: str | None
    script: str | None
    process: str | None


_CallKey = tuple[Key, int | None, str | None]
_ProcessKey = tuple[str, str]


class _CommandExport:
    """The commands of a run: a script for each when it is sent, a line when it has ended.

    The result of a `run` step is that of the step, which is known only at the step's end.
    """

    def __init__(
        self, history: RunHistory, write_script: Callable[[str, str], None], read_file: ReadFile
    ) -> None:
        self.scripts = 0
        self._history = history
        self._write_script = write_script
        self._read_file = read_file
        self._packs: set[str] = set()
        self._servers: set[str] = set()
        self._sent: dict[_CallKey, _SentCommand] = {}
        self._waiting: dict[Key, list[tuple[_SentCommand, CallRecord, JsonObject]]] = {}
        self._processes = _Processes()

    def lines(self, record: _ExportRecord) -> Iterator[str]:
        event = record.stamped.event
        yield from self.ended(record.ended, record.data)
        if isinstance(event, RunStarted):
            self._servers = {server.alias for server in event.servers}
            self._packs = {server.alias for server in event.servers if server.transport == _PACK}
            self._processes = _Processes()
        elif isinstance(event, ToolStarted):
            call = self._history.open_call(event.place)
            command = None if call is None else self._command(call)
            if call is not None and command is not None:
                self._sent[_key(call)] = command

    def ended(self, ended: Sequence[Ended], data: JsonObject) -> Iterator[str]:
        """The lines of the commands among what ended."""
        for one in ended:
            if isinstance(one, CallRecord):
                command = self._sent.pop(_key(one), None)
                if command is None:
                    continue
                if one.finished is not None and one.finished.structured_in == STEP_OUTPUT:
                    self._waiting.setdefault(_unit_key(one.place), []).append((command, one, data))
                else:
                    yield self._line(command, one, data, None)
            elif isinstance(one, Unit):
                waiting = self._waiting.pop(one.key, [])
                for number, (command, call, result) in enumerate(waiting, 1):
                    # Earlier attempts of a step have no output of their own.
                    last = number == len(waiting) and one.finished is not None
                    output = one.finished.output if last and one.finished is not None else None
                    yield self._line(command, call, result, output)
                self._processes.forget(one.key)

    def _command(self, call: CallRecord) -> _SentCommand | None:
        """The command of a sent call; `None` if it has none."""
        decided, arguments = call.decided, call.arguments
        if decided is None or not isinstance(arguments, Mapping):
            return None
        server, name = _server_of(call), decided.name
        is_step = (decided.server, name) == (LOCAL_COMMAND.server, LOCAL_COMMAND.name)
        if server not in self._packs:
            is_step = is_step and server not in self._servers
            return self._new_command(call, _of_step(arguments)) if is_step else None
        if name in {_SHELL, _START}:
            maker = _of_shell if name == _SHELL else _of_process
            return self._new_command(call, maker(arguments))
        if name not in _ABOUT_PROCESSES:
            return None
        process = str(arguments.get("id"))
        argv = self._processes.argv(_unit_key(call.place), (server, process))
        stdin = arguments.get("input")
        return _SentCommand(argv, None, stdin if isinstance(stdin, str) else None, None, process)

    def _new_command(self, call: CallRecord, program: _Program) -> _SentCommand:
        """A call that makes a command: its script is written."""
        self.scripts += 1
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(call.began))
        file = f"{stamp}_{self.scripts:04d}.{program.suffix}"
        text = program.text
        self._write_script(file, text if text.endswith("\n") else f"{text}\n")
        return _SentCommand(program.argv, program.cwd, None, f"{SCRIPTS}/{file}", None)

    def _line(
        self, command: _SentCommand, call: CallRecord, data: JsonObject, output: JsonValue
    ) -> str:
        finished = call.finished
        streams: JsonObject = {}
        text: str | None = None
        if finished is not None:
            streams = _streams(structured_from_event(data, output, self._read_file))
            text, _ = _content(finished, self._read_file)
        process = command.process
        started = streams.get("id") if command.script is not None else None
        if isinstance(started, str) and command.argv is not None:
            process = started
            key = _server_of(call), process
            self._processes.add(_unit_key(call.place), key, command.argv)
        # Where the streams are not known one by one.
        mixed = streams.get("output", None if "stdout" in streams or "id" in streams else text)
        return json_text(
            {
                "seq": call.sent,
                "time": rfc3339(call.began),
                **_place_object(call.place),
                "tool": call.tool,
                "script": command.script,
                "process": process,
                "argv": None if command.argv is None else list(command.argv),
                "cwd": command.cwd,
                "stdin": command.stdin,
                "stdout": streams.get("stdout"),
                "stderr": streams.get("stderr"),
                "output": mixed,
                "exit_code": streams.get("exit_code"),
                "signal": streams.get("signal"),
                "kind": None if finished is None else finished.kind,
                "seconds": None if finished is None else finished.seconds,
            }
        )


class _Processes:
    """The words of started processes, by server and id.

    On a cluster each worker counts its processes by itself: an id that was given twice is known
    only in the step or item that started it.
    """

    def __init__(self) -> None:
        self._of_unit: dict[Key, dict[_ProcessKey, tuple[str, ...]]] = {}
        self._of_run: dict[_ProcessKey, tuple[str, ...] | None] = {}

    def add(self, unit: Key, process: _ProcessKey, argv: tuple[str, ...]) -> None:
        self._of_unit.setdefault(unit, {})[process] = argv
        self._of_run[process] = None if process in self._of_run else argv
        if len(self._of_run) > _MOST_PROCESSES:
            del self._of_run[next(iter(self._of_run))]

    def argv(self, unit: Key, process: _ProcessKey) -> tuple[str, ...] | None:
        """The words of a process; `None` if it is not known which one has this id."""
        return self._of_unit.get(unit, {}).get(process) or self._of_run.get(process)

    def forget(self, unit: Key) -> None:
        self._of_unit.pop(unit, None)


def _key(call: CallRecord) -> _CallKey:
    return _unit_key(call.place), call.place.turn, call.place.call


def _unit_key(place: Place) -> Key:
    return str(place.step), place.item


def _server_of(call: CallRecord) -> str:
    """The server of a call as `run.started` names it: one of a sub-pipeline as `step/alias`."""
    around, slash, _ = (call.place.step or "").rpartition("/")
    return f"{around}{slash}{call.decided.server if call.decided is not None else ''}"


def _words(value: JsonValue) -> tuple[str, ...]:
    return (
        tuple(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else ()
    )


def _streams(structured: JsonValue) -> JsonObject:
    """The keys of a command's result, or those of its failure."""
    if not isinstance(structured, Mapping):
        return {}
    error: Any = structured.get("error")
    details = error.get("details") if isinstance(error, Mapping) else None
    return details if isinstance(details, Mapping) else structured
