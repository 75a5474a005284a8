"""The word for each event in the stream (design 11)."""

from collections.abc import Mapping

from aish.vocab.events import (
    Event,
    ExpectChecked,
    ItemFinished,
    ItemStarted,
    Notice,
    ReasoningDelta,
    Retry,
    RunFinished,
    RunStarted,
    StepFinished,
    StepStarted,
    TextDelta,
    TextWithdrawn,
    ToolDecided,
    ToolFinished,
    ToolOutput,
    ToolProgress,
    ToolStarted,
    TurnFinished,
    TurnStarted,
)
from aish.vocab.turn_events import Fallback, HistoryReplaced, OutputWaits, TurnAdded

EVENT_TYPES: Mapping[type[Event], str] = {
    RunStarted: "run.started",
    StepStarted: "step.started",
    StepFinished: "step.finished",
    ItemStarted: "item.started",
    ItemFinished: "item.finished",
    TurnStarted: "turn.started",
    TurnFinished: "turn.finished",
    TurnAdded: "turn.added",
    HistoryReplaced: "history.replaced",
    OutputWaits: "output.waits",
    TextDelta: "text.delta",
    ReasoningDelta: "reasoning.delta",
    TextWithdrawn: "text.withdrawn",
    ToolDecided: "tool.decided",
    ToolStarted: "tool.started",
    ToolProgress: "tool.progress",
    ToolOutput: "tool.output",
    ToolFinished: "tool.finished",
    Retry: "retry",
    Fallback: "fallback",
    Notice: "notice",
    ExpectChecked: "expect.checked",
    RunFinished: "run.finished",
}
