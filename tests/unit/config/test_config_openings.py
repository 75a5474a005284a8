"""What a prompt opens with, and files that are for a session only."""

from pathlib import Path
from typing import Any

import pytest

from aish.config.loader import load_pipeline
from aish.config.model import (
    PLATFORM_SHELL,
    Attachment,
    Pipeline,
    PromptStep,
    Retrieval,
    ServerPrompt,
)
from aish.core.errors import PipelineError
from aish.core.rules import RuleEntry
from aish.engine.plan.options import RunOptions
from aish.engine.plan.order import in_order
from aish.engine.plan.plan import make_plan
from aish.engine.plan.validation.validate import check_file, require_steps
from aish.packs.rag.rag_pack import rag_query

HEAD = """aish: 1
models: {a: {embedded: smollm2}}
mcp:
  servers:
    docs: {command: [docs-server]}
    more: {command: [more-server], required: false}
    sure: {command: [sure-server], required: true}
"""
KNOW = "    know: {pack: [fs, rag], root: .}\n"


def loaded(folder: Path, text: str) -> Pipeline:
    file = folder / "p.yaml"
    file.write_text(HEAD + text)
    pipeline, problems = check_file(file)
    assert not problems
    assert pipeline is not None
    return pipeline


def prompts(pipeline: Pipeline) -> list[PromptStep]:
    return [step for step in pipeline.steps if isinstance(step, PromptStep)]


def test_a_file_without_steps_is_whole_and_cannot_be_run(tmp_path: Path) -> None:
    pipeline = loaded(tmp_path, "inputs: {unread: {type: string, default: x}}\n")
    assert pipeline.steps == ()
    with pytest.raises(PipelineError, match="the pipeline has no steps"):
        require_steps(pipeline)
    outer = tmp_path / "outer.yaml"
    outer.write_text("aish: 1\nsteps: [{id: a, pipeline: p.yaml}]\n")
    _, problems = check_file(outer)
    assert [problem.message for problem in problems] == ["the pipeline has no steps"]


def test_what_a_file_says_of_a_session_is_told_from_what_it_leaves_open(tmp_path: Path) -> None:
    silent = loaded(tmp_path, "")
    assert (silent.on_denied, silent.shell.auto_approve, silent.shell.cmd_lines) == (None, (), True)
    assert silent.shell.run == PLATFORM_SHELL
    assert silent.loop.max_tool_depth == 8
    said = loaded(
        tmp_path,
        """on_denied: fail
max_tool_depth: 3
context: {max_tokens: 4000, keep: 2}
shell:
  auto_approve: ["git log **", [ls, -l], "echo 'a b'"]
  cmd_lines: false
  run: bash
""",
    )
    assert said.on_denied == "fail"
    assert said.shell.auto_approve == tuple(
        RuleEntry(tool="shell__run", command=words, path=f"shell.auto_approve[{index}]")
        for index, words in enumerate((("git", "log", "**"), ("ls", "-l"), ("echo", "a b")))
    )
    assert (said.shell.cmd_lines, said.shell.run) == (False, ("bash", "-c"))
    assert (said.loop.max_tool_depth, said.context.max_tokens, said.context.keep) == (3, 4000, 2)
    listed = loaded(tmp_path, "shell: {run: [bash, -l, -c]}\n")
    assert listed.shell.run == ("bash", "-l", "-c")


def test_who_opens_a_server_decides_where_the_file_does_not(tmp_path: Path) -> None:
    pipeline = loaded(tmp_path, "")
    assert [entry.required for entry in pipeline.servers.values()] == [None, False, True]
    for options, wanted in (
        (RunOptions(), [True, False, True]),
        (RunOptions(servers_required=False), [False, False, True]),
    ):
        servers = make_plan(pipeline, options).servers
        assert [server.entry.required for server in servers] == wanted


def test_a_prompt_takes_what_a_server_keeps_and_what_is_attached(tmp_path: Path) -> None:
    pipeline = loaded(
        tmp_path,
        """prompts:
  kept: {server: docs, name: review, arguments: {file: "{{ stdin }}"}}
steps:
  - {id: a, prompt: {name: kept}, attach: notes.md}
  - id: b
    prompt: {server: more, name: ask}
    attach: [notes.md, "docs://{{ stdin }}", {server: sure, uri: "docs://x"}]
""",
    )
    first, second = prompts(pipeline)
    assert first.prompt == ServerPrompt("docs", "review", {"file": "{{ stdin }}"})
    assert first.attach == (Attachment("notes.md"),)
    assert second.prompt == ServerPrompt("more", "ask")
    assert second.attach[1:] == (Attachment("docs://{{ stdin }}"), Attachment("docs://x", "sure"))


def test_a_search_for_an_attachment_has_the_numbers_of_its_tool(tmp_path: Path) -> None:
    pipeline = loaded(
        tmp_path,
        f"""{KNOW}steps:
  - {{id: a, prompt: Go., attach: [{{server: know, query: "{{{{ steps.b.text }}}}"}}]}}
  - {{id: b, prompt: Go., attach: [{{server: know, query: x, top_k: 3, threshold: 0.5}}]}}
""",
    )
    first, second = prompts(pipeline)
    assert first.attach == (Retrieval("know", "{{ steps.b.text }}", 5, 0.0),)
    assert second.attach == (Retrieval("know", "x", 3, 0.5),)
    assert [step.id for step in in_order(pipeline)] == ["b", "a"]
    parameters: Any = rag_query.input_schema["properties"]
    assert [parameters[name]["default"] for name in ("top_k", "threshold")] == [5, 0.0]


def test_a_search_that_cannot_be_made_is_an_error_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    server = KNOW.replace("root: .", "root: ., exclude: [rag_*]")
    rest = "  deny: [know__*]\nprompt: Go.\nattach: [{server: know, query: x}]\n"
    file.write_text(HEAD + server + rest)
    _, problems = check_file(file)
    assert [problem.message for problem in problems] == [
        "the server `know` leaves out the tool `rag_query`",
        "the rule `know__*` under `deny` forbids this search",
    ]


def test_a_step_that_goes_on_with_another_waits_for_it(tmp_path: Path) -> None:
    pipeline = loaded(
        tmp_path,
        "steps:\n  - {id: b, prompt: And more., continues: a}\n  - {id: a, prompt: Begin here.}\n",
    )
    assert [step.id for step in in_order(pipeline)] == ["a", "b"]
    assert prompts(pipeline)[0].continues == "a"


def test_one_step_at_the_top_may_attach_but_has_nothing_to_continue(tmp_path: Path) -> None:
    pipeline = loaded(tmp_path, "prompt: Read it.\nattach: [a.md]\n")
    assert prompts(pipeline)[0].attach == (Attachment("a.md"),)
    file = tmp_path / "q.yaml"
    file.write_text(f"{HEAD}prompt: Read it.\ncontinues: a\n")
    with pytest.raises(PipelineError, match="unknown key `continues`"):
        load_pipeline(file)
