"""The table of sources and sinks, by what a file says; and the judgement of calls."""

from pathlib import Path

import pytest
from work import work_of

from aish.config.loader import load_pipeline
from aish.core.sources import Sources, descriptions_of, union
from aish.core.tools import Annotations, Tool, ToolName
from aish.engine.plan.builtin_tools import presumed_tool
from aish.engine.plan.flow_files import flow_file
from aish.engine.plan.validation.validate import cross_check
from aish.policy.flow import LOCAL, FlowFile, FlowPolicy, Held, gives_exact_values
from aish.policy.lock import Lock, ServerPin, ToolPin
from aish.policy.rules import LOCAL_COMMAND, compile_policy

SERVERS = """
    repo: {pack: [fs, edit, git], root: .}
    docs: {pack: [rag], root: .}
    web: {pack: [web]}
    tests: {pack: [shell], root: ., options: {shell: {network: false}}}
    sh: {pack: [shell, proc], root: .}
    open: {url: "https://open.example/mcp"}
    friend: {url: "https://friend.example/mcp", trust: true}
    paid: {url: "https://paid.example/mcp", auth_env: PAID_TOKEN, trust: true}
    child: {command: [child-mcp]}
    boxed: {command: [boxed-mcp], sandbox: {}}
    listed: {command: [listed-mcp], sandbox: {network: [api.example]}}
    files: {command: [files-mcp], sandbox: {read: [data]}}
"""


def read(folder: Path, mcp: str = "", head: str = "prompt: hello there") -> FlowFile:
    (folder / "data").mkdir(exist_ok=True)
    file = folder / "p.yaml"
    text = f"aish: 1\nmodels: {{local: {{embedded: smollm2}}}}\n{head}\n"
    file.write_text(f"{text}mcp:\n  servers:{SERVERS}{mcp}")
    pins = {
        alias: ServerPin("http", (f"https://{alias}.example/mcp",), {"get": ToolPin("0" * 64)})
        for alias in ("friend", "paid", "open")
    }
    return flow_file(load_pipeline(file), Lock(pins, {}, {}))


def tool_of(name: str, folder: Path, *, reads: bool | None = None) -> Tool:
    server, _, own = name.partition("__")
    known = presumed_tool(ToolName(server, own), load_pipeline(folder / "p.yaml"))
    claims = Annotations(read_only=reads)
    return known or Tool(ToolName(server, own), name, "", {}, annotations=claims)


LABELS = [
    ("repo__file_read", "private"),
    ("repo__git_log", "private"),
    ("repo__file_edit", "private"),
    ("repo__dir_create", ""),
    ("docs__rag_query", "private untrusted"),
    ("web__web_fetch", "untrusted"),
    ("tests__shell_run", "private"),
    ("sh__shell_run", "private untrusted"),
    ("sh__process_output", "private untrusted"),
    ("shell__run", "private untrusted"),
    ("open__get", "untrusted"),
    ("open", "untrusted"),
    ("friend__get", ""),
    ("paid__get", "private"),
    ("child__get", "private untrusted"),
    ("boxed__get", "untrusted"),
    ("files__get", "private untrusted"),
    ("child.tools", "untrusted"),
    ("open.tools", ""),
    ("friend.tools", ""),
    ("repo.tools", ""),
    ("attach", "private"),
    ("context.files", "private"),
    ("readfile", "private"),
    ("stdin", "untrusted"),
    ("item", "untrusted"),
    ("client", "untrusted"),
    ("!", "private untrusted"),
    ("unknown", "private untrusted"),
    ("inputs.diff", ""),
    ("steps.build", ""),
    ("gone__get", "private untrusted"),
]


@pytest.mark.requirement("T19")
def test_each_source_has_the_labels_of_the_table(tmp_path: Path) -> None:
    policy = FlowPolicy(read(tmp_path))
    found = [(source, " ".join(sorted(policy.labels(source)))) for source, _ in LABELS]
    assert found == LABELS


def test_labels_of_the_file_replace_those_of_the_table(tmp_path: Path) -> None:
    labels = '\n  labels: {"open__*": [private], open__get: [], stdin: [], "inputs.*": [untrusted]}'
    policy = FlowPolicy(read(tmp_path, labels))
    assert policy.labels("open__list") == {"private"}
    assert policy.labels("open__get") == policy.labels("stdin") == set()
    assert policy.labels("inputs.diff") == {"untrusted"}
    assert policy.labels("open") == {"untrusted"}


SINKS = [
    # tool, claims to read, sends, changes
    ("repo__file_read", None, False, False),
    ("repo__file_write", None, False, True),
    ("web__web_fetch", None, True, False),
    ("web__web_search", None, True, False),
    ("tests__shell_run", None, False, True),
    ("sh__shell_run", None, True, True),
    ("sh__process_input", None, True, True),
    ("sh__process_list", None, False, False),
    ("open__get", True, True, True),
    ("friend__get", True, False, False),
    ("friend__put", None, True, True),
    ("child__get", True, True, True),
    ("boxed__get", None, False, True),
    ("listed__get", None, True, True),
    ("gone__get", True, True, True),
    ("shell__run", None, True, True),
]


@pytest.mark.requirement("T22")
def test_each_tool_sends_and_changes_as_in_the_table(tmp_path: Path) -> None:
    file = read(tmp_path)
    found = []
    for name, reads, *_ in SINKS:
        tool = tool_of(name, tmp_path, reads=reads)
        found.append((name, reads, file.sends(tool), file.changes(tool)))
    assert found == SINKS


@pytest.mark.requirement("T21")
def test_what_a_tool_is_given_can_be_read_again_at_its_place(tmp_path: Path) -> None:
    file = read(tmp_path)

    def places(name: str) -> tuple[str | None, tuple[str, ...]]:
        tool = tool_of(name, tmp_path)
        return file.place(tool), tuple(dict.fromkeys(file.read_places(tool)))

    here = (LOCAL,)
    assert places("repo__file_read") == (None, here)
    assert places("repo__file_write") == places("sh__shell_run") == (LOCAL, here)
    assert places("web__web_fetch") == places("child__get") == (LOCAL, here)
    assert places("open__get") == ("https://open.example/mcp", ("https://open.example/mcp",))
    assert places("boxed__get") == ("boxed-mcp", ("boxed-mcp",))
    assert places("files__get") == ("files-mcp", ("files-mcp", LOCAL))


def judge(
    policy: FlowPolicy, folder: Path, name: str, *sources: str, exact: bool = False
) -> Held | None:
    arguments = {"url": "https://docs.example/a"}
    return policy.judge(tool_of(name, folder), arguments, frozenset(sources), exact=exact)


@pytest.mark.requirement("T23")
def test_a_call_that_sends_is_held_after_untrusted_and_private_text(tmp_path: Path) -> None:
    policy = FlowPolicy(read(tmp_path, "\n  exfiltration: ask"))
    held = judge(policy, tmp_path, "open__put", "repo__file_read", "web__web_fetch", "inputs.a")
    assert held is not None
    assert (held.rule, held.then) == ("mcp.exfiltration", "ask")
    assert held.why == "read repo__file_read (private), web__web_fetch (untrusted)"
    assert judge(policy, tmp_path, "open__put", "repo__file_read", "inputs.a") is None
    assert judge(policy, tmp_path, "open__put", "web__web_fetch") is None
    assert judge(policy, tmp_path, "open__put") is None
    assert judge(policy, tmp_path, "repo__file_write", "repo__file_read", "stdin") is None
    both = judge(policy, tmp_path, "open__put", "docs__rag_query")
    assert both is not None
    assert both.why == "read docs__rag_query (private, untrusted)"


def test_a_tool_that_reads_private_text_itself_needs_no_other(tmp_path: Path) -> None:
    policy = FlowPolicy(read(tmp_path, "\n  exfiltration: deny"))
    held = judge(policy, tmp_path, "child__upload", "web__web_fetch")
    assert held is not None
    assert held.why == "read web__web_fetch (untrusted); the tool reads private text itself"
    assert judge(policy, tmp_path, "child__upload", "repo__file_read") is None


def test_exceptions_and_exact_rules_lift_exfiltration_only(tmp_path: Path) -> None:
    mcp = """
  exfiltration:
    then: deny
    except: [open__put, {tool: web__web_fetch, when: {url: "https://docs.example/**"}}]
  flow: [{from: [private], to: ["child__*"], then: stage}]"""
    policy = FlowPolicy(read(tmp_path, mcp))
    read_both = ("repo__file_read", "stdin")
    assert judge(policy, tmp_path, "open__put", *read_both) is None
    assert judge(policy, tmp_path, "web__web_fetch", *read_both) is None
    other = policy.judge(
        tool_of("web__web_fetch", tmp_path), {"url": "https://evil.example/"}, frozenset(read_both)
    )
    assert other is not None
    assert judge(policy, tmp_path, "listed__put", *read_both, exact=True) is None
    command = policy.judge(tool_of("sh__shell_run", tmp_path), {}, frozenset(read_both), exact=True)
    assert command is not None
    flow = judge(policy, tmp_path, "child__put", *read_both, exact=True)
    assert flow is not None
    assert (flow.rule, flow.then, flow.why) == (
        "mcp.flow[0]",
        "stage",
        "read repo__file_read (private)",
    )


def test_the_strictest_rule_holds_and_files_above_hold_too(tmp_path: Path) -> None:
    mcp = "\n  exfiltration: warn\n  flow: [{from: [untrusted], to: [changes], then: ask}]"
    outer = read(tmp_path, "\n  exfiltration: deny")
    inner = read(tmp_path, mcp)
    alone = judge(FlowPolicy(inner), tmp_path, "open__put", "repo__file_read", "stdin")
    assert alone is not None
    assert (alone.rule, alone.then) == ("mcp.flow[0]", "ask")
    policy = FlowPolicy(inner, (outer,))
    held = judge(policy, tmp_path, "open__put", "repo__file_read", "stdin")
    assert held is not None
    assert (held.rule, held.then) == ("mcp.exfiltration of p.yaml", "deny")


def test_sources_that_grow_are_judged_as_if_they_were_new_by_what_was_added(
    tmp_path: Path,
) -> None:
    rule = '\n  exfiltration: ask\n  flow: [{from: ["open__*"], to: [changes], then: deny}]'
    file = read(tmp_path, rule)
    policy, tool = FlowPolicy(file), tool_of("open__put", tmp_path)
    names = ["stdin", "open__b", "inputs.a", "repo__file_read", "open__a", "web__web_fetch"]
    sets = [frozenset(names[:count]) for count in (0, 1, 2, 3, 6, 4, 5, 6)]
    for sources in (*sets, frozenset({"attach", "item"}), *sets):
        assert policy.judge(tool, {}, sources) == FlowPolicy(file).judge(tool, {}, sources)

    def work_of_one_more(count: int) -> int:
        before = frozenset(f"open__t{at}" for at in range(count))
        policy.judge(tool, {}, before)
        return work_of(lambda: policy.judge(tool, {}, before | {"open__more"})).steps

    assert work_of_one_more(1000) < work_of_one_more(10) + 50


def test_only_some_causes_are_shown(tmp_path: Path) -> None:
    policy = FlowPolicy(read(tmp_path, '\n  flow: [{from: ["inputs.*"], to: [sends], then: ask}]'))
    held = judge(policy, tmp_path, "open__put", *(f"inputs.a{n}" for n in range(9)))
    assert held is not None
    assert held.why.endswith("inputs.a5 and 3 more")
    assert len(held.flow.sources) == 9


@pytest.mark.parametrize(
    ("rule", "is_exact"),
    [
        ("{tool: open__put, when: {a: x, b: 1}}", True),
        ("{tool: open__put, when: {a: x}}", False),
        ('{tool: open__put, when: {a: "x*", b: 1}}', False),
        ('{tool: "open__*", when: {a: x, b: 1}}', False),
        ('{tool: open__put, when: {b: 1}, schema: {properties: {a: {const: "x*"}}}}', True),
        ("open__put", False),
    ],
)
def test_a_rule_is_exact_if_it_gives_every_argument(
    rule: str, is_exact: object, tmp_path: Path
) -> None:
    read(tmp_path, f"\n  auto_approve: [{rule}]")
    (compiled,) = compile_policy(load_pipeline(tmp_path / "p.yaml").rules).auto_approve
    assert gives_exact_values(compiled, {"a": "x", "b": 1}) is is_exact


def test_names_that_the_file_does_not_have_are_errors(tmp_path: Path) -> None:
    mcp = """
  exfiltration: {then: ask, except: [nosuch__put]}
  flow: [{from: [untrused, "opne__*", steps.b], to: [change, repo__file_raed], then: ask}]
  labels: {inputs.dif: [private], "shell__*": [], stdin: []}"""
    head = "inputs: {diff: {type: string}}\nsteps: [{id: a, run: ls}, {id: b, prompt: hello there}]"
    read(tmp_path, mcp, head)
    found = [
        f"{problem.path}: {problem.message} ({problem.hint})"
        for problem in cross_check(load_pipeline(tmp_path / "p.yaml"))
        if "exfil" in problem.path or "flow" in problem.path or "labels" in problem.path
    ]
    assert [line.partition(" (")[0] for line in found] == [
        "mcp.exfiltration.except[0]: `nosuch__put` can match no server of this file",
        "mcp.flow[0].from[0]: unknown source `untrused`",
        "mcp.flow[0].from[1]: `opne__*` can match no server of this file",
        "mcp.flow[0].from[2]: unknown source `steps.b`",
        "mcp.flow[0].to[0]: unknown tool `change`",
        "mcp.flow[0].to[1]: the packs `fs`, `edit`, `git` have no tool `file_raed`",
        'mcp.labels["inputs.dif"]: unknown source `inputs.dif`',
    ]
    assert "(did you mean `untrusted`)" in found[1]


def test_a_file_without_these_keys_asks_for_nothing(tmp_path: Path) -> None:
    assert not read(tmp_path).settings.is_used
    assert not read(tmp_path, "\n  labels: {stdin: []}").settings.is_used
    assert read(tmp_path, "\n  exfiltration: warn").settings.is_used


def test_a_union_of_sets_makes_a_new_set_only_if_it_has_to() -> None:
    one: Sources = frozenset({"stdin", "item"})
    assert union([frozenset(), one, frozenset({"item"})]) is one
    assert union([one, frozenset({"!"})]) == {"stdin", "item", "!"}
    assert descriptions_of("crm") == "crm.tools"


def test_a_tool_of_no_server_is_the_local_command(tmp_path: Path) -> None:
    file = read(tmp_path)
    assert file.sends(tool_of(str(LOCAL_COMMAND), tmp_path))
