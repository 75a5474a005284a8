"""Everything known before I/O: a checked pipeline, step order, resources to open.

Sub-pipelines are loaded and planned like any other file.

Also whether a run may stage calls: the rest of the package is imported only then.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from aish.config.model import (
    BATCH,
    KeySource,
    Limits,
    ModelEntry,
    Pipeline,
    PipelineStep,
    PromptStep,
    ServerEntry,
    Step,
)
from aish.core.errors import PipelineError, Problem, UsageError
from aish.core.frozen import frozen
from aish.core.options import marked_options
from aish.core.phrases import backticked
from aish.core.protocols import OnAsk
from aish.engine.plan.credentials import (
    Missing,
    ResolvedModel,
    ResolvedServer,
    Resolver,
    Variables,
    finish,
    register_secrets,
    resolve_model,
    resolve_server,
)
from aish.engine.plan.literals import mask_literals
from aish.engine.plan.lock import lock_of, lock_path
from aish.engine.plan.options import LockMode, RunOptions
from aish.engine.plan.order import (
    cap_tokens,
    default_model,
    in_order,
    judges_of,
    models_of_packs,
    with_fallbacks,
)
from aish.engine.plan.validation.older_names import policy_of
from aish.engine.plan.validation.validate import check_file, limit_check
from aish.policy.lock import Lock, PackagePin
from aish.policy.rules import Policy
from aish.system.secrets.secrets import Secrets

Made = TypeVar("Made")


def inner_plans(
    steps: Iterable[Step],
    outer: Pipeline,
    limits: Limits,
    options: RunOptions,
    make: Callable[[Pipeline, RunOptions], Made],
) -> dict[str, Made]:
    """The plans of all sub-pipelines, made by `make`, by the id of the step that runs them.

    What the outer file denies or stages also applies in it, and the limits of the whole run
    require the same information about its models as about the others.
    """
    own = replace(
        options,
        inputs={},
        stdin=None,
        model=None,
        shard=None,
        timeout=None,
        max_cost_usd=None,
        max_turns=None,
    )
    plans: dict[str, Made] = {}
    for step in steps:
        if isinstance(step, PipelineStep):
            inner, problems = check_file(step.file, locked=options.lock != "none")
            if inner is not None:
                problems += limit_check(inner, limits)
            wrong = tuple(problem for problem in problems if not problem.warning)
            if inner is None or wrong:
                raise PipelineError(wrong)
            rules = replace(
                inner.rules,
                deny=inner.rules.deny + outer.rules.deny,
                stage=inner.rules.stage + outer.rules.stage,
            )
            plans[step.id] = make(replace(inner, rules=rules), own)
    return plans


USUAL_ITEMS, OPEN_ITEMS = 8, 10_000
"""How many items of a step run at once, where the file says nothing: the latter by batches."""


@frozen
class Plan:
    """A pipeline that can be run, with the options of the command line.

    `variables` are those that are not secrets: of `env:`, and in the addresses of resources.
    `inner` are the plans of its sub-pipelines, by the id of the step that runs them. `missing` are
    variables that are not set, in a plan that is only inspected. `of_packs` are the models that
    only packs may ask. One of them that cannot be used is in `unusable` with the reason: no error.
    `pinned` are packages of servers, for a plan without a lock.
    """

    pipeline: Pipeline
    steps: tuple[Step, ...]
    policy: Policy
    models: Mapping[str, ResolvedModel]
    servers: tuple[ResolvedServer, ...]
    secrets: Secrets
    default_model: str | None
    time_limit: float | None
    allow_broad_root: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    lock: Lock | None = None
    lock_mode: LockMode = "enforce"
    limits: Limits = Limits()
    inner: Mapping[str, "Plan"] = field(default_factory=dict)
    missing: tuple[Missing, ...] = ()
    of_packs: frozenset[str] = frozenset()
    unusable: Mapping[str, str] = field(default_factory=dict)
    pinned: Mapping[str, PackagePin] = field(default_factory=dict)
    may_fetch: bool = True

    def model_of(self, step: PromptStep) -> str:
        alias = step.model or self.default_model
        assert alias is not None, "cross_check finds a prompt without a model"
        return alias

    @property
    def has_batches(self) -> bool:
        """True if a model of it is asked by batches of its provider."""
        own = any(model.entry.delivery == BATCH for model in self.models.values())
        return own or any(inner.has_batches for inner in self.inner.values())

    def width(self, step: Step) -> int:
        """The number of items of a step at the same time."""
        foreach = step.flow.foreach
        if foreach is not None and foreach.concurrency is not None:
            return foreach.concurrency
        return OPEN_ITEMS if self.in_batches(step) else USUAL_ITEMS

    def in_batches(self, step: Step) -> bool:
        """Return true if the step, or a part of it, is asked by batches of a provider."""
        if isinstance(step, PromptStep):
            model = self.models.get(self.model_of(step))
            return model is not None and model.entry.delivery == BATCH
        inner = self.inner.get(step.id)
        return inner is not None and inner.has_batches

    @property
    def key_sources(self) -> tuple[KeySource, ...]:
        """The sources of the keys of models that may be asked, and of the servers."""
        made = [model.made for model in self.models.values() if model.made is not None]
        made += (key for server in self.servers for key in server.made.values())
        return tuple(key.source for key in made)

    @property
    def has_keys(self) -> bool:
        """True if any step, including those of sub-pipelines, defines keys for its items."""
        own = any(step.flow.foreach and step.flow.foreach.key for step in self.steps)
        return own or any(inner.has_keys for inner in self.inner.values())

    def answers_in_a_schema(self, step: Step) -> bool:
        """Return true if the step's answer is a JSON value, directly or in its sub-pipeline."""
        if isinstance(step, PipelineStep):
            inner = self.inner[step.id]
            ends = inner.steps[-1]
            whole = ends.flow.foreach is None and inner.pipeline.outputs is None
            return whole and inner.answers_in_a_schema(ends)
        return isinstance(step, PromptStep) and step.output is not None


class Played(Protocol):
    """Properties of a replayed cassette: `features.recording.session.CassetteSession`."""

    @property
    def replays_models(self) -> bool:
        """True if models are replayed, so that none needs a key."""

    @property
    def replays_servers(self) -> bool: ...

    @property
    def variables(self) -> Mapping[str, str] | None:
        """The recorded variables; `None` if another program recorded the cassette."""


def load_checked(
    path: Path,
    overrides: Sequence[str],
    warn: Callable[[Problem], None] | None = None,
    *,
    locked: bool = True,
) -> Pipeline:
    """Load and check the pipeline of a file; `warn` receives warnings.

    `locked=False` ignores its lock file.

    Raises:
        PipelineError: all problems, including those not covered by the schema.
    """
    pipeline, problems = check_file(path, overrides, locked=locked)
    if pipeline is None or any(not problem.warning for problem in problems):
        raise PipelineError(problems)
    if warn is not None:
        for problem in problems:
            warn(problem)
    return pipeline


def make_plan(
    pipeline: Pipeline,
    options: RunOptions,
    *,
    with_models: bool = True,
    asking: Collection[ServerEntry] | None = None,
    session: Played | None = None,
    judges: Iterable[str] = (),
    secrets: Secrets | None = None,
    offline: bool = False,
) -> Plan:
    """Resolve `pipeline` for one run; `with_models=False` if no step asks a model.

    If `offline`, nothing will be opened: unset variables are listed in `Plan.missing` without an
    error.

    `judges` are models that are asked beside those of the steps. `asking` are the servers whose
    packs may ask models; without it all of them, unless no model is asked. A sub-pipeline shares
    the `secrets` of the whole run. Resources replayed by a `session` need no key, and recorded
    variables are visible.

    Raises:
        PipelineError: a variable that the file needs is not set, or what a limit needs is missing.
        UsageError: an option names something missing in the file, or the lock file cannot be used.
    """
    default, steps = _apply_model(pipeline, options)
    if asking is None:
        asking = tuple(pipeline.servers.values()) if with_models else ()
    judges = (*judges, *(alias for entry in asking for alias in entry.model_consent.named))
    of_packs = tuple(models_of_packs(asking, pipeline.models, default))
    limits = _limits(pipeline, options, steps, default, (*judges, *of_packs))
    secrets = Secrets() if secrets is None else secrets
    mask_literals(pipeline, secrets)
    of_models, of_servers = _resolvers(
        _apply_delivery(pipeline, options), options, secrets, session
    )
    register_secrets(pipeline.secrets, of_models)
    used = used_models(pipeline.models, steps if with_models else (), default, judges)
    models = _models(used, of_packs, of_models, _all_limits(limits, steps))
    servers = tuple(_servers(pipeline, options, of_servers))
    missing = finish((of_models, of_servers), offline=offline)
    if not offline and session is None:
        require_environment_files(pipeline)
    inner = inner_plans(
        steps,
        pipeline,
        limits,
        options,
        partial(
            make_plan, with_models=with_models, session=session, secrets=secrets, offline=offline
        ),
    )
    variables = {**_variables(pipeline, options, session), **of_models.plain, **of_servers.plain}
    for plan in inner.values():
        variables |= plan.variables
        missing += plan.missing
    return Plan(
        pipeline=pipeline,
        steps=steps,
        policy=policy_of(pipeline, allow=options.allow, deny=options.deny),
        models={**models.needed, **models.optional},
        servers=servers,
        secrets=secrets,
        default_model=default,
        time_limit=limits.time,
        limits=limits,
        allow_broad_root=options.allow_broad_root,
        lock=None if options.lock == "none" else lock_of(pipeline),
        lock_mode=options.lock,
        may_fetch=options.may_fetch,
        variables=variables,
        inner=inner,
        missing=missing,
        of_packs=frozenset(models.optional),
        unusable=models.unusable,
    )


@frozen
class _PlannedModels:
    """Models that are required, those that only packs may ask, and why others cannot be used."""

    needed: Mapping[str, ResolvedModel]
    optional: Mapping[str, ResolvedModel]
    unusable: Mapping[str, str]


def _models(
    used: Collection[str], of_packs: Collection[str], resolver: Resolver, bounds: tuple[Limits, ...]
) -> _PlannedModels:
    entries = resolver.pipeline.models
    needed = {alias: resolve_model(cap_tokens(entries[alias], bounds), resolver) for alias in used}
    others = [one for one in used_models(entries, (), None, of_packs) if one not in needed]
    models: dict[str, ResolvedModel] = {}
    unusable: dict[str, str] = {}
    for alias in others:
        own = Resolver(resolver.pipeline, resolver.variables, resolver.secrets)
        ready = resolve_model(cap_tokens(entries[alias], bounds), own)
        problems = [*own.problems, *(variable.problem for variable in own.missing)]
        if problems:
            unusable[alias] = problems[0].message
        else:
            models[alias] = ready
            resolver.plain |= own.plain
    for alias in entries.keys() - needed.keys() - {*others}:
        # What it would be sent is masked, though this run does not ask it.
        resolve_model(
            entries[alias],
            Resolver(resolver.pipeline, resolver.variables, resolver.secrets, used=False),
        )
    while broken := {
        alias: name
        for alias, ready in models.items()
        for name in ready.entry.fallback
        if name in unusable
    }:
        for alias, name in broken.items():
            del models[alias]
            unusable[alias] = f"its fallback `{name}` cannot be used: {unusable[name]}"
    return _PlannedModels(needed, models, unusable)


def require_environment_files(pipeline: Pipeline) -> None:
    """Refuse to begin where a file with the environment of commands is missing.

    What is in it was validated with the pipeline, if it was there.
    """
    for entry in pipeline.servers.values():
        for _, path in marked_options(entry.options, "environment_file"):
            if not path.exists():
                where = f"mcp server `{entry.alias}`"
                raise UsageError(f"there is no environment file `{path}`", where=where)


def _servers(
    pipeline: Pipeline, options: RunOptions, resolver: Resolver
) -> Iterator[ResolvedServer]:
    """The servers, with defaults for what the file does not specify."""
    for entry in pipeline.servers.values():
        required = options.servers_required if entry.required is None else entry.required
        yield resolve_server(replace(entry, required=required), resolver)


def _apply_delivery(pipeline: Pipeline, options: RunOptions) -> Pipeline:
    """The pipeline with the command line's delivery for all models but embedded ones."""
    if options.delivery is None:
        return pipeline
    models = {
        alias: entry if entry.embedded is not None else replace(entry, delivery=options.delivery)
        for alias, entry in pipeline.models.items()
    }
    return replace(pipeline, models=models)


def _apply_model(pipeline: Pipeline, options: RunOptions) -> tuple[str | None, tuple[Step, ...]]:
    """The default model, and the steps in order, with the command line's model in all of them."""
    if options.model is not None and options.model not in pipeline.models:
        known = backticked(pipeline.models) or "none"
        raise UsageError(f"no model `{options.model}` in {pipeline.file}", hint=f"models: {known}")
    steps = in_order(pipeline)
    if options.model is None:
        return default_model(pipeline), steps
    return options.model, tuple(
        replace(step, model=options.model) if isinstance(step, PromptStep) else step
        for step in steps
    )


def _limits(
    pipeline: Pipeline,
    options: RunOptions,
    steps: tuple[Step, ...],
    default: str | None,
    judges: tuple[str, ...],
) -> Limits:
    """Limits of the file, overridden by the command line; models with the values they require."""
    own = pipeline.limits
    limits = replace(
        own,
        time=own.time if options.timeout is None else options.timeout,
        cost_usd=own.cost_usd if options.max_cost_usd is None else options.max_cost_usd,
        turns=own.turns if options.max_turns is None else options.max_turns,
    )
    bounds = _all_limits(limits, steps)
    if any(limit.tokens is not None or limit.cost_usd is not None for limit in bounds):
        problems = limit_check(pipeline, limits, steps, default, judges)
        if problems:
            raise PipelineError(problems)
    return limits


def _resolvers(
    pipeline: Pipeline, options: RunOptions, secrets: Secrets, session: Played | None
) -> tuple[Resolver, Resolver]:
    """Readers of variables for models and for servers: live, or as recorded."""
    live = Variables(options.environ)
    held = (
        live
        if session is None
        else Variables(options.environ, in_replay=True, recorded=session.variables)
    )
    of_models = Resolver(pipeline, held if session and session.replays_models else live, secrets)
    of_servers = Resolver(pipeline, held if session and session.replays_servers else live, secrets)
    return of_models, of_servers


def _variables(pipeline: Pipeline, options: RunOptions, session: Played | None) -> dict[str, str]:
    """The variables under `env:` that are set: recorded ones in a replay."""
    environ = options.environ
    if session is not None and (session.replays_models or session.replays_servers):
        environ = environ if session.variables is None else session.variables
    return {name: environ[name] for name in pipeline.env if name in environ}


def _all_limits(limits: Limits, steps: Iterable[Step]) -> tuple[Limits, ...]:
    return (limits, *(step.flow.limits for step in steps))


def used_models(
    entries: Mapping[str, ModelEntry],
    steps: tuple[Step, ...],
    default: str | None,
    judges: Iterable[str] = (),
) -> tuple[str, ...]:
    """The model aliases of steps and judges, and all their fallbacks."""
    prompts = [step for step in steps if isinstance(step, PromptStep)]
    asked = [step.model or default for step in prompts]
    asked += [step.context.summary_model for step in prompts if step.context.max_tokens]
    asked += [*judges_of(expectation for step in steps for expectation in step.expect), *judges]
    return tuple(with_fallbacks(asked, entries))


def most_patient(plan: Plan) -> OnAsk:
    """The `on_ask` of the plan, of its steps and its sub-pipelines, that waits the longest."""
    settings = [step.asking.on_ask for step in plan.steps if not isinstance(step, PipelineStep)]
    settings += map(most_patient, plan.inner.values())
    return max(settings, key=_PATIENCE.index, default="deny")


_PATIENCE: Sequence[OnAsk] = ("deny", "wait", "pause")


def stages_calls(plan: Plan) -> bool:
    """Return true if a rule of a pipeline, or of one of its sub-pipelines, stages calls."""
    flows = plan.pipeline.flows
    held = [rule.then for rule in (flows.exfiltration, *flows.flow) if rule is not None]
    own = bool(plan.policy.stage) or "stage" in held
    return own or any(map(stages_calls, plan.inner.values()))


def follows_flows(plan: Plan) -> bool:
    """Return true if a file of a run asks for the sources of text to be followed."""
    return plan.pipeline.flows.is_used or any(map(follows_flows, plan.inner.values()))


def own_files(plan: Plan) -> frozenset[Path]:
    """The files that a run is made of, resolved; no tool of a pack writes them.

    Pipeline files, what they extend, prompts, schemas and rubrics, lock files, cassettes,
    environment files, files of keys and private keys, also where there is none yet; those of
    sub-pipelines too.
    """
    pipeline = plan.pipeline
    cassettes = [pipeline.cassette, *(test.cassette for test in pipeline.tests)]
    named = [pipeline.file, lock_path(pipeline), *(one.path for one in cassettes if one)]
    expected = [*pipeline.steps, *pipeline.tests]
    named += [one.file for owner in expected for one in owner.expect if one.file]
    for entry in pipeline.servers.values():
        named += (path for _, path in marked_options(entry.options, "environment_file"))
        named += (path for _, path in marked_options(entry.options, "own_file"))
    named += (source.file for source in pipeline.key_sources() if source.file)
    logins = (entry.oauth for entry in pipeline.servers.values() if entry.oauth)
    named += (login.private_key_file for login in logins if login.private_key_file)
    own = pipeline.sources.union(Path(os.path.realpath(path)) for path in named)
    return own.union(*map(own_files, plan.inner.values()))
