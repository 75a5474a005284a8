import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import each_case

from aish.core.errors import UsageError
from aish.core.json import JsonObject
from aish.core.rules import RuleEntry, RuleLists
from aish.core.tools import Tool, ToolName
from aish.policy.decide import decide
from aish.policy.rules import compile_policy, has_metacharacter

SHELL = Tool(ToolName("shell", "run"), "shell__run", "", {}, trusted=True)


def verdict(
    arguments: JsonObject,
    auto: tuple[str, ...] | None = None,
    deny: tuple[str, ...] | None = None,
) -> str:
    approving = RuleEntry("shell__run", command=auto)
    denying = () if deny is None else (RuleEntry("shell__run", command=deny),)
    policy = compile_policy(RuleLists(auto_approve=(approving,), deny=denying))
    return decide(policy, SHELL, arguments).verdict


def argv(*words: str) -> JsonObject:
    return {"argv": list(words)}


@each_case(
    "pattern, arguments, expected",
    [
        (("git", "log"), argv("git", "log"), "auto"),
        (("git", "log"), {"command": "git  log"}, "auto"),
        (("git", "log"), argv("git", "log", "-p"), "ask"),
        (("git", "log"), argv("git"), "ask"),
        (("git", "log"), argv("git log"), "ask"),
        (("git", "log"), argv("evil/git", "log"), "ask"),
        (("git", "*"), argv("git", "log"), "auto"),
        (("git", "*"), argv("git", "log", "x"), "ask"),
        (("git", "*"), argv("git", "--exec-path"), "ask"),
        (("git", "-*"), argv("git", "-p"), "auto"),
        (("git", "log", "**"), argv("git", "log"), "auto"),
        (("git", "log", "**"), argv("git", "log", "-p", "docs/a"), "auto"),
        (("git", "log", "**"), argv("git", "push", "-p"), "ask"),
        (("git", "log", "**"), argv("git"), "ask"),
        (("cat", "docs/*"), argv("cat", "docs/a.md"), "auto"),
        (("cat", "docs/*"), argv("cat", "docs/../etc/x"), "ask"),
        (("cat", "*"), argv("cat", "/etc/passwd"), "ask"),
        (("cat", "**"), argv("cat", "/etc/passwd"), "ask"),
        (("cat", "**"), argv("cat", "a", "../b"), "ask"),
        (("git", "log", "**"), {"command": "git log --since=2.weeks -n3 -Sdocs/a"}, "auto"),
        (("git", "log", "**"), {"command": "git log --output=/etc/x"}, "ask"),
        (("git", "log", "**"), {"command": "git log --output=../x"}, "ask"),
        (("git", "log", "**"), {"command": "git log -O/etc/x"}, "ask"),
        (("dd", "**"), {"command": "dd if=docs/a of=/dev/sda"}, "ask"),
        (("ls", "--to=*"), argv("ls", "--to=.."), "ask"),
        (("echo", "*"), argv("echo", "a;b"), "ask"),
        (("echo", "**"), argv("echo", "ok", "$(id)"), "ask"),
        (("echo", "a;b"), argv("echo", "a;b"), "auto"),
        (("*", "log"), argv("sh", "log"), "auto"),
        (("pytest", "*"), argv("pytest", "@args"), "ask"),
        (("pytest", "**"), argv("pytest", "-q", "@docs/args"), "ask"),
        (("pytest", "**"), {"command": "pytest @args"}, "ask"),
        (("pytest", "@args"), argv("pytest", "@args"), "auto"),
        (("npm", "install", "@types/*"), argv("npm", "install", "@types/node"), "auto"),
        (("npm", "install", "@types/*"), argv("npm", "install", "@types/../x"), "ask"),
        (("git", "show", "*"), argv("git", "show", "@"), "auto"),
        (("git", "diff", "**"), argv("git", "diff", "@", "a@b"), "auto"),
    ],
)
def test_a_command_rule_matches_word_by_word(
    pattern: tuple[str, ...], arguments: JsonObject, expected: str
) -> None:
    assert verdict(arguments, pattern) == expected


@each_case(
    "command",
    [
        "ls | wc -l",
        "ls; rm x",
        "ls && rm x",
        "ls & rm x",
        "ls > x",
        "cat < x",
        "echo $HOME",
        "echo `id`",
        "echo $(id)",
        "ls *.md",
        "ls ?",
        "ls [a]",
        "ls {a,b}",
        "ls ~",
        "ls 'a b'",
        'ls "a b"',
        "ls a\\ b",
        "ls # note",
        "! ls",
        "ls\nrm x",
        "ls\rrm x",
        "ls\x00",
        "ls \x1b[31m",
        "ls \u202e",
        "PATH=. ls",
    ],
)
def test_a_command_with_metacharacters_is_always_asked_about(command: str) -> None:
    assert verdict({"command": command}) == "ask"
    assert verdict({"command": command}, ("*", "**")) == "ask"
    assert verdict(argv("sh", "-c", command)) == "ask"
    assert verdict(argv("/usr/bin/env", "bash", "-c", command)) == "ask"


def test_a_rule_that_spells_out_a_whole_command_approves_that_one() -> None:
    entry = RuleEntry("shell__run", when={"command": "ls *.md | wc -l"})
    policy = compile_policy(RuleLists(auto_approve=(entry,)))
    assert decide(policy, SHELL, {"command": "ls *.md | wc -l"}).verdict == "auto"
    assert decide(policy, SHELL, {"command": "ls x.md | wc -l"}).verdict == "ask"
    assert verdict(argv("sh", "-c", "a | b"), ("sh", "-c", "a | b")) == "auto"
    assert verdict(argv("sh", "-c", "a | c"), ("sh", "-c", "a | b")) == "ask"


def test_no_shell_sees_an_argv_so_its_words_are_plain() -> None:
    assert verdict(argv("python", "-c", "print(1); print(2)")) == "auto"


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"argv": []},
        {"argv": ["ls", 1]},
        {"argv": "ls", "command": "ls"},
        {"command": ""},
        {"command": "  "},
        {"command": 7},
    ],
)
def test_arguments_without_one_clear_command_are_never_approved(arguments: JsonObject) -> None:
    assert verdict(arguments) == "ask"


@each_case(
    "arguments, expected",
    [
        (argv("rm", "-rf", "x"), "deny"),
        (argv("/bin/rm", "x"), "deny"),
        ({"command": "rm x"}, "deny"),
        ({"command": "ls; rm x"}, "ask"),
        (argv("sh", "-c", "rm x"), "ask"),
        (argv("sudo", "rm", "x"), "ask"),
        (argv("RM", "x"), "ask"),
        (argv("ls", "rm"), "auto"),
        ({}, "ask"),
    ],
)
def test_a_denied_command_is_not_reached_by_another_spelling(
    arguments: JsonObject, expected: str
) -> None:
    assert verdict(arguments, deny=("rm", "**")) == expected


@given(st.text(max_size=30))
def test_no_text_that_a_shell_would_read_as_more_than_words_is_approved(text: str) -> None:
    if verdict({"command": text}) == "auto":
        assert not has_metacharacter(text)
        assert not set(text) & set("|&;<>()$`\\\"'*?[]{}~#!\n\r\0")


def test_a_pattern_without_words_is_an_error() -> None:
    with pytest.raises(UsageError, match="has no words"):
        compile_policy(RuleLists(auto_approve=(RuleEntry("shell__run", command=()),)))
