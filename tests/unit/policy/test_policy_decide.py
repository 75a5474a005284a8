from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import each_case

from aish.core.errors import UsageError
from aish.core.json import JsonObject, JsonValue
from aish.core.rules import RuleEntry, RuleLists
from aish.core.tools import Annotations, Tool, ToolName
from aish.policy.decide import decide, simple_fit
from aish.policy.rules import Policy, compile_policy, judge, rules_without_tools


def tool(name: str, *, destructive: bool | None = None, trusted: bool = False) -> Tool:
    server, _, own = name.partition("__")
    return Tool(
        name=ToolName(server, own),
        wire=name,
        description="",
        input_schema={"type": "object"},
        annotations=Annotations(destructive=destructive),
        trusted=trusted,
    )


def policy(
    auto: tuple[str | RuleEntry, ...] = (),
    ask: tuple[str | RuleEntry, ...] = (),
    deny: tuple[str | RuleEntry, ...] = (),
) -> Policy:
    def entries(rules: tuple[str | RuleEntry, ...]) -> tuple[RuleEntry, ...]:
        return tuple(RuleEntry(rule) if isinstance(rule, str) else rule for rule in rules)

    return compile_policy(RuleLists(entries(auto), entries(ask), entries(deny)))


def when(glob: str, **conditions: JsonValue) -> RuleEntry:
    return RuleEntry(glob, when=conditions)


def verdict(rules: Policy, name: str, arguments: JsonObject | None = None) -> str:
    return decide(rules, tool(name), arguments or {}).verdict


def test_what_no_rule_matches_is_asked_about() -> None:
    ruling = decide(policy(), tool("fs__rm"), {})
    assert (ruling.verdict, ruling.rule, ruling.reason) == ("ask", "", "no rule approves fs__rm")


@pytest.mark.requirement("X1")
def test_deny_beats_ask_beats_auto() -> None:
    assert verdict(policy(("*__*",), ("*__*",), ("fs__rm",)), "fs__rm") == "deny"
    assert verdict(policy(("fs__rm",), ("*__rm",)), "fs__rm") == "ask"
    assert verdict(policy(("fs__rm",)), "fs__rm") == "auto"


GLOBS = st.sampled_from(["*__*", "fs__*", "*__rm", "fs__rm", "fs__read", "git__*", "?s__r*"])
LISTS = st.lists(GLOBS, max_size=4).map(tuple)


@given(auto=LISTS, ask=LISTS)
def test_a_matching_deny_always_wins(auto: tuple[str, ...], ask: tuple[str, ...]) -> None:
    assert verdict(policy(auto, ask, ("f*__r?",)), "fs__rm") == "deny"


@given(auto=LISTS, ask=LISTS, deny=LISTS)
def test_the_order_of_rules_never_matters(
    auto: tuple[str, ...], ask: tuple[str, ...], deny: tuple[str, ...]
) -> None:
    expected = verdict(policy(auto, ask, deny), "fs__rm")
    for shuffled in list(permutations(deny))[:6]:
        assert verdict(policy(auto[::-1], ask[::-1], shuffled), "fs__rm") == expected


@given(auto=LISTS, ask=LISTS, deny=LISTS, more=GLOBS)
def test_one_more_deny_or_ask_rule_never_loosens(
    auto: tuple[str, ...], ask: tuple[str, ...], deny: tuple[str, ...], more: str
) -> None:
    strictness = {"auto": 0, "ask": 1, "deny": 2}
    before = strictness[verdict(policy(auto, ask, deny), "fs__rm")]
    assert strictness[verdict(policy(auto, (*ask, more), deny), "fs__rm")] >= before
    assert strictness[verdict(policy(auto, ask, (*deny, more)), "fs__rm")] >= before


@each_case(
    "path, expected",
    [
        ("docs/a.md", "auto"),
        ("docs/a/b.md", "auto"),
        ("docs", "ask"),
        ("src/a.md", "ask"),
        ("docs/../secrets", "ask"),
        ("docs/..", "ask"),
        ("docs/%2e%2e/secrets", "ask"),
        ("docs\\..\\..\\secrets", "ask"),
        ("/docs/a.md", "ask"),
        ("docs/a\nb", "ask"),
        ("docs/a\x00", "ask"),
        ("docs/a\u202eb", "ask"),
        ("docs/\ud800", "ask"),
        ("docs/" + "a" * 5000, "ask"),
        (["docs/a.md"], "ask"),
        (None, "ask"),
        (7, "ask"),
    ],
)
def test_a_path_glob_approves_only_plain_paths_beneath(path: JsonValue, expected: str) -> None:
    rules = policy((when("fs__write", path="docs/**"),))
    assert verdict(rules, "fs__write", {"path": path}) == expected


@pytest.mark.parametrize("path", ["/etc/x", "..", "~/x", "C:\\x", "c:/x", "a/../b", "\\\\host\\x"])
def test_even_two_stars_approve_no_path_that_leads_elsewhere(path: str) -> None:
    assert verdict(policy((when("fs__write", path="**"),)), "fs__write", {"path": path}) == "ask"


def test_a_condition_on_an_argument_that_is_not_there_does_not_hold() -> None:
    assert verdict(policy((when("fs__write", path="**"),)), "fs__write", {"file": "a"}) == "ask"


MOVE = "repo__file_rename"
OUT = {"path": "docs/a.md", "new_path": "src/a.md"}
IN = {"path": "src/a.md", "new_path": "docs/a.md"}
WITHIN = {"path": "docs/a.md", "new_path": "docs/b.md"}
AWAY = {"path": "docs/a.md", "new_path": "docs/../a.md"}


@pytest.mark.parametrize(
    ("arguments", "expected"), [(OUT, "ask"), (IN, "ask"), (AWAY, "ask"), (WITHIN, "auto")]
)
def test_a_path_that_is_approved_cannot_be_left_by_moving(
    arguments: JsonObject, expected: str
) -> None:
    assert verdict(policy((when("repo__*", path="docs/**"),)), MOVE, arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"), [(OUT, "deny"), (IN, "deny"), (WITHIN, "deny"), (AWAY, "deny")]
)
def test_a_path_that_is_denied_cannot_be_reached_by_moving(
    arguments: JsonObject, expected: str
) -> None:
    rules = policy(("repo__*",), deny=(when("repo__*", path="docs/**"),))
    assert verdict(rules, MOVE, arguments) == expected
    elsewhere = {"path": "src/a.md", "new_path": "src/b.md"}
    assert verdict(rules, MOVE, elsewhere) == "auto"


def test_a_rule_may_say_itself_where_a_file_may_be_moved_to() -> None:
    rules = policy((when(MOVE, path="docs/**", new_path="src/*"),))
    assert verdict(rules, MOVE, OUT) == "auto"
    assert verdict(rules, MOVE, WITHIN) == "ask"


def test_the_reason_names_the_argument_that_does_not_fit() -> None:
    found = judge(
        policy((when(MOVE, path="docs/**"),)).auto_approve[0], tool(MOVE), OUT, simple_fit
    )
    assert found.why == "argument `new_path` does not fit `docs/**`"


def test_all_conditions_must_hold() -> None:
    rules = policy((when("fs__write", path="docs/*", force=False),))
    assert verdict(rules, "fs__write", {"path": "docs/a", "force": False}) == "auto"
    assert verdict(rules, "fs__write", {"path": "docs/a", "force": True}) == "ask"
    assert verdict(rules, "fs__write", {"path": "docs/a"}) == "ask"
    assert verdict(rules, "fs__write", {"path": "x", "force": False}) == "ask"


@each_case(
    "wanted, value, expected",
    [
        (1, 1, "auto"),
        (1, 1.0, "auto"),
        (1, True, "ask"),
        (True, 1, "ask"),
        (0, False, "ask"),
        (None, None, "auto"),
        ([1, True], [1, True], "auto"),
        ([1, True], [1, 1], "ask"),
        ({"a": 1}, {"a": 1}, "auto"),
        ({"a": 1}, {"a": 1, "b": 2}, "ask"),
        ("1", 1, "ask"),
        ("/etc/hosts", "/etc/hosts", "auto"),
    ],
)
def test_values_that_are_not_text_are_compared_as_json(
    wanted: JsonValue, value: JsonValue, expected: str
) -> None:
    assert verdict(policy((when("a__b", x=wanted),)), "a__b", {"x": value}) == expected


@each_case(
    "path, expected",
    [
        ("secrets/key", "deny"),
        ("./secrets/key", "deny"),
        ("secrets//key", "deny"),
        ("secrets/./key", "deny"),
        ("secrets\\key", "deny"),
        ("docs/../secrets/key", "ask"),
        ("/srv/secrets/key", "ask"),
        ("SECRETS/key", "ask"),
        ("secrets/key\x00", "deny"),
        (["secrets/key"], "ask"),
        ("x" * 5000, "ask"),
        ("docs/a", "auto"),
        ("https://example.com//a", "auto"),
        (None, "auto"),
    ],
)
def test_a_denied_path_is_not_reached_by_another_spelling(path: JsonValue, expected: str) -> None:
    rules = policy(("fs__read",), deny=(when("fs__read", path="secrets/**"),))
    assert verdict(rules, "fs__read", {"path": path}) == expected


def test_text_for_a_flag_leaves_a_deny_rule_in_doubt() -> None:
    rules = policy(("git__push",), deny=(when("git__push", force=True),))
    assert verdict(rules, "git__push", {"force": True}) == "deny"
    assert verdict(rules, "git__push", {"force": "True"}) == "ask"
    assert verdict(rules, "git__push", {"force": False}) == "auto"
    assert verdict(rules, "git__push", {}) == "auto"


@pytest.mark.requirement("X12")
def test_an_ask_rule_in_doubt_asks() -> None:
    rules = policy(("fs__read",), ask=(when("fs__read", path="secrets/**"),))
    assert verdict(rules, "fs__read", {"path": "a/../secrets/x"}) == "ask"
    assert verdict(rules, "fs__read", {"path": "docs/x"}) == "auto"


@pytest.mark.requirement("P4")
def test_a_schema_may_say_which_arguments_are_approved() -> None:
    schema: JsonObject = {
        "type": "object",
        "properties": {"count": {"type": "integer", "maximum": 10}},
        "required": ["count"],
    }
    rules = policy((RuleEntry("a__b", schema=schema),))
    assert verdict(rules, "a__b", {"count": 3}) == "auto"
    assert verdict(rules, "a__b", {"count": 30}) == "ask"
    assert verdict(rules, "a__b", {}) == "ask"
    denying = policy(("a__b",), deny=(RuleEntry("a__b", schema=schema),))
    assert verdict(denying, "a__b", {"count": 3}) == "deny"
    assert verdict(denying, "a__b", {"count": 30}) == "auto"


HARD: JsonObject = {"properties": {"x": {"pattern": "^(a+)+$"}}, "required": ["x"]}


def test_a_schema_that_cannot_be_judged_here_approves_nothing_and_denies_by_asking() -> None:
    arguments = {"x": "a" * 40 + "!"}
    assert verdict(policy((RuleEntry("a__b", schema=HARD),)), "a__b", arguments) == "ask"
    assert verdict(
        policy(("a__b",), deny=(RuleEntry("a__b", schema=HARD),)), "a__b", arguments
    ) == ("ask")


@pytest.mark.parametrize(
    ("destructive", "trusted", "glob", "expected"),
    [
        (True, False, "fs__*", "ask"),
        (True, False, "*__rm", "ask"),
        (True, False, "fs__r?", "ask"),
        (True, False, "fs__rm", "auto"),
        (True, True, "fs__*", "auto"),
        (False, False, "fs__*", "auto"),
        (None, False, "fs__*", "auto"),
    ],
)
def test_a_destructive_tool_of_a_stranger_is_approved_by_its_exact_name_only(
    *, destructive: bool | None, trusted: bool, glob: str, expected: str
) -> None:
    subject = tool("fs__rm", destructive=destructive, trusted=trusted)
    assert decide(policy((glob,)), subject, {}).verdict == expected


@pytest.mark.requirement("P5")
def test_annotations_never_loosen() -> None:
    harmless = Tool(
        ToolName("fs", "rm"),
        "fs__rm",
        "",
        {},
        annotations=Annotations(read_only=True, destructive=False, idempotent=True),
    )
    assert decide(policy(), harmless, {}).verdict == "ask"
    assert decide(policy(deny=("fs__*",)), harmless, {}).verdict == "deny"
    assert not policy().is_idempotent(harmless)
    assert not policy().is_parallel(harmless)


def test_a_rule_without_separator_says_where_it_stands() -> None:
    with pytest.raises(UsageError) as caught:
        compile_policy(RuleLists(ask=(RuleEntry("read", path="mcp.ask[3]"),)))
    assert caught.value.where == "mcp.ask[3]"


def test_rules_that_match_no_tool_are_found() -> None:
    rules = policy(("fs__*", "gone__*", "shell__run"), deny=("fs__typo",))
    unmatched = rules_without_tools(rules, [tool("fs__read")])
    assert [entry.tool for entry in unmatched] == ["fs__typo", "gone__*"]


def test_parallel_and_idempotent_come_from_our_own_rules_or_a_pack() -> None:
    rules = compile_policy(
        RuleLists(
            parallel=(RuleEntry("repo__*"), RuleEntry("a__b", when={"x": 1})),
            idempotent=(RuleEntry("repo__get"),),
        )
    )
    assert rules.is_parallel(tool("repo__get"))
    assert not rules.is_parallel(tool("a__b"))
    assert rules.is_idempotent(tool("repo__get"))
    assert not rules.is_idempotent(tool("repo__put"))
    local = Tool(ToolName("shell", "run"), "shell__run", "", {}, unlisted=True)
    assert decide(policy(("shell__*",)), local, {"argv": ["ls"]}).verdict == "auto"
