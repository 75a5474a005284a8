"""Approval rules as declared; `config` reads them, `policy` decides with them."""

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.sources import Label


@frozen
class RuleEntry:
    """Entry in any list of rules under `mcp`.

    `tool` is a glob `alias__tool`. `when` maps argument names to a glob (for text) or an exact
    value; `schema` is a JSON Schema for the arguments. `command` (only with `shell__run`) is the
    argv pattern, word by word.
    """

    tool: str
    when: Mapping[str, JsonValue] = field(default_factory=dict)
    schema: JsonObject | None = None
    command: tuple[str, ...] | None = None
    path: str = ""
    """Where it stands in the file, for messages: `mcp.auto_approve[2]`."""


@frozen
class RuleLists:
    """The rules for tool calls; `deny` beats `stage` beats `ask` beats `auto_approve`."""

    auto_approve: tuple[RuleEntry, ...] = ()
    ask: tuple[RuleEntry, ...] = ()
    deny: tuple[RuleEntry, ...] = ()
    parallel: tuple[RuleEntry, ...] = ()
    idempotent: tuple[RuleEntry, ...] = ()
    stage: tuple[RuleEntry, ...] = ()

    @property
    def all(self) -> tuple[RuleEntry, ...]:
        deciding = self.deny + self.stage + self.ask + self.auto_approve
        return deciding + self.parallel + self.idempotent


HeldThen = Literal["warn", "ask", "stage", "deny"]
"""What becomes of a call that follows certain text, the mildest first."""


@frozen
class Exfiltration:
    """`mcp.exfiltration`: `then` for calls that send data; `excepted` rules leave calls out."""

    then: HeldThen
    excepted: tuple[RuleEntry, ...] = ()


@frozen
class FlowRule:
    """An entry of `mcp.flow`: a call of one of `sinks` (`to`) is held after text of `sources`.

    Sources are labels, names and globs over them; sinks `sends`, `changes` and globs over tools.
    """

    sources: tuple[str, ...]
    sinks: tuple[str, ...]
    then: HeldThen
    path: str = ""


@frozen
class FlowSettings:
    """The keys of a file about flows; `labels` are those of sources or globs over them."""

    exfiltration: Exfiltration | None = None
    flow: tuple[FlowRule, ...] = ()
    labels: Mapping[str, frozenset[Label]] = field(default_factory=dict)

    @property
    def is_used(self) -> bool:
        """True if sources are to be followed; labels alone ask for nothing."""
        return self.exfiltration is not None or bool(self.flow)

    @property
    def holds(self) -> bool:
        """True if calls may be held, and not only reported."""
        asked = self.exfiltration
        return bool(self.flow) or (asked is not None and asked.then != "warn")


@frozen
class PolicyTest:
    """Row of `policy_tests`: this call gets this verdict, after text of the sources `read`."""

    tool: str
    arguments: JsonObject
    expect: Literal["auto", "ask", "deny", "staged"]
    path: str = ""
    read: tuple[str, ...] = ()
