"""Local commands of a session, one at a time, each a step of its own."""

import codecs
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import anyio.lowlevel

from aish.agent.conversation import Buffer
from aish.agent.dispatch import call_tool, propose
from aish.agent.result_limit import cut
from aish.agent.runtime import AgentRuntime, UsedCall
from aish.agent.wording import NO_OUTPUT
from aish.config.model import Pipeline
from aish.core.errors import AishError, ExitCode, UsageError
from aish.core.events import (
    Event,
    Failure,
    Notice,
    Place,
    SourceNames,
    StepStarted,
    StepStatus,
    ToolFinished,
    ToolOutput,
    ToolStarted,
)
from aish.core.frozen import frozen, slotted
from aish.core.protocols import Answer, Asking, Clock, Emit
from aish.core.sources import NO_SOURCES, OWN_COMMANDS, Sources
from aish.core.text import safe_utf8
from aish.core.tools import ResultKind, Tool
from aish.engine.execution.graph import end_event
from aish.engine.execution.step import CUT_OFF
from aish.engine.final import failure_of
from aish.engine.records import StepRecord
from aish.engine.resources.toolbox import (
    OUTPUT_LIMIT,
    SHELL_RUN,
    AllTools,
    LocalCommands,
    command_arguments,
)
from aish.engine.steps.tool_call import tool_record
from aish.policy.gate import Proposal
from aish.policy.questions import QuestionEnd
from aish.shell.local.approval import PROPOSED, CommandAsking, RepeatingApprover, settle
from aish.shell.local.proposals import MOST, brief, proposals, refusal, skipped_text, too_many
from aish.system.process.child import CommandResult, Stream
from aish.system.secrets.secrets import Secrets
from aish.templates.values import is_template

INTERRUPTED = "[aish] interrupted"
_ANSWERED = Asking()
"""How a command is asked about whose answer is there already: nobody has to wait for it."""

_OUTPUT_TEMPLATE = (
    "{% if ran.stdout %}{{ ran.stdout.rstrip('\\n') }}\n{% endif %}"
    "{% if ran.stderr %}[stderr]\n{{ ran.stderr.rstrip('\\n') }}\n{% endif %}"
    f"{{% if not ran.stdout and not ran.stderr %}}{NO_OUTPUT}\n{{% endif %}}"
    "[exit code {{ ran.exit_code }}]"
)


def run_report(command: str, exit_code: int, stdout: str, stderr: str) -> str:
    return f"{_head(command)}\n{_format_output(stdout, stderr)}[exit code {exit_code}]"


def run_report_template(step: str, command: str) -> str:
    """The template that produces the text of `run_report` from the output of `step`."""
    output = f"{{% set ran = steps['{step}'].output %}}"
    return f"{output}{literal(_head(command))}\n{_OUTPUT_TEMPLATE}"


def cut_short(command: str, stdout: str, stderr: str) -> str:
    """The result of a command that was interrupted."""
    return f"{_head(command)}\n{_format_output(stdout, stderr)}{INTERRUPTED}"


def not_run(command: str, why: str) -> str:
    """The result of a command that was not run."""
    return f"{_head(command)}\n{safe_utf8(why)}"


def literal(text: str) -> str:
    """A template that renders as `text`, whatever it contains."""
    if is_template(text) or "\r" in text or text.endswith("{"):
        # Jinja2 turns every line end into LF, except those that are escaped.
        return f"{{{{ {json.dumps(text, ensure_ascii=False)} }}}}"
    return text


def _head(command: str) -> str:
    return f"[local command: {safe_utf8(command)}]"


def _format_output(stdout: str, stderr: str) -> str:
    lines = ""
    if stdout:
        lines = stdout.rstrip("\n") + "\n"
    if stderr:
        lines += "[stderr]\n" + stderr.rstrip("\n") + "\n"
    return lines or f"{NO_OUTPUT}\n"


_MIB = 1024 * 1024


def own_environment(
    environ: Mapping[str, str], pipeline: Pipeline, secrets: Secrets
) -> dict[str, str]:
    """The person's own environment without variables that hold a secret of the file.

    A typed command finds what it finds in any terminal, and no `env` that a model proposes prints a
    key.
    """
    named = {model.key_env for model in pipeline.models.values()}
    named |= {server.auth_env for server in pipeline.servers.values()}
    return {
        name: value
        for name, value in environ.items()
        if name not in named and secrets.mask(value) == value
    }


class LocalOutput:
    """Reports the output of a command as it arrives, and collects all of it."""

    def __init__(self, place: Place, emit: Emit) -> None:
        self._place = place
        self._emit = emit
        self._texts: dict[Stream, list[str]] = {"stdout": [], "stderr": []}
        # A character may arrive in two parts.
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {stream: decoder("replace") for stream in self._texts}

    @property
    def stdout(self) -> str:
        return "".join(self._texts["stdout"])

    @property
    def stderr(self) -> str:
        return "".join(self._texts["stderr"])

    def printed(self, stream: Stream, data: bytes) -> None:
        self._tell(stream, self._decoders[stream].decode(data))

    def ended(self, result: CommandResult) -> None:
        self.close()
        if result.truncated:
            total = max(result.stdout_bytes, result.stderr_bytes)
            text = f"the first {OUTPUT_LIMIT // _MIB} MiB of {total:,} bytes of output were kept"
            self._emit(Notice(self._place, "warning", "output_cut", text))

    def close(self) -> None:
        """The end of the output: an incomplete character cannot be decoded."""
        for stream, decoder in self._decoders.items():
            self._tell(stream, decoder.decode(b"", final=True))

    def _tell(self, stream: Stream, text: str) -> None:
        if text:
            self._texts[stream].append(text)
            self._emit(ToolOutput(self._place, str(SHELL_RUN.name), text, stream))


@frozen
class Ran:
    """A local command that was run or refused, and the text about it in the next question."""

    command: str
    record: StepRecord
    handed: str | None


class DeniedCommandError(AishError):
    code = "denied"
    exit_code = ExitCode.DENIED


@slotted
class _TimedEmit:
    """Passes events on, and records when the command started; its result has the `sources`."""

    emit: Emit
    clock: Clock
    sources: SourceNames = None
    begun: float | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, ToolStarted):
            self.begun = self.clock.monotonic()
        elif isinstance(event, ToolFinished) and self.sources is not None:
            event = replace(event, sources=self.sources)
        self.emit(event)

    @property
    def seconds(self) -> float:
        return 0.0 if self.begun is None else self.clock.monotonic() - self.begun


class LocalShell:
    """Runs commands of the person, and asks about those of a model.

    `said` is the approver of the gate of `runtime`. `environment` is called each time: a session
    learns of more secrets. `ran` is the number of earlier commands of the session.
    """

    def __init__(
        self,
        runtime: AgentRuntime,
        commands: LocalCommands,
        said: RepeatingApprover,
        buffer: Buffer,
        *,
        environment: Callable[[], Mapping[str, str]],
        asking: CommandAsking | None = None,
        cmd_lines: bool = True,
        ran: int = 0,
    ) -> None:
        self._runtime = runtime
        self._commands = commands
        self._said = said
        self._buffer = buffer
        self._environment = environment
        self._asking = asking
        self._cmd_lines = cmd_lines
        self.ran = ran
        self._started = 0

    async def run_typed(self, command: str, *, hand_over: bool) -> Ran:
        command = command.strip()
        if not command:
            raise UsageError("there is no command", hint="`!ls` runs `ls`")
        return await self._run(command, SHELL_RUN, "yes", hand_over=hand_over)

    async def permit(
        self, argv: Sequence[str], by: str | None = None
    ) -> Callable[[ResultKind, str], None]:
        """Have the gate decide on a command by which the person starts a server.

        Or another program, for whom `by` is the answer. The returned function takes the result.

        Raises:
            DeniedCommandError: a rule denies it, or would have it reviewed.
        """
        self._started += 1
        place = Place(call=f"connect-{self._started}")
        runtime = replace(self._runtime, asking=_ANSWERED)

        def resolve_all() -> None:
            questions = runtime.gate.questions
            for question in questions.still_open() if by is not None else ():
                if question.question.place == place:
                    questions.settle(question.id, QuestionEnd("approve", str(by), "api"))

        with self._said.answer_with(place, "yes"):
            proposal = Proposal(SHELL_RUN, command_arguments(argv), place)
            found = await propose(proposal, runtime, resolve_all)
        if isinstance(found, UsedCall):
            raise DeniedCommandError(found.content.removeprefix("[aish] "))
        runtime.gate.redeem(found.decision, found.proposal)
        begun = runtime.clock.monotonic()

        def tell(kind: ResultKind, text: str) -> None:
            seconds = runtime.clock.monotonic() - begun
            runtime.emit(ToolFinished(place, str(SHELL_RUN.name), kind, text, None, seconds))

        return tell

    async def propose(self, answer: str, sources: Sources = NO_SOURCES) -> tuple[Ran, ...]:
        """Ask about the commands of an answer, and run the approved ones, in order.

        `sources` are those of the answer.
        """
        left = deque(proposals(answer) if self._cmd_lines else ())
        more = too_many(len(left))
        try:
            ran = await self._each(left, sources)
        except anyio.get_cancelled_exc_class():
            if left:
                self._tell(skipped_text([self._runtime.mask(command) for command in left]))
            raise
        if more:
            self._tell(more)
            self._buffer.add(f"[aish] {more}", self._sources_of_output(sources))
        return tuple(ran)

    async def _each(self, left: deque[str], sources: Sources) -> Sequence[Ran]:
        """Settle the proposals one by one; those without an answer are in `left`."""
        ran: list[Ran] = []
        for command in list(left)[:MOST]:
            if why := refusal(command):
                left.popleft()
                line = brief(self._runtime.mask(command))
                self._tell(f"`{line}` is not run: {why}")
                note = not_run(line, f"[aish] not run: {why}")
                self._buffer.add(note, self._sources_of_output(sources))
                continue
            place = Place(_step(self.ran + 1), call=_call(self.ran + 1))
            runtime = self._runtime
            whole = sources if runtime.flow is None else runtime.flow.of_call(PROPOSED, sources)
            settled = await settle(
                command, place, runtime.gate, self._asking, runtime.asking, whole
            )
            # Ctrl-C during the question is not a yes, whatever was typed before.
            await anyio.lowlevel.checkpoint_if_cancelled()
            left.popleft()
            ran.append(
                await self._run(
                    settled.command, PROPOSED, settled.answer, hand_over=True, sources=sources
                )
            )
        return ran

    def _tell(self, text: str) -> None:
        self._runtime.emit(Notice(Place(), "warning", "command_refused", text))

    async def _run(
        self,
        command: str,
        tool: Tool,
        answer: Answer | None,
        *,
        hand_over: bool,
        sources: Sources | None = None,
    ) -> Ran:
        """Run a command as a step, with the events of a `run` step, and report its output.

        One without `sources` is a person's own, and follows no other text.
        """
        self.ran += 1
        step = Place(_step(self.ran))
        self._runtime.emit(StepStarted(step, "run"))
        began = self._runtime.clock.monotonic()
        record, handed = await self._outcome(
            command, tool, answer, step, hand_over=hand_over, sources=sources
        )
        record = replace(record, seconds=self._runtime.clock.monotonic() - began)
        self._runtime.emit(end_event(record, step))
        if hand_over and handed is not None:
            self._buffer.add(handed, self._sources_of_output(sources))
        return Ran(command, record, handed if hand_over else None)

    async def _outcome(
        self,
        command: str,
        tool: Tool,
        answer: Answer | None,
        step: Place,
        *,
        hand_over: bool,
        sources: Sources | None,
    ) -> tuple[StepRecord, str | None]:
        id, place = str(step.step), replace(step, call=_call(self.ran))
        is_own = sources is None and self._runtime.flow is not None
        told = (OWN_COMMANDS,) if is_own else None
        timed = _TimedEmit(self._runtime.emit, self._runtime.clock, told)
        output = LocalOutput(place, timed)
        arguments = command_arguments(command)
        commands = replace(
            self._commands, step=id, environment=self._environment(), listener=output
        )
        runtime = replace(self._runtime, tools=AllTools(None, commands), emit=timed)
        if answer is not None:
            runtime = replace(runtime, asking=_ANSWERED)
        if sources is None:
            runtime = replace(runtime, flow=None)
        try:
            with self._said.answer_with(place, answer):
                used = await call_tool(
                    tool,
                    arguments,
                    runtime,
                    place,
                    sources=sources or NO_SOURCES,
                    source=OWN_COMMANDS if sources is None else "",
                )
        except AishError as error:
            return _failure_record(id, failure_of(error), error.exit_code), None
        except BaseException:
            # Ended from outside: the stream and the next question report its output so far.
            output.close()
            seconds = timed.seconds
            if timed.begun is not None:
                name = str(tool.name)
                timed(ToolFinished(place, name, "handler_error", INTERRUPTED, None, seconds))
                if hand_over:
                    text = self._cut(cut_short(command, output.stdout, output.stderr), None)
                    self._buffer.add(text, self._sources_of_output(sources))
            why = Failure(CUT_OFF, "the command was interrupted")
            timed(end_event(replace(_failure_record(id, why, ExitCode.OK), seconds=seconds), step))
            raise
        record = tool_record(id, "run", used, on_denied="continue", output=used.structured)
        return record, self._cut(_text(command, used), used.full)

    def _sources_of_output(self, sources: Sources | None) -> Sources:
        """The sources of output; a person's own command follows no text, but may print a file."""
        flow = self._runtime.flow
        if flow is None:
            return NO_SOURCES
        own = OWN_COMMANDS if sources is None else ""
        return flow.of_result(PROPOSED, sources or NO_SOURCES, own)

    def _cut(self, text: str, full: str | None) -> str:
        given = self._runtime
        return cut(text, given.limits.result_limit, lambda _: full, given.mask, given.spans).text


def _step(number: int) -> str:
    return f"run-{number}"


def _call(number: int) -> str:
    return f"{_step(number)}-1"


def _text(command: str, used: UsedCall) -> str:
    result = used.structured
    if not isinstance(result, dict):
        return not_run(command, used.content)
    code, stdout, stderr = result["exit_code"], result["stdout"], result["stderr"]
    assert isinstance(code, int)
    return run_report(command, code, str(stdout), str(stderr))


def _failure_record(id: str, failure: Failure, code: ExitCode) -> StepRecord:
    status: StepStatus = "budget" if code is ExitCode.BUDGET else "failed"
    return StepRecord(id=id, kind="run", status=status, failure=failure, exit_code=code)
