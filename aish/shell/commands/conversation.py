"""`:context`, `:clear` and `:compact`: show the length of the conversation, and shorten it."""

from aish.agent.compaction import (
    Parted,
    Record,
    TokenEstimator,
    last_question,
    part,
    summarise,
    weigh_rest,
    with_note,
)
from aish.agent.wording import rounds_left_out
from aish.core.errors import StepFailedError, UsageError
from aish.core.messages import UserTurn
from aish.core.phrases import counted
from aish.core.sources import union
from aish.core.text import for_line
from aish.shell.command import ShellCommand
from aish.shell.servers import session_tools, still_connecting
from aish.shell.session import ShellSession
from aish.shell.steps import step

_LONGEST_SUMMARY = 8 * 1024


def tokens_in_use(session: ShellSession) -> int:
    estimator = TokenEstimator()
    estimator.add(session.history.turns)
    return estimator.tokens(weigh_rest(session.tools(), None))


async def _context(session: ShellSession, _rest: str) -> None:
    turns = session.history.turns
    questions = sum(isinstance(turn, UserTurn) for turn in turns)
    most = session.open.plan.pipeline.context.max_tokens
    bound = f" of {most:,} (`context.max_tokens`)" if most is not None else ""
    tools = await session_tools(session)
    lines = [
        f"about {tokens_in_use(session):,} tokens{bound}, with {counted(len(tools), 'tool')}",
        f"{counted(questions, 'question')}, {counted(len(turns), 'turn')}",
    ]
    if (flow := session.open.box.runtime.flow) is not None:
        sources = union((session.history.sources, flow.descriptions(tools)))
        lines.append(for_line(f"sources: {flow.policy.words_of(sources) or 'none'}"))
    waiting = session.buffer.waiting
    out = [f"output of {counted(waiting, 'local command')}"] if waiting else []
    if names := [*session.attached.names, *out]:
        lines.append(f"is sent with the next line: {', '.join(map(for_line, names))}")
    if later := still_connecting(session):
        lines.append(for_line(later))
    session.show("\n".join(lines))


async def _clear(session: ShellSession, _rest: str) -> None:
    session.replace([], "cleared")
    session.asked, session.stands = None, False
    session.attached.clear()
    session.buffer.user_turn("")
    session.show("a new conversation")


async def _compact(session: ShellSession, _rest: str) -> None:
    parted = part(session.history.turns)
    gone, rest = parted.rounds[:-1], parted.rounds[-1:]
    first = parted.head[-1] if parted.head else None
    if not gone or not isinstance(first, UserTurn):
        raise UsageError(
            "there is nothing to summarise yet: the last answer is always kept",
            hint="`:context` shows the length of the conversation",
        )
    before = tokens_in_use(session)
    opened = session.open
    model = await opened.models.get(session.model_alias())
    place = session.next_line()
    with step(session, place):
        summary = await summarise(
            model, Record(first.text, "", gone, ""), _LONGEST_SUMMARY, place, opened.box.runtime
        )
        if not summary.text:
            raise StepFailedError(f"no summary was made: {summary.why}")
    text = summary.text
    question = last_question([turn for turns in gone for turn in turns])
    note = rounds_left_out(len(gone), session.model_alias(), text)
    shorter = Parted(with_note(parted.head, note, question), rest)
    session.replace(shorter.turns, "summarised")
    session.look_back()
    session.show(
        f"{counted(len(gone), 'round')} summarised: about {before:,} tokens before,"
        f" {tokens_in_use(session):,} now"
    )


CONTEXT = ShellCommand(
    "context",
    "tokens in use, and what is sent with the next line",
    _context,
    details="An estimate, from the length of the conversation and of the tool descriptions. "
    "With `mcp.exfiltration` or `mcp.flow` in the file, also the sources of the text.",
)
CLEAR = ShellCommand(
    "clear",
    "starts a new conversation",
    _clear,
    details="Attachments and pending output of local commands are dropped. The journal keeps "
    "the conversation; servers, rules and the model are kept.",
)
COMPACT = ShellCommand(
    "compact",
    "summarises the conversation with the model",
    _compact,
    details="The last answer is kept as it is. `context.max_tokens` in the file does this "
    "automatically.",
)
