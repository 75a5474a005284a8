"""Servers with more tools than anybody can use."""

import json

import pytest
from e2e_project import Project, stdio

FILE = f"""
models: {{m: {{base_url: "http://127.0.0.1:9/v1", model: x}}}}
mcp: {{servers: {{s: {{command: {stdio("--many", "3000")}}}}}}}
steps:
  - {{id: all, prompt: Use what there is}}
  - {{id: few, prompt: Use this, tools: [s__echo, "s__more12*"]}}
"""
CUT = "warning: mcp s: it lists more than 2,000 tools: the rest is left out\n"
CROWDED = (
    "{}: step `all`: its requests have 2,000 tools; many endpoints accept 128 at most\n"
    "  hint: name those it needs under `tools:` of the step, or of the server\n"
)


@pytest.mark.slow(reason="plans with many tools")
def test_plan_warns_of_requests_with_more_tools_than_endpoints_accept(project: Project) -> None:
    project.pipeline(FILE)

    done = project.aish("plan", "p.yaml", "--format", "json")
    strict = project.aish("plan", "p.yaml", "--strict")

    assert (done.code, strict.code) == (0, 2)
    assert done.stderr == CUT + CROWDED.format("warning")
    assert strict.stderr == CUT + CROWDED.format("error")
    steps = {step["id"]: step for step in json.loads(done.stdout)["steps"]}
    assert len(steps["all"]["tools"]) == 2000
    assert len(steps["few"]["tools"]) == 112
