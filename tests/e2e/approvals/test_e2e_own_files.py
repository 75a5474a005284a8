"""No tool writes what the run is made of, whatever the rules approve (K19)."""

import json
from typing import Any

import pytest
from e2e_project import MODEL, ModelEndpoints, Project, of_type
from model_endpoint import Reply, text_reply, tool_reply

OWN = {
    "p.yaml": "",
    "base.yaml": "aish: 1\nextends: above.yaml\n",
    "above.yaml": "aish: 1\non_denied: continue\n",
    "prompts/ask.md": "Ask\n",
    "schema.json": '{"type": "object"}\n',
    "inner.yaml": f"aish: 1\n{MODEL}\nprompt: {{file: inner.md}}\n",
    "inner.md": "Ask\n",
}
"""Pipeline, what it extends, prompt, schema, sub-pipeline and its prompt."""

NOT_YET = ["p.lock.json", "tape.yaml", "cases/one.yaml", "inner.lock.json"]
"""Lock files and cassettes: a tool must not be the one that makes them."""

FREE = ["notes.yaml", "prompts/other.md"]

SERVERS = """
mcp:
  servers: {repo: {pack: [fs, edit], root: .}}
  auto_approve: ["repo__file_write", "repo__dir_create"]
"""
WRITING = f"""
extends: base.yaml
cassette: tape.yaml
{SERVERS}
steps:
  - id: ask
    prompt: {{file: prompts/ask.md}}
    output: {{schema: schema.json}}
  - {{id: within, pipeline: inner.yaml, needs: [ask]}}
tests:
  - {{name: one, cassette: cases/one.yaml, expect: [{{contains: x}}]}}
"""


def writing(*paths: str) -> Reply:
    return tool_reply(
        [
            (f"c{number}", "repo__file_write", json.dumps({"path": path, "content": "mine\n"}))
            for number, path in enumerate(paths)
        ]
    )


def outcomes(project: Project) -> dict[str, Any]:
    """What the model was told of each file that it wrote."""
    decided = of_type(project.journal, "tool.decided")
    paths = {(one["step"], one["call"]): one["arguments"]["path"] for one in decided}
    finished = of_type(project.journal, "tool.finished")
    return {paths[one["step"], one["call"]]: one["content"] for one in finished}


def contents(project: Project) -> dict[str, str]:
    files = (path for path in project.folder.rglob("*") if path.is_file())
    kept = (path for path in files if ".aish" not in path.parts)
    return {str(path.relative_to(project.folder)): path.read_text() for path in kept}


@pytest.mark.requirement("K19")
def test_no_tool_writes_what_the_run_is_made_of(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    for name, text in OWN.items():
        project.write(name, text)
    asked = [*OWN, *NOT_YET, "./prompts/ask.md", *FREE]
    project.uses(model_endpoint([writing(*asked), text_reply("{}"), text_reply("inner")]))
    project.pipeline(WRITING)
    before = contents(project)

    done = project.run()

    assert done.code == 0, done.stderr
    found = outcomes(project)
    refused = {path for path, told in found.items() if "is protected" in told}
    assert refused == set(asked) - set(FREE)
    after = contents(project)
    changed = {name: text for name, text in after.items() if before.get(name) != text}
    assert changed == dict.fromkeys(FREE, "mine\n")


def test_a_sub_pipeline_does_not_write_the_files_of_the_one_around_it(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([writing("p.yaml", "inner.yaml", "b.txt"), text_reply("done")]))
    project.write("inner.yaml", f"aish: 1\n{MODEL}\n{SERVERS}prompt: Write\n")
    outer = project.pipeline("steps: [{id: within, pipeline: inner.yaml}]\n").read_text()

    project.run()

    assert (project.folder / "p.yaml").read_text() == outer
    told = outcomes(project)
    assert ["is protected" in told[path] for path in told] == [True, True, False]
    assert (project.folder / "b.txt").read_text() == "mine\n"


def test_no_tool_writes_the_cassette_that_is_recorded(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    names = ["tapes/rec.yaml", "tapes/rec.yaml.partial", "tapes/rec.yaml.failed", "tapes/b.yaml"]
    project.uses(model_endpoint([writing(*names), text_reply("done")]))
    project.pipeline(f"{SERVERS}prompt: Write\n")

    done = project.run("--record", "tapes/rec.yaml")

    assert done.code == 0, done.stderr
    told = outcomes(project)
    assert ["is protected" in told[name] for name in names] == [True, True, True, False]
    assert "mine" not in (project.folder / "tapes/rec.yaml").read_text().splitlines()


def test_no_tool_writes_an_environment_file(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([writing("ci/tools.toml", "ci/b.toml"), text_reply("done")]))
    project.write("ci/tools.toml", "[env]\n")
    options = "{shell: {env_file: ci/tools.toml}}"
    project.pipeline(f"""
    mcp:
      servers: {{repo: {{pack: [fs, shell], root: ., options: {options}}}}}
      auto_approve: [repo__file_write]
    prompt: Write
    """)

    project.run()

    told = outcomes(project)
    assert ["is protected" in told[name] for name in told] == [True, False]
    assert (project.folder / "ci/tools.toml").read_text() == "[env]\n"
