"""Patches that a model proposes: approved by rules, staged, and seen in the plan."""

import json

from e2e_project import ModelEndpoints, Project
from model_endpoint import text_reply, tool_reply

PATCH = """\
*** Begin Patch
*** Update File: src/a.txt
@@
-one
+1
*** Add File: src/b.txt
+two
*** End Patch
"""


def test_a_staged_patch_is_applied_as_a_whole_later(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.pipeline("""
    models: {m: {base_url: "${MODEL_URL}", model: scripted}}
    model: m
    mcp:
      servers: {box: {pack: [fs, edit], root: work}}
      auto_approve: [box__file_patch]
      stage: [{tool: "box__*", when: {path: "src/**"}}]
    prompt: Change it
    """)
    project.write("work/src/a.txt", "one\n")
    arguments = json.dumps({"patch": PATCH})
    calls = tool_reply([("c1", "box__file_patch", arguments)])
    project.uses(model_endpoint([calls, text_reply("done")]))

    done = project.run()

    assert done.code == 0, done.stderr
    assert (project.folder / "work/src/a.txt").read_text("utf-8") == "one\n"
    (staged,) = (project.folder / ".aish" / "runs").glob("*/staged.json")
    applied = project.aish("apply", str(staged))
    assert applied.code == 0, applied.stderr
    assert (project.folder / "work/src/a.txt").read_text("utf-8") == "1\n"
    assert (project.folder / "work/src/b.txt").read_text("utf-8") == "two\n"


def test_the_tools_of_a_plan_have_patches(project: Project) -> None:
    project.pipeline("mcp: {servers: {box: {pack: edit, root: .}}}\nprompt: x\n")
    listed = project.aish("tools", "p.yaml")
    assert "box__file_patch" in listed.stdout, listed.stderr
