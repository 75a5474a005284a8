"""Rules as declared, made ready to decide with (P1). `decide` says what follows from them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from aish.core.errors import UsageError
from aish.core.events import RuleInfo
from aish.core.frozen import frozen
from aish.core.rules import RuleEntry, RuleLists
from aish.core.tools import Tool, ToolName
from aish.policy.globs import is_exact, split_glob
from aish.system.globs import matches_word

ListName = Literal["auto_approve", "ask", "deny", "parallel", "idempotent", "stage"]

THIS_SESSION = "this session"
"""Where a rule stands that a person made while working (P2)."""

LOCAL_COMMAND = ToolName("shell", "run")
"""What `run` steps are approved as (F2); known in every pipeline."""


@frozen
class Rule:
    """One rule, its glob already split; `text` is how it is shown and recorded.

    `given_for` is the tool that a person said "always" to: of one that is not the same any more
    the rule says nothing (P6).
    """

    list: ListName
    entry: RuleEntry
    server: str
    tool: str
    text: str
    given_for: Tool | None = None

    @property
    def exact(self) -> bool:
        """Whether it names one tool, without a wildcard (P5)."""
        return is_exact(self.entry.tool)

    @property
    def name(self) -> str:
        """How decisions name it: its text, and whether it is of this session only."""
        return f"{self.text} ({THIS_SESSION})" if self.entry.path == THIS_SESSION else self.text

    @property
    def unconditional(self) -> bool:
        """Whether the arguments do not matter."""
        entry = self.entry
        return not entry.when and entry.schema is None and entry.command is None

    def covers(self, name: ToolName) -> bool:
        """Whether the glob matches this tool; the conditions are another matter."""
        return matches_word(self.server, name.server) and matches_word(self.tool, name.name)


@frozen
class Policy:
    """All rules of a run. `deny` beats `stage` beats `ask` beats `auto_approve`."""

    auto_approve: tuple[Rule, ...] = ()
    ask: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()
    parallel: tuple[Rule, ...] = ()
    idempotent: tuple[Rule, ...] = ()
    stage: tuple[Rule, ...] = ()

    def is_parallel(self, tool: Tool) -> bool:
        """Whether calls of it may run beside others (L16): our rule, or a pack's own mark."""
        return tool.parallel or _any_covers(self.parallel, tool.name)

    def is_idempotent(self, tool: Tool) -> bool:
        """Whether a call of it may be sent again (L8)."""
        return _any_covers(self.idempotent, tool.name)

    def deciding(self) -> tuple[Rule, ...]:
        """The rules that decide, the strictest list first."""
        return self.deny + self.stage + self.ask + self.auto_approve

    def infos(self) -> tuple[RuleInfo, ...]:
        """Every rule as the plan and `run.started` show it."""
        return tuple(RuleInfo(list=rule.list, rule=rule.text) for rule in self.all())

    def with_rule(self, rule: Rule) -> "Policy":
        """The same and one more rule, which decides."""
        if rule.list == "deny":
            return replace(self, deny=(*self.deny, rule))
        assert rule.list == "auto_approve", "only these are added to a session"
        return replace(self, auto_approve=(*self.auto_approve, rule))

    def without_approved(self, server: str) -> "Policy":
        """The same without what a person has approved of that server, and of no other."""
        kept = (rule for rule in self.auto_approve if not _is_approved_here(rule, server))
        return replace(self, auto_approve=tuple(kept))

    def all(self) -> tuple[Rule, ...]:
        """Every rule, those that decide first."""
        return self.deciding() + self.parallel + self.idempotent


def compile_policy(
    rules: RuleLists, *, allow: Sequence[str] = (), deny: Sequence[str] = ()
) -> Policy:
    """The file's rules with those of the command line (`--allow`, `--deny`).

    A glob without `__` is a `UsageError`.
    """
    allowed = tuple(RuleEntry(tool=glob, path="--allow") for glob in allow)
    denied = tuple(RuleEntry(tool=glob, path="--deny") for glob in deny)
    return Policy(
        auto_approve=_compile("auto_approve", rules.auto_approve + allowed),
        ask=_compile("ask", rules.ask),
        deny=_compile("deny", rules.deny + denied),
        parallel=_compile("parallel", rules.parallel),
        idempotent=_compile("idempotent", rules.idempotent),
        stage=_compile("stage", rules.stage),
    )


def matches_tool(glob: str, name: ToolName) -> bool:
    """Whether a glob `alias__tool` matches, server and tool separately and whole (P1).

    A glob without `__` is a `UsageError`.
    """
    server, tool = split_glob(glob)
    return matches_word(server, name.server) and matches_word(tool, name.name)


def unmatched_rules(policy: Policy, tools: Sequence[Tool]) -> tuple[RuleEntry, ...]:
    """The rules that match no known tool: a warning in `plan`, an error with `--strict`."""
    known = [LOCAL_COMMAND, *(tool.name for tool in tools)]
    return tuple(
        rule.entry for rule in policy.all() if not any(rule.covers(name) for name in known)
    )


def rule_text(entry: RuleEntry) -> str:
    """A rule in one line: its glob, and its conditions as JSON."""
    parts = [entry.tool]
    if entry.when:
        parts.append("when " + _compact(entry.when))
    if entry.schema is not None:
        parts.append("schema " + _compact(entry.schema))
    if entry.command is not None:
        parts.append("command " + _compact(entry.command))
    return " ".join(parts)


def rule_of(name: ListName, entry: RuleEntry) -> Rule:
    """One rule, made ready.

    Raises:
        UsageError: its glob has no `__`, or its command no words.
    """
    try:
        server, tool = split_glob(entry.tool)
    except UsageError as error:
        raise UsageError(error.message, where=entry.path or None, hint=error.hint) from None
    if entry.command is not None and not entry.command:
        raise UsageError("`command` has no words", where=entry.path or None)
    return Rule(list=name, entry=entry, server=server, tool=tool, text=rule_text(entry))


def _compile(name: ListName, entries: tuple[RuleEntry, ...]) -> tuple[Rule, ...]:
    return tuple(rule_of(name, entry) for entry in entries)


def _is_approved_here(rule: Rule, server: str) -> bool:
    return rule.entry.path == THIS_SESSION and rule.server == server


def _any_covers(rules: tuple[Rule, ...], name: ToolName) -> bool:
    # These lists are asked before there are arguments: a rule with a condition says nothing yet.
    return any(rule.unconditional and rule.covers(name) for rule in rules)


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "), default=str)
