"""The `Trajectory` of a run, from a cassette or from its events.

asked_for(interactions) -> Trajectory          # of a recording: what its models asked for
Following().take(event), .trajectory           # the same of a run, from its events
sent(interactions) -> Trajectory               # what went to servers and commands
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from aish.cassettes.format.interaction import Interaction, Request
from aish.cassettes.format.json_body import at, items, json_or_text, word
from aish.cassettes.inspect.conversation import (
    AnsweredQuestion,
    AskedCall,
    LocalCommand,
    ModelTurn,
    Part,
    ServerExchange,
    chat_request,
    conversation,
    endpoint_of,
)
from aish.cassettes.inspect.trajectory import (
    RecordedModelRequest,
    Totals,
    Trajectory,
    TrajectoryCall,
)
from aish.config.model import ModelEntry
from aish.core.events import Event, TurnFinished
from aish.core.json import JsonValue
from aish.core.messages import Spent, Usage, add_cost, add_usage
from aish.engine.plan.order import OPENING
from aish.features.recording.recorded_answer import read_answer
from aish.models.dialect_choice import wire_name
from aish.models.pricing import Pricing, pricing_of

_OWN_KEYS: Final = frozenset({"model", "messages", "tools"})
_ASIDE: Final = frozenset({"sampling", "judge", "paused"})


def trajectory_of_models(
    interactions: Iterable[Interaction], entries: Iterable[ModelEntry] = ()
) -> Trajectory:
    """Requests and answers of the models in a recording; results are not compared.

    Answers to servers and of judges are omitted, as they are not the purpose of the run. `entries`
    are the models of the file, for their prices.
    """
    parts = conversation(interactions, read_answer)
    turns = (part for part in parts if isinstance(part, ModelTurn) and not part.sampled)
    models = [turn for turn in _but_judges(turns) if _is_answered(turn)]
    calls = tuple(_call_of_turn(call) for turn in models for call in turn.answer.calls)
    totals = replace(_totals(models, len(calls)), cost_usd=_cost(models, entries))
    return Trajectory(calls, _answers(models), totals=totals)


def trajectory_of(interactions: Iterable[Interaction]) -> Trajectory:
    """Content of a recording: calls with results, prompts and answers, model requests."""
    held = tuple(interactions)
    parts = conversation(held, read_answer)
    models = [part for part in parts if isinstance(part, ModelTurn) and _is_answered(part)]
    calls = tuple(call for part in parts for call in _calls_of_part(part))
    prompts = tuple(
        (message.role, message.text)
        for part in parts
        if isinstance(part, ModelTurn) and part.again is None
        for message in part.news
        if message.role in {"system", "user", "developer"}
    )
    requests = tuple(_request(held[turn.number - 1].request) for turn in models)
    approvals = tuple(
        (part.tool, "\n".join(filter(None, (part.answer, part.note))))
        for part in parts
        if isinstance(part, AnsweredQuestion)
    )
    totals = _totals(models, len(calls))
    return Trajectory(calls, _answers(models), prompts, totals, requests, approvals)


def _request(request: Request) -> RecordedModelRequest:
    body = chat_request(request) or {}
    tools = items(body.get("tools"))
    return RecordedModelRequest(
        endpoint=endpoint_of(request),
        model=word(body.get("model")),
        parameters={key: value for key, value in body.items() if key not in _OWN_KEYS},
        tools={word(at(tool, "function", "name")) or word(tool): tool for tool in tools},
        messages=body.get("messages"),
    )


class TrajectoryCollector:
    """Collects the trajectory of a run from its events."""

    def __init__(self) -> None:
        self._turns: list[TurnFinished] = []

    def take(self, event: Event) -> None:
        if isinstance(event, TurnFinished) and event.purpose not in _ASIDE:
            self._turns.append(event)

    @property
    def trajectory(self) -> Trajectory:
        """The models' requests and answers so far."""
        calls = tuple(
            TrajectoryCall(call.name, json_or_text(call.arguments))
            for turn in self._turns
            for call in turn.calls
        )
        spent = Spent()
        for turn in self._turns:
            spent = spent.plus(Spent(1, turn.usage, turn.cost_usd, seconds=turn.seconds))
        return Trajectory(
            calls,
            tuple(turn.text for turn in self._turns if not turn.calls),
            totals=Totals(
                spent.turns,
                len(calls),
                spent.usage or Usage(),
                spent.seconds,
                spent.cost_usd if self._turns else None,
            ),
        )


def _but_judges(turns: Iterable[ModelTurn]) -> Iterator[ModelTurn]:
    """Without conversations that begin like those of judges."""
    judged: set[int | None] = set()
    for turn in turns:
        first = turn.news[0] if turn.news else None
        begins = first is not None and first.text.startswith(OPENING)
        if begins or turn.follows in judged or turn.again in judged:
            judged.add(turn.number)
            judged.discard(None)
        else:
            yield turn


def _cost(turns: Sequence[ModelTurn], entries: Iterable[ModelEntry]) -> float | None:
    """The cost of the turns as reported by their endpoints, else at the current prices."""
    prices: dict[str, Pricing | None] = {}
    for entry in entries:
        name, price = wire_name(entry), pricing_of(entry)
        # Different prices under one name in the recording are ambiguous.
        prices[name] = price if prices.setdefault(name, price) == price else None
    total: float | None = 0.0 if turns else None
    for turn in turns:
        price, cost = prices.get(turn.model), turn.answer.cost_usd
        if cost is None and price is not None:
            cost = price.cost(turn.answer.usage)
        total = add_cost(total, cost)
    return total


def _is_answered(part: Part) -> bool:
    return isinstance(part, ModelTurn) and part.answer.trouble is None


def _answers(turns: Iterable[ModelTurn]) -> tuple[str, ...]:
    return tuple(turn.answer.text for turn in turns if not turn.answer.calls)


def _call_of_turn(call: AskedCall) -> TrajectoryCall:
    return TrajectoryCall(call.name, json_or_text(call.arguments))


def _calls_of_part(part: Part) -> Iterable[TrajectoryCall]:
    if isinstance(part, ServerExchange) and part.method == "tools/call":
        yield TrajectoryCall(
            f"{part.server} · {part.name}", part.arguments, part.trouble or part.text
        )
    elif isinstance(part, LocalCommand):
        command: JsonValue = part.command if isinstance(part.command, str) else list(part.command)
        yield TrajectoryCall(f"run {part.step}", command, _output(part))


def _output(part: LocalCommand) -> str:
    if part.trouble is not None:
        return part.trouble
    code = [f"exit code {part.exit_code}"] if part.exit_code else []
    return "\n".join(text for text in (*code, part.stdout, part.stderr) if text)


def _totals(turns: Sequence[ModelTurn], calls: int) -> Totals:
    usage: Usage | None = None
    for turn in turns:
        usage = add_usage(usage, turn.answer.usage)
    times = [turn.seconds for turn in turns if turn.seconds is not None]
    return Totals(len(turns), calls, usage or Usage(), sum(times) if times else None)
