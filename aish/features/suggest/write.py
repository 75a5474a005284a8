"""Inserts suggested rules into a pipeline file: everything else is kept byte by byte.

Nothing is written unless the new file is valid and differs only by the rules.
"""

import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from aish.config.documents import parse_mapping
from aish.config.inserting import with_items
from aish.config.model import Pipeline
from aish.config.yaml_tree import MappingNode, to_data
from aish.core.errors import PipelineError, UsageError
from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.core.rules import RuleEntry
from aish.core.tools import Tool
from aish.engine.plan.builtin_tools import presumed_tool
from aish.engine.plan.plan import load_checked
from aish.engine.plan.validation.validate import policy_check
from aish.policy.decide import Ruling, decide, tool_name
from aish.policy.rule_yaml import rule_data, rule_flow, rules_yaml
from aish.policy.rules import compile_policy
from aish.policy.suggest import LeftOut, Made, Suggestion
from aish.system.files import read_capped

_LIMIT = 4 * 1024 * 1024
_PLACE = ("mcp", "auto_approve")
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PRIVATE = 0o600


@frozen
class MissingRules:
    """The rules that a file needs beside its own; `left_out` are calls that it forbids itself."""

    rules: tuple[RuleEntry, ...]
    left_out: tuple[LeftOut, ...]


def missing_rules(pipeline: Pipeline, suggestion: Suggestion) -> MissingRules:
    """The suggested rules that the rules of `pipeline` do not cover yet."""
    policy = compile_policy(pipeline.rules)
    rules: list[RuleEntry] = []
    left_out: list[LeftOut] = []
    for row in suggestion.given:
        rulings: list[tuple[Made, Ruling]] = []
        for call in row.calls:
            tool = presumed_tool(call.tool, pipeline) or Tool(call.tool, str(call.tool), "", {})
            rulings.append((call, decide(policy, tool, call.arguments)))
        contrary = [(call, ruling) for call, ruling in rulings if ruling.verdict != "auto"]
        if not contrary:
            continue
        # A contrary rule of the file overrides any added one.
        against = [LeftOut(call, ruling.reason) for call, ruling in contrary if ruling.rule]
        left_out += against
        if len(against) < len(rulings):
            rules.append(row.rule)
    return MissingRules(tuple(rules), tuple(left_out))


def write_rules(path: Path, rules: Sequence[RuleEntry], pipeline: Pipeline) -> None:
    """Append rules to the file's own `mcp.auto_approve`; the file is replaced atomically.

    Raises:
        UsageError: it is a link, or laid out so that they cannot be put in.
        PipelineError: it would not be valid with them.
    """
    status = _status(path)
    before = read_capped(path, _LIMIT)
    after = _with_rules(before, path, rules, pipeline)
    beside = path.with_name(f".{path.name[:100]}.{os.urandom(8).hex()}")
    try:
        _write_new(beside, after, stat.S_IMODE(status.st_mode))
        _check(beside, path)
        if read_capped(path, _LIMIT) != before:
            raise UsageError("was changed meanwhile", where=str(path), hint="try again")
        beside.replace(path)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(path)) from error
    finally:
        beside.unlink(missing_ok=True)


def _status(path: Path) -> os.stat_result:
    if path.is_symlink():
        message = f"`{path}` is a link, and links are not followed here"
        raise UsageError(message, hint="name the file")
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise UsageError("is not a regular file", where=str(path))
    return status


def _with_rules(before: bytes, path: Path, rules: Sequence[RuleEntry], pipeline: Pipeline) -> bytes:
    text = before.decode("utf-8")
    mark = text[:1] if text.startswith("\ufeff") else ""
    root, problems = parse_mapping(text, str(path))
    if root is None:
        raise PipelineError(tuple(problems))
    own = _own_list(root)
    if own is None and pipeline.rules.auto_approve and "extends" in root.entries:
        raise UsageError(
            "`mcp.auto_approve` is a list of a file that this one extends, and a list here would "
            "replace it",
            where=str(path),
            hint="write to the file that has the list, or copy it into this one first",
        )
    block = rules_yaml(rules).splitlines()
    try:
        after = mark + with_items(
            text[len(mark) :], _PLACE, block, [rule_flow(rule) for rule in rules]
        )
    except UsageError as error:
        raise UsageError(error.message, where=str(path), hint=error.hint) from None
    missing = _with_list(to_data(root), [*(own or ()), *map(rule_data, rules)])
    node, problems = parse_mapping(after, str(path))
    if problems or node is None or to_data(node) != missing:
        message = "has a layout into which rules cannot be inserted without other changes"
        raise UsageError(message, where=str(path), hint="add them by hand")
    return after.encode("utf-8")


def _own_list(root: MappingNode) -> Sequence[JsonValue] | None:
    data = to_data(root)
    mcp = data.get(_PLACE[0]) if isinstance(data, dict) else None
    rules = mcp.get(_PLACE[1]) if isinstance(mcp, dict) else None
    return rules if isinstance(rules, list) else None


def _with_list(data: JsonValue, rules: list[JsonValue]) -> JsonValue:
    """The expected content of the file with these rules."""
    assert isinstance(data, dict)
    mcp = data.get(_PLACE[0])
    return {**data, _PLACE[0]: {**(mcp if isinstance(mcp, dict) else {}), _PLACE[1]: rules}}


def _write_new(beside: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(beside, _NEW, _PRIVATE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)


def _check(beside: Path, path: Path) -> None:
    """Check that the new file is valid; errors refer to the new content."""
    try:
        pipeline = load_checked(beside, (), locked=False)
        _check_tests(pipeline)
    except PipelineError as error:
        problems = []
        for problem in error.problems:
            at = problem.position
            if at.file == str(beside):
                at = replace(at, file=str(path))
            problems.append(replace(problem, position=at))
        raise PipelineError(tuple(problems)) from None


def _check_tests(pipeline: Pipeline) -> None:
    """Check that its `policy_tests` pass, as `aish validate` does."""
    tests = pipeline.policy_tests
    known = (presumed_tool(tool_name(test.tool), pipeline) for test in tests)
    if failed := policy_check(pipeline, None, filter(None, known)):
        raise PipelineError(failed)
