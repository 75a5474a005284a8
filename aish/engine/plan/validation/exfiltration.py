"""Whether a model may send data out that it should not have read (K20).

Three things together are the danger, each without approval: to read files, to read text that
anybody may have written, and to send data out. Such a text may then tell the model to send the
files. What is not known of a server's tools counts as possible.
"""

from collections.abc import Iterator, Sequence

from aish.config.model import Pipeline, PromptStep, ServerEntry
from aish.core.frozen import frozen
from aish.core.tools import Tool, ToolName
from aish.engine.plan.builtin_tools import presumed_tool
from aish.engine.plan.lock import is_wanted, lock_of, locked_tools
from aish.engine.plan.validation.issue import Issue, step_path, within
from aish.packs.catalogue import tools_of
from aish.policy.rules import Policy, Rule, is_command_tool, may_approve, split_glob
from aish.system.globs import matches_word

_READERS = frozenset({"fs", "git", "py", "c"})
"""Packs whose read-only tools return what is in files."""
_COMMANDS = frozenset({"shell_run", "process_start"})
_FETCHING = "web_fetch"
"""Only reads, but the address can carry anything to anybody."""


@frozen
class _Ability:
    """What a model may do by a rule: read files, read untrusted text, send data out."""

    rule: Rule
    files: bool = False
    untrusted: bool = False
    sends: bool = False


def exfiltration_issues(pipeline: Pipeline, policy: Policy) -> Iterator[Issue]:
    """A warning for each step whose model may do all three, with the rules that approve it."""
    abilities = tuple(_abilities(pipeline, policy))
    if not (
        any(one.files for _, one in abilities)
        and any(one.untrusted for _, one in abilities)
        and any(one.sends for _, one in abilities)
    ):
        return
    told: set[tuple[str, ...]] = set()
    for step, path, own, before in _conversations(pipeline, abilities):
        known = (*own, *before)
        files = _first(known, "files")
        untrusted = _first(known, "untrusted")
        sends = _first(own, "sends")
        if files is None or untrusted is None or sends is None:
            continue
        rules = tuple(dict.fromkeys(rule.text for rule in (files, untrusted, sends)))
        if rules in told:
            continue
        told.add(rules)
        who = "a session" if step is None else f"the model of step `{step.id}`"
        yield Issue(
            path if step is not None else sends.entry.path,
            f"exfiltration: without approval, {who} may read files (by rule `{files.text}`), read "
            f"untrusted text (`{untrusted.text}`) and send data out (`{sends.text}`)",
            "narrow one of these rules or put it under `ask`; or give the step fewer `tools`",
            warning=True,
            by=("mcp**", "steps[].tools**", "tools**"),
        )


def _first(abilities: Sequence[_Ability], what: str) -> Rule | None:
    return next((one.rule for one in abilities if getattr(one, what)), None)


_Known = tuple[Tool | None, _Ability]
"""A tool, `None` where its server would have to be asked, and what a rule approves with it."""


def _conversations(
    pipeline: Pipeline, abilities: Sequence[_Known]
) -> Iterator[tuple[PromptStep | None, str, tuple[_Ability, ...], tuple[_Ability, ...]]]:
    """Each prompt step with the abilities of its model, now and earlier in its conversation."""
    if not pipeline.steps:
        yield None, "", tuple(one for _, one in abilities), ()
        return
    prompts = {step.id: step for step in pipeline.steps if isinstance(step, PromptStep)}
    own = {id: tuple(_of_step(step, abilities)) for id, step in prompts.items()}
    for index, step in enumerate(pipeline.steps):
        if isinstance(step, PromptStep):
            before: tuple[_Ability, ...] = ()
            earlier = step.continues
            # Never longer, even if the steps continue each other in a circle, which is an error.
            for _ in prompts:
                if earlier is None or earlier not in prompts:
                    break
                before += own[earlier]
                earlier = prompts[earlier].continues
            path = within(step_path(index, listed="steps" in pipeline.data), "prompt")
            yield step, path, own[step.id], before


def _of_step(step: PromptStep, abilities: Sequence[_Known]) -> Iterator[_Ability]:
    """What the model of a step may do."""
    return (one for tool, one in abilities if _is_shown(step, one.rule, tool))


def _is_shown(step: PromptStep, rule: Rule, tool: Tool | None) -> bool:
    """Whether a step may show its model a tool; where it is not known, one of its server."""
    if step.tools is None:
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
        if entry.pack:
            yield from _of_packs(alias, entry, pipeline, policy)
            continue
        known = [tool for name, tool in locked.items() if name.server == alias]
        for tool in known:
            for rule in _approving(policy, tool):
                sends = not tool.only_reads
                yield tool, _Ability(rule, untrusted=not entry.trust, sends=sends)
        for rule in () if known else policy.auto_approve:
            if matches_word(rule.server, alias) and not _is_overruled(rule, alias, policy):
                yield None, _Ability(rule, untrusted=not entry.trust, sends=True)


def _of_packs(
    alias: str, entry: ServerEntry, pipeline: Pipeline, policy: Policy
) -> Iterator[_Known]:
    for name, marks in tools_of(entry.pack):
        tool = presumed_tool(ToolName(alias, name), pipeline)
        if tool is None or not is_wanted(entry, name):
            continue
        for rule in _approving(policy, tool):
            if name in _COMMANDS:
                online = entry.options.shell if marks.pack == "shell" else entry.options.proc
                anything = online.network and rule.unconditional
                yield (
                    tool,
                    _Ability(rule, files=True, untrusted=anything, sends=online.network),
                )
            elif not is_command_tool(tool.name) and marks.pack != "proc":
                yield (
                    tool,
                    _Ability(
                        rule,
                        files=marks.pack in _READERS and marks.read_only,
                        untrusted=marks.open_world and marks.read_only,
                        sends=marks.open_world and (not marks.read_only or name == _FETCHING),
                    ),
                )


def _approving(policy: Policy, tool: Tool) -> Iterator[Rule]:
    """The rules by which calls of a tool run without approval, whatever their arguments are."""
    stricter = (*policy.deny, *policy.stage, *policy.ask)
    if any(rule.unconditional and rule.covers(tool.name) for rule in stricter):
        return
    yield from (rule for rule in policy.auto_approve if may_approve(rule, tool))


def _is_overruled(rule: Rule, alias: str, policy: Policy) -> bool:
    """Whether stricter rules cover all that a rule approves of a server with unknown tools."""
    return any(
        one.unconditional and matches_word(one.server, alias) and one.tool in {"*", rule.tool}
        for one in (*policy.deny, *policy.stage, *policy.ask)
    )
