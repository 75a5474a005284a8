"""The names under which models have answered: in a past run, in a cassette, or asked for now."""

from contextlib import AsyncExitStack
from dataclasses import replace

from aish.agent.assemble import assemble, without_text
from aish.cassettes.format.interaction import Cassette, Request
from aish.cassettes.inspect.conversation import chat_request
from aish.config.model import ModelEntry, Pipeline
from aish.core.errors import UsageError
from aish.core.events import NOWHERE, RunStarted, ServedLog, ServedModels, TurnFinished
from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.core.messages import History, SpentSum, Usage, UserTurn
from aish.core.protocols import ModelRequest
from aish.core.wires import WIRES
from aish.engine.environment import RunEnvironment
from aish.engine.limits import open_meter
from aish.engine.plan.credentials import model_name
from aish.engine.plan.plan import Plan
from aish.engine.resources.resources import open_models, open_toolbox
from aish.features.history.summary import events
from aish.features.recording.recorded_answer import read_answer
from aish.journal.reader import JournalReading
from aish.models.throttle import Throttles

_FEWEST = {"responses": 16}
"""The fewest tokens that an endpoint may be asked for, where that is more than one."""


def names_in_run(reading: JournalReading, pipeline: Pipeline) -> tuple[ServedModels, ...]:
    """The names of the models that have answered in a run, from its journal.

    Raises:
        UsageError: it is a run of another pipeline.
        JournalError: the journal is damaged.
    """
    log = ServedLog()
    for stamped in events(reading, {RunStarted, TurnFinished}):
        event = stamped.event
        if isinstance(event, RunStarted) and event.pipeline != pipeline.name:
            raise UsageError(f"this is a run of the pipeline `{event.pipeline}`", where="--served")
        if isinstance(event, TurnFinished):
            log.add(event.place.step, event.model, event.served)
    return log.all


def names_in_cassette(plan: Plan, cassette: Cassette) -> tuple[ServedModels, ...]:
    """The names of the models in recorded answers; `plan` has the recorded variables.

    A request is that of each model with its endpoint and its id.
    """
    log = ServedLog()
    for interaction in cassette.interactions:
        body = chat_request(interaction.request)
        if body is None:
            continue
        answer = read_answer(body, interaction)
        for alias, resolved in plan.models.items():
            if answer.finish and _was_asked(resolved.entry, interaction.request, body):
                log.add(None, alias, answer.served)
    return log.all


def _was_asked(entry: ModelEntry, request: Request, body: JsonObject) -> bool:
    """Return true if a recorded request may be one to this model."""
    base = f"http://{entry.alias}.embedded/v1" if entry.embedded else _bare(entry.base_url or "")
    is_there = _bare(request.uri) == WIRES[entry.api].path(base)
    return is_there and (entry.embedded is not None or body.get("model") == model_name(entry))


def _bare(url: str) -> str:
    """The URL without user and query."""
    scheme, _, rest = url.partition("?")[0].partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


@frozen
class AskedModels:
    """The names of models that were asked once, and the usage of that."""

    served: tuple[ServedModels, ...]
    usage: Usage
    cost_usd: float | None


async def ask_models(plan: Plan, environment: RunEnvironment) -> AskedModels:
    """Ask each model of a plan for one token; embedded ones are not asked: they are files here.

    Raises:
        UnavailableError: an endpoint is unreachable, or refused the credentials.
        StepFailedError: an endpoint refused the request, or its answer is unusable.
    """
    models = {
        alias: replace(one, entry=replace(one.entry, fallback=(), delivery="single"))
        for alias, one in plan.models.items()
        if one.entry.embedded is None
    }
    plan = replace(plan, models=models, servers=(), lock=None)
    log, used = ServedLog(), SpentSum()
    async with (
        open_toolbox(plan, environment, open_meter(plan)) as box,
        AsyncExitStack() as stack,
    ):
        opened = await open_models(plan, environment, box, Throttles(), stack)
        for alias, model in opened.items():
            entry = models[alias].entry
            bounds = WIRES[entry.api].bounds
            bound = next((name for name in bounds if name in entry.params), bounds[0])
            history = History([UserTurn("Answer with one word.")])
            request = ModelRequest(history, params={bound: _FEWEST.get(entry.api, 1)})
            quiet = without_text(environment.emit)
            answer = await assemble(model, request, NOWHERE, quiet, environment.clock)
            log.add(None, alias, answer.finish.served)
            used.add(answer.usage, answer.finish.cost_usd, turns=1)
    return AskedModels(log.all, used.spent.usage or Usage(), used.spent.cost_usd)
