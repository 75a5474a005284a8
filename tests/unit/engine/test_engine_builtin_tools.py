"""What is known of a pack's tool before its server was started."""

from pathlib import Path

import pytest

from aish.config.loader import load_pipeline
from aish.core.tools import ToolName
from aish.engine.plan.builtin_tools import presumed_tool
from aish.policy.decide import decide
from aish.policy.rules import compile_policy

TEXT = """
aish: 1
models: {m: {embedded: smollm2}}
mcp: {servers: {repo: {pack: [fs], root: .}}, auto_approve: ["repo__*"]}
prompt: Say hello
"""


@pytest.mark.parametrize(
    ("name", "trust", "verdict"),
    [
        ("file_read", "false", "auto"),
        ("file_write", "false", "ask"),
        ("file_write", "true", "auto"),
    ],
)
def test_a_wildcard_approves_a_destructive_tool_of_ours_only_where_it_is_trusted(
    name: str, trust: str, verdict: str, tmp_path: Path
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(TEXT.replace("root: .", f"root: ., trust: {trust}"))
    pipeline = load_pipeline(file)
    tool = presumed_tool(ToolName("repo", name), pipeline)
    assert tool is not None
    assert decide(compile_policy(pipeline.rules), tool, {}).verdict == verdict
