"""Calls that may be held, found before a run."""

from pathlib import Path

import pytest
from work import work_of

from aish.cli.cluster_options import held_on_workers
from aish.config.loader import load_pipeline
from aish.engine.plan.validation.validate import check_file, find_held_calls, held_check

HEAD = """\
aish: 1
name: p
models: {local: {embedded: smollm2}}
mcp:
  servers:
    repo: {pack: [fs, edit], root: .}
    box: {pack: shell, root: .}
    web: {pack: web}
    know: {pack: rag, root: .}
    far: {url: "http://127.0.0.1:1/mcp"}
    other: {url: "http://127.0.0.1:2/mcp"}
    ours: {url: "http://127.0.0.1:3/mcp", trust: true, auth_env: KEY}
    says: {url: "http://127.0.0.1:4/mcp", trust: true, instructions: true}
"""
DENY = "exfiltration: deny"


def held(folder: Path, mcp: str, steps: tuple[str, ...], more: str = "") -> list[str]:
    """What may be held: step, tools, rule and causes."""
    listed = "".join(f"  - {{{step}}}\n" for step in steps)
    file = folder / "p.yaml"
    file.write_text(f"{HEAD}  {mcp}\n{more}steps:\n{listed}")
    (folder / "n").write_text("x")
    pipeline, problems = check_file(file)
    assert pipeline is not None
    assert [str(one) for one in problems if not one.warning] == []
    return [
        f"{one.step}: {', '.join(one.tools)}: {one.rule} {one.then}: {', '.join(one.sources)}"
        for one in find_held_calls(pipeline)
    ]


A = "id: a, prompt: x y, tools: [repo__file_read]"
B = 'id: b, prompt: x y, tools: ["other__get"], output: {schema: {enum: [x, y]}}'
BY = "mcp.exfiltration deny: repo__file_read, other__get, other.tools"
CALL = "id: c, call: far__p, with: {t: '%s'}"
BOTH = CALL % "{{ steps.a.text }}{{ steps.b.text }}"

OURS = "id: o, call: ours__get"
LATER = "id: l, call: ours__put, with: {t: '{{ stdin }}'}"
LOGGED = "l: ours__put: mcp.exfiltration deny: stdin"
LATE = "mcp.exfiltration deny: ours__get, stdin"

STEPS: dict[tuple[str, ...], list[str]] = {
    # One conversation reads both and sends.
    ("id: a, prompt: x y, tools: [repo__file_read, far__g]",): [
        "a: far__g: mcp.exfiltration deny: repo__file_read, far__g, far.tools"
    ],
    (A, B): [],
    # Two do, and both texts are in a call.
    (A, B, BOTH): [f"c: far__p: {BY}"],
    (A, B, CALL % "{{ steps | tojson }}"): [f"c: far__p: {BY}, far__p"],
    (A, B, CALL % "{{ steps.a.text }}"): [],
    (A, B, CALL % "{{ steps.a.text }}" + ", when: steps.b.text == 'x'"): [f"c: far__p: {BY}"],
    (A, B, CALL % "{{ steps.a.status }}{{ steps.b.text }}"): [],
    (A, B, CALL % "{{ item }}" + ", foreach: '[steps.a.text, steps.b.text]'"): [f"c: far__p: {BY}"],
    # Words of the author are from nowhere.
    (A, B, CALL % "x"): [],
    # A step that continues another has its conversation.
    (A, B.replace("x y", "x y, continues: a", 1)): [f"b: other__get: {BY}"],
    # Private text by a file of the author, untrusted text by items.
    ("id: a, prompt: '{{ item }}', foreach: {file: r.csv}, attach: n, tools: [web__web_fetch]",): [
        "a: web__web_fetch: mcp.exfiltration deny: attach, item, web__web_fetch"
    ],
    # One call reads private text and sends it.
    ("id: a, call: box__shell_run, with: {command: '{{ stdin }}'}",): [
        "a: box__shell_run: mcp.exfiltration deny: stdin"
    ],
    ("id: a, call: ours__p, with: {command: '{{ stdin }}'}",): [
        "a: ours__p: mcp.exfiltration deny: stdin"
    ],
    # A command may execute what was written before.
    ("id: a, run: [make]", "id: b, prompt: '{{ stdin }}', tools: [repo__file_write]"): [
        "a: shell__run: mcp.exfiltration deny: repo__file_write, stdin"
    ],
    # What is written after a step has ended is not in what the step has read.
    (OURS, CALL % "{{ steps.o.text }}", LATER + ", needs: [c]"): [LOGGED],
    (OURS, CALL % "{{ steps.o.text }}", LATER + ", when: steps.c.status == 'ok'"): [LOGGED],
    (OURS, CALL % "{{ steps.o.text }}", LATER): [f"c: far__p: {LATE}", LOGGED],
    (OURS + ", needs: [l]", CALL % "{{ steps.o.text }}", LATER): [f"c: far__p: {LATE}", LOGGED],
    # A server that only receives may say it later.
    (A, CALL % "{{ steps.a.text }}", "id: d, prompt: x y, tools: [far__g]"): [
        "d: far__g: mcp.exfiltration deny: repo__file_read, far__g, far.tools"
    ],
}


@pytest.mark.requirement("T31")
def test_calls_that_may_be_held_are_found_by_the_flow_of_text(tmp_path: Path) -> None:
    assert {steps: held(tmp_path, DENY, steps) for steps in STEPS} == STEPS


RELEASED = B.replace("{schema", "{release: [%s], schema")
FLOW = "flow: [{from: [%s], to: [%s], then: ask}]"
SEARCH = "id: a, prompt: x y, tools: [], attach: [{server: know, query: '{{ %s }}'}]"
MCP: dict[tuple[str, tuple[str, ...]], list[str]] = {
    # Labels that are taken off, and those that stay.
    (DENY, (A, RELEASED % "untrusted", CALL % "{{ steps.a.text }}{{ steps.b.output }}")): [],
    (DENY, (A, RELEASED % "untrusted", BOTH)): [f"c: far__p: {BY}"],
    (DENY, (A, RELEASED % "private", CALL % "{{ steps.a.text }}{{ steps.b.output }}")): [
        f"c: far__p: {BY}"
    ],
    # Nothing is asked for.
    ("exfiltration: warn", (A, B, BOTH)): [],
    # What is left out, for certain.
    ("exfiltration: {then: deny, except: [far__p]}", (A, B, BOTH)): [],
    ("exfiltration: {then: deny, except: ['far__*']}", (A, B, BOTH)): [f"c: far__p: {BY}"],
    ("exfiltration: {then: deny, except: [{tool: far__p, when: {t: x}}]}", (A, B, BOTH)): [
        f"c: far__p: {BY}"
    ],
    (f"{DENY}\n  deny: [far__p]", (A, B, BOTH)): [],
    # Other labels.
    (f"{DENY}\n  labels: {{'other__*': [], other.tools: []}}", (A, B, BOTH)): [],
    (
        f"{DENY}\n  labels: {{'other__*': [], other__get: [untrusted], other.tools: []}}",
        (A, B, BOTH),
    ): ["c: far__p: mcp.exfiltration deny: repo__file_read, other__get"],
    # Rules by name, label and kind of tool; of two, the stricter one.
    (FLOW % ("other", "far__p"), (A, B, BOTH)): [],
    (FLOW % ("'other__*'", "'far__*'"), (A, B, BOTH)): ["c: far__p: mcp.flow[0] ask: other__get"],
    (f"{DENY}\n  {FLOW % ('private', 'sends')}", (A, B, BOTH)): [f"c: far__p: {BY}"],
    (FLOW % ("private", "changes"), (f"{A[:-1]}, repo__file_write, repo__dir_create]",)): [
        "a: repo__file_write, repo__dir_create: mcp.flow[0] ask: repo__file_read, repo__file_write"
    ],
    # Tools that only their server knows.
    (FLOW % ("other__x", "other__y"), ("id: a, prompt: x y, tools: ['other__*']",)): [
        "a: other__*: mcp.flow[0] ask: other__*"
    ],
    (FLOW % ("other__x", "other__y"), ("id: a, prompt: x y, tools: [other__x]",)): [],
    # What a server says of itself.
    (FLOW % ("says", "says__x"), ("id: a, prompt: x y, tools: [says__x]",)): [
        "a: says__x: mcp.flow[0] ask: says"
    ],
    # A search for passages, which the file asks for.
    (FLOW % ("stdin", "know__rag_query"), (SEARCH % "stdin",)): [
        "a: know__rag_query: mcp.flow[0] ask: stdin"
    ],
}


def test_calls_are_found_by_what_the_file_asks_for(tmp_path: Path) -> None:
    assert {case: held(tmp_path, *case) for case in MCP} == MCP


INNER = """
inputs: {t: {type: string}, u: {type: string, default: x}}
steps:
  - {id: read, prompt: '{{ inputs.u }}', tools: [repo__file_read]}
  - {id: send, call: far__p, with: {t: '{{ inputs.t }}{{ steps.read.text }}'}}
outputs: {u: '{{ inputs.u }}', all: '{{ steps.read.text }}'}
"""


def test_text_is_followed_into_sub_pipelines_and_back(tmp_path: Path) -> None:
    (tmp_path / "in.yaml").write_text(f"{HEAD}{INNER}")
    into = "id: s, pipeline: in.yaml, with: {%s}"

    assert held(tmp_path, DENY, (B, into % "t: '{{ steps.b.text }}'")) == [
        "send: far__p: mcp.exfiltration of p.yaml deny: repo__file_read, other__get, other.tools"
    ]
    assert held(tmp_path, DENY, (B, into % "t: x, u: '{{ steps.b.output }}'")) == [
        "send: far__p: mcp.exfiltration of p.yaml deny: repo__file_read, other__get, other.tools"
    ]
    assert held(tmp_path, DENY, (B, into % "t: x")) == []
    back = CALL % "{{ steps.b.text }}{{ steps.s.output.u }}"
    assert held(tmp_path, DENY, (B, into % "t: x", back.replace("output.u", "status"))) == []
    assert held(tmp_path, DENY, (B, into % "t: x", back)) == [
        "c: far__p: mcp.exfiltration deny: repo__file_read, other__get, other.tools"
    ]


def test_calls_that_are_held_only_where_items_run_on_workers_are_told(tmp_path: Path) -> None:
    item = "id: i, prompt: '{{ item }}', foreach: '[stdin]', tools: [far__g]"
    assert held(tmp_path, f"{DENY}\n  labels: {{stdin: [], 'far__*': []}}", (item,)) == []
    (told,) = held_on_workers(load_pipeline(tmp_path / "p.yaml"))
    assert told.startswith("`far__g` of step `i` may be held on workers: read unknown (private")
    held(tmp_path, "exfiltration: warn", (A, B, BOTH))
    assert not list(held_on_workers(load_pipeline(tmp_path / "p.yaml")))


SERVED = """
mcp:
  %s
  servers:
    repo: {pack: [fs, edit], root: .}
    ours: {url: "http://127.0.0.1:3/mcp", trust: true}
  auto_approve: ["*__*"]
serve: {pipelines: [p.yaml, also.yaml]}
"""


def test_a_served_pipeline_is_given_what_its_client_was_given(tmp_path: Path) -> None:
    send = "id: c, call: far__p, with: {t: '%s'}"
    also = f"{HEAD}inputs: {{u: {{default: x}}}}\nsteps:\n  - {{{OURS}}}\n"
    (tmp_path / "also.yaml").write_text(also.replace("name: p", "name: also"))

    def served(mcp: str, inner: str, step: str) -> list[str]:
        inputs = "inputs: {t: {default: x}}\n"
        used = "id: u, prompt: '{{ inputs.t }}', tools: []"
        assert held(tmp_path, inner, (used, step), inputs) == []
        (tmp_path / "serve.yaml").write_text(f"aish: 1\nname: s\n{SERVED % mcp}")
        pipeline, problems = check_file(tmp_path / "serve.yaml")
        assert pipeline is not None
        assert [str(one) for one in problems if not one.warning] == []
        found = find_held_calls(pipeline)
        return [f"{one.step}: {', '.join(one.tools)}: {one.rule}" for one in found]

    # The client is untrusted, and may have read files, what another pipeline returned, or more.
    by_file, by_server = "c: far__p: mcp.exfiltration", "c: far__p: mcp.exfiltration of serve.yaml"
    assert by_file in served("parallel: []", DENY, send % "{{ inputs.t }}")
    assert by_server in served(DENY, "parallel: []", send % "{{ inputs.t }}")
    assert by_file not in served("parallel: []", DENY, send % "x")
    rule = FLOW % ("ours__get", "far__p")
    assert "c: far__p: mcp.flow[0]" in served("parallel: []", rule, send % "{{ inputs.t }}")
    # And so is what it may have written.
    step = "id: c, run: [make]"
    assert "c: shell__run: mcp.exfiltration of serve.yaml" in served(DENY, "parallel: []", step)
    # The calls of the client itself are found too, whatever is served.
    assert any(one.startswith(": ") for one in served(DENY, "parallel: []", send % "x"))
    for offers in ("", 'serve: {resources: ["*__*"]}'):
        by_client = FLOW % ("client", "far__x")
        (tmp_path / "serve.yaml").write_text(f"{HEAD}  {by_client}\n{offers}\n")
        alone = find_held_calls(load_pipeline(tmp_path / "serve.yaml"))
        assert [one.sources for one in alone] == [("client",)] * bool(offers)


@pytest.mark.parametrize(
    "prompt", ["{{ steps.s%d.output }}", "{{ steps | tojson }}"], ids=["chain", "all"]
)
def test_held_calls_are_found_in_time_in_proportion_to_the_steps(
    tmp_path: Path, prompt: str
) -> None:
    def steps(count: int) -> int:
        rows = ["  - {id: s0, prompt: x y, tools: [repo__file_read]}\n"]
        for at in range(1, count):
            source = prompt.replace("%d", str(at - 1))
            rows.append(f"  - {{id: s{at}, prompt: '{source}', tools: [other__g{at}]}}\n")
        file = tmp_path / "p.yaml"
        file.write_text(f"{HEAD}  {DENY}\nsteps:\n{''.join(rows)}")
        pipeline = load_pipeline(file)
        assert len(find_held_calls(pipeline)) == count - 1
        return work_of(lambda: held_check(find_held_calls(pipeline))).steps

    few = steps(100)
    assert steps(400) < 5 * few
