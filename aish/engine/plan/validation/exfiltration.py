"""Find models that may send out data that they should not have read.

Three things together are the danger, each without approval: to read files, to read text that
anybody may have written, and to send data out. Such a text may then tell the model to send the
files. What is not known of a server's tools counts as possible.

A model also reads what its prompt has from `context.files`, `attach`, a server's prompt and the
results of earlier steps, and it sends what a call step takes from its answer. Text is not followed
into and out of the steps of other pipeline files, and what a command prints is its author's.
"""

import re
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from aish.config.model import (
    CallStep,
    Pipeline,
    PromptStep,
    Retrieval,
    ServerEntry,
    ServerPrompt,
    Step,
)
from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.core.tools import Tool, ToolName
from aish.engine.plan.builtin_tools import presumed_tool
from aish.engine.plan.lock import is_wanted, lock_of, locked_tools
from aish.engine.plan.order import prompt_sources, sources
from aish.engine.plan.validation.issue import Issue, steps_with_paths, within
from aish.packs.catalogue import is_builtin, tools_of
from aish.policy.rules import Policy, Rule, is_command_tool, may_approve, split_glob
from aish.system.globs import matches_word
from aish.templates.render import references, references_of_expression

_NO_TEXT = frozenset({"status", "usage"})
"""Fields of a step that have no text of a model or tool."""
_READS_FILE = re.compile(r"\|\s*readfile\b")


@frozen
class _Ability:
    """Ability of a model to read files, to read untrusted text, or to send data out.

    `rule` is what approves it; what the file itself gives to the model has a `key` instead. `step`
    is the one whose model or call does it, where that is another one.
    """

    rule: Rule | None
    files: bool = False
    untrusted: bool = False
    sends: bool = False
    key: str = ""
    step: str = ""

    @property
    def name(self) -> str:
        return self.key if self.rule is None else self.rule.text

    @property
    def label(self) -> str:
        return f"`{self.name}`" + (f" in step `{self.step}`" if self.step else "")


def exfiltration_issues(pipeline: Pipeline, policy: Policy) -> Iterator[Issue]:
    """A warning for each step whose model may do all three, with what permits it."""
    abilities = tuple(_abilities(pipeline, policy))
    if not any(ability.sends for _, ability in abilities):
        return
    groups: set[tuple[str, ...]] = set()
    for step, path, files, untrusted, sends in _conversations(pipeline, abilities):
        if files is None or untrusted is None or sends is None:
            continue
        names = tuple(dict.fromkeys(ability.name for ability in (files, untrusted, sends)))
        if names in groups:
            continue
        groups.add(names)
        who = "a session" if step is None else f"the model of step `{step.id}`"
        by = "by" if files.rule is None else "by rule"
        yield Issue(
            path if step is not None or sends.rule is None else sends.rule.entry.path,
            f"exfiltration: without approval, {who} may read files ({by} {files.label}), read "
            f"untrusted text ({untrusted.label}) and send data out ({sends.label})",
            "narrow one of these rules or put it under `ask`; or give the step fewer `tools`",
            warning=True,
            by=("mcp**", "steps[].tools**", "tools**"),
        )


def _first(abilities: Iterable[_Ability], what: str) -> _Ability | None:
    return next((ability for ability in abilities if getattr(ability, what)), None)


_Known = tuple[Tool | None, _Ability]
"""A tool, `None` where its server would have to be asked, and what a rule approves with it."""
_Found = tuple[_Ability | None, _Ability | None, _Ability | None]
"""What lets a model read files, read untrusted text and send data out."""


def _conversations(
    pipeline: Pipeline, abilities: Sequence[_Known]
) -> Iterator[tuple[PromptStep | None, str, *_Found]]:
    """Each prompt step with the first ability of each kind that its conversation has."""
    if not pipeline.steps:
        abilities_of_files = _of_context(pipeline.context.files)
        known = (*(ability for _, ability in abilities), *abilities_of_files)
        yield None, "", _first(known, "files"), _first(known, "untrusted"), _first(known, "sends")
        return
    flows = _Flows(pipeline, abilities)
    files, untrusted, sends = flows.nearest("files"), flows.nearest("untrusted"), flows.senders()
    for path, step in steps_with_paths(pipeline):
        if isinstance(step, PromptStep):
            own = _first(flows.own(step), "sends") or sends.get(step.id)
            yield step, within(path, "prompt"), files.get(step.id), untrusted.get(step.id), own


_ALL = ""
"""Stands for all steps where a template reads whatever steps there are."""


class _Flows:
    """Flow of text from step to step of one pipeline, followed once over all steps."""

    def __init__(self, pipeline: Pipeline, abilities: Sequence[_Known]) -> None:
        self._pipeline = pipeline
        self._abilities = abilities
        self._steps = {step.id: step for step in pipeline.steps}
        self._sources = {step.id: self._source_steps(step) for step in pipeline.steps}
        self._sources[_ALL] = tuple(self._steps)
        self._known: dict[object, tuple[_Ability, ...]] = {}

    def own(self, step: Step) -> tuple[_Ability, ...]:
        """Abilities of the model of a step with its tools, or of a call step."""
        if isinstance(step, PromptStep):
            key: object = step.tools
        elif isinstance(step, CallStep):
            key = step.call
        else:
            return ()
        if key not in self._known:
            self._known[key] = tuple(
                ability
                for tool, ability in self._abilities
                if (
                    _is_shown(step, ability, tool)
                    if isinstance(step, PromptStep)
                    else _is_called(step, ability, tool)
                )
            )
        return self._known[key]

    def nearest(self, what: str) -> dict[str, _Ability]:
        """Map each step to the ability that the closest step brings into its conversation."""
        readers: dict[str, list[str]] = defaultdict(list)
        for id, named in self._sources.items():
            for source in named:
                readers[source].append(id)
        result: dict[str, _Ability] = {}
        for id, step in self._steps.items():
            prompt_abilities = self._prompt_abilities(step) if isinstance(step, PromptStep) else ()
            if (one := _first((*self.own(step), *prompt_abilities), what)) is not None:
                result[id] = one
            if isinstance(step, PromptStep) and step.continues:
                readers[step.continues].append(id)
        owners = {id: id for id in result}
        ahead = deque(result)
        while ahead:
            source = ahead.popleft()
            for id in readers[source]:
                if id in result:
                    continue
                ahead.append(id)
                here, one = self._steps.get(id), result[source]
                is_same = isinstance(here, PromptStep) and here.continues == source
                owners[id] = owners[source]
                result[id] = one if is_same or one.step else replace(one, step=owners[id])
        return result

    def senders(self) -> dict[str, _Ability]:
        """Map each step to the first call step that gets its text and sends data."""
        senders: dict[str, _Ability] = {}
        for id, step in self._steps.items():
            sends = _first(self.own(step), "sends") if isinstance(step, CallStep) else None
            if sends is None:
                continue
            sends = replace(sends, files=False, untrusted=False, step=id)
            ahead = [id]
            while ahead:
                for source in self._sources[ahead.pop()]:
                    if source not in senders:
                        senders[source] = sends
                        ahead.append(source)
        return senders

    def _prompt_abilities(self, step: PromptStep) -> Iterator[_Ability]:
        """Abilities from what the file itself puts into the prompt of a step."""
        yield from _of_context(step.context.files)
        if any(source.server is None or isinstance(source, Retrieval) for source in step.attach):
            yield _Ability(None, files=True, key="attach")
        if any(isinstance(attachment, Retrieval) for attachment in step.attach):
            # Anybody may have written one of many documents: their passages are marked.
            yield _Ability(None, untrusted=True, key="attach")
        if any(map(_READS_FILE.search, prompt_sources(step))):
            yield _Ability(None, files=True, key="readfile")
        prompt = step.prompt
        asked = [("prompt", prompt.server)] if isinstance(prompt, ServerPrompt) else []
        asked += [("attach", source.server) for source in step.attach if source.server is not None]
        for key, alias in asked:
            entry = self._pipeline.servers.get(alias)
            if entry is not None and not entry.pack and not entry.trust:
                yield _Ability(None, untrusted=True, key=key)

    def _source_steps(self, step: Step) -> Collection[str]:
        """The steps whose text is in what a step is given."""
        foreach = step.flow.foreach
        names: set[str] = set()
        try:
            for source in sources(step):
                names |= references(source)
            if foreach is not None and foreach.expression is not None:
                names |= references_of_expression(foreach.expression)
        except UsageError:
            # Reported as an error of the template itself.
            return ()
        if "steps" in names:
            return (_ALL,)
        parts = [name.split(".") for name in names if name.startswith("steps.")]
        return {
            id
            for _, id, *fields in parts
            if id in self._steps and id != step.id and not _NO_TEXT & set(fields[:1])
        }


def _of_context(files: Sequence[object]) -> Iterator[_Ability]:
    if files:
        yield _Ability(None, files=True, key="context.files")


def _is_called(step: CallStep, ability: _Ability, tool: Tool | None) -> bool:
    """Return true if a step calls a tool; if its tools are unknown, one that the rule approves."""
    server, _, name = step.call.partition("__")
    called = ToolName(server, name)
    return (
        called == tool.name
        if tool is not None
        else ability.rule is not None and ability.rule.covers(called)
    )


def _is_shown(step: PromptStep, ability: _Ability, tool: Tool | None) -> bool:
    """Return true if a step may show its model a tool; if it is unknown, one of its server."""
    rule = ability.rule
    if step.tools is None or rule is None:
        return True
    for glob in step.tools:
        server, name = split_glob(glob)
        if tool is not None:
            if matches_word(server, tool.name.server) and matches_word(name, tool.name.name):
                return True
        elif matches_word(server, rule.server) or matches_word(rule.server, server):
            return True
    return False


def _abilities(pipeline: Pipeline, policy: Policy) -> Iterator[_Known]:
    lock = lock_of(pipeline)
    locked = {} if lock is None else locked_tools(pipeline, lock)
    for alias, entry in pipeline.servers.items():
        if is_builtin(entry.pack):
            yield from _of_packs(alias, entry, pipeline, policy)
            continue
        known = [tool for name, tool in locked.items() if name.server == alias]
        for tool in known:
            for rule in _rules_that_approve(policy, tool):
                sends = not tool.only_reads
                yield tool, _Ability(rule, untrusted=not entry.trust, sends=sends)
        for rule in () if known else policy.auto_approve:
            if matches_word(rule.server, alias) and not any(
                other.unconditional
                and matches_word(other.server, alias)
                and other.tool in {"*", rule.tool}
                for other in (*policy.deny, *policy.stage, *policy.ask)
            ):
                yield None, _Ability(rule, untrusted=not entry.trust, sends=True)


def _of_packs(
    alias: str, entry: ServerEntry, pipeline: Pipeline, policy: Policy
) -> Iterator[_Known]:
    for name, marks in tools_of(entry.pack):
        tool = presumed_tool(ToolName(alias, name), pipeline)
        if tool is None or not is_wanted(entry, name):
            continue
        for rule in _rules_that_approve(policy, tool):
            if is_command_tool(tool.name):
                from aish.packs.command_options import ShellOptions

                online = (entry.options.get(marks.pack) or ShellOptions()).network
                anything = online and rule.unconditional
                yield tool, _Ability(rule, files=True, untrusted=anything, sends=online)
            else:
                yield tool, _Ability(rule, marks.reads_files, marks.reads_untrusted, marks.sends)


def _rules_that_approve(policy: Policy, tool: Tool) -> Iterator[Rule]:
    """The rules by which calls of a tool run without approval, whatever their arguments are."""
    stricter = (*policy.deny, *policy.stage, *policy.ask)
    if any(rule.unconditional and rule.covers(tool.name) for rule in stricter):
        return
    yield from (rule for rule in policy.auto_approve if may_approve(rule, tool))
