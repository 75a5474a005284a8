"""Secrets and cassettes: what was planted is found in no file, in no spelling (C8)."""

import base64
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import mcp_tools
import pytest
from cli_process import Done
from e2e_project import ModelEndpoints, Project, http_server, stdio
from mcp_emulators import Legacy, McpEndpoint
from model_endpoint import (
    Gate,
    Reply,
    delta,
    hanging_reply,
    json_reply,
    sse,
    stream_reply,
    text_reply,
    tool_reply,
    usage,
)
from samples import sampled

KEY = "sk-planted-0123456789"
HEADER = "hdr/planted+0123?>~"
CHILD = "child\"planted'0123"
TOKEN = "tok-planted-01234567"
NAMED = "nam-plänted-01234567"
ENVIRONMENT = {"KEY": KEY, "HEADER": HEADER, "CHILD": CHILD, "TOKEN": TOKEN, "NAMED": NAMED}


def spellings(secret: str) -> Iterator[str]:
    """Raw, in JSON, in URLs, in base64: at all three alignments and in both alphabets."""
    yield secret
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield quote(secret, safe="")
    yield quote(secret)
    yield quote_plus(secret)
    raw = secret.encode()
    yield "".join(f"%{byte:02X}" for byte in raw)
    yield "".join(f"%{byte:02x}" for byte in raw)
    yield quote(secret, safe="").replace("-", "%2D")
    for shift in range(3):
        coded = base64.b64encode(b"\0" * shift + raw).decode()
        # What the neighbours of the secret have no part in.
        inner = coded[-(-shift * 8 // 6) : (shift + len(raw)) * 8 // 6]
        yield inner
        yield inner.translate(str.maketrans("+/", "-_"))


def encoded(everything: str) -> str:
    """The secrets in every spelling, as an answer that wants to smuggle them out would say them."""
    said = [spelled for value in ENVIRONMENT.values() for spelled in spellings(value)]
    for lead in ("", "x", "xy"):
        data = (lead + everything).encode()
        said += [base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode()]
    return " ".join(said)


def leaks(folder: Path, *runs: Done) -> list[str]:
    """Every spelling of every secret that stands anywhere: files whole, and their texts joined."""
    seen = [done.stdout + done.stderr for done in runs]
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "p.yaml":
            text = path.read_text("utf-8", "replace")
            seen += [text, _joined(text)]
    whole = "\n".join(seen)
    return [f for value in ENVIRONMENT.values() for f in spellings(value) if f in whole]


def _joined(text: str) -> str:
    """What the pieces of streamed answers add up to."""
    pieces = []
    for line in text.splitlines():
        _, found, data = line.partition("data: ")
        if found and data.startswith("{"):
            for choice in json.loads(data).get("choices", ()):
                fields = choice["delta"]
                pieces.append(fields.get("content") or "")
                calls = fields.get("tool_calls", ())
                pieces += [call.get("function", {}).get("arguments", "") for call in calls]
    return "".join(pieces)


def planted(project: Project, url: str) -> None:
    project.pipeline(
        f"""
        models:
          m:
            base_url: "${{MODEL_URL}}"
            model: x
            key_env: KEY
            headers: {{X-Extra: "${{HEADER}}"}}
            retry: {{attempts: 1}}
        secrets: [NAMED]
        mcp:
          servers:
            s: {{command: {stdio()}, env: {{IN_CHILD: "${{CHILD}}"}}}}
            w:
              url: "{url}"
              auth_env: TOKEN
              headers: {{X-More: "${{HEADER}}"}}
              required: false
          auto_approve: ["s__*", w__echo, shell__run]
        steps:
          - {{id: command, run: [printf, "%s", "{{{{ inputs.said }}}}"]}}
          - {{id: ask, prompt: "{{{{ inputs.said }}}}", tools: ["*__echo"]}}
        inputs: {{said: {{type: string}}}}
        """
    )
    project.aish.env.update(ENVIRONMENT)


@pytest.mark.parametrize(
    ("size", "form"),
    sampled(
        itertools.product((1, 3, 7), ("text", "jsonl")),
        often={0, 3},
        reason="each records and replays thousands of pieces",
    ),
)
def test_a_secret_that_everybody_echoes_is_in_no_cassette(
    project: Project, model_endpoint: ModelEndpoints, form: str, size: int
) -> None:
    everything = encoded(" ".join(ENVIRONMENT.values()))
    pieces = [everything[start : start + size] for start in range(0, len(everything), size)]
    said = [sse([delta(content=piece)], done=False) for piece in pieces]
    said.append(sse([delta("stop"), usage()]))
    # One network chunk holds the beginning of one event and the end of another.
    body = b"".join(part for part in said)
    cut = [body[start : start + 61] for start in range(0, len(body), 61)]
    calls = [
        ("c1", "s__echo", json.dumps({"text": everything})),
        ("c2", "w__echo", json.dumps({"text": everything})),
    ]
    endpoint = model_endpoint([tool_reply(calls), stream_reply(*cut)])
    project.uses(endpoint)
    fill = ("-i", f"said={everything}", "--format", form, "--stream")
    with http_server("--token", TOKEN) as url:
        planted(project, url)
        recorded = project.aish("record", "p.yaml", "-o", "c.yaml", *fill)
    endpoint.close()
    for name in ENVIRONMENT:
        del project.aish.env[name]

    replayed = project.run("--replay", "c.yaml", *fill, env=ENVIRONMENT)

    assert recorded.code == 0, recorded.stderr
    assert replayed.code == 0, replayed.stderr
    assert leaks(project.folder, recorded, replayed) == []
    kept = (project.folder / "c.yaml").read_text()
    assert {name for name in ENVIRONMENT if f"<secret:{name}>" in kept} == set(ENVIRONMENT)
    if form == "text":
        assert replayed.stdout == recorded.stdout


def test_a_secret_that_turns_up_only_in_an_error_is_in_no_cassette(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(
        lambda _: json_reply(400, {"error": {"message": f"bad key {KEY} of {encoded(KEY)}"}})
    )
    project.uses(endpoint)
    with McpEndpoint(Legacy()) as server:
        planted(project, server.url)
        recorded = project.aish("record", "p.yaml", "-o", "c.yaml", "-i", "said=nothing")
    with McpEndpoint(lambda _: json_reply(401, {"error": f"no such token: {TOKEN}"})) as server:
        planted(project, server.url)
        refused = project.aish("record", "p.yaml", "-o", "d.yaml", "-i", "said=nothing")
    endpoint.close()
    for name in ENVIRONMENT:
        del project.aish.env[name]

    replayed = project.run("--replay", "d.yaml", "-i", "said=nothing")

    assert (recorded.code, refused.code, replayed.code) == (1, 1, 1), replayed.stderr
    assert "<secret:KEY>" in (project.folder / "c.yaml").read_text()
    assert "<secret:TOKEN>" in (project.folder / "d.yaml").read_text()
    assert leaks(project.folder, recorded, refused, replayed) == []


def test_a_recording_that_is_killed_has_written_no_secret(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    everything = encoded(" ".join(ENVIRONMENT.values()))
    # However late the kill is, the run has not come to its end before it.
    calls = tool_reply([("c1", "s__echo", json.dumps({"text": everything}))])
    project.uses(model_endpoint([calls, hanging_reply(Gate())]))
    with http_server("--token", TOKEN) as url:
        planted(project, url)
        fill = ("-i", f"said={everything}")
        with project.aish.start("record", "p.yaml", "-o", "c.yaml", *fill) as running:
            running.wait_for_line("tool s__echo: ok")
            running.kill()

    assert (project.folder / "c.yaml.partial").stat().st_size
    assert leaks(project.folder) == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("here", ["", "k", "Say something", "something", "another-0123456789"])
def test_a_replay_works_with_whatever_is_in_the_variable_of_a_key(
    project: Project, model_endpoint: ModelEndpoints, here: str
) -> None:
    endpoint = model_endpoint([text_reply("something was said")])
    project.uses(endpoint)
    project.pipeline(
        """
        models: {m: {base_url: "${MODEL_URL}", model: x, key_env: KEY}}
        prompt: Say something nice
        """
    )
    recorded = project.aish("record", "p.yaml", "-o", "c.yaml", env={"KEY": KEY})
    endpoint.close()
    assert recorded.code == 0, recorded.stderr

    replayed = project.run("--replay", "c.yaml", env={"KEY": here})

    assert replayed.code == 0, replayed.stderr


# Blanks, a number that ends in zero, escapes, a key that stands twice: as no writer of ours would.
ODD_ERROR = (
    '{ "error" : { "code": 1.10, "message": "no entry for \\u007bX\\u007d", "message":'
    ' "no\\u0020entry for {X} in {HERE}\\/caf\\u00e9", "z": [ 1.0,2 ] , "more": "%s"} }'
    % ("x" * 500)
)


def odd_error(project: Project, secret: str) -> bytes:
    made = ODD_ERROR.replace("{X}", secret).replace("{HERE}", str(project.folder))
    return made.replace("{LONG}", "x" * 500).encode()


@pytest.mark.parametrize("status", [200, 500])
def test_an_error_of_a_server_that_holds_a_secret_and_a_folder_replays(
    project: Project, model_endpoint: ModelEndpoints, status: int
) -> None:
    secret = "a-token-of-some-length-0123456789"

    def server(asked: Any) -> Reply:
        if asked.get("method") == "tools/call":
            return json_reply(status, {}).but(parts=(odd_error(project, secret),))
        answer = mcp_tools.answer(asked, "modern")
        return json_reply(200, answer) if answer else Reply(status=202, framing="length")

    model = model_endpoint(
        [tool_reply([("c1", "s__echo", '{"text": "hi"}')]), text_reply("There was an error.")]
    )
    project.uses(model)
    project.pipeline(
        f"""
        mcp:
          servers: {{s: {{url: "{model_endpoint(server).base_url}", auth_env: TOKEN}}}}
          auto_approve: [s__echo]
        prompt: Call it
        """
    )
    recorded = project.aish("record", "p.yaml", "-o", "c.yaml", env={"TOKEN": secret})
    replayed = project.run("--replay", "c.yaml")

    (told,) = [one["content"] for one in model.asked[1]["messages"] if one["role"] == "tool"]
    assert "1.10" in told
    assert recorded.code == 0, recorded.stderr
    assert (replayed.code, replayed.stdout) == (0, "There was an error.\n"), replayed.stderr
    kept = (project.folder / "c.yaml").read_text()
    assert "no\\u0020entry for <secret:TOKEN> in <root>\\/caf\\u00e9" in kept
    assert secret not in kept
    assert str(project.folder) not in kept


def test_an_error_of_a_model_that_holds_a_secret_and_a_folder_replays(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    secret = "a-token-of-some-length-0123456789"
    project.uses(model_endpoint([json_reply(400, {}).but(parts=(odd_error(project, secret),))]))
    project.pipeline(
        """
        models: {m: {base_url: "${MODEL_URL}", model: scripted, key_env: TOKEN}}
        prompt: Try
        """
    )
    recorded = project.aish(
        "record", "p.yaml", "-o", "c.yaml", "--format", "json", env={"TOKEN": secret}
    )
    replayed = project.run("--replay", "c.yaml", "--format", "json")

    errors = [json.loads(done.stdout)["exit"]["reason"] for done in (recorded, replayed)]
    assert (recorded.code, replayed.code) == (1, 1), replayed.stderr
    assert '{ "error" : { "code": 1.10,' in errors[0]
    assert errors[0] == errors[1]
    assert secret not in (project.folder / "c.yaml").read_text()
