"""Keeps a long conversation below a number of tokens (L19).

What is over is brought down well below: to shorten a little each turn would mean that everything
is encoded anew each turn, here and in the endpoint's own cache.
"""

from collections.abc import Sequence
from dataclasses import replace

from aish.config.steps import Context
from aish.core.deltas import Usage
from aish.core.events import Failure, Notice, Place
from aish.core.messages import ToolTurn, Turn, UserTurn
from aish.core.protocols import AnswerSchema, Model, ModelRequest
from aish.core.text import counted
from aish.core.tools import Tool
from aish.loop import wording
from aish.loop.conversation import Conversation
from aish.loop.equipment import Equipment
from aish.loop.rounds import Parted, last_question, part, stub, with_note
from aish.loop.summary import Record, summarise
from aish.loop.usage import add_usage
from aish.loop.weight import BYTES_PER_TOKEN, Scales, weigh_rest

# Of `max_tokens`: the fraction that is aimed at, and what part of it a summary may have.
_GOAL = (3, 4)
_SUMMARY = 8
_TRIMMED = "context_trimmed"


class Window:
    """`loop.equipment.Bound` by `context` of the file; lives as long as its conversation does.

    `rest` is what a request weighs beside its turns, in bytes.
    """

    def __init__(self, context: Context, summarizer: Model | None = None) -> None:
        assert context.max_tokens is not None, "without a bound nothing is kept below it"
        self._most = context.max_tokens
        self._keep = max(1, context.keep)
        self._summarizer = summarizer
        self._scales = Scales()
        self._gone = 0
        self._summary = ""
        self._first: UserTurn | None = None
        self._question: UserTurn | None = None
        self._usage: Usage | None = None
        self._weighed: tuple[tuple[Tool, ...], AnswerSchema | None] | None = None
        self._weight = 0

    def heard(self, request: ModelRequest, usage: Usage) -> None:
        """Take what the endpoint counted in the request that was just answered."""
        self._scales.heard(usage, self._rest(request))

    def spent(self) -> Usage | None:
        """What summaries have used since this was asked last."""
        usage, self._usage = self._usage, None
        return usage

    async def fit(
        self, request: ModelRequest, conversation: Conversation, equipment: Equipment
    ) -> Failure | None:
        """Shorten the conversation if `request`, which is its next, would be too long.

        A failure says that it still is.
        """
        rest, place = self._rest(request), request.place
        self._scales.add(conversation.history.turns)
        before = self._scales.tokens(rest)
        if before <= self._most:
            return None
        goal = self._most * _GOAL[0] // _GOAL[1]
        turns, gone = self._stubbed(conversation.history.turns, rest, goal)
        try:
            turns, rounds = await self._dropped(turns, rest, goal, place, equipment)
        except BaseException:
            # Nothing was left out after all.
            self._scales = Scales()
            raise
        after = self._scales.tokens(rest)
        if gone or rounds:
            conversation.rewrite(turns, _TRIMMED)
            text = (
                f"about {before:,} tokens are more than `max_tokens: {self._most}`:"
                f" left out {_said(gone, rounds)}; about {after:,} tokens now"
            )
            equipment.emit(Notice(place, "info", _TRIMMED, text))
        return None if after <= self._most else self._failure(after)

    def _stubbed(
        self, turns: Sequence[Turn], rest: int, goal: int
    ) -> tuple[list[Turn], list[ToolTurn]]:
        """With stubs for old results, oldest first; and the results."""
        shorter, gone = list(turns), []
        kept = sum(map(len, part(turns).rounds[-self._keep :]))
        for at, turn in enumerate(turns[: len(turns) - kept]):
            if self._scales.tokens(rest) <= goal:
                break
            line = stub(turn)
            if line is not None and isinstance(turn, ToolTurn):
                shorter[at] = line
                self._scales.put(at, line)
                gone.append(turn)
        return shorter, gone

    async def _dropped(
        self, turns: list[Turn], rest: int, goal: int, place: Place, equipment: Equipment
    ) -> tuple[list[Turn], int]:
        """Without the oldest rounds, where stubs were not enough; how many those are."""
        parted = part(turns)
        at = len(parted.head)
        most = len(parted.rounds) - self._keep
        count = 0
        if self._scales.tokens(rest) <= self._most:
            return turns, 0
        while count < most and self._scales.tokens(rest) > goal:
            self._scales.drop(at, at + len(parted.rounds[count]))
            count += 1
        if not count:
            return turns, 0
        shorter = await self._noted(parted, count, place, equipment)
        self._scales.put(at - 1, shorter.head[-1])
        return shorter.turns, count

    async def _noted(
        self, parted: Parted, count: int, place: Place, equipment: Equipment
    ) -> Parted:
        """Without the first rounds, and with a note where they were."""
        first = self._first or parted.head[-1]
        assert isinstance(first, UserTurn), "an answer follows a question"
        gone, rounds = parted.rounds[:count], parted.rounds[count:]
        earlier = self._question
        kept = Parted((), rounds)
        later = last_question([turn for one in gone for turn in one]) or earlier
        question = None if last_question(kept.turns) else later
        asked = earlier.text if earlier is not None and earlier is not question else ""
        if self._summarizer is not None:
            record = Record(first.text, self._summary, gone, asked)
            await self._summarised(self._summarizer, record, place, equipment)
        self._first, self._question = first, question
        self._gone += count
        model = self._summarizer.alias if self._summarizer else ""
        note = wording.rounds_left_out(self._gone, model, self._summary)
        return replace(kept, head=with_note((*parted.head[:-1], first), note, question))

    async def _summarised(
        self, model: Model, record: Record, place: Place, equipment: Equipment
    ) -> None:
        longest = self._most * BYTES_PER_TOKEN // _SUMMARY
        found = await summarise(model, record, longest, place, equipment)
        if found.usage is not None:
            self._usage = add_usage(self._usage, found.usage)
        if found.text:
            self._summary = found.text
        else:
            text = f"no summary of {counted(len(record.rounds), 'round')}: {found.why}"
            equipment.emit(Notice(place, "warning", "summary_failed", text))

    def _rest(self, request: ModelRequest) -> int:
        """Weighed once for the same tools and schema, which are those of the turn before."""
        weighed = self._weighed
        if weighed is None or weighed[0] is not request.tools or weighed[1] is not request.schema:
            self._weighed = request.tools, request.schema
            self._weight = weigh_rest(request.tools, request.schema)
        return self._weight

    def _failure(self, tokens: int) -> Failure:
        kept = "the last round" if self._keep == 1 else f"the last {self._keep} rounds"
        return Failure(
            "context",
            f"the next request would have about {tokens:,} tokens"
            f" (`context.max_tokens: {self._most}`), and only the prompt and {kept} are left in it",
            hint="raise `context.max_tokens`, or lower `context.keep` or `result_limit`",
        )


def _said(results: Sequence[ToolTurn], rounds: int) -> str:
    parts = []
    if results:
        characters = sum(len(turn.content) for turn in results)
        parts.append(f"{counted(len(results), 'tool result')} ({characters:,} characters)")
    if rounds:
        parts.append(counted(rounds, "round"))
    return " and ".join(parts)
