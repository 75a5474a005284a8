"""Every key of the formats that are imported: carried over, told, or told as left out (F8)."""

import json
from pathlib import Path

import pytest
from samples import each_case

from aish.cli.importing.keys import EXACT, TABLES, UNKNOWN, WHOLE
from aish.cli.importing.pipeline import import_pipeline

FORMATS = {
    # promptfoo 0.123.1, its configuration schema.
    "promptfoo": "tags description providers prompts tests scenarios defaultTest outputPath "
    "sharing nunjucksFilters env derivedMetrics extensions metadata redteam writeLatestResults "
    "tracing evaluateOptions commandLineOptions targets $schema",
    "promptfoo.provider": "id label config prompts transform delay env inputs",
    "promptfoo.prompt": "id label raw template display function config",
    "promptfoo.case": "description vars provider providers prompts providerOutput assert "
    "assertScoringFunction options threshold metadata path config",
    "promptfoo.options": "prefix suffix postprocess transform transformVars storeOutputAs "
    "rubricPrompt provider factuality disableVarExpansion disableConversationVar "
    "disableDefaultAsserts runSerially",
    "promptfoo.assertion": "type value config threshold weight provider rubricPrompt metric "
    "transform contextTransform assert",
    "promptfoo.type": "answer-relevance bleu classifier contains contains-all contains-any "
    "contains-html contains-json contains-sql contains-xml context-faithfulness context-recall "
    "context-relevance conversation-relevance cost equals factuality finish-reason g-eval gleu "
    "guardrails icontains icontains-all icontains-any is-html is-json is-refusal is-sql "
    "is-valid-function-call is-valid-openai-function-call is-valid-openai-tools-call is-xml "
    "javascript latency levenshtein llm-rubric pi meteor model-graded-closedqa "
    "model-graded-factuality moderation perplexity perplexity-score python regex rouge-n ruby "
    "similar similar:cosine similar:dot similar:euclidean starts-with tool-call-f1 skill-used "
    "trajectory:goal-success trajectory:tool-args-match trajectory:step-count "
    "trajectory:tool-sequence trajectory:tool-used trace-error-spans trace-span-count "
    "trace-span-duration search-rubric webhook word-count select-best human max-score assert-set",
    # goose 1.x, the types of its recipes.
    "goose": "version title description instructions prompt extensions settings activities author "
    "parameters response sub_recipes retry context",
    "goose.settings": "goose_provider goose_model temperature max_turns",
    "goose.parameter": "key input_type requirement description default options",
    "goose.response": "json_schema",
    "goose.retry": "max_retries checks on_failure timeout_seconds on_failure_timeout_seconds",
    "goose.extension": "type name description uri cmd args envs env_keys timeout cwd bundled "
    "available_tools display_name headers socket client_id client_secret_key scopes tools "
    "instructions code dependencies",
    # The lists of Claude Code, VS Code, Cursor, Gemini, Qwen, Cline, Roo, Windsurf, Zed, Copilot,
    # OpenCode, Crush, Continue and Kiro, as of autumn 2026.
    "mcp.server": "command args env cwd type url headers headersHelper oauth timeout envFile "
    "gallery version dev sandbox sandboxEnabled auth httpUrl tcp trust description includeTools "
    "excludeTools extensionName extension authProviderType targetAudience targetServiceAccount "
    "discoveryTimeoutMs autoApprove alwaysAllow disabled disabledTools watchPaths serverUrl source "
    "enabled settings remote tools filterMapping environment enabled_tools disabled_tools name "
    "connectionTimeout requestOptions faviconUrl alwaysLoad",
    "mcp.input": "id type description default password options command args",
    # Codex 0.14x, the tables `mcp_servers`.
    "codex.server": "command args env env_vars cwd url bearer_token_env_var bearer_token "
    "http_headers env_http_headers http_headers_helper startup_timeout_sec startup_timeout_ms "
    "tool_timeout_sec enabled required enabled_tools disabled_tools scopes oauth_resource auth "
    "default_tools_approval_mode supports_parallel_tool_calls experimental_environment tools name",
    "codex.tool": "approval_mode output_token_limit",
}
ODD = {"odd-key": 1}
SERVER = {"command": "x", **ODD}
CASE = {"vars": {"q": "x"}, "options": ODD, "assert": [{"type": "contains", "value": "x", **ODD}]}
CONFIG = {"id": "openai:small", "config": ODD, **ODD}
SCENES = {
    "promptfooconfig.json": {
        "prompts": [{"raw": "{{q}}", **ODD}],
        "providers": [CONFIG],
        "defaultTest": {"assert": [{"type": "equals", "value": "x", **ODD}], **ODD},
        "tests": [{**CASE, **ODD}],
        **ODD,
    },
    "recipe.json": {
        "title": "x",
        "prompt": "{{ k }}",
        "settings": {"goose_provider": "openai", "goose_model": "small", **ODD},
        "parameters": [{"key": "k", "input_type": "string", "requirement": "required", **ODD}],
        "response": {"json_schema": {"type": "object"}, **ODD},
        "retry": {"max_retries": 1, **ODD},
        "extensions": [
            {"type": "stdio", "name": "s", "cmd": "x", **ODD},
            {"type": "streamable_http", "name": "h", "uri": "https://example.org/", **ODD},
            {"type": "builtin", "name": "developer", **ODD},
        ],
        **ODD,
    },
    ".mcp.json": {
        "mcpServers": {"s": SERVER, "h": {"url": "https://example.org/", **ODD}},
        "inputs": [{"id": "i", "type": "promptString", **ODD}],
        **ODD,
    },
    "config.toml": '[mcp_servers.s]\ncommand = "x"\nodd-key = 1\n'
    "[mcp_servers.s.tools.t]\nodd-key = 1\n",
}


@each_case("kind", FORMATS)
def test_every_key_of_a_format_is_in_the_table_of_its_kind(kind: str) -> None:
    assert [key for key in FORMATS[kind].split() if key not in TABLES[kind]] == []


def test_what_a_table_says_is_that_a_key_is_left_out_or_how_it_is_carried_over() -> None:
    said = {text for table in TABLES.values() for text in table.values()} - {EXACT}

    assert all(text.startswith(("left out: ", WHOLE)) for text in said if "left out" in text)
    assert UNKNOWN in said
    assert not [
        text for text in said if text.endswith(".") or (not text[0].islower() and text[0] != "`")
    ]


@pytest.mark.parametrize("name", SCENES)
def test_a_key_that_nobody_knows_is_told_wherever_it_stands(tmp_path: Path, name: str) -> None:
    scene = SCENES[name]
    text = scene if isinstance(scene, str) else json.dumps(scene)
    (tmp_path / name).write_text(text, "utf-8")

    made = import_pipeline(tmp_path / name, tmp_path / "made.yaml", "made", "")

    odd = [one for one in made.skipped if "odd-key" in one.path]
    assert sum(one.count for one in odd) == text.count("odd-key")
    assert made.text.count("odd") == 0


VALUES = {
    **dict.fromkeys(("disabled",), False),
    **dict.fromkeys(("enabled",), True),
    **dict.fromkeys(("url", "httpUrl", "serverUrl"), "https://example.org/a-word"),
    **{key: {"A": "a-word"} for key in ("env", "environment", "headers")},
    **{
        key: ["a-word"]
        for key in ("includeTools", "excludeTools", "enabled_tools", "disabled_tools")
    },
    **{key: ["a-word"] for key in ("tools", "disabledTools", "autoApprove", "alwaysAllow")},
    "type": "stdio",
    "args": ["a-word"],
}


@pytest.mark.parametrize("key", FORMATS["mcp.server"].split())
def test_a_key_of_a_server_is_carried_over_or_told(tmp_path: Path, key: str) -> None:
    server = {"command": "x", key: VALUES.get(key, "a-word")}
    if "rl" in key or key == "headers":
        server = {"url": "https://example.org/", **server}
        del server["command"]
    if key in {"httpUrl", "serverUrl"}:
        del server["url"]
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"s": server}}), "utf-8")

    made = import_pipeline(tmp_path / ".mcp.json", tmp_path / "made.yaml", "made", "")

    is_exact = TABLES["mcp.server"][key] == EXACT
    assert [one.path for one in made.skipped] == ([] if is_exact else [f"mcpServers.s.{key}"])
    assert ("a-word" in made.text) is (is_exact and "a-word" in json.dumps(server))
