"""`aish init --from`: what maps, what does not, and what is wrong with a file (F8, F10)."""

import json
from pathlib import Path

import pytest
import yaml
from e2e_project import Project
from samples import sampled
from syrupy.assertion import SnapshotAssertion

pytestmark = pytest.mark.requirement("F8")

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


@pytest.mark.requirement("F7")
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


@pytest.mark.requirement("F10", "exit-2")
@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", "", "a.json:1:1: the file is empty"),
        ("a.json", '{\n  "a": 1\n  "b": 2}', "a.json:3:3: not JSON: `,` or `}` is expected here"),
        ("a.json", '{"a": [1, 2', "a.json:1:7: not JSON: `[` is never closed"),
        ("a.json", '{"a": nul}', "a.json:1:7: not JSON: a value is expected here"),
        ("a.json", '{"a": "x\ny"}', "a.json:1:9: not JSON: Invalid control character at"),
        ("a.json", "{a: 1}", "a.json:1:2: not JSON: a key in double quotes is expected here"),
        ("a.json", '{"a" 1}', "a.json:1:6: not JSON: `:` is expected here"),
        ("a.json", '{"a": 1,\n "a": 2}', "a.json:2:2: duplicate key `a`, first in line 1"),
        ("a.json", "{} x", "a.json:1:4: not JSON: something follows the end of the document"),
        ("a.json", "[" * 70, "nested more than 64 deep"),
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
            "a.yaml:1:11: prompts[0]: not a template: ",
        ),
        (
            "a.yaml",
            "prompts: [file://none.txt]\nproviders: [openai:x]\n",
            "a.yaml:1:11: prompts[0]: `none.txt` is not there",
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
    assert "not mapped" not in done.stderr
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


@pytest.mark.requirement("exit-2")
def test_a_template_beside_a_file_is_refused(project: Project) -> None:
    project.write(".mcp.json", '{"mcpServers": {"s": {"command": "server"}}}')

    done = project.aish("init", "ci", "--from", ".mcp.json")

    assert done.code == 2
    assert "`--from` converts a file, and `ci` is a template" in done.stderr


@pytest.mark.requirement("X10")
@pytest.mark.parametrize(
    "piece",
    sampled(
        ["${", "${a", "a", "://", "?a", "{{", "{{ ", "Bearer ", "x:y@", "/*", "\\"],
        often=range(0, 11, 3),
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
