"""Cassettes of a repository, held against what may be in them and what they were made of (C8).

Which cassettes are meant, what of a recording does not fit its pipeline any more, and prompts
whose constant text is not in it (C12).
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from aish.cassettes.format.edits import text_of
from aish.cassettes.format.file import load, partial
from aish.cassettes.format.interaction import Cassette, Headers, Interaction
from aish.cassettes.format.json_body import at, items, json_messages
from aish.cassettes.format.path_placeholders import PathPlaceholders
from aish.cassettes.inspect.conversation import (
    Handshake,
    LocalCommand,
    ModelTurn,
    ServerExchange,
    conversation,
    is_to_server,
    server_of,
)
from aish.cassettes.record.redact import SENSITIVE
from aish.cassettes.record.secret_scan import scan, scan_text
from aish.config.model import CallStep, CassetteSettings, Pipeline, Prompt, PromptStep, RunStep
from aish.core.errors import AishError, UsageError
from aish.core.frozen import frozen
from aish.core.phrases import backticked
from aish.engine.plan.case_rows import with_rows
from aish.engine.plan.options import RunOptions
from aish.engine.plan.order import systems_of
from aish.engine.plan.plan import Plan, load_checked, make_plan
from aish.features.recording.recorded_answer import read_answer
from aish.features.recording.session import CassetteChoice, CassetteSession
from aish.features.yaml_files import SUFFIXES, files_below, is_cassette, is_pipeline
from aish.models import smollm2
from aish.policy.explain import tool_name

_VALUE = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_SYSTEM = ("system", "developer")
_SHOWN = 80

_Literals = tuple[str, ...]


@frozen
class _Opening:
    """The first request of a conversation."""

    system: str
    user: str


@frozen
class _Wanted:
    """The constant text of a step's prompt."""

    step: str
    system: _Literals
    user: _Literals

    def fits(self, opening: _Opening) -> bool:
        """Whether this prompt may have opened the conversation."""
        return _holds(opening.system, self.system) and _holds(opening.user, self.user)


def stale_prompts(
    steps: Iterable[PromptStep], turns: Iterable[ModelTurn], places: PathPlaceholders
) -> Iterator[tuple[str, bool]]:
    """A sentence for each prompt that was not sent as it stands, and whether it is certain.

    It is not certain where every recorded conversation belongs to another prompt: the run may have
    ended before this one.
    """
    asked = [turn for turn in turns if turn.again is None and not turn.sampled]
    openings = [_opening(turn) for turn in asked if turn.follows is None]
    later = [_opening(turn) for turn in asked if turn.follows is not None]
    every = list(steps)
    wanted = [_wanted(step, places) for step in every if step.continues is None]
    strangers = any(not any(one.fits(opening) for one in wanted) for opening in openings)
    unsent = [one for one in wanted if not any(one.fits(opening) for opening in openings)]
    for one in unsent:
        if strangers:
            yield f"step `{one.step}`: {_missing(one, openings)}", True
        else:
            yield _unsent(one), False
    for one in [_wanted(step, places) for step in every if step.continues is not None]:
        # What else is asked in a conversation, such as for another form, is not told apart.
        if not any(one.fits(opening) for opening in later):
            yield _unsent(one), False


def _unsent(wanted: _Wanted) -> str:
    return f"step `{wanted.step}`: its prompt was never sent in this recording"


def _opening(turn: ModelTurn) -> _Opening:
    system = "\n\n".join(one.text for one in turn.news if one.role in _SYSTEM)
    return _Opening(system, "\n\n".join(one.text for one in turn.news if one.role == "user"))


def _wanted(step: PromptStep, places: PathPlaceholders) -> _Wanted:
    return _Wanted(
        step.id,
        tuple(chain.from_iterable(_literals(text, places) for text in systems_of(step))),
        # What a server's prompt says is not known here.
        _literals(step.prompt.user, places) if isinstance(step.prompt, Prompt) else (),
    )


def _literals(source: str, places: PathPlaceholders) -> _Literals:
    """The texts around what is put in; none where only running the template could tell."""
    if "{%" in source or "{#" in source:
        return ()
    parts = _VALUE.split(source.replace("\r\n", "\n").replace("\r", "\n"))
    if any("{{" in part or "}}" in part for part in parts):
        return ()
    # `{{-` takes the white space before it away.
    return tuple(places.hide(part.strip()) for part in parts if part.strip())


def _holds(text: str, literals: Sequence[str]) -> bool:
    """Whether the literals stand in the text, one after the other."""
    place = 0
    for literal in literals:
        place = text.find(literal, place)
        if place < 0:
            return False
        place += len(literal)
    return True


def _missing(wanted: _Wanted, openings: Sequence[_Opening]) -> str:
    sides = (
        ("system prompt", wanted.system, [one.system for one in openings]),
        ("prompt", wanted.user, [one.user for one in openings]),
    )
    for name, literals, texts in sides:
        if not any(_holds(text, literals) for text in texts):
            lines = (line.strip() for literal in literals for line in literal.split("\n"))
            gone = (line for line in lines if line and not any(line in text for text in texts))
            line = next(gone, None)
            if line is None:
                return f"no recorded request has its {name} as it stands now"
            short = line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
            return f"no recorded request has this line of its {name}: {short}"
    return "no recorded request has its system prompt and its prompt together"


@frozen
class Staleness:
    """What does not fit, and what may or may not."""

    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def staleness(pipeline: Pipeline, settings: CassetteSettings, cassette: Cassette) -> Staleness:
    """Hold a recording against the pipeline that plays it."""
    session = CassetteSession(CassetteChoice(settings.path), cassette)
    try:
        plan = make_plan(pipeline, RunOptions(lock="none"), session=session)
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
    places = PathPlaceholders(root=str(plan.pipeline.file.parent.resolve()))
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
            known = backticked(asked)
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


PARTIAL = ".partial"
"""How the names of recordings end that are not complete."""


@frozen
class Subject:
    """A cassette to be looked at, with the pipeline that plays it, if that is known."""

    settings: CassetteSettings
    pipeline: Pipeline | None = None


@frozen
class Checked:
    """What was found; `unreadable` says why there is no more to say."""

    path: Path
    exchanges: int = 0
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unreadable: AishError | None = None


def named_in(pipeline: Pipeline) -> tuple[Subject, ...]:
    """The cassettes that a pipeline and its tests name, each once.

    Raises:
        UsageError: the rows of a test cannot be read.
    """
    settings: dict[Path, CassetteSettings] = {}
    for one in (pipeline.cassette, *(case.cassette for case in with_rows(pipeline).tests)):
        if one is not None:
            known = settings.get(one.path, one)
            allow = tuple(dict.fromkeys((*known.allow, *one.allow)))
            settings[one.path] = replace(known, allow=allow)
    return tuple(Subject(one, pipeline) for one in settings.values())


def check(subject: Subject, allow: Sequence[str] = ()) -> Checked:
    """Look at one cassette."""
    path = subject.settings.path
    if path.name.endswith(PARTIAL) and path.exists():
        return Checked(path, findings=("this recording was interrupted: nothing plays it",))
    try:
        cassette = load(path)
    except AishError as error:
        return Checked(path, unreadable=error)
    stale = Staleness()
    if subject.pipeline is not None:
        stale = staleness(subject.pipeline, subject.settings, cassette)
    secrets = _secrets(cassette, (*subject.settings.allow, *allow))
    beside = partial(path)
    left = [f"`{beside.name}`: a recording of it was interrupted"] if beside.exists() else []
    return Checked(
        path,
        len(cassette.interactions),
        (
            *(f"may be a secret: {text}" for text in secrets),
            *(f"stale: {text}" for text in stale.findings),
            *_for_others(path, cassette),
            *left,
        ),
        stale.notes,
    )


def _for_others(path: Path, cassette: Cassette) -> Iterator[str]:
    """What other readers of the format would make of it (C1)."""
    from aish.cassettes.format.vcrpy import difference

    if (said := difference(path, cassette)) is not None:
        yield said


def _secrets(cassette: Cassette, allow: Sequence[str]) -> Iterator[str]:
    for finding in scan(cassette.interactions, allow):
        yield str(finding)
    for name, value in (cassette.head.env if cassette.head is not None else {}).items():
        for finding in scan_text(f"the value of `{name}`", value, allow):
            yield str(finding)
    for number, one in enumerate(cassette.interactions, 1):
        for side, headers in (("request", one.request.headers), ("response", one.response.headers)):
            for name in _bare(headers):
                yield f"interaction {number}, {side} header `{name}`: it carries credentials"


def _bare(headers: Headers) -> Iterable[str]:
    """The headers whose value should have been replaced, each once."""
    return dict.fromkeys(
        name
        for name, value in headers
        if name.lower() in SENSITIVE and value and not value.startswith("<secret:")
    )


def subjects(paths: Sequence[Path], pipeline: Pipeline | None) -> tuple[Subject, ...]:
    """The cassettes that the paths name: themselves, in a folder, or in a pipeline file; each once.

    Raises:
        PipelineError: a pipeline file cannot be read.
        UsageError: a pipeline names no cassette, or there is none in a folder.
    """
    found = list(_named(paths, pipeline))
    played = {one.settings.path.resolve() for one in found if one.pipeline is not None}
    unique: dict[tuple[Path, Path | None], Subject] = {}
    for one in found:
        place = one.settings.path.resolve()
        if one.pipeline is not None or place not in played:
            unique.setdefault((place, one.pipeline.file if one.pipeline is not None else None), one)
    return tuple(unique.values())


def _named(paths: Sequence[Path], pipeline: Pipeline | None) -> Iterator[Subject]:
    known = (
        {} if pipeline is None else {one.settings.path.resolve(): one for one in named_in(pipeline)}
    )
    for path in paths:
        if path.is_file() and is_pipeline(path):
            yield from _of_pipeline(path)
            continue
        if path.is_dir():
            yield from _of_folder(path, known, pipeline)
        else:
            yield _alone(path, known, pipeline)


def _of_folder(
    folder: Path, known: Mapping[Path, Subject], pipeline: Pipeline | None
) -> Iterator[Subject]:
    """Its cassettes, and those that its pipelines name."""
    found = False
    for path in _within(folder):
        if is_pipeline(path):
            named = named_in(load_checked(path, (), locked=False))
            yield from named
            found = found or bool(named)
        else:
            yield _alone(path, known, pipeline)
            found = True
    if not found:
        raise UsageError(
            f"there are no cassettes in `{folder}`, and no pipelines that name some",
            hint="give files, or folders of cassettes or pipelines",
        )


def _alone(path: Path, known: Mapping[Path, Subject], pipeline: Pipeline | None) -> Subject:
    same = known.get(path.resolve())
    return Subject(same.settings if same else CassetteSettings(path), pipeline)


def _of_pipeline(path: Path) -> Iterator[Subject]:
    found = named_in(load_checked(path, (), locked=False))
    if not found:
        raise UsageError(
            f"`{path}` names no cassette",
            hint="`cassette: FILE` at its top, or in one of its tests",
        )
    yield from found


def _within(folder: Path) -> Iterator[Path]:
    """The cassettes, interrupted ones too, and pipelines in a folder and below; no hidden ones."""
    for path in files_below(folder):
        whole = path.with_name(path.name.removesuffix(PARTIAL))
        if whole.suffix not in SUFFIXES:
            continue
        if whole != path and whole.exists():
            continue  # told of with the cassette beside it
        if is_cassette(path) or is_pipeline(path):
            yield path
