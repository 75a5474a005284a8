"""The word for each event in the stream (design 11)."""

from collections.abc import Mapping

from aish.vocab.events import (
    Event,
    ExpectChecked,
    Fallback,
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
    ToolProgress,
    ToolStarted,
    TurnFinished,
    TurnStarted,
)

EVENT_TYPES: Mapping[type[Event], str] = {
    RunStarted: "run.started",
    StepStarted: "step.started",
    StepFinished: "step.finished",
    ItemStarted: "item.started",
    ItemFinished: "item.finished",
    TurnStarted: "turn.started",
    TurnFinished: "turn.finished",
    TextDelta: "text.delta",
    ReasoningDelta: "reasoning.delta",
    TextWithdrawn: "text.withdrawn",
    ToolDecided: "tool.decided",
    ToolStarted: "tool.started",
    ToolProgress: "tool.progress",
    ToolFinished: "tool.finished",
    Retry: "retry",
    Fallback: "fallback",
    Notice: "notice",
    ExpectChecked: "expect.checked",
    RunFinished: "run.finished",
}
