"""The rule lists under `mcp`, and `policy_tests:` (P1, P4, P7)."""

from collections.abc import Iterator
from typing import Literal, cast

from aish.config.nodes import BrokenNode, MappingNode, Node, ScalarNode, join
from aish.config.reading import Table
from aish.core.rules import PolicyTest, RuleEntry, RuleLists


def decode_rules(mcp: Table) -> RuleLists:
    """All lists; a rule of a mapping that says `false` belongs to `ask`."""
    turned = [
        entry
        for key in ("auto_approve", "ask", "deny", "stage")
        for entry in _of_mapping(mcp, key, wanted=False)
    ]
    return RuleLists(
        auto_approve=_rules(mcp, "auto_approve"),
        ask=(*_rules(mcp, "ask"), *turned),
        deny=_rules(mcp, "deny"),
        parallel=_rules(mcp, "parallel"),
        idempotent=_rules(mcp, "idempotent"),
        stage=_rules(mcp, "stage"),
    )


def _rules(mcp: Table, key: str) -> tuple[RuleEntry, ...]:
    listed = (_rule(node, path, mcp) for path, node in mcp.items(key))
    return (*(rule for rule in listed if rule is not None), *_of_mapping(mcp, key, wanted=True))


def _of_mapping(mcp: Table, key: str, *, wanted: bool) -> Iterator[RuleEntry]:
    node = mcp.raw(key)
    if isinstance(node, MappingNode):
        for glob, value in node.entries.items():
            if isinstance(value, ScalarNode) and value.value is wanted:
                yield RuleEntry(tool=glob, path=join(mcp.place(key), glob))


def _rule(node: Node, path: str, mcp: Table) -> RuleEntry | None:
    if isinstance(node, BrokenNode):
        return None
    if isinstance(node, MappingNode):
        table = Table(node, path, mcp.problems)
        if not table.has("tool"):
            return None
        return RuleEntry(
            tool=table.text("tool") or "",
            when=table.mapping("when"),
            schema=table.mapping("schema") if table.has("schema") else None,
            command=table.texts("command") if table.has("command") else None,
            path=path,
        )
    assert isinstance(node, ScalarNode)
    return RuleEntry(tool=str(node.value), path=path)


def decode_policy_tests(top: Table) -> tuple[PolicyTest, ...]:
    """The rows of `policy_tests`."""
    return tuple(
        _policy_test(Table(node, path, top.problems))
        for path, node in top.items("policy_tests")
        if isinstance(node, MappingNode)
    )


def _policy_test(table: Table) -> PolicyTest:
    return PolicyTest(
        tool=table.text("tool") or "",
        arguments=table.mapping("arguments"),
        expect=cast("Literal['auto', 'ask', 'deny', 'staged']", table.text("expect")),
        path=table.path,
    )
