"""`aish init --from`: what maps, what does not, and what is wrong with a file (F8, F10)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e_project import Project
from samples import sampled
from syrupy.assertion import SnapshotAssertion


def test_well_known_servers_that_are_installed_come_with_a_sandbox(project: Project) -> None:
    servers = {
        "files": ["/opt/x/node_modules/.bin/mcp-server-filesystem", "/srv/data", "docs"],
        "script": ["node", "/opt/node_modules/@modelcontextprotocol/server-filesystem/i.js", "/a"],
        "module": ["python3", "-m", "mcp_server_git", "--repository", "/srv/repo"],
        "clock": ["mcp-server-time", "--local-timezone", "UTC"],
        "fetch": ["mcp-server-fetch"],
        "home": ["mcp-server-filesystem", project.aish.env["HOME"]],
        "launched": ["npx", "-y", "@modelcontextprotocol/server-filesystem", "/srv/data"],
        "other": ["server"],
    }
    rows = {name: {"command": words[0], "args": words[1:]} for name, words in servers.items()}
    project.write("mcp.json", json.dumps({"mcpServers": rows}))

    done = project.aish("init", "--from", "mcp.json")

    assert done.code == 0, done.stderr
    written = yaml.safe_load((project.folder / "aish.yaml").read_text("utf-8"))["mcp"]["servers"]
    assert {name: row.get("sandbox") for name, row in written.items()} == {
        "files": {"write": ["/srv/data", "docs"]},
        "script": {"write": ["/a"]},
        "module": {"write": ["/srv/repo"]},
        "clock": {"network": "none"},
        "fetch": {"network": "full"},
        **dict.fromkeys(("home", "launched", "other")),
    }
    assert project.aish("validate", "aish.yaml").code == 0


MCP_JSON = {
    "mcpServers": {
        "my server": {
            "command": "server",
            "args": [
                "--db=postgres://u:secret-word@h/d",
                "--api-key",
                "abcdefghij",
                "--port",
                "80",
            ],
            "env": {
                "HOME": "${HOME}",
                "DEBUG": "1",
                "PASSWORD": "root",
                "API_KEY": "key-1234567",
                "GOOGLE_APPLICATION_CREDENTIALS": "/srv/key.json",
                "ANY": "${ANY_VALUE}",
                "MAYBE": "${MAYBE:-no}",
            },
            "autoApprove": ["read", "list"],
            "timeout": 3000,
        },
        "other": {"command": "server", "env": {"API_KEY": "another-key"}},
        "web": {
            "type": "http",
            "url": "https://u:p@example.com/mcp?token=abcdefgh12&team=docs",
            "headers": {"Authorization": "Bearer abc", "X-Team": "docs", "X-Api-Key": "k-1234567"},
        },
        "whole": {"url": "https://example.com/mcp", "headers": {"authorization": "${WHOLE}"}},
        "hidden": {"url": "https://example.com/s/Zk3jd9Q2mXv7LpR4tYw8Bn6Hc1Fg5Ds0Aq/mcp"},
        "remote": {
            "command": "npx",
            "args": ["mcp-remote", "--header", "Authorization: Bearer tok-1234567"],
        },
        "off": {"command": "server", "disabled": True},
        "socket": {"type": "websocket", "url": "https://example.com/"},
    },
    "theme": "dark",
}
VS_CODE = """
{
  "inputs": [
    {"type": "promptString", "id": "api-key", "description": "The key", "password": true},
    {"type": "pickString", "id": "zone", "description": "Zone",
     "options": ["UTC", "CET"], "default": "UTC"}, /* one */
  ],
  "servers": {
    "here": {
      "command": "${workspaceFolder}/bin/server", // in the workspace
      "args": ["${userHome}", "${workspaceFolderBasename}", "${env:PLACE}",
               "${file}", "${input:zone}"],
      "env": {"KEY": "${input:api-key}"},
      "envFile": "${workspaceFolder}/.env",
    },
    "pipe": {"type": "http", "url": "unix:///tmp/server.sock"},
  },
}
"""
CODEX = """
model = "small"
model_provider = "mine"
approval_policy = "never"

[model_providers.mine]
name = "Mine"
base_url = "http://127.0.0.1:8080/v1/"
env_key = "MINE_KEY"
wire_api = "responses"

[mcp_servers.figma]
url = "https://mcp.example.com/mcp"
bearer_token_env_var = "FIGMA_TOKEN"
http_headers = { "X-Region" = "us-east-1" }
env_http_headers = { "X-Extra" = "EXTRA" }
startup_timeout_ms = 1500
required = true
scopes = ["a"]

[mcp_servers.local]
command = "server"
args = ["${NOT_READ}"]
env_vars = ["TZ", { name = "FAR", source = "remote" }]
cwd = "sub"
disabled_tools = ["write"]

[mcp_servers.local.tools.read]
approval_mode = "prompt"

[mcp_servers.off]
command = "server"
enabled = false
"""
GOOSE = """
version: "1.0.0"
title: Code Review
description: Reviews code
instructions: |
  You review {{ language }} code, {{ strict and 'strictly' or 'kindly' }}.
  See {{ recipe_dir }}/style.md and {{'{{ KEPT }}'}}.
parameters:
  - {key: language, input_type: string, requirement: required, description: Which}
  - {key: strict, input_type: boolean, requirement: optional, default: "true", description: How}
activities: [Review]
extensions:
  - {type: builtin, name: developer}
  - {type: builtin, name: memory}
  - {type: stdio, name: hub, cmd: hub, args: [serve], env_keys: [HUB_KEY],
     envs: {MODE: fast}, available_tools: [read]}
  - {type: streamable_http, name: web, uri: "https://example.com/mcp",
     headers: {Authorization: "Bearer $WEB_TOKEN"}}
  - {type: inline_python, name: code, code: print(1)}
settings: {goose_provider: databricks, goose_model: big, temperature: 0}
retry: {max_retries: 2, checks: [{type: shell, command: "true"}]}
sub_recipes: [{name: other, path: other.yaml}]
"""
PROMPTFOO = """
description: Translations
prompts:
  - 'Translate to {{language}}: {{text}}'
  - id: file://prompts.txt
    label: polite
  - '[{"role": "system", "content": "You know {{language}}."},
     {"role": "user", "content": "{{text}}"}]'
  - file://prompt.py
providers:
  - openai:gpt-5-mini
  - ollama:chat:llama3
  - id: anthropic:messages:claude-sonnet-4-5
    label: sonnet
    config: {max_tokens: 100, tools: []}
  - file://own.js
tests:
  - vars: {language: [French, German], text: Hello}
    assert:
      - {type: not-regex, value: "^Sure"}
      - {type: llm-rubric, value: "It is {{language}}."}
      - {type: latency, threshold: 1500}
      - {type: similar, value: x, threshold: 0.8}
  - file://cases.csv
outputPath: out.json
"""
FILES = {
    "mcp-json": (".mcp.json", json.dumps(MCP_JSON, indent=2)),
    "vs-code": (".vscode/mcp.json", VS_CODE),
    "codex": ("config.toml", CODEX),
    "goose": ("recipe.yaml", GOOSE),
    "promptfoo": ("promptfooconfig.yaml", PROMPTFOO),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_of_another_program_becomes_a_valid_pipeline(
    project: Project, snapshot: SnapshotAssertion, kind: str
) -> None:
    name, text = FILES[kind]
    source = project.write(name, text.lstrip())
    project.write("prompts.txt", "Please: {{text}}\n---\nKindly: {{text}} in {{ language }}\n")
    project.write(
        "cases.csv", "language,text,__expected\nFrench,Cat,contains: chat\nDutch,Cat,kat\n"
    )

    done = project.aish("init", "--from", name, "-o", "made.yaml")
    checked = project.aish("validate", "made.yaml")

    assert (done.code, done.stdout) == (0, "")
    made = (project.folder / "made.yaml").read_text("utf-8")
    assert made.replace(project.folder.name, "<folder>") == snapshot(name="file")
    assert done.stderr == snapshot(name="said")
    assert checked.stdout == "made.yaml: ok\n", checked.stderr
    assert source.read_text("utf-8") == text.lstrip()


def test_no_literal_credential_is_copied(project: Project) -> None:
    project.write(".mcp.json", FILES["mcp-json"][1])

    done = project.aish("init", "--from", ".mcp.json")
    made = (project.folder / "aish.yaml").read_text("utf-8")

    for secret in ("secret-word", "abcdefghij", "key-1234567", "another-key", "Bearer abc"):
        assert secret not in made + done.stderr
    for secret in ("u:p@", "abcdefgh12", "k-1234567", "Zk3jd9Q2", "tok-1234567"):
        assert secret not in made + done.stderr
    for plain in ('DEBUG: "1"', "PASSWORD: root", "/srv/key.json", "team=docs", "X-Team: docs"):
        assert plain in made


@pytest.mark.sampled(2)
@pytest.mark.parametrize("order", [("gh", "gh2"), ("gh2", "gh")])
@pytest.mark.parametrize("reference", ["${GH_TOKEN}", "${GH_TOKEN:-none}"])
def test_two_credentials_never_share_a_variable(
    project: Project, order: tuple[str, str], reference: str
) -> None:
    tokens = {"gh": "ghp_" + "a1B2" * 9, "gh2": reference}
    servers = {
        alias: {
            "url": f"https://{alias}.example.com/mcp",
            "headers": {"Authorization": f"Bearer {tokens[alias]}"},
        }
        for alias in order
    }
    project.write(".mcp.json", json.dumps({"mcpServers": servers}))

    done = project.aish("init", "--from", ".mcp.json", "-o", "made.yaml")
    made = (project.folder / "made.yaml").read_text("utf-8")

    assert done.code == 0, done.stderr
    assert made.count("auth_env: GH_TOKEN\n") == (reference == "${GH_TOKEN}")
    assert "auth_env: GH_TOKEN_2\n" in made
    assert f"Bearer {reference}" in made or reference == "${GH_TOKEN}"


def test_each_use_of_a_variable_is_told(project: Project) -> None:
    servers = {
        "a": {"url": "https://a.example.com/", "headers": {"Authorization": "Bearer ${SHARED}"}},
        "b": {"command": "server", "env": {"KEY": "${SHARED}"}},
        "model": {"url": "https://c.example.com/", "headers": {"Key": "abcdefgh12"}},
    }
    project.write(".mcp.json", json.dumps({"mcpServers": servers}))

    done = project.aish("init", "--from", ".mcp.json", "-o", "made.yaml")

    assert (
        "  SHARED: the token alone, without `Bearer `, for the header `Authorization` of the "
        "server `a`; the variable `KEY` of the server `b`\n"
    ) in done.stderr
    assert "  MODEL_KEY_2: the whole value of the header `Key`" in done.stderr


def test_what_codex_passes_on_is_to_be_exported(project: Project) -> None:
    project.write(
        "config.toml",
        '[mcp_servers.s]\ncommand = "server"\nenv_vars = ["FOO", "TZ", "SET"]\nenv = {SET = "1"}\n',
    )

    done = project.aish("init", "--from", "config.toml", "-o", "made.yaml")
    planned = project.aish("plan", "made.yaml", "--offline")

    assert (
        "export before a run:\n  FOO: the variable `FOO` of the server `s`\n  MODEL_" in done.stderr
    )
    assert planned.code == 0, planned.stderr
    not_set = planned.stdout.partition("not set")[2]
    assert "  FOO" in not_set
    assert "TZ" not in not_set


def test_cases_of_a_configuration_have_what_the_prompt_reads(project: Project) -> None:
    project.write(
        "promptfooconfig.yaml",
        "prompts: ['Say {{text}} in {{lang}}, {{count}} times']\n"
        "providers: [openai:x]\n"
        "tests:\n"
        "  - vars: {text: a, lang: French, count: 2}\n"
        "  - vars: file://v.csv\n"
        "  - vars: {text: b}\n",
    )

    done = project.aish("init", "--from", "promptfooconfig.yaml", "-o", "made.yaml")
    checked = project.aish("validate", "made.yaml")
    made = yaml.safe_load((project.folder / "made.yaml").read_text("utf-8"))

    assert checked.stdout == "made.yaml: ok\n", checked.stderr
    said = "promptfooconfig.yaml:5:5: tests[1].vars: the case is left out: write its variables out"
    assert said in done.stderr
    assert [one["inputs"]["text"] for one in made["tests"]] == ["a", "b"]
    assert made["inputs"] == {
        "text": {"type": "string"},
        "lang": {"type": "string", "default": ""},
        "count": {"default": ""},
    }


def test_a_credential_is_known_by_any_usual_name(project: Project) -> None:
    names = ("PGPASSWORD", "SECRETKEY", "githubtoken", "API_KEY_2", "TOKEN_PROD", "NOTION_TOKEN_V2")
    values = {name: f"my-word-{number}" for number, name in enumerate(names)}
    env = {**values, "PRIMARY_KEY_COLUMN": "customer_id", "MAX_NEW_TOKEN": "a-great-many"}
    listed = {"mcpServers": {"db": {"command": "server", "env": env}}}
    project.write(".mcp.json", json.dumps(listed))

    done = project.aish("init", "--from", ".mcp.json")
    made = (project.folder / "aish.yaml").read_text("utf-8")

    assert (done.code, done.stdout) == (0, "")
    assert "my-word" not in made + done.stderr
    for name in names:
        assert f": the variable `{name}` of" in done.stderr
    assert "PRIMARY_KEY_COLUMN: customer_id" in made
    assert "MAX_NEW_TOKEN: a-great-many" in made


def test_a_pipeline_beside_another_folder_starts_servers_where_they_were(
    project: Project,
) -> None:
    project.write(".mcp.json", '{"mcpServers": {"s": {"command": "./server"}}}')
    (project.folder / "pipelines").mkdir()

    project.aish("init", "--from", ".mcp.json", "-o", "pipelines/made.yaml")

    assert 'cwd: ".."\n' in (project.folder / "pipelines" / "made.yaml").read_text("utf-8")


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", "", "a.json:1:1: the file is empty"),
        ("a.json", '{\n  "a": 1\n  "b": 2}', "a.json:3:3: not JSON: expecting ',' delimiter"),
        ("a.json", '{"a": [1, 2', "a.json:1:12: not JSON: expecting ',' delimiter"),
        ("a.json", '{"a": nul}', "a.json:1:7: not JSON: expecting value"),
        ("a.json", '{"a": "x\ny"}', "a.json:1:9: not JSON: invalid control character at"),
        (
            "a.json",
            "{a: 1}",
            "a.json:1:2: not JSON: expecting property name enclosed in double quotes",
        ),
        ("a.json", '{"a" 1}', "a.json:1:6: not JSON: expecting ':' delimiter"),
        ("a.json", '{"a": 1,\n "a": 2}', "a.json:2:2: duplicate key `a`, first in line 1"),
        ("a.json", "{} x", "a.json:1:4: not JSON: extra data"),
        ("a.json", "[" * 70 + "]" * 70, "nested more than 64 deep"),
        ("a.json", "[1]", "a.json:1:1: a mapping is expected here"),
        ("a.json", "{}", "a.json:1:1: this file cannot be imported: it has nothing"),
        ("a.json", '{"x": 1}', "this file cannot be imported: it has `x`"),
        ("a.json", b"\xff{}", "a.json:1:1: not UTF-8: byte 0xff"),
        ("none.json", None, "none.json:1:1: no such file"),
        ("a.json", '{"mcpServers": {}}', "a.json:1:2: mcpServers: it contains no server"),
        ("a.json", '{"mcpServers": 1}', "a.json:1:2: mcpServers: a mapping is expected here"),
        (
            "a.json",
            '{"mcpServers": {"s": {"args": []}}}',
            "a.json:1:22: mcpServers.s: the server has neither `url` nor `command`",
        ),
        (
            "a.json",
            '{"mcpServers": {"s": {"command": "x", "url": "http://h/"}}}',
            "mcpServers.s: the server has both `url` and `command`",
        ),
        (
            "a.json",
            '{"mcpServers": {"s": {"command": "x", "env": {"A": [1]}}}}',
            "a.json:1:47: mcpServers.s.env.A: a text is expected here",
        ),
        (
            "a.json",
            '{"servers": {"s": {"command": "${input:none}"}}}',
            "servers.s.command: unknown input `none` under `inputs`",
        ),
        ("a.toml", "a = [1\n\nb", "a.toml:3:1: not TOML: "),
        ("a.toml", "a =", "a.toml:1:1: not TOML: Invalid value"),
        ("a.toml", "x = 1", "a.toml:1:1: this file cannot be imported: it has `x`"),
        (
            "a.toml",
            "\n[mcp_servers.s]\nargs = []\n",
            "a.toml:2:1: mcp_servers.s: the server has neither `url` nor `command`",
        ),
        (
            "a.toml",
            '[mcp_servers.s]\ncommand = "x"\nargs = "y"\n',
            "a.toml:3:1: mcp_servers.s.args: a list is expected here",
        ),
        ("a.yaml", "a: [", "a.yaml:1:5: not YAML: "),
        ("a.yaml", "", "a.yaml:1:1: the file is empty"),
        ("a.yaml", "a: 1", "this file cannot be imported: it has `a`"),
        (
            "a.yaml",
            "title: t\nprompt: Say {{ what }}\n",
            "a.yaml:2:1: prompt: `what` is not among the `parameters`",
        ),
        ("a.yaml", "title: t\nprompt: 'Say {{'\n", "a.yaml:2:1: prompt: not a template: "),
        (
            "a.yaml",
            "title: t\nprompt: Say\nparameters: [{key: k, input_type: colour}]\n",
            "a.yaml:3:23: parameters[0].input_type: unknown type of a parameter: `colour`",
        ),
        (
            "a.yaml",
            "title: t\nprompt: Say\nextensions: [{type: stdio, name: x}]\n",
            "extensions[0].cmd: the extension `x` has neither `cmd` nor `uri`",
        ),
        (
            "a.yaml",
            "prompts: ['Say {{ a b }}']\nproviders: [openai:x]\n",
            "a.yaml:1:11: prompts[0]: left out: not a template: ",
        ),
        (
            "a.yaml",
            "prompts: [file://none.txt]\nproviders: [openai:x]\n",
            "a.yaml:1:11: prompts[0]: left out: `none.txt` is not there",
        ),
        (
            "a.yaml",
            "prompts: [Say]\nproviders: [{label: x}]\n",
            "a.yaml:2:13: providers[0]: a provider is expected here: `openai:MODEL`",
        ),
        (
            "a.yaml",
            "prompts: [Say]\ntests: [{assert: [1]}]\n",
            "a.yaml:2:19: tests[0].assert[0]: a mapping is expected here",
        ),
    ],
)
def test_what_cannot_be_imported_is_told_with_its_place(
    project: Project, name: str, text: str | bytes | None, said: str
) -> None:
    if text is not None:
        (project.folder / name).write_bytes(text.encode() if isinstance(text, str) else text)

    done = project.aish("init", "--from", name)

    assert (done.code, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.startswith("error: ")
    assert not (project.folder / "aish.yaml").exists()
    assert not (project.folder / ".aish").exists()


def test_all_that_is_wrong_is_told_at_once(project: Project) -> None:
    servers = {"a": {}, "b": {"command": "x", "args": "y"}, "c": 1, "d": {"command": 3}}
    project.write(".mcp.json", json.dumps({"mcpServers": servers}))

    done = project.aish("init", "--from", ".mcp.json")

    assert done.code == 2
    assert [row.split(": ")[2] for row in done.stderr.splitlines() if row.startswith("error")] == [
        "mcpServers.a",
        "mcpServers.b.args",
        "mcpServers.c",
        "mcpServers.d.command",
    ]


@pytest.mark.parametrize("name", ["recipe.json", "recipe.yaml"])
def test_a_recipe_of_the_desktop_is_read(project: Project, name: str) -> None:
    recipe = {"title": "Desk", "description": "d", "instructions": "Be brief.", "prompt": "Say hi"}
    text = json.dumps({"name": "Desk", "recipe": recipe, "isGlobal": True, "isArchived": False})
    project.write(name, text)

    done = project.aish("init", "--from", name, "-o", "made.yaml")

    assert done.code == 0, done.stderr
    assert "recipe.title: the description, where there is no other\n" in done.stderr
    made = Path(project.folder / "made.yaml").read_text("utf-8")
    assert "system: Be brief.\nprompt: Say hi\n" in made


def test_hostile_names_reach_the_terminal_tame(project: Project) -> None:
    hostile = "x\x1b[31m\u202e"
    entry = {"command": "x", hostile: 1}
    project.write(".mcp.json", json.dumps({"mcpServers": {hostile: entry}, hostile: 1}))

    done = project.aish("init", "--from", ".mcp.json", "-o", "made.yaml")
    checked = project.aish("validate", "made.yaml")

    assert done.code == 0, done.stderr
    assert "\x1b" not in done.stderr
    assert "\u202e" not in done.stderr
    assert checked.code == 0, checked.stderr


def test_a_list_of_a_person_says_nothing_about_folders(project: Project) -> None:
    project.write("elsewhere/desktop.json", '{"mcpServers": {"s": {"command": "./server"}}}')

    project.aish("init", "--from", "elsewhere/desktop.json", "-o", "made.yaml")

    assert "cwd" not in (project.folder / "made.yaml").read_text("utf-8")


def test_a_template_beside_a_file_is_refused(project: Project) -> None:
    project.write(".mcp.json", '{"mcpServers": {"s": {"command": "server"}}}')

    done = project.aish("init", "ci", "--from", ".mcp.json")

    assert done.code == 2
    assert "`--from` converts a file, and `ci` is a template" in done.stderr


@pytest.mark.parametrize(
    "piece",
    sampled(
        ["${", "${a", "a", "://", "?a", "{{", "{{ ", "Bearer ", "x:y@", "/*", "\\"],
        often={0, 6},
        reason="a megabyte of other pieces",
    ),
)
def test_a_megabyte_of_anything_is_read_in_one_go(project: Project, piece: str) -> None:
    long = piece * (250_000 // len(piece))
    server = {"command": "server", "args": [long, f"--token={long}"], "env": {"A": long}}
    web = {"url": f"https://example.com/{long[:1000]}", "headers": {"Authorization": long[:1000]}}
    project.write(".mcp.json", json.dumps({"mcpServers": {"s": server, "w": web}}))

    done = project.aish("init", "--from", ".mcp.json")

    assert done.code in {0, 2}, done.stderr


def imported(project: Project, files: Mapping[str, object], source: str = "") -> tuple[Any, str]:
    """The pipeline that the first of these files comes to, which is valid, and what was said."""
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        project.write(name, text)
    done = project.aish("init", "--from", source or next(iter(files)), "-o", "made.yaml", "--force")
    assert (done.code, done.stdout) == (0, ""), done.stderr
    checked = project.aish("validate", "made.yaml")
    assert checked.stdout == "made.yaml: ok\n", checked.stderr
    return yaml.safe_load((project.folder / "made.yaml").read_text("utf-8")), done.stderr


def promptfoo(**keys: object) -> dict[str, object]:
    """A configuration of one model with these keys."""
    return {"providers": ["openai:small"], **keys}


def test_a_path_is_the_prompt_in_its_file(project: Project) -> None:
    """pf-bare-path, pf-md-rule, pf-no-prompt-left: what is a path there is one here."""
    files = {
        "c.json": promptfoo(
            prompts=[
                *("prompts/ask.txt", "rules.md", "more/*.txt", "file://more"),
                *("make.py:build", "file://gone.js", "Is it 1/2 of {{q}}?", "file://one.markdown"),
            ],
            tests=[{"vars": {"topic": "tides", "q": "why"}}],
        ),
        "prompts/ask.txt": "Explain {{topic}} to a sailor.\n",
        "rules.md": "# Role\n\n---\n\n# Task\nExplain {{topic}}.\n",
        "more/a.txt": "A {{q}}\n --- \nB {{q}}\n",
        "more/b.txt": "C {{q}}",
        "one.markdown": "D\n---\nE",
    }
    made, said = imported(project, files)

    prompts = [step["prompt"].strip() for step in made["steps"]]
    assert prompts == [
        "Explain {{inputs.topic}} to a sailor.",
        "# Role\n\n---\n\n# Task\nExplain {{inputs.topic}}.",
        *("A {{inputs.q}}", "B {{inputs.q}}", "C {{inputs.q}}") * 2,
        "Is it 1/2 of {{inputs.q}}?",
        "D\n---\nE",
    ]
    assert "prompts[4]: left out: a prompt that code makes; write it out (2 times)\n" in said
    assert "prompts[6]: taken as the text of a prompt: there is no such file\n" in said


def test_an_import_of_which_no_prompt_is_left_says_why(project: Project) -> None:
    """pf-no-prompt-left: the reasons stand beside the error, and nothing is written."""
    config = promptfoo(prompts=["file://make.py:build", "Say {{ a b }}", [1]], tests=[])
    project.write("c.json", json.dumps(config))

    done = project.aish("init", "--from", "c.json", "-o", "made.yaml")

    assert done.code == 2
    assert "prompts[0]: left out: a prompt that code makes; write it out" in done.stderr
    assert "prompts[1]: left out: not a template: " in done.stderr
    assert "prompts: there is no prompt that could be imported" in done.stderr
    assert not (project.folder / "made.yaml").exists()


@pytest.mark.parametrize("name", ["a.json", "a.toml"])
def test_an_import_of_which_no_server_is_left_says_why(project: Project, name: str) -> None:
    off = {"command": "x", "enabled": False}
    text = '[mcp_servers.s]\ncommand = "x"\nenabled = false\n'
    project.write(name, json.dumps({"mcpServers": {"s": off}}) if "json" in name else text)

    done = project.aish("init", "--from", name, "-o", "made.yaml")

    assert done.code == 2
    assert ".s: left out: it is switched off" in done.stderr
    assert "there is no server that could be imported" in done.stderr
    assert not (project.folder / "made.yaml").exists()


def test_a_chat_is_never_asked_as_the_text_of_its_data(project: Project) -> None:
    """pf-chat-json: two messages of text are a prompt, every other chat is left out."""
    system = {"role": "system", "content": "Be brief."}
    user = {"role": "user", "content": "{{q}}"}
    parts = {"role": "user", "content": [{"type": "text", "text": "Look {{q}}"}]}
    image = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    files = {
        "c.json": promptfoo(
            prompts=[
                *("file://two.json", "file://long.json", "file://parts.json", "file://image.json"),
                *("file://two.yaml", "file://lines.jsonl", json.dumps([user])),
                "- role: system\n  content: Be kind.\n- role: user\n  content: '{{q}}!'\n",
                '[{"role": "user", "content": {{ q }} }]',
                json.dumps({"messages": [user]}),
            ],
            tests=[{"vars": {"q": "why"}}],
        ),
        "two.json": [system, user],
        "long.json": [system, user, {"role": "assistant", "content": "Hi"}, user],
        "parts.json": [parts],
        "image.json": [{"role": "user", "content": [*parts["content"], image]}],
        "two.yaml": "- {role: system, content: Be calm.}\n- {role: user, content: '{{q}}'}\n",
        "lines.jsonl": f"{json.dumps([user])}\n\n{json.dumps([system, user, user])}\n",
    }
    made, said = imported(project, files)

    assert [(step.get("system"), step["prompt"]) for step in made["steps"]] == [
        ("Be brief.", "{{inputs.q}}"),
        (None, "Look {{inputs.q}}"),
        ("Be calm.", "{{inputs.q}}"),
        (None, "{{inputs.q}}"),
        (None, "{{inputs.q}}"),
        ("Be kind.", "{{inputs.q}}!"),
    ]
    left = "left out: a chat other than a text of the system and one of the user (5 times)\n"
    assert f"prompts[1]: {left}" in said


def test_what_a_template_of_a_prompt_reads_elsewhere_is_not_an_empty_input(
    project: Project,
) -> None:
    config = promptfoo(
        prompts=[
            *("Go {{ env.PLACE }} {{q}}", "{{ q | dump }}", "{{ q.length }}"),
            *("{{ _conversation }}", "{% for k, v in q %}{{ k }}{% endfor %}"),
        ],
        tests=[{"vars": {"q": "why"}}],
    )
    made, said = imported(project, {"c.json": config})

    assert made["prompt"] == "Go {{ env.PLACE }} {{inputs.q}}"
    assert made["env"] == ["PLACE"]
    assert "  PLACE: a variable that a prompt reads\n" in said
    assert said.count(": left out: not a template") == 4


CELLS = """\
q,__expected,__expected2,__metric
one,is-json,contains: 1,
two,levenshtein(5): two,grade: is polite,
three,fn:output.length < 9,starts-with: Th,speed
four,file://check.py,is-sql,
five,rouge-n(0.6): five it is,Ends with: five,
six,"contains-any: a,b",latency(1500),
seven,not-equals: {{q}},eval:output,
eight,two,cells,more,and one
"""


def test_cells_of_a_table_are_the_assertions_that_they_spell(project: Project) -> None:
    """pf-csv-expected: every type of promptfoo, with and without a colon and a threshold."""
    files = {
        "c.json": promptfoo(prompts=["Answer: {{q}}"], tests="file://cases.csv"),
        "cases.csv": CELLS,
    }
    made, said = imported(project, files)

    expect = [one.get("expect") for one in made["tests"]]
    assert expect == [
        [{"contains": "1"}],
        [{"judge": {"model": "small", "rubric": "is polite"}}],
        [{"matches": r"\ATh"}],
        None,
        [{"equals": "Ends with: five"}],
        [{"matches": "a|b"}, {"max_seconds": 1.5}],
        [{"matches": r"(?s)\A(?!.*(?:\Aseven\Z))"}],
    ]
    for kind in ("is-json", "levenshtein", "javascript", "python", "is-sql", "rouge-n"):
        assert f"`{kind}`: left out: " in said
    assert "`javascript`: left out: `expression: …` (2 times)\n" in said
    assert "cases.csv:9:1: : left out: a row" in said.replace("csv:9:1: left", "csv:9:1: : left")


def test_data_that_an_answer_has_to_equal_is_compared_as_data(project: Project) -> None:
    """pf-equals-data, pf-file-values."""
    checks = [
        *({"type": "equals", "value": value} for value in ({"city": "{{q}}"}, [1, 2], True, 1.0)),
        {"type": "equals", "value": "file://gold.json"},
        {"type": "llm-rubric", "value": "file://rubric.txt"},
        {"type": "contains", "value": "file://must.txt"},
        {"type": "contains", "value": "file://make.py"},
        {"type": "contains", "value": "a {{ q }} {{ gone }}{{ '{{ x }}' }}"},
        {"type": "contains", "value": {"a": 1}},
        {"type": "contains"},
        {"type": "regex", "value": "(?<year>[0-9]+)"},
        {"type": "regex", "value": "[\\p{L}]+"},
        {"type": "not-contains-all", "value": ["a", "b"]},
        {"type": "icontains-any", "value": "a, b"},
    ]
    tests = [{"vars": {"q": "why"}, "assert": checks}]
    files = {
        "c.json": promptfoo(prompts=["Answer: {{q}}"], tests=tests),
        "gold.json": '{"a": 1}',
        "rubric.txt": "Is kind.\n",
        "must.txt": "because {{q}}\n",
    }
    made, said = imported(project, files)

    assert made["tests"][0]["expect"] == [
        {"schema": {"path": "text", "schema": {"const": {"city": "{% raw %}{{q}}{% endraw %}"}}}},
        {"schema": {"path": "text", "schema": {"const": [1, 2]}}},
        {"equals": "true"},
        {"equals": "1"},
        {"schema": {"path": "text", "schema": {"const": {"a": 1}}}},
        {"judge": {"model": "small", "rubric": "Is kind."}},
        {"contains": "because why"},
        {"contains": "{% raw %}a why {{ x }}{% endraw %}"},
        {"matches": "(?P<year>[0-9]+)"},
        {"matches": r"(?s)\A(?!.*(?:\A(?=[\s\S]*?a)(?=[\s\S]*?b)))"},
        {"matches": "(?i:a|b)"},
    ]
    assert ": `contains`: left out: the value is made by a file that is not read\n" in said
    assert ": `contains`: left out: the value is missing, or is data (2 times)\n" in said
    assert "not a regular expression of Python" in said


def test_rows_of_data_are_variables(project: Project) -> None:
    """pf-json-rows: in JSON, lines of JSON and YAML alike."""
    rows = [
        {"q": "why", "question": "Is it an answer?", "__expected": "contains: x"},
        {"q": "how", "question": "Is it a way?", "kind": None, "n": 2.0},
    ]
    case = {"vars": {"q": "who", "question": "Is it one?"}}
    files = {
        "c.json": promptfoo(
            prompts=["Answer: {{q}} {{n}}"],
            defaultTest={"assert": [{"type": "llm-rubric", "value": "{{question}}"}]},
            tests=["file://rows.json", "file://rows.jsonl", "rows.y*ml"],
        ),
        "rows.json": rows,
        "rows.jsonl": "\n".join(map(json.dumps, [rows[0], case])),
        "rows.yaml": yaml.safe_dump([rows[1]]),
    }
    made, said = imported(project, files)

    assert [one["inputs"]["q"] for one in made["tests"]] == ["why", "how", "why", "who", "how"]
    rubrics = [one["expect"][0]["judge"]["rubric"] for one in made["tests"]]
    assert rubrics == [
        *("Is it an answer?", "Is it a way?", "Is it an answer?", "Is it one?", "Is it a way?"),
    ]
    assert made["tests"][0]["expect"][1] == {"contains": "x"}
    assert made["tests"][1]["inputs"]["n"] == 2
    assert "left out: no pipeline has this" not in said


def test_files_that_variables_name_are_read_or_the_case_is_left_out(project: Project) -> None:
    """pf-vars-files, and variables that read others."""
    files = {
        "c.json": promptfoo(
            prompts=["Sum up: {{doc}} ({{cfg}})"],
            tests=[
                {
                    "vars": {
                        "doc": ["file://data/a.txt", "file://data/b.txt"],
                        "cfg": "file://data/c.yaml",
                    }
                },
                {"vars": {"doc": "file://data/*.txt", "cfg": "of {{doc}}"}},
                {"vars": {"doc": "file://data/load.py"}},
                {"vars": {"doc": "file://data/page.pdf"}},
                {"vars": {"doc": "{{ broken"}},
                {"vars": {"doc": "{{ cfg.a - 1 }}", "cfg": {"b": 1}}},
            ],
        ),
        "data/a.txt": "Text A\n",
        "data/b.txt": "Text B\n",
        "data/c.yaml": "k: [1, 2]\n",
        "data/load.py": "print()",
        "data/page.pdf": "x",
    }
    made, said = imported(project, files)

    assert [one["inputs"] for one in made["tests"]] == [
        {"doc": "Text A", "cfg": '{"k":[1,2]}'},
        {"doc": "Text B", "cfg": '{"k":[1,2]}'},
        {"doc": "Text A", "cfg": "of Text A"},
        {"doc": "Text B", "cfg": "of Text B"},
    ]
    assert (
        "tests[2].vars.doc: the case is left out: the value of a variable is made by `.py`" in said
    )
    assert (
        "tests[3].vars.doc: the case is left out: the value of a variable is made by `.pdf`" in said
    )
    assert "tests[4].vars: the case is left out: not a template: " in said
    assert "tests[5].vars: the case is left out: not a template here: " in said


def test_what_changes_answers_by_code_leaves_out_what_depends_on_it(project: Project) -> None:
    check = {"type": "contains", "value": "x"}
    config = promptfoo(
        prompts=["{{q}}", {"raw": "{{q}}!", "function": "f"}],
        providers=["openai:small", {"id": "openai:big", "transform": "output.text"}],
        tests=[
            {"vars": {"q": "a"}, "assert": [check, {**check, "transform": "output.x"}]},
            {"vars": {"q": "b"}, "assert": [{**check, "weight": 0}, {**check, "weight": 2}]},
            {"vars": {"q": "c"}, "options": {"transform": "output.x"}, "assert": [check]},
            {"vars": {"q": "d"}, "options": {"prefix": "Please: "}},
            {"vars": {"q": "e"}, "providerOutput": "x", "assert": [check]},
            {"vars": {"q": "f"}, "prompts": ["one"], "assert": [check]},
            {"path": "make.py", "config": {}},
            {"$ref": "#/more/case"},
        ],
        more={"case": {"vars": {"q": "g"}, "assert": [{"$ref": "#/more/check"}]}, "check": check},
    )
    made, said = imported(project, {"c.json": config})

    assert [one["inputs"]["q"] for one in made["tests"]] == ["a", "b", "g"]
    assert [len(one["expect"]) for one in made["tests"]] == [1, 1, 1]
    assert list(made["models"]) == ["small"]
    assert "prompts[1].function: left out with all around it: " in said
    assert "tests[0].assert[1].transform: left out with all around it: " in said
    assert "tests[1].assert[0].weight: left out: " in said
    assert "tests[1].assert[1].weight: every expectation has to hold\n" in said


def test_models_that_cannot_be_asked_are_left_out(project: Project) -> None:
    """pf-one-provider-of-two, pf-long-alias."""
    digest = "0123456789abcdef" * 4
    config = promptfoo(
        prompts=["{{q}}"],
        providers=[
            *("openai:small", {"id": "https", "config": {"url": "https://h/"}}, "echo", "http"),
            *("openai:chat", "openai:assistant:a", "google:live:a", "gpt-4"),
            f"replicate:acme/tiny-7b-chat:{digest}",
            *("openai:{{ env.BIG }}", "openai:{{ other }}", f"openai:{'very-long-name-' * 9}"),
            {"id": "azure:chat:mine", "config": {"apiHost": "h.example.org", "top_k": "{{ k }}"}},
            *("file://own.js", "openai:responses:late"),
            {"openai:small": {"id": "cold", "config": {"temperature": 0}}},
            {"./own.js": {"config": {}}},
        ],
        tests=[{"vars": {"q": "why"}}],
    )
    made, said = imported(project, {"c.json": config})

    assert list(made["models"])[:2] == ["small", "tiny-7b-chat"]
    assert len(made["models"]) == 7
    assert made["models"]["cold"]["model"] == "small"
    assert all(len(alias) <= 64 for alias in made["models"])
    assert '"${BIG}"' in (project.folder / "made.yaml").read_text("utf-8")
    assert "  BIG: the model of `openai`\n" in said
    for id in ("https", "echo", "http", "openai:assistant:a", "google:live:a"):
        assert f"left out: `{id}` is not a chat completions endpoint" in said
    for id in ("openai:chat", "gpt-4"):
        assert f"left out: `{id}` does not name a model" in said
    assert "left out: a provider that a template makes" in said
    assert "config.apiHost: left out: a chat completions endpoint in `apiBaseUrl`" in said
    assert "`openai:responses` is asked by chat completions" in said


def test_parameters_of_a_recipe_are_variables_where_there_are_no_inputs(project: Project) -> None:
    """goose-parameters-everywhere, goose-raw-braces."""
    parameters = [
        {"key": key, "input_type": "string", "requirement": "required", "description": key}
        for key in ("root", "app", "unused", "text")
    ]
    optional = {"input_type": "string", "requirement": "optional"}
    parameters += [
        {"key": "host", "default": "crm.example.org", **optional},
        {"key": "model", "default": "small", **optional},
    ]
    parameters[3]["input_type"] = "file"
    recipe = {
        "title": "Notes",
        "description": "Works on {{ root }}",
        "instructions": "Write {{ .Values.image.tag }} and {{hf acme/model}} of {{ app }}.",
        "prompt": "Look into {{ root }}",
        "parameters": parameters,
        "extensions": [
            {
                "type": "stdio",
                "name": "notes",
                "cmd": "notes-mcp",
                "args": ["--root", "{{ root }}", "{{recipe_dir}}/x"],
                "envs": {"NOTES_ROOT": "{{ root }}"},
            },
            {"type": "streamable_http", "name": "crm", "uri": "https://{{ host }}/mcp"},
            {"type": "stdio", "name": "odd", "cmd": "odd", "args": ["{{ root | upper }}"]},
            {"type": "stdio", "name": "file", "cmd": "x", "args": ["{{ text }}"]},
            {
                "type": "streamable_http",
                "name": "web",
                "uri": "https://web.example.org/mcp",
                "envs": {"TEAM": "docs"},
                "headers": {"X-Team": "$TEAM", "Authorization": "Bearer ${WEB_TOKEN}"},
            },
        ],
        "settings": {"goose_provider": "openai", "goose_model": "{{ model }}"},
    }
    made, said = imported(project, {"recipe.json": recipe})

    assert made["description"] == "Notes"
    assert sorted(made["inputs"]) == ["app", "root"]
    assert made["models"]["main"]["model"] == "${MODEL:-small}"
    servers = made["mcp"]["servers"]
    assert servers["notes"]["command"] == ["notes-mcp", "--root", "${ROOT}", "./x"]
    assert servers["notes"]["env"] == {"NOTES_ROOT": "${ROOT}"}
    assert servers["crm"] == {"url": "https://${HOST:-crm.example.org}/mcp"}
    assert servers["web"]["headers"] == {"X-Team": "docs"}
    assert servers["web"]["auth_env"] == "WEB_TOKEN"
    assert set(servers) == {"notes", "crm", "web"}
    assert made["system"] == (
        "Write {% raw %}{{ .Values.image.tag }}{% endraw %} and "
        "{% raw %}{{hf acme/model}}{% endraw %} of {{ inputs.app }}."
    )
    assert "  ROOT: the parameter `root`; " in said
    left = "left out: a parameter that no variable can take the place of (2 times)\n"
    assert f"extensions[2]: {left}" in said
    assert "parameters[2]: left out: nothing reads it (2 times)\n" in said
    assert "description: left out: a description has no parameters" in said


def test_no_password_of_a_connection_string_is_copied(project: Project) -> None:
    """mcp-connection-string: as databases of several vendors are addressed."""
    word = "Wint3r!$Kettle"
    env = {
        "CONN": f"Server=db1;Uid=app;Pwd={word}",
        "DSN": f"host=db1 user=app password={word} dbname=crm",
        "QUOTED": f"host=db1 password='{word}'",
        "STORE": f"AccountName=a;AccountKey={word};EndpointSuffix=example.org",
        "MIXED": f"postgres://app:{word}@${{DB_HOST}}/crm",
        "SPACED": f"Server=db1; Password = {word}; Encrypt=true",
        "OWN": "Server=db1;Password=${DB_PASSWORD};Pwd=",
        "PLAIN": "width=80;keys=many",
    }
    option = f"Server=db1;User Id=app;Password={word};Encrypt=true"
    server = {"command": "mssql-mcp", "args": ["--connection-string", option], "env": env}
    made, said = imported(project, {".mcp.json": {"mcpServers": {"sql": server}}})

    assert "Kettle" not in json.dumps(made) + said
    sql = made["mcp"]["servers"]["sql"]
    assert sql["command"][2] == "Server=db1;User Id=app;Password=${SQL_PASSWORD};Encrypt=true"
    assert sql["env"]["DSN"] == "host=db1 user=app password=${SQL_PASSWORD} dbname=crm"
    assert sql["env"]["MIXED"] == "postgres://app:${SQL_PASSWORD}@${DB_HOST}/crm"
    assert sql["env"]["OWN"] == env["OWN"]
    assert sql["env"]["PLAIN"] == env["PLAIN"]
    assert "  SQL_PASSWORD: the password alone, in " in said
    assert "  DB_PASSWORD: a part of the variable `OWN`" in said


def test_a_dollar_is_a_variable_in_the_settings_of_gemini_alone(project: Project) -> None:
    """mcp-gemini-dollar."""
    web = {"httpUrl": "https://crm.example.org/mcp", "headers": {"Authorization": "Bearer $CRM"}}
    env = {"DB_PASSWORD": "$DB_PASSWORD", "REGION": "$REGION", "ZONE": "${ZONE}"}
    listed = {"db": {"command": "node", "args": ["--dsn", "$DB_DSN"], "env": env}, "crm": web}
    made, said = imported(project, {".gemini/settings.json": {"mcpServers": listed}})

    servers = made["mcp"]["servers"]
    assert servers["crm"]["auth_env"] == "CRM"
    assert servers["db"]["command"] == ["node", "--dsn", "${DB_DSN}"]
    assert servers["db"]["env"] == {name: f"${{{name}}}" for name in env}
    assert "its value is in" not in said

    made, said = imported(project, {".mcp.json": {"mcpServers": listed}})

    assert made["mcp"]["servers"]["db"]["env"]["REGION"] == "$REGION"
    assert "mcpServers.db.env: `$REGION` stays as it is: only the other program knows it" in said


def test_lists_of_servers_of_any_client_are_read(project: Project) -> None:
    """mcp-tools-filter, and the forms of other clients."""
    notes = {"type": "local", "command": "npx", "tools": ["search", "read"], "icon": "i.png"}
    copilot = {"notes": notes, "all": {"command": "npx", "tools": ["*"]}}
    copilot["none"] = {"command": "npx", "tools": []}
    made, said = imported(project, {".mcp.json": {"mcpServers": copilot}})
    assert made["mcp"]["servers"]["notes"]["tools"] == ["search", "read"]
    assert "tools" not in made["mcp"]["servers"]["all"]
    assert "mcpServers.none.tools: left out with its server: it offers no tool\n" in said
    assert "mcpServers.notes.icon: left out: not needed here\n" in said

    zed = {
        "old": {"command": {"path": "npx", "args": ["-y"], "env": {"A": "1"}}, "settings": {}},
        "new": {"source": "custom", "command": "npx", "args": []},
        "theirs": {"source": "extension", "settings": {}},
    }
    made, said = imported(project, {"settings.json": {"context_servers": zed, "theme": "x"}})
    assert made["mcp"]["servers"] == {
        "old": {"command": ["npx", "-y"], "env": {"A": "1"}},
        "new": {"command": ["npx"]},
    }
    assert "context_servers.theirs.source: left out: the other program brings this server" in said
    assert "left out: no pipeline has this" not in said

    opencode = {
        "a": {"type": "local", "command": ["npx", "x"], "environment": {"K": "{env:KEY}"}},
        "b": {"type": "remote", "url": "https://h/", "headers": {"X": "{file:x.txt}"}},
    }
    made, said = imported(project, {"opencode.json": {"mcp": opencode}})
    assert made["mcp"]["servers"]["a"] == {"command": ["npx", "x"], "env": {"K": "${KEY}"}}
    assert "mcp.b.headers: `{file:x.txt}` stays as it is: only the other program" in said

    inner: dict[str, object] = {"inputs": [{"id": "k", "type": "promptString"}]}
    inner["servers"] = {"s": {"command": "x", "env": {"K": "${input:k}"}}}
    made, said = imported(project, {"code.json": {"mcp": inner, "editor.tabSize": 2}})
    assert made["mcp"]["servers"] == {"s": {"command": ["x"], "env": {"K": "${K}"}}}
    assert "left out: settings of the other program" in said

    asked = {"autoApprove": ["read"], "alwaysAllow": ["read", "list"]}
    made, said = imported(
        project, {".tool/mcp.json": {"mcpServers": {"s": {"command": "x", **asked}}}}
    )
    assert made["mcp"]["auto_approve"] == ["s__read", "s__list"]

    listed = [{"name": "one", "command": "x"}, {"name": "two", "command": "y", "alwaysAllow": "*"}]
    made, said = imported(project, {"list.json": {"mcpServers": listed}})
    assert made["mcp"]["servers"] == {"one": {"command": ["x"]}, "two": {"command": ["y"]}}
    assert "mcpServers.two.alwaysAllow: left out: rules under `mcp.auto_approve`" in said


def test_what_validate_refuses_is_said_by_the_import(project: Project) -> None:
    server = {"command": "x", "env": {"A-B": "1"}}
    project.write(".mcp.json", json.dumps({"mcpServers": {"s": server}}))

    done = project.aish("init", "--from", ".mcp.json", "-o", "made.yaml")
    checked = project.aish("validate", "made.yaml")

    assert (done.code, checked.code) == (2, 2)
    assert "invalid, to be corrected by hand:\n  made.yaml:" in done.stderr
    assert "mcp.servers.s.env.A-B: this is not a variable's name" in done.stderr
