"""The entries of `aish init --model`: each is written, is valid, and asks its vendor as documented.

The second column of `SENT` is what the vendor's own documentation and SDK send to.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import messages_streams
import pytest
import responses_streams
from e2e_project import ModelEndpoints, Project
from key_scenes import on_path, program
from model_endpoint import Reply, stream_reply, text_reply
from ruamel.yaml import YAML
from samples import each_case
from syrupy.assertion import SnapshotAssertion

from aish.cli.commands.init import Template, starter, vendor_entry, vendors, with_models
from aish.cli.commands.validate import problems_of
from aish.core.errors import UsageError

ACCOUNT = {
    "AZURE_OPENAI_RESOURCE": "resource",
    "AZURE_OPENAI_DEPLOYMENT": "deployment",
    "AZURE_FOUNDRY_RESOURCE": "resource",
    "AZURE_FOUNDRY_DEPLOYMENT": "deployment",
    "AWS_REGION": "us-west-2",
    "BEDROCK_MODEL": "anthropic.claude",
    "GOOGLE_CLOUD_PROJECT": "p",
}
BEARER, BARE, ANTHROPIC = "authorization", "api-key", "x-api-key"
KEY_HEADERS = (BEARER, BARE, ANTHROPIC, "x-goog-api-key")
SENT: Mapping[str, tuple[str, str | None, str]] = {
    "anthropic": ("https://api.anthropic.com/v1/messages", ANTHROPIC, "claude-sonnet-4-5"),
    "openai": ("https://api.openai.com/v1/responses", BEARER, "gpt-5.1"),
    "azure": ("https://resource.openai.azure.com/openai/v1/responses", BARE, "deployment"),
    "azure-claude": (
        "https://resource.services.ai.azure.com/anthropic/v1/messages",
        ANTHROPIC,
        "deployment",
    ),
    "bedrock": (
        "https://bedrock-runtime.us-west-2.amazonaws.com/openai/v1/chat/completions",
        BEARER,
        "openai.gpt-oss-20b-1:0",
    ),
    "bedrock-claude": (
        "https://bedrock-mantle.us-west-2.api.aws/anthropic/v1/messages",
        BEARER,
        "anthropic.claude",
    ),
    "vertex": (
        "https://aiplatform.googleapis.com/v1/projects/p/locations/global/endpoints/openapi/chat/completions",
        BEARER,
        "google/gemini-3.5-flash",
    ),
    "gemini": (
        "https://generativelanguage.googleapis.com/v1beta/openai/chat/completions",
        BEARER,
        "gemini-3.5-flash",
    ),
    "openrouter": (
        "https://openrouter.ai/api/v1/chat/completions",
        BEARER,
        "anthropic/claude-sonnet-4.5",
    ),
    "mistral": ("https://api.mistral.ai/v1/chat/completions", BEARER, "mistral-small-latest"),
    "groq": ("https://api.groq.com/openai/v1/chat/completions", BEARER, "openai/gpt-oss-20b"),
    "deepseek": ("https://api.deepseek.com/chat/completions", BEARER, "deepseek-v4-flash"),
    "ollama": ("http://127.0.0.1:11434/v1/chat/completions", None, "gpt-oss:20b"),
    "vllm": ("http://127.0.0.1:8000/v1/chat/completions", None, "openai/gpt-oss-20b"),
    "llama.cpp": ("http://127.0.0.1:8080/v1/chat/completions", None, "qwen3-0.6b"),
    "lmstudio": ("http://127.0.0.1:1234/v1/chat/completions", None, "openai/gpt-oss-20b"),
}
DEFAULTS = {"messages": "https://api.anthropic.com", "responses": "https://api.openai.com"}
GCLOUD = '#!/bin/sh\n[ "$*" = "auth print-access-token" ] && echo ya29.a-token-of-the-cloud\n'


def answer(body: Any) -> Reply:
    """An answer in the format of the request."""
    if "input" in body:
        return responses_streams.reply(responses_streams.message("hi"))
    if "max_tokens" in body:
        said = messages_streams.text("hi")
        return stream_reply(messages_streams.start(), said, messages_streams.ends())
    return text_reply("hi")


def test_the_entry_of_each_vendor_asks_as_its_documentation_says(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(answer)
    here = endpoint.base_url.removesuffix("/v1")
    models, origins, keys = "", {}, {"vertex": "ya29.a-token-of-the-cloud"}
    for number, name in enumerate(SENT):
        (entry,) = YAML(typ="safe", pure=True).load(vendor_entry(name)).values()
        if name in {"anthropic", "openai"}:
            assert "base_url" not in entry
        address = entry.get("base_url") or DEFAULTS[entry["api"]]
        origin = re.match(r"https?://[^/]+", address)
        assert origin is not None
        # As written, but for its origin, which becomes that of the test.
        origins[name] = re.sub(r"\$\{(\w+)\}", lambda found: ACCOUNT[found[1]], origin[0])
        text = re.sub(r"\A\n*\S+:", f"m{number}:", vendor_entry(name))
        text = text.replace(origin[0], here)
        if "base_url" not in entry:
            text += f"  base_url: {here}\n"
        models += re.sub(r"^", "  ", text, flags=re.MULTILINE).rstrip() + "\n"
        if variable := entry.get("key_env"):
            keys[name] = f"the-value-of-{variable}"
            project.aish.env[variable] = keys[name]
    steps = "".join(
        f"  - {{id: s{number}, model: m{number}, prompt: Hi}}\n" for number in range(len(SENT))
    )
    project.pipeline(f"models:\n{models}steps:\n{steps}")
    program(project.folder / "bin" / "gcloud", GCLOUD)
    project.aish.env |= ACCOUNT | {"PATH": on_path(project.folder / "bin")}

    done = project.run()

    assert done.code == 0, done.stderr
    assert set(SENT) == set(vendors())
    wanted = [
        (
            ("POST", url.removeprefix(origins[name]), model),
            {header: f"Bearer {keys[name]}" if header == BEARER else keys[name]} if header else {},
            "2023-06-01" if url.endswith("/messages") else None,
        )
        for name, (url, header, model) in SENT.items()
    ]
    sent = [
        (
            (request.method, request.path, request.json["model"]),
            {name: request.headers[name] for name in KEY_HEADERS if name in request.headers},
            request.headers.get("anthropic-version"),
        )
        for request in endpoint.requests
    ]
    assert sorted(sent, key=str) == sorted(wanted, key=str)


def test_init_writes_the_entry_of_a_vendor(project: Project, snapshot: SnapshotAssertion) -> None:
    azure = project.aish("init", "--model", "azure")
    written = (project.folder / "aish.yaml").read_text("utf-8")
    named = project.aish("init", "ci", "--model", "openrouter/qwen/qwen3:free", "-o", "ci.yaml")
    both = project.aish("validate", "aish.yaml", "ci.yaml")
    unknown = project.aish("init", "--model", "antropic", "-o", "none.yaml")
    unnamed = project.aish("init", "--model", "ollama/", "-o", "none.yaml")
    mixed = project.aish("init", "--model", "groq", "--from", "aish.yaml", "-o", "none.yaml")

    assert (azure.code, named.code, both.code) == (0, 0, 0)
    assert (unknown.code, unnamed.code, mixed.code) == (2, 2, 2)
    assert "    model: qwen/qwen3:free\n" in (project.folder / "ci.yaml").read_text("utf-8")
    assert not (project.folder / "none.yaml").exists()
    parts = (azure.stderr, written, both.stderr, unknown.stderr, unnamed.stderr, mixed.stderr)
    assert "\n---\n".join(parts) == snapshot


@pytest.mark.slow(reason="validates each template with each vendor")
def test_each_template_is_valid_with_each_vendor(tmp_path: Path) -> None:
    others = [template for template in Template if template is not Template.MINIMAL]
    # A template cares for the `api` alone.
    pairs = [(template, name) for template in others for name in ("anthropic", "openai", "groq")]
    for template, name in (*((Template.MINIMAL, name) for name in vendors()), *pairs):
        path = tmp_path / f"{template}.yaml"
        path.write_text(with_models(starter(template, path), vendor_entry(name)), "utf-8")
        problems = problems_of(path, (), ACCOUNT, strict=True, env=False)
        assert not problems, f"{template}, {name}: {problems}"


@each_case(
    "name, written",
    [
        ("ollama/qwen3:8b", "qwen3:8b"),
        ("openrouter/qwen/qwen3-235b:free", "qwen/qwen3-235b:free"),
        ("bedrock/openai.gpt-oss-120b-1:0", "openai.gpt-oss-120b-1:0"),
        ("azure/my deployment", "my deployment"),
        ("azure/null", "null"),
        ("azure/2024", "2024"),
        ("azure/a: b # c", "a: b # c"),
        ('azure/"\\\n', '"\\\n'),
        ("azure/\\1\\g<0>", "\\1\\g<0>"),
    ],
)
def test_another_model_is_the_text_that_was_given(name: str, written: str) -> None:
    (entry,) = YAML(typ="safe", pure=True).load(vendor_entry(name)).values()

    assert entry["model"] == written


@each_case("name", ["", "/", "nobody", "claude/x", "azure/", "azure/ "])
def test_an_unknown_vendor_or_an_empty_model_is_refused(name: str) -> None:
    try:
        vendor_entry(name)
    except UsageError:
        return
    raise AssertionError(name)
