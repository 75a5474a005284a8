"""Find the calls that `mcp.exfiltration` and `mcp.flow` may hold, over all files of a run.

More is found than ever happens: each tool that no rule denies is called by each step that has it,
conditions are true, and what was written anywhere is in all that is read there, but by steps that
had ended before. What is not found is never held. Tools whose server would have to be asked for
their names stand as `alias__*`. A file without steps is a session, or a server whose client calls
all tools, and the pipelines that it serves with all that it was given. Where items run on workers,
nobody knows what else was written at any place.

Where a file lets calls that send be made, those are found that need no approval, after text that
came in without approval.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import get_args

from aish.config.model import (
    RETRIEVAL_TOOL,
    Attachment,
    CallStep,
    Flow,
    Pipeline,
    PipelineStep,
    Prompt,
    PromptStep,
    Retrieval,
    RunStep,
    ServerEntry,
    ServerPrompt,
    ServeSettings,
    Step,
    StepRetry,
)
from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.core.rules import FlowRule, FlowSettings, HeldThen
from aish.core.sources import (
    ATTACH,
    CLIENT,
    CONTEXT_FILES,
    ITEM,
    READFILE,
    STDIN,
    UNKNOWN,
    descriptions_of,
)
from aish.core.tools import Annotations, Tool, ToolName
from aish.engine.plan.builtin_tools import presumed_tool
from aish.engine.plan.flow_files import flow_file
from aish.engine.plan.lock import is_wanted, locked_tools
from aish.engine.plan.order import expressions, ids_needed, in_order, sources, texts
from aish.engine.plan.uris import is_uri
from aish.engine.plan.validation.names import SERVED
from aish.packs.catalogue import is_builtin, tools_of
from aish.policy.flow import (
    EXFILTRATION,
    LOCAL,
    SHOWN,
    FlowFile,
    FlowPolicy,
    Labels,
    is_of_commands,
    matches_source,
    read_words,
    runs_commands,
)
from aish.policy.lock import Lock
from aish.policy.rules import (
    LOCAL_COMMAND,
    SEPARATOR,
    Fit,
    Policy,
    Rule,
    is_exact,
    judge,
    may_approve,
    split_glob,
)
from aish.system.globs import matches_word
from aish.templates.render import references, references_of_expression
from aish.templates.values import is_template

_STRICTNESS = get_args(HeldThen)
_NO_TEXT = frozenset({"status", "usage"})
_ALL_STEPS = "*"
_MOST_WRITERS = 64
"""Of a place with more, all is taken to be read that is ever written there."""

_SESSION = ""
"""The step of a file without steps."""
_REPEATED = Flow(retry=StepRetry(attempts=2))

_Node = tuple[str, Path, str]
"""A set of sources: its kind, its file, and the id of its step or the name of what it is of."""
_ToolStep = PromptStep | CallStep | RunStep


Inner = Callable[[PipelineStep], tuple[Pipeline, Policy] | None]
"""The file that a step runs, and its rules."""


@frozen
class _FileOfRun:
    """A pipeline file with what decides on its calls; `above` are the files that run it."""

    pipeline: Pipeline
    policy: Policy
    lock: Lock | None
    above: frozenset[Path]


@frozen
class HeldCalls:
    """Calls of a step that may be held by a rule, and why; `tools` may have wildcards.

    `sources` are the first of those that do it. With `warn` it is made: `approved_by` has the rules
    that approve it, and what was read.
    """

    pipeline: Pipeline
    step: str
    tools: tuple[str, ...]
    rule: str
    then: HeldThen
    sources: tuple[str, ...]
    why: str
    approved_by: tuple[str, ...] = ()


@frozen
class _Sink:
    """Rules that may hold calls of a tool; `reads_private`: one call reads it and sends it."""

    exfiltration: tuple[str, HeldThen] | None
    reads_private: bool
    rules: tuple[int, ...]


def held_calls(
    pipeline: Pipeline,
    policy: Policy,
    inner: Inner,
    find_lock: Callable[[Pipeline], Lock | None],
    *,
    on_workers: bool = False,
) -> tuple[HeldCalls, ...]:
    """The calls of a run of a file that may be held, or send what was read without approval."""
    files = _files_of_run(pipeline, policy, inner, find_lock)
    found: list[HeldCalls] = []
    if any(one.pipeline.flows.holds for one in files.values()):
        flows = _Flows(files, on_workers=on_workers)
        found += (held for path in files for held in flows.held(path))
    warned = [path for path, one in files.items() if not _any_holds({path, *one.above}, files)]
    if any(files[path].pipeline.servers for path in warned):
        flows = _Flows(files, warns=True)
        found += (held for path in warned for held in flows.held(path))
    return tuple(found)


def _any_holds(paths: Iterable[Path], files: Mapping[Path, _FileOfRun]) -> bool:
    """Return true if one of these files holds calls that send."""
    asked = [files[path].pipeline.flows.exfiltration for path in paths]
    return any(one is not None and one.then != "warn" for one in asked)


def _files_of_run(
    pipeline: Pipeline, policy: Policy, inner: Inner, find_lock: Callable[[Pipeline], Lock | None]
) -> Mapping[Path, _FileOfRun]:
    if not pipeline.steps:
        session = PromptStep(_SESSION, Prompt(""), context=pipeline.context)
        # Any of them may run again, after what others have written.
        served = (
            PipelineStep(f"{SERVED} {at}", entry.file, flow=_REPEATED)
            for at, entry in enumerate(pipeline.serve.pipelines)
        )
        pipeline = replace(pipeline, steps=(session, *served))
    found = {pipeline.file.resolve(): (pipeline, policy)}
    above: defaultdict[Path, set[Path]] = defaultdict(set)
    ahead = deque(found)
    while ahead:
        path = ahead.popleft()
        callers = {path} | above[path]
        for step in found[path][0].steps:
            if not isinstance(step, PipelineStep):
                continue
            file = step.file.resolve()
            if file not in found and (read := inner(step)) is not None:
                found[file] = read
            if file in found and not callers <= above[file]:
                above[file] |= callers
                ahead.append(file)
    return {
        path: _FileOfRun(*one, find_lock(one[0]), frozenset(above[path]))
        for path, one in found.items()
    }


class _Flows:
    """Sets of sources as the bits of numbers, and how they flow from one to another.

    `warns`: only calls that a rule approves count, and none of them is held.
    """

    def __init__(
        self, files: Mapping[Path, _FileOfRun], *, warns: bool = False, on_workers: bool = False
    ) -> None:
        self._files = files
        self._warns = warns
        self._on_workers = on_workers
        self._tools = {path: dict(_known_tools(one)) for path, one in files.items()}
        facts = {path: flow_file(one.pipeline, one.lock) for path, one in files.items()}
        if warns:
            facts = {path: _certain_facts(one, files[path]) for path, one in facts.items()}
        family = tuple(facts.values())
        self._policies = {
            path: FlowPolicy(one, tuple(facts[above] for above in files[path].above), family)
            for path, one in facts.items()
        }
        self._steps = {
            path: {step.id: step for step in one.pipeline.steps} for path, one in files.items()
        }
        self._callables: dict[object, tuple[Tool, ...]] = {}
        self._bits: dict[str, int] = {}
        self._sets: defaultdict[_Node, int] = defaultdict(int)
        self._targets: defaultdict[_Node, list[tuple[_Node, tuple[str, ...]]]] = defaultdict(list)
        self._writers: defaultdict[tuple[Path, str], set[str]] = defaultdict(set)
        self._readers: defaultdict[tuple[Path, str], set[str]] = defaultdict(set)
        for path, one in files.items():
            self._add_file(path, one.pipeline)
        for path, one in files.items():
            self._add_places(path, one.pipeline)
        self._all_names = tuple(self._bits)
        self._labels = {name: self._labels_of(name, family) for name in self._bits}
        self._untrusted, self._private = map(self._with_label, ("untrusted", "private"))
        self._spread()

    # --- How sources flow -------------------------------------------------------------------

    def _add(self, node: _Node, *names: str) -> None:
        for name in names:
            self._sets[node] |= self._bits.setdefault(name, 1 << len(self._bits))

    def _flow(self, source: _Node, target: _Node, release: tuple[str, ...] = ()) -> None:
        self._targets[source].append((target, release))

    def _read_place(self, place: str, path: Path, step: Step, node: _Node) -> None:
        self._readers[path, place].add(step.id)
        if self._on_workers:
            self._add(node, UNKNOWN)
        self._flow((f"read at {place}", path, step.id), node)

    def _read(self, path: Path, names: Iterable[str], node: _Node, own: Step | None) -> None:
        """Let values with these names flow to a set; `own` is the step that reads them."""
        foreach = None if own is None else own.flow.foreach
        for name in names:
            first, id, field = (*name.split("."), "", "")[:3]
            if own is not None and foreach is not None and first == foreach.name:
                self._flow(("control", path, own.id), node)
            elif first == "stdin":
                self._add(node, STDIN)
            elif first == "inputs":
                self._flow(("inputs", path, id), node)
            elif first == "steps" and not id:
                self._flow(("steps", path, ""), node)
            elif first == "steps" and id in self._steps[path] and field not in _NO_TEXT:
                step = self._steps[path][id]
                self._flow(_output(path, step) if field == "output" else ("step", path, id), node)

    def _spread(self) -> None:
        """Let each set have what flows to it, until none grows."""
        ahead, waiting = deque(self._sets), set(self._sets)
        kept: dict[tuple[str, ...], int] = {(): -1}
        while ahead:
            node = ahead.popleft()
            waiting.discard(node)
            for target, release in self._targets[node]:
                before = self._sets[target]
                if release not in kept:
                    kept[release] = self._kept(release)
                self._sets[target] |= self._sets[node] & kept[release]
                if self._sets[target] != before and target not in waiting:
                    waiting.add(target)
                    ahead.append(target)

    def _kept(self, release: tuple[str, ...]) -> int:
        """The sources of an output that loses labels: those with another one, or with none."""
        lost = frozenset(release)
        gone = [
            bit
            for name, bit in self._bits.items()
            if (labels := self._labels[name]) and labels <= lost and not self._varies(name)
        ]
        return ~sum(gone)

    def _varies(self, name: str) -> bool:
        """Return true if sources that fit the same pattern may have different labels."""
        files = (policy.own for policy in self._policies.values())
        globs = (glob for file in files for glob in file.settings.labels)
        return not is_exact(name) and any(_may_meet(glob, name) for glob in globs)

    def _with_label(self, label: str) -> int:
        return sum(bit for name, bit in self._bits.items() if label in self._labels[name])

    def _labels_of(self, name: str, family: Iterable[FlowFile]) -> Labels:
        """The labels of a source; all that one may have for which a pattern stands."""
        if is_exact(name):
            return next(iter(self._policies.values())).labels(name)
        labels: Labels = frozenset()
        for file in family:
            given = file.settings.labels
            if not any(_covers(glob, name) for glob in given):
                labels |= replace(file, settings=FlowSettings()).labels(name) or frozenset()
            labels = labels.union(*(given[glob] for glob in given if _may_meet(glob, name)))
        return labels

    # --- What the steps of a file do ---------------------------------------------------------

    def _add_file(self, path: Path, pipeline: Pipeline) -> None:
        for name in pipeline.inputs:
            self._add(("inputs", path, name), f"inputs.{name}")
            self._flow(("inputs", path, name), ("inputs", path, ""))
        for step in pipeline.steps:
            node, words = ("step", path, step.id), ("words", path, step.id)
            control = ("control", path, step.id)
            self._flow(("begin", path, ""), control)
            self._flow(control, words)
            self._flow(words, node)
            self._flow(node, ("steps", path, ""))
            self._read(path, _names(expressions(step), references_of_expression), control, None)
            self._read(path, _names(sources(step)), words, step)
            foreach = step.flow.foreach
            names = [] if foreach is None or foreach.expression is not None else [ITEM]
            if any(READFILE in text for text in (*sources(step), *expressions(step))):
                names.append(READFILE)
            if self._on_workers and foreach is not None and self._files[path].above:
                # What a sub-pipeline is given is not told to workers.
                self._add(control, UNKNOWN)
            if names:
                self._add(control, *names)
                self._read_place(LOCAL, path, step, control)
            if isinstance(step, PipelineStep):
                self._add_inner(path, step)
            else:
                self._add_calls(path, step)
            if isinstance(step, PromptStep):
                self._add_prompt(path, step)

    def _add_calls(self, path: Path, step: _ToolStep) -> None:
        node, request = ("step", path, step.id), _request(path, step)
        tools = self._callable(path, step)
        if any(runs_commands(tool.name) for tool in tools):
            self._read_place(LOCAL, path, step, request)
        if isinstance(step, RunStep):
            self._add(node, f"steps.{step.id}")
        else:
            self._add(node, *(str(tool.name) for tool in tools))
        self._use_places(path, step, tools, request, node)

    def _use_places(
        self, path: Path, step: Step, tools: Iterable[Tool], request: _Node, result: _Node
    ) -> None:
        """Let what calls are given be at their places, and what is there be in their results."""
        facts = self._policies[path].own
        for place in {place for tool in tools for place in facts.read_places(tool)}:
            self._read_place(place, path, step, result)
        for written in {str(facts.place(tool)) for tool in tools if facts.place(tool) is not None}:
            self._writers[path, written].add(step.id)
            self._flow(request, (f"written to {written}", path, step.id))

    def _add_prompt(self, path: Path, step: PromptStep) -> None:
        node, words = ("step", path, step.id), ("words", path, step.id)
        pipeline = self._files[path].pipeline
        servers = pipeline.servers
        if step.id == _SESSION and pipeline.serve != ServeSettings() and not self._warns:
            self._add(node, CLIENT)
        if step.output is not None:
            self._flow(node, ("output", path, step.id), step.output.release)
        if step.continues is not None:
            self._flow(("step", path, step.continues), node)
        if step.context.files:
            self._add(node, CONTEXT_FILES)
        if step.attach or step.context.files:
            self._read_place(LOCAL, path, step, node)
        aliases = dict.fromkeys(tool.name.server for tool in self._callable(path, step))
        self._add(node, *map(descriptions_of, aliases))
        # They are read before what is attached is asked for.
        self._add(words, *(alias for alias in aliases if servers[alias].instructions))
        for source in step.attach:
            if isinstance(source, Attachment) and source.server is None:
                self._add(node, ATTACH)
        asked = tuple(_requests(step, pipeline))
        # What a server's prompt says is in the requests for attachments.
        result = words if isinstance(step.prompt, ServerPrompt) else node
        for tool in asked:
            is_search = tool.name.name == RETRIEVAL_TOOL
            self._add(result, str(tool.name) if is_search else tool.name.server)
        self._use_places(path, step, asked, words, result)

    def _add_inner(self, path: Path, step: PipelineStep) -> None:
        """Let sources flow into a sub-pipeline by its inputs, and back by its outputs."""
        file, control = step.file.resolve(), ("control", path, step.id)
        if file not in self._files:
            return
        pipeline, output = self._files[file].pipeline, ("output", path, step.id)
        self._flow(control, ("begin", file, ""))
        self._flow(control, output)
        self._flow(("steps", file, ""), ("step", path, step.id))
        if _SESSION in self._steps[path] and not self._warns:
            # A client gives it anything that it was given, and is given what it returns: of a run
            # that has failed nobody knows what that is.
            client = "step", path, _SESSION
            self._add(client, UNKNOWN, f"{SERVED}{SEPARATOR}*")
            self._flow(output, client)
            for name in pipeline.inputs:
                self._flow(client, ("inputs", file, name))
        for name, value in step.inputs.items():
            self._read(path, _names(texts(value)), ("inputs", file, name), step)
        if pipeline.outputs is not None:
            given = tuple(texts(pipeline.outputs))
            self._read(file, _names(given), output, None)
            if any(READFILE in text for text in given):
                self._add(output, READFILE)
                self._read_place(LOCAL, path, step, output)
                self._flow((f"written to {LOCAL}", path, step.id), output)
        elif pipeline.steps:
            last = _output(file, in_order(pipeline)[-1])
            self._flow(last if last[0] == "output" else ("steps", file, ""), output)

    def _add_places(self, path: Path, pipeline: Pipeline) -> None:
        """Let what was written at a place be read there, but not by steps that had ended before."""
        inner = {
            step.id: step
            for step in pipeline.steps
            if isinstance(step, PipelineStep) and step.file.resolve() in self._files
        }
        bits = {step.id: 1 << at for at, step in enumerate(pipeline.steps)}
        earlier = _earlier_steps(pipeline, bits)
        for place in {place for _, place in self._readers}:
            read, written = f"read at {place}", f"written to {place}"
            writers = self._writers[path, place] | inner.keys()
            for id in writers:
                self._flow((written, path, id), (written, path, _ALL_STEPS))
            for id in self._readers[path, place] | inner.keys():
                node = (read, path, id)
                self._flow((read, path, _ALL_STEPS), node)
                if len(writers) > _MOST_WRITERS:
                    self._flow((written, path, _ALL_STEPS), node)
                    continue
                for writer in writers - ({id} if id in inner and _runs_once(inner[id]) else set()):
                    if not earlier[writer] & bits[id]:
                        self._flow((written, path, writer), node)
            for id, step in inner.items():
                file = step.file.resolve()
                self._flow((read, path, id), (read, file, _ALL_STEPS))
                self._flow((written, file, _ALL_STEPS), (written, path, id))

    def _callable(self, path: Path, step: _ToolStep) -> tuple[Tool, ...]:
        """The tools that a step may call, or may call without approval."""
        key = path, _tools_key(step)
        if key not in self._callables:
            one = self._files[path]
            tools = _tools_of(step, self._tools[path], one.pipeline)
            if self._warns:
                tools = (part for tool in tools for part in _approved_tools(tool, one.policy))
            else:
                tools = (tool for tool in tools if not _is_covered(tool.name, one.policy.deny))
            self._callables[key] = tuple({tool.name: tool for tool in tools}.values())
        return self._callables[key]

    # --- Which calls are held ----------------------------------------------------------------

    def held(self, path: Path) -> Iterator[HeldCalls]:
        pipeline = self._files[path].pipeline
        rules = [
            (rule, sum(bit for name, bit in self._bits.items() if self._is_from(rule, name)))
            for rule in pipeline.flows.flow
        ]
        sinks: dict[object, _Sink] = {}
        for step in pipeline.steps:
            # The author words a command: where nothing is said of flows, it is not warned of.
            if isinstance(step, PipelineStep) or (
                self._warns and isinstance(step, RunStep) and not pipeline.flows.is_used
            ):
                continue
            asked = tuple(_requests(step, pipeline)) if isinstance(step, PromptStep) else ()
            calls = [(("words", path, step.id), tool) for tool in asked]
            calls += [(_request(path, step), tool) for tool in self._callable(path, step)]
            found: defaultdict[tuple[str, HeldThen, int], list[str]] = defaultdict(list)
            for node, tool in calls:
                key = tool.name, tool.annotations.read_only
                if key not in sinks:
                    sinks[key] = self._sink(self._policies[path], tool)
                for held in self._strictest(sinks[key], self._sets[node], rules):
                    found[held].append(str(tool.name))
            for (rule, then, causes), tools in found.items():
                names = self._first_names(causes)
                by_itself = rule.startswith(EXFILTRATION) and not causes & self._private
                labelled = [(name, self._labels[name]) for name in names]
                why = read_words(labelled, causes.bit_count(), by_itself=by_itself)
                rules_by = [
                    one.text
                    for one in (self._files[path].policy.auto_approve if then == "warn" else ())
                    if any(_may_meet(one.entry.tool, name) for name in (*tools, *names))
                ]
                by = tuple(dict.fromkeys(rules_by))
                once = tuple(dict.fromkeys(tools))
                yield HeldCalls(pipeline, step.id, once, rule, then, names, why, by)

    def _sink(self, policy: FlowPolicy, tool: Tool) -> _Sink:
        name = str(tool.name)
        rules = tuple(
            at
            for at, rule in enumerate(() if self._warns else policy.own.settings.flow)
            if policy.own.is_sink(rule, tool, lambda glob: _may_meet(glob, name))
        )
        reads_private = "private" in self._labels.get(name, policy.labels(name))
        return _Sink(_exfiltration(policy, tool, warns=self._warns), reads_private, rules)

    def _strictest(
        self, sink: _Sink, known: int, rules: Sequence[tuple[FlowRule, int]]
    ) -> Iterator[tuple[str, HeldThen, int]]:
        """The strictest rule that holds calls after text of these sources, and which it is."""
        private, untrusted = known & self._private, known & self._untrusted
        found = [(rules[at][0].path, rules[at][0].then, known & rules[at][1]) for at in sink.rules]
        if sink.exfiltration is not None and (private or sink.reads_private) and untrusted:
            found.insert(0, (*sink.exfiltration, private | untrusted))
        holding = [one for one in found if one[2]]
        if holding:
            yield max(holding, key=lambda one: _STRICTNESS.index(one[1]))

    def _is_from(self, rule: FlowRule, name: str) -> bool:
        return any(given in self._labels[name] or _may_meet(given, name) for given in rule.sources)

    def _first_names(self, known: int) -> tuple[str, ...]:
        """The first few sources, private and untrusted ones in turn."""
        found: dict[str, None] = {}
        for label in (self._private, self._untrusted, -1) * SHOWN:
            if left := known & label:
                found[self._all_names[(left & -left).bit_length() - 1]] = None
                known &= ~(left & -left)
        return tuple(found)[:SHOWN]


def _request(path: Path, step: Step) -> _Node:
    """The sources of what a step's calls are made from: not those of the results of its own."""
    return "words" if isinstance(step, CallStep | RunStep) else "step", path, step.id


def _runs_once(step: Step) -> bool:
    return step.flow.foreach is None and step.flow.retry.attempts == 1


def _earlier_steps(pipeline: Pipeline, bits: Mapping[str, int]) -> Mapping[str, int]:
    """The steps that have ended before each step begins."""
    earlier: dict[str, int] = {}
    for step in in_order(pipeline):
        earlier[step.id] = 0
        for id in ids_needed(step) & bits.keys():
            earlier[step.id] |= earlier[id] | bits[id]
    return earlier


def _output(path: Path, step: Step) -> _Node:
    """The sources of `steps.ID.output`: those of a step, or fewer."""
    has_own = isinstance(step, PipelineStep) or (
        isinstance(step, PromptStep) and step.output is not None and bool(step.output.release)
    )
    return "output" if has_own else "step", path, step.id


def _names(
    given: Iterable[str], read: Callable[[str], Iterable[str]] = references
) -> Iterator[str]:
    for text in given:
        # An invalid one is reported as an error of the template itself.
        with suppress(UsageError):
            yield from read(text)


def _exfiltration(policy: FlowPolicy, tool: Tool, *, warns: bool) -> tuple[str, HeldThen] | None:
    """The strictest `exfiltration` about calls of a tool, with its name: holds them, or `warns`."""
    found: list[tuple[str, HeldThen]] = []
    for file in (policy.own, *policy.above) if policy.own.sends(tool) else ():
        is_own, asked = file is policy.own, file.settings.exfiltration
        if asked is None and not is_own:
            continue
        then: HeldThen = "warn" if asked is None else asked.then
        if (then == "warn") is warns and not _is_excepted(file, tool):
            found.append((EXFILTRATION if is_own else f"{EXFILTRATION} of {file.name}", then))
    return max(found, key=lambda one: _STRICTNESS.index(one[1]), default=None)


def _is_excepted(file: FlowFile, tool: Tool) -> bool:
    """Return true if all calls of a tool are left out, whatever their arguments are."""
    is_known = tool.trusted or tool.annotations.destructive is not None
    return (not tool.builtin or tool.only_reads) and any(
        rule.unconditional
        and (rule.exact or is_known)
        and judge(rule, tool, {}, lambda *_: None).fit is Fit.YES
        for rule in file.excepted
    )


def _requests(step: PromptStep, pipeline: Pipeline) -> Iterator[Tool]:
    """Yield the requests for resources, prompts and passages of servers, as they are judged."""
    asked = [step.prompt.server] if isinstance(step.prompt, ServerPrompt) else []
    for source in step.attach:
        if isinstance(source, Attachment) and source.server is not None:
            asked.append(source.server)
        elif isinstance(source, Attachment) and (is_uri(source.ref) or is_template(source.ref)):
            # Which of them has it is known in the run.
            asked += pipeline.servers
    for alias in dict.fromkeys(asked):
        if alias in pipeline.servers and not pipeline.servers[alias].pack:
            tool = _unseen(ToolName(alias, "get"), trusted=pipeline.servers[alias].trust)
            yield replace(tool, annotations=Annotations(read_only=True))
    for server in dict.fromkeys(one.server for one in step.attach if isinstance(one, Retrieval)):
        name = ToolName(server, RETRIEVAL_TOOL)
        yield presumed_tool(name, pipeline) or _unseen(name)


# --- Tools that a step may call ---------------------------------------------------------------


_Known = Mapping[str, tuple[Tool, ...]]
"""The tools of each server; of one that would have to be asked, patterns of names."""


def _known_tools(one: _FileOfRun) -> Iterator[tuple[str, tuple[Tool, ...]]]:
    pipeline, lock = one.pipeline, one.lock
    locked = {} if lock is None else locked_tools(pipeline, lock)
    for alias, entry in pipeline.servers.items():
        tools = [tool for name, tool in locked.items() if name.server == alias]
        if is_builtin(entry.pack):
            names = (ToolName(alias, name) for name, _ in tools_of(entry.pack))
            wanted = (name for name in names if is_wanted(entry, name.name))
            tools = [tool for name in wanted if (tool := presumed_tool(name, pipeline)) is not None]
        elif not tools:
            names = (ToolName(alias, name) for name in entry.tools or ("*",))
            tools = [_unseen(name, trusted=entry.trust) for name in names]
        yield alias, tuple(tools)


def _unseen(name: ToolName, *, trusted: bool = False) -> Tool:
    """A tool, or a pattern of names, about which only its server could say more."""
    return Tool(name, str(name), description="", input_schema={}, trusted=trusted)


def _tools_key(step: _ToolStep) -> object:
    if isinstance(step, PromptStep):
        return "prompt", step.tools
    return step.call if isinstance(step, CallStep) else "run"


def _tools_of(step: _ToolStep, known: _Known, pipeline: Pipeline) -> Iterator[Tool]:
    """The tools that a step may call, in a file with these."""
    if isinstance(step, PromptStep):
        if step.tools is None:
            yield from (tool for tools in known.values() for tool in tools)
            return
        for glob in step.tools:
            yield from _shown_tools(glob, known, pipeline.servers)
        return
    called = LOCAL_COMMAND
    if isinstance(step, CallStep):
        server, _, name = step.call.partition(SEPARATOR)
        called = ToolName(server, name)
    found = [tool for tool in known.get(called.server, ()) if tool.name == called]
    yield from found or [presumed_tool(called, pipeline) or _unseen(called)]


def _shown_tools(glob: str, known: _Known, servers: Mapping[str, ServerEntry]) -> Iterator[Tool]:
    """The tools that a glob matches; of a pattern of names, the part that it matches."""
    server, wanted = split_glob(glob)
    for alias in (server,) if is_exact(server) else known:
        for tool in known.get(alias, ()):
            part = _part(tool, server, wanted)
            if part is not None and (
                not is_exact(part.name.name) or is_wanted(servers[alias], part.name.name)
            ):
                yield part


def _part(tool: Tool, server: str, wanted: str) -> Tool | None:
    """The tool, or of a pattern of names the part, that a glob matches."""
    alias, name = tool.name.server, tool.name.name
    met = _meet(wanted, name) if matches_word(server, alias) else None
    if met is None or met == name:
        return None if met is None else tool
    return _unseen(ToolName(alias, met), trusted=tool.trusted)


def _meet(one: str, other: str) -> str | None:
    """A pattern for the words that fit both, or more; `None` if there is none."""
    if is_exact(other):
        return other if matches_word(one, other) else None
    if is_exact(one):
        return one if matches_word(other, one) else None
    return other if one == "*" else one


def _may_meet(one: str, other: str) -> bool:
    """Return true if a glob over sources or tools matches a name that fits another."""
    if is_exact(other):
        return matches_source(one, other)
    if SEPARATOR not in one:
        return False
    (server, tool), (alias, name) = split_glob(one), split_glob(other)
    return matches_word(server, alias) and _meet(tool, name) is not None


def _covers(glob: str, pattern: str) -> bool:
    """Return true if a glob matches all names that fit a pattern, as far as can be seen here."""
    server, _, tool = glob.partition(SEPARATOR)
    alias, _, name = pattern.partition(SEPARATOR)
    return matches_word(server, alias) and tool in {"*", name}


def _is_covered(name: ToolName, rules: Iterable[Rule]) -> bool:
    """Return true if one of these rules is about all calls of a tool, or of those of a pattern."""
    return any(
        rule.unconditional
        and (rule.covers(name) if is_exact(name.name) else _covers(rule.entry.tool, str(name)))
        for rule in rules
    )


def _approved_tools(tool: Tool, policy: Policy) -> Iterator[Tool]:
    """Yield the tool if a rule approves calls of it; of a pattern of names, the parts of rules."""
    stricter = (*policy.deny, *policy.stage, *policy.ask)
    for rule in policy.auto_approve:
        part = _part(tool, rule.server, rule.tool)
        if part is not None and may_approve(rule, part) and not _is_covered(part.name, stricter):
            yield part


def _certain_facts(file: FlowFile, one: _FileOfRun) -> FlowFile:
    """The file, if it says nothing of flows, with what is private or untrusted for certain.

    What other servers could read, or say of their tools, does not count, and what a command prints
    only if a rule approves all commands.
    """
    if one.pipeline.flows.is_used:
        return file
    servers = {
        alias: facts
        if facts.packs
        else replace(facts, pinned=True, has_credential=False, reads_files=False)
        for alias, facts in file.servers.items()
    }
    given = file.settings.labels
    labels = dict(given)
    rules = [rule for rule in one.policy.auto_approve if rule.unconditional and rule.exact]
    for alias, facts in servers.items():
        names = [ToolName(alias, name) for name, _ in tools_of(facts.packs)]
        if not any(runs_commands(name) and rule.covers(name) for name in names for rule in rules):
            commands = [str(name) for name in names if is_of_commands(name.name)]
            own = (name for name in commands if not any(matches_source(g, name) for g in given))
            labels |= dict.fromkeys(own, frozenset({"private"}))
    return replace(file, servers=servers, settings=replace(file.settings, labels=labels))
