"""The narrowest rules: they approve what was made, nothing that was denied, and nothing near it."""

import string
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import each_case

from aish.config.documents import parse_mapping
from aish.config.yaml_tree import to_data
from aish.core.json import JsonObject, JsonValue
from aish.core.rules import RuleEntry, RuleLists
from aish.core.text import for_ci_log
from aish.core.tools import Tool, ToolName
from aish.policy.decide import decide, rule_obstacle
from aish.policy.rule_yaml import rule_data, rule_flow, rules_yaml
from aish.policy.rules import compile_policy, is_command_tool, same_json
from aish.policy.suggest import DENIED, Made, stand_in, suggest, suggestion

READ = ToolName("repo", "file_read")
SHELL = ToolName("shell", "run")
PACKED = ToolName("box", "shell_run")


def made(tool: ToolName, *arguments: JsonObject) -> list[Made]:
    return [Made(tool, one) for one in arguments]


def reads(*paths: JsonValue) -> list[Made]:
    return made(READ, *({"path": path} for path in paths))


def lines(calls: Sequence[Made], denied: Sequence[Made] = ()) -> list[str]:
    return [rule_flow(rule) for rule in suggest(calls, denied)]


def approved(rules: Sequence[RuleEntry], call: Made) -> bool:
    policy = compile_policy(RuleLists(auto_approve=tuple(rules)))
    return decide(policy, stand_in(call.tool), call.arguments).verdict == "auto"


def reasons(calls: Sequence[Made], denied: Sequence[Made] = ()) -> list[str]:
    return [one.why for one in suggestion(calls, denied).left_out]


# --- One call, exactly -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({}, "{tool: repo__file_read, schema: {maxProperties: 0}}"),
        ({"path": "a.md"}, "when: {path: a.md}, schema: {maxProperties: 1}}"),
        ({"m": None, "b": [1, {"c": "*"}]}, "when: {m: null, b: [1, {c: "),
        ({"no": "yes", "a b": ""}, 'when: {"no": "yes", "a b": ""}, schema: {maxProperties: 2}}'),
        (
            {"glob": "**/*.py"},
            'schema: {required: [glob], properties: {glob: {const: "**/*.py"}}, maxProperties: 1}}',
        ),
    ],
)
def test_a_call_made_once_is_spelled_out(arguments: JsonObject, rule: str) -> None:
    (found,) = lines(made(READ, arguments))
    assert rule in found


def test_the_same_call_made_twice_has_one_rule() -> None:
    assert len(suggest(reads("a.md", "b/c", "a.md"))) == 2


@pytest.mark.parametrize(
    "mutated",
    [
        {"path": "docs/a.md", "more": 1},
        {"path": "docs/A.md"},
        {"path": "docs/../docs/a.md"},
        {"path": ["docs/a.md"]},
        {"path": "docs/a.md", "new_path": "docs/a.md"},
        {},
    ],
)
def test_a_call_like_it_is_not_approved(mutated: JsonObject) -> None:
    rules = suggest(reads("docs/a.md"))
    assert approved(rules, Made(READ, {"path": "docs/a.md"}))
    assert not approved(rules, Made(READ, mutated))
    assert not approved(rules, Made(ToolName("repo", "file_readx"), {"path": "docs/a.md"}))


def test_a_text_that_looks_like_a_glob_approves_itself_only() -> None:
    moved = {"path": "a.md", "new_path": "b*.md"}
    for arguments in ({"path": "*.md"}, {"path": "a?"}, moved):
        rules = suggest(made(READ, arguments))
        assert approved(rules, Made(READ, arguments))
        longer = {name: f"{value}".replace("*", "x") for name, value in arguments.items()}
        assert not approved(rules, Made(READ, {**longer, "path": "ab.md"}))
        if longer != arguments:
            assert not approved(rules, Made(READ, longer))


# --- Arguments that varied -------------------------------------------------------------------


@each_case(
    "values, globs",
    [
        (["docs/a.md", "docs/b.md"], ["docs/*.md"]),
        (["docs/chapter1.md", "docs/chapter22.md"], ["docs/chapter*.md"]),
        (["a1.md", "a2.md"], ["a*.md"]),
        (["Europe/Paris", "Europe/Rome"], ["Europe/*"]),
        (["issue-7", "issue-12"], ["issue-*"]),
        (["2026-01-01", "2026-02-01"], ["2026-*-01"]),
        (["https://a.org/x/1", "https://a.org/x/2"], ["https://a.org/x/*"]),
        # Another folder, another ending: a rule of its own.
        (["docs/a.md", "docs/b.md", "src/a.py"], ["docs/*.md", "src/a.py"]),
        (["docs/a.md", "docs/deep/b.md"], ["docs/a.md", "docs/deep/b.md"]),
        (["docs/a.md", "docs/b.py"], ["docs/a.md", "docs/b.py"]),
        # Too little in common, or no name at all.
        (["paris", "pisa"], ["paris", "pisa"]),
        (["a.com", "b.com"], ["a.com", "b.com"]),
        (["ann@a.org", "bob@a.org"], ["ann@a.org", "bob@a.org"]),
        (["find the dog", "find the cat"], ["find the dog", "find the cat"]),
        (["https://a.org", "https://b.org"], ["https://a.org", "https://b.org"]),
        (["/etc/a", "/etc/b"], ["/etc/a", "/etc/b"]),
        (["x/../a", "x/../b"], ["x/../a", "x/../b"]),
        ([1, 2, True], [1, 2, True]),
    ],
)
def test_an_argument_that_varied_gets_a_glob_where_its_values_are_alike(
    values: list[JsonValue], globs: list[JsonValue]
) -> None:
    assert [rule.when["path"] for rule in suggest(reads(*values))] == globs


def test_what_did_not_vary_stays_exact_beside_a_glob() -> None:
    both: list[JsonObject] = [{"path": f"docs/{n}.md", "lines": 9} for n in "ab"]
    calls = made(READ, *both)
    (rule,) = suggest(calls)
    assert rule.when == {"path": "docs/*.md", "lines": 9}
    assert not approved([rule], Made(READ, {"path": "docs/c.md", "lines": 8}))
    assert not approved([rule], Made(READ, {"path": "docs/c.md"}))
    assert not approved([rule], Made(READ, {"path": "docs/c.md", "lines": 9, "x": 1}))


def test_an_argument_that_was_absent_at_times_has_two_rules() -> None:
    rules = suggest(made(READ, {"path": "a.md"}, {"path": "b.md", "lines": 3}))
    assert [dict(rule.when) for rule in rules] == [{"path": "a.md"}, {"path": "b.md", "lines": 3}]


def test_values_that_belong_together_are_not_mixed() -> None:
    write = [{"path": "docs/a.md", "content": "one text"}, {"path": "docs/b.md", "content": "two"}]
    rules = suggest(made(READ, *write))
    assert len(rules) == 2
    assert not approved(rules, Made(READ, {"path": "docs/a.md", "content": "two"}))


def test_a_literal_glob_beside_names_that_vary_stays_literal() -> None:
    calls = made(READ, *({"path": f"docs/{n}.md", "like": "x*"} for n in "ab"))
    (rule,) = suggest(calls)
    assert rule.when == {"path": "docs/*.md"}
    assert approved([rule], Made(READ, {"path": "docs/q.md", "like": "x*"}))
    assert not approved([rule], Made(READ, {"path": "docs/q.md", "like": "xy"}))


# --- Denied ----------------------------------------------------------------------------------


def test_a_glob_that_has_what_was_denied_is_not_given() -> None:
    calls, denied = reads("docs/a.md", "docs/b.md"), reads("docs/secret.md")
    assert [rule.when["path"] for rule in suggest(calls, denied)] == ["docs/a.md", "docs/b.md"]
    assert [rule.when["path"] for rule in suggest(calls, reads("src/x.md"))] == ["docs/*.md"]


def test_a_call_that_was_made_and_denied_is_left_out_and_said() -> None:
    calls = reads("docs/a.md", "docs/b.md")
    found = suggestion(calls, reads("docs/a.md"))
    assert [rule.when["path"] for rule in found.rules] == ["docs/b.md"]
    assert [(one.call, one.why) for one in found.left_out] == [(calls[0], DENIED)]


def test_a_denied_call_that_is_partly_masked_may_be_anything() -> None:
    calls = reads("docs/a.md", "docs/b.md")
    assert len(suggest(calls, reads("<secret:NAME>"))) == 2
    assert len(suggest(calls, [Made(READ, {}, unknown="who knows")])) == 2


def test_a_command_denied_in_another_spelling_is_not_approved() -> None:
    denied = Made(SHELL, {"command": "git log"})
    (rule,) = suggest(made(SHELL, {"argv": ["git", "log"]}), [denied])
    assert rule.when == {"argv": ["git", "log"]}
    assert not approved([rule], denied)


# --- Left out --------------------------------------------------------------------------------


@each_case(
    "call, why",
    [
        (Made(READ, {"key": "Bearer <secret:API_KEY>"}), "its arguments contained a secret"),
        (Made(READ, {"a": [{"<secret:X>": 1}]}), "its arguments contained a secret"),
        (Made(READ, {"path": "x" * 5000}), "longer than 4,096 characters"),
        (Made(READ, {"n": 10**400}), "more than 300 digits"),
        (Made(READ, {"x" * 600: 1}), "the name of an argument"),
        (Made(READ, {"half": "\ud800"}), "half of a surrogate"),
        (Made(READ, {"path": "<root>/x"}, unknown="a folder"), "a folder"),
        (Made(ToolName("s", "get*"), {}), "cannot name this tool alone"),
        (Made(ToolName("", "x"), {}), "cannot name this tool alone"),
        (Made(SHELL, {}), "no rule approves exactly this call"),
    ],
)
def test_what_no_rule_can_say_is_left_out_with_the_reason(call: Made, why: str) -> None:
    found = suggestion([call, *reads("a.md")])
    assert [one.call for one in found.left_out] == [call]
    assert why in found.left_out[0].why
    assert len(found.rules) == 1


def test_arguments_nested_without_end_are_left_out() -> None:
    deep: JsonValue = 1
    for _ in range(100):
        deep = [deep]
    assert reasons(made(READ, {"a": deep})) == ["its arguments are nested too deeply"]


# --- Commands --------------------------------------------------------------------------------


@each_case(
    "arguments, rule",
    [
        (
            [{"argv": ["git", "log"]}],
            ["{tool: shell__run, when: {argv: [git, log]}, schema: {maxProperties: 1}}"],
        ),
        (
            [{"command": "git log"}],
            ['{tool: shell__run, when: {command: "git log"}, schema: {maxProperties: 1}}'],
        ),
        (
            [{"argv": ["git", "show", "v1"]}, {"argv": ["git", "show", "v22"]}],
            ["{tool: shell__run, command: [git, show, v*]}"],
        ),
        (
            [{"argv": ["cat", "docs/a.md"]}, {"argv": ["cat", "docs/b.md"]}],
            ["{tool: shell__run, command: [cat, docs/*.md]}"],
        ),
        (
            [{"argv": ["echo", "*"]}],
            ['{tool: shell__run, when: {argv: [echo, "*"]}, schema: {maxProperties: 1}}'],
        ),
        (
            [{"argv": ["sh", "-c", "ls | wc"]}],
            ['{tool: shell__run, when: {argv: [sh, -c, "ls | wc"]}, schema: {maxProperties: 1}}'],
        ),
        (
            [{"command": "ls | wc"}],
            ['{tool: shell__run, when: {command: "ls | wc"}, schema: {maxProperties: 1}}'],
        ),
        # A program does not vary.
        (
            [{"argv": ["bin/a.sh"]}, {"argv": ["bin/b.sh"]}],
            [
                "{tool: shell__run, when: {argv: [bin/a.sh]}, schema: {maxProperties: 1}}",
                "{tool: shell__run, when: {argv: [bin/b.sh]}, schema: {maxProperties: 1}}",
            ],
        ),
    ],
)
def test_commands_are_given_word_by_word(arguments: list[JsonObject], rule: list[str]) -> None:
    assert lines(made(SHELL, *arguments)) == rule


def test_the_command_of_a_pack_has_no_further_arguments() -> None:
    (rule,) = suggest(made(PACKED, {"command": "make test", "timeout_seconds": 5}))
    assert rule.when == {"command": "make test", "timeout_seconds": 5}
    assert not approved([rule], Made(PACKED, {"command": "make test"}))
    assert not approved([rule], Made(PACKED, {"command": "make test", "timeout_seconds": 6}))
    more: JsonObject = {"command": "make test", "timeout_seconds": 5, "root": "/"}
    assert not approved([rule], Made(PACKED, more))


def test_a_process_is_approved_with_exactly_its_words() -> None:
    tool = ToolName("box", "process_start")
    call: JsonObject = {"command": "npm", "args": ["run", "dev"], "cwd": "web"}
    (rule,) = suggest(made(tool, call))
    assert rule.when == call
    assert approved([rule], Made(tool, call))
    for other in ({"env": ["A=b"]}, {"cwd": "."}, {"args": ["run"]}, {"args": ["run", "x"]}):
        assert not approved([rule], Made(tool, {**call, **other}))


def test_files_that_run_by_themselves_get_a_rule_each() -> None:
    calls = made(ToolName("repo", "file_write"), *({"path": f".github/{n}.yml"} for n in "ab"))
    assert [rule.when for rule in suggest(calls)] == [call.arguments for call in calls]


@pytest.mark.parametrize("text", ["ls *.py", "ls a?", "echo $HOME", "a;b", "ls\nrm x"])
def test_a_command_for_a_shell_is_approved_as_it_is_spelled(text: str) -> None:
    rules = suggest(made(SHELL, {"command": text}))
    assert approved(rules, Made(SHELL, {"command": text}))
    for other in ("ls x.py", "ls ab", "echo", f"{text} x", f"{text};rm x", text.replace("*", "x")):
        if other != text:
            assert not approved(rules, Made(SHELL, {"command": other}))


# --- Whatever was called ---------------------------------------------------------------------

PACK_TOOLS = [
    Tool(ToolName("box", name), f"box__{name}", "", {}, builtin=True)
    for name in ("shell_run", "process_start", "file_rename")
]

TEXTS = (
    st.text(max_size=12)
    | st.text(string.ascii_letters + "/.*?-_ $<>:\\~", max_size=12)
    | st.builds("{}/{}.{}".format, *(st.sampled_from(["a", "b1", "b2", "..", "*", ""]),) * 3)
)
VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
NAMES = st.sampled_from(["path", "new_path", "command", "argv", "x y", "no", ""]) | TEXTS
ARGUMENTS = st.dictionaries(NAMES, VALUES, max_size=3)
COMMANDS = st.fixed_dictionaries({"argv": st.lists(TEXTS, min_size=1, max_size=3)}) | (
    st.fixed_dictionaries({"command": TEXTS})
)
TOOLS = st.sampled_from([READ, ToolName("repo", "list"), ToolName("re", "po_x")])
CALLS = st.builds(Made, TOOLS, ARGUMENTS) | st.builds(
    Made, st.sampled_from([SHELL, PACKED]), COMMANDS
)


PROCESSES = st.fixed_dictionaries(
    {"command": TEXTS},
    optional={"args": st.none() | st.lists(TEXTS, max_size=2), "cwd": TEXTS, "env": VALUES},
)


def _decided(rule: str, tool: Tool, arguments: JsonObject) -> str:
    """The verdict where a file has this rule."""
    root, problems = parse_mapping(rule, "rules.yaml")
    assert not problems
    assert root is not None
    data: Any = to_data(root)
    entry = RuleEntry(data["tool"], data.get("when", {}), data.get("schema"))
    policy = compile_policy(RuleLists(auto_approve=(entry,)))
    return decide(policy, tool, arguments).verdict


@pytest.mark.requirement("T35")
@given(
    st.sampled_from([stand_in(READ), stand_in(SHELL), *PACK_TOOLS]),
    ARGUMENTS | COMMANDS | PROCESSES,
    NAMES,
    VALUES,
)
def test_the_rule_of_a_hint_approves_this_call_and_no_other(
    tool: Tool, arguments: JsonObject, name: str, value: JsonValue
) -> None:
    ruling = decide(compile_policy(RuleLists()), tool, arguments)
    if ruling.hint is None:
        assert is_command_tool(tool.name) or rule_obstacle(tool.name, arguments)
        return
    rule = ruling.hint.removeprefix("`").removesuffix("` under `mcp.auto_approve` approves this")
    assert _decided(rule, tool, arguments) == "auto"
    others: list[JsonObject] = [{**arguments, name: value}]
    for one, held in arguments.items():
        rest = {key: kept for key, kept in arguments.items() if key != one}
        others += [rest, {**rest, name: value}, {**rest, name: held}]
        others += [{**arguments, one: value}, {**arguments, one: [held]}]
        if isinstance(held, str):
            changed = (f"{held}x", f"x{held}", held[1:], held.swapcase(), held.replace("*", "x"))
            others += [{**arguments, one: text} for text in (*changed, held.replace("?", "y"))]
            others += [{**arguments, one: held.split()}]
        elif isinstance(held, list):
            others += [{**arguments, one: [*held, "x"]}, {**arguments, one: held[:-1]}]
            others += [{**rest, "command": " ".join(map(str, held))}]
    for other in others:
        if not same_json(other, arguments):
            assert _decided(rule, tool, other) != "auto", other
    assert _decided(rule, replace(tool, name=ToolName("other", tool.name.name)), arguments) != (
        "auto"
    )


@given(st.lists(CALLS, max_size=8), st.lists(CALLS, max_size=4), st.data())
def test_every_call_made_is_approved_and_none_that_was_denied(
    calls: list[Made], denied: list[Made], data: st.DataObject
) -> None:
    again = data.draw(st.lists(st.sampled_from(calls), max_size=2)) if calls else []
    refused = denied + again
    found = suggestion(calls, refused)
    left = [one.call for one in found.left_out]
    for call in calls:
        assert approved(found.rules, call) or call in left
    for call in refused:
        assert not approved(found.rules, call)


@given(st.lists(CALLS, min_size=1, max_size=5), CALLS)
def test_another_tool_another_argument_another_way_is_not_approved(
    calls: list[Made], stranger: Made
) -> None:
    rules = suggest(calls)
    for call in calls:
        more = {**call.arguments, "one more": 1}
        if call.tool != SHELL:
            assert not approved(rules, replace(call, arguments=more))
        assert not approved(rules, replace(call, tool=ToolName("other", "tool")))
        for name, value in call.arguments.items():
            astray = _astray(value)
            if astray is not None:
                moved = {**call.arguments, name: astray}
                assert not approved(rules, replace(call, arguments=moved))
    if stranger.tool not in {call.tool for call in calls}:
        assert not approved(rules, stranger)


def _astray(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return f"{value}/../../elsewhere"
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return [*value, "--and-more"]
    return None


@given(st.lists(CALLS, max_size=6), st.integers(0, 6))
def test_a_file_reads_the_rules_as_they_were_meant(calls: list[Made], indent: int) -> None:
    rules = suggest(calls)
    text = "rules:\n" + rules_yaml(rules, indent) if rules else "rules: []\n"
    root, problems = parse_mapping(text, "rules.yaml")
    assert problems == []
    assert root is not None
    assert to_data(root) == {"rules": [_plain(rule_data(rule)) for rule in rules]}
    flow, problems = parse_mapping(f"[{', '.join(map(rule_flow, rules))}]", "rules.yaml")
    assert flow is None
    assert [problem.message for problem in problems] == [
        "a mapping is expected here, and this is a list"
    ]


@given(
    TEXTS
    | st.sampled_from(
        [
            "##[group]x",
            "::error::x",
            "\u202e\u3164\x9b\ufeff\U000e0041",
            "###[[",
            "#\u3000#\u00e9vso[",
        ]
    )
)
def test_rules_are_printed_as_they_are(text: str) -> None:
    printed = rules_yaml(suggest(reads(text)), 4)
    assert for_ci_log(printed) == printed
    root, problems = parse_mapping(f"rules:\n{printed}", "rules.yaml")
    assert problems == []
    assert root is not None
    assert to_data(root) == {"rules": [_plain(rule_data(rule)) for rule in suggest(reads(text))]}


def _plain(value: JsonValue) -> JsonValue:
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return value
