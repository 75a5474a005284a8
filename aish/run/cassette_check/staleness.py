"""What of a recording does not fit its pipeline any more (C8).

Modest on purpose: only what is certain without running anything. A replay says the rest.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from aish.cassettes.conversation import conversation
from aish.cassettes.conversation_parts import Handshake, LocalCommand, ModelTurn, ServerExchange
from aish.cassettes.edits import text_of
from aish.cassettes.interaction import Cassette, Interaction
from aish.cassettes.json_body import at, items, json_messages
from aish.cassettes.places import Places
from aish.cassettes.server_messages import is_to_server, server_of
from aish.config.expected import CassetteSettings
from aish.config.pipeline import Pipeline
from aish.config.steps import CallStep, PromptStep, RunStep
from aish.core.errors import AishError
from aish.core.frozen import frozen
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import Plan, make_plan
from aish.models import smollm2
from aish.policy.explain import tool_name
from aish.run.cassette_check.stale_prompts import stale_prompts
from aish.run.taping.recorded_answer import read_answer
from aish.run.taping.reel import Reel, TapeChoice


@frozen
class Staleness:
    """What does not fit, and what may or may not."""

    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def staleness(pipeline: Pipeline, settings: CassetteSettings, cassette: Cassette) -> Staleness:
    """Hold a recording against the pipeline that plays it."""
    reel = Reel(TapeChoice(settings.path), cassette)
    try:
        plan = make_plan(pipeline, RunOptions(lock="none"), reel=reel)
    except AishError as error:
        return Staleness(notes=(f"cannot be compared with {pipeline.file.name}: {error.message}",))
    parts = conversation(cassette.interactions, read_answer)
    turns = [part for part in parts if isinstance(part, ModelTurn)]
    talked = {part.server for part in parts if isinstance(part, (Handshake, ServerExchange))}
    prompts = list(_prompts(plan, turns))
    findings = [
        *(text for text, certain in prompts if certain),
        *_models(plan, turns),
        *_servers(plan, talked),
        *_tools(plan, cassette.interactions),
        *_commands(plan, [part.step for part in parts if isinstance(part, LocalCommand)]),
    ]
    return Staleness(tuple(findings), tuple(text for text, certain in prompts if not certain))


def _prompts(plan: Plan, turns: Iterable[ModelTurn]) -> Iterator[tuple[str, bool]]:
    places = Places(root=str(plan.pipeline.file.parent.resolve()))
    steps = [step for step in plan.steps if isinstance(step, PromptStep)]
    return stale_prompts(steps, turns, places)


def _models(plan: Plan, turns: Iterable[ModelTurn]) -> Iterator[str]:
    """Models that steps ask by a name that was never asked."""
    asked = sorted({turn.model for turn in turns})
    used = [plan.model_of(step) for step in plan.steps if isinstance(step, PromptStep)]
    for alias in dict.fromkeys(used if asked else ()):
        entry = plan.models[alias].entry
        name = entry.model or (smollm2.NAME if entry.embedded else alias)
        if name not in asked and "<secret:" not in name:
            known = ", ".join(f"`{one}`" for one in asked)
            yield f"model `{alias}`: the recording asked {known}, and the file names `{name}`"


def _servers(plan: Plan, talked: Collection[str]) -> Iterator[str]:
    known = _server_names(plan)
    for alias in dict.fromkeys(known.values()):
        names = [name for name, of in known.items() if of == alias]
        secret = any("<secret:" in name for name in names)
        needed = plan.pipeline.servers[alias].required is not False
        if needed and not secret and not set(names) & set(talked):
            yield f"server `{alias}`: the recording has no exchange with it"
    for name in sorted(set(talked) - set(known)):
        yield f"server `{name}`: it is in the recording, and the file names no such server"


def _server_names(plan: Plan) -> Mapping[str, str]:
    """The aliases of servers, by what they are called in a recording."""
    names: dict[str, str] = {}
    for server in plan.servers:
        entry = server.entry
        names[entry.alias] = entry.alias
        if entry.url:
            names[server_of(entry.url)] = entry.alias
    return names


def _tools(plan: Plan, interactions: Iterable[Interaction]) -> Iterator[str]:
    """Tools that `call` steps name and recorded servers do not have."""
    names = _server_names(plan)
    listed: dict[str, set[str]] = {}
    for one in interactions:
        alias = names.get(server_of(one.request.uri)) if is_to_server(one.request) else None
        if alias is not None:
            listed.setdefault(alias, set()).update(_listed(one))
    for step in plan.steps:
        if isinstance(step, CallStep):
            tool = tool_name(step.call)
            there = listed.get(tool.server)
            if there and tool.name not in there:
                yield f"step `{step.id}`: the recorded server has no tool `{step.call}`"


def _listed(interaction: Interaction) -> Iterator[str]:
    """The tools in a recorded list of them."""
    if b'"tools/list"' not in interaction.request.body:
        return
    for message in json_messages(text_of(interaction.response.body)):
        for tool in items(at(message, "result", "tools")):
            name = at(tool, "name")
            if isinstance(name, str):
                yield name


def _commands(plan: Plan, recorded: Iterable[str]) -> Iterator[str]:
    known = {step.id for step in plan.steps if isinstance(step, RunStep)}
    for step in dict.fromkeys(recorded):
        if step not in known:
            yield f"step `{step}`: its command is in the recording, and the file has no such step"
