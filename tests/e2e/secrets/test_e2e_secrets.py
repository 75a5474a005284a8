"""Secrets: a planted key is sent where the file says and shows up nowhere else."""

import base64
import json
import sys
from itertools import starmap

import pytest
from cli_process import Done
from e2e_project import ModelEndpoints, Project, http_server, stdio
from mcp_emulators import Legacy, McpEndpoint
from model_endpoint import delta, json_reply, sse, stream_reply, text_reply, tool_reply, usage

KEY = "sk-planted-0123456789"
HEADER = "hdr/planted+0123"
CHILD = "child\"planted'0123"
TOKEN = "tok-planted-01234567"
NAMED = "nam-planted-01234567"
ENVIRONMENT = {"KEY": KEY, "HEADER": HEADER, "CHILD": CHILD, "TOKEN": TOKEN, "NAMED": NAMED}


def forms(secret: str) -> set[str]:
    """How a secret may be spelled in a text."""
    plain = base64.b64encode(secret.encode()).decode().rstrip("=")[:-1]
    return {secret, json.dumps(secret)[1:-1], plain}


def leaks(project: Project, *runs: Done) -> list[str]:
    """The forms of secrets that stand in what was printed or written."""
    seen = project.everything_written() + "".join(done.stdout + done.stderr for done in runs)
    return [form for value in ENVIRONMENT.values() for form in forms(value) if form in seen]


def planted(project: Project, url: str, models: str) -> None:
    project.pipeline(
        f"""
        {models}
        secrets: [NAMED]
        mcp:
          servers:
            s: {{command: {stdio()}, env: {{IN_CHILD: "${{CHILD}}"}}}}
            w: {{url: "{url}", auth_env: TOKEN, headers: {{X-More: "${{HEADER}}"}}}}
          auto_approve: ["s__*", w__echo]
        prompt: Use your tools
        """
    )
    project.aish.env.update(ENVIRONMENT)


MODELS = """models:
          m:
            base_url: "${MODEL_URL}"
            model: x
            key_env: KEY
            headers: {X-Extra: "${HEADER}"}
            retry: {attempts: 1}"""


@pytest.mark.parametrize("form", ["text", "json", "jsonl"])
def test_a_secret_that_everybody_echoes_shows_up_nowhere(
    project: Project, model_endpoint: ModelEndpoints, form: str
) -> None:
    everything = " ".join(ENVIRONMENT.values())
    encoded = base64.b64encode(everything.encode()).decode()
    pieces = [everything[start : start + 5] for start in range(0, len(everything), 5)]
    said = [sse([delta(content=piece)], done=False) for piece in [*pieces, " ", encoded]]
    calls = [
        ("c1", "s__echo", json.dumps({"text": everything})),
        ("c2", "w__echo", json.dumps({"text": encoded})),
        ("c3", "s__echo", json.dumps({"text": everything + "x" * 70_000 + everything})),
    ]
    said.append(sse([delta("stop"), usage()]))
    endpoint = model_endpoint([tool_reply(calls), stream_reply(*said)])
    project.uses(endpoint)
    with http_server("--token", TOKEN) as url:
        planted(project, url, MODELS)
        done = project.run("--format", form, "--stream")

    assert done.code == 0, done.stderr
    for request in endpoint.requests:
        assert request.headers["authorization"] == f"Bearer {KEY}"
        assert request.headers["x-extra"] == HEADER
    assert leaks(project, done) == []
    assert "<secret:KEY>" in done.stdout
    assert "<secret:NAMED>" in project.everything_written()
    assert (project.run_folders[0] / "files").is_dir(), "the long result was kept, masked"


@pytest.mark.slow(reason="runs each peer that can fail")
def test_a_secret_in_an_error_of_anybody_shows_up_nowhere(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(
        lambda _: json_reply(400, {"error": {"message": f"bad key {KEY} and {HEADER}"}})
    )
    project.uses(endpoint)
    with McpEndpoint(Legacy()) as server:
        planted(project, server.url, MODELS)
        refused = project.run()
        planted(project, "http://127.0.0.1:9/" + HEADER.replace("/", "%2F"), MODELS)
        file = project.folder / "p.yaml"
        soon = "auth_env: TOKEN, timeout: {connect: 300ms}"
        file.write_text(file.read_text("utf-8").replace("auth_env: TOKEN", soon), "utf-8")
        unreachable = project.run()
        project.aish.env["MODEL_URL"] = "http://127.0.0.1:9/v1"
        commands = (["plan", "p.yaml"], ["tools", "p.yaml", "--json"], ["doctor", "p.yaml"])
        looked = list(starmap(project.aish, commands))

    assert refused.code == 1
    assert "<secret:KEY>" in refused.stderr
    assert unreachable.code == 5
    assert leaks(project, refused, unreachable, *looked) == []
    posts = [request for request in server.requests if request.method == "POST"]
    assert {request.headers["x-more"] for request in posts} == {HEADER}
    assert {request.headers["authorization"] for request in posts} == {f"Bearer {TOKEN}"}


@pytest.mark.requirement("F15")
def test_a_short_secret_is_refused(project: Project, model_endpoint: ModelEndpoints) -> None:
    endpoint = model_endpoint()
    project.uses(endpoint)
    project.pipeline(
        'models: {m: {base_url: "${MODEL_URL}", model: x, key_env: KEY}}\nprompt: Say hello\n'
    )

    done = project.run(env={"KEY": "tiny-1"})

    assert done.code == 2
    assert "KEY" in done.stderr
    assert "tiny-1" not in done.stderr
    assert endpoint.requests == []


def test_no_key_and_no_proxy_of_the_environment_is_used(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint, proxy = model_endpoint([text_reply("ok")]), model_endpoint()
    project.uses(endpoint)
    project.write(".netrc", "machine 127.0.0.1 login somebody password planted-netrc\n")
    surroundings = {
        **{f"{name}_API_KEY": "sk-environment-1234" for name in ("OPENAI", "ANTHROPIC", "AISH")},
        **{f"{name}_proxy": proxy.origin for name in ("http", "https", "all")},
        **{f"{name}_PROXY": proxy.origin for name in ("HTTP", "HTTPS", "ALL")},
        "OPENAI_BASE_URL": proxy.base_url,
        "NETRC": str(project.folder / ".netrc"),
    }
    with McpEndpoint(Legacy()) as server:
        project.pipeline(f'mcp: {{servers: {{w: {{url: "{server.url}"}}}}}}\nprompt: Say hello\n')
        done = project.run(env=surroundings)

    assert done.code == 0, done.stderr
    assert proxy.connections == 0
    for request in (*endpoint.requests, *server.requests):
        assert "authorization" not in request.headers
        assert not [v for v in request.headers.values() if "planted" in v or "sk-" in v]


@pytest.mark.requirement("L1", "X5")
def test_a_redirect_takes_no_key_elsewhere(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    elsewhere = model_endpoint([text_reply("stolen")])
    target = f"{elsewhere.base_url}/chat/completions"
    endpoint = model_endpoint([json_reply(307, {}, {"location": target})])
    project.uses(endpoint)
    with McpEndpoint(lambda _: json_reply(307, {}, {"location": target})) as server:
        planted(project, server.url, MODELS)
        at_server = project.run()
    with http_server("--token", TOKEN) as url:
        planted(project, url, MODELS)
        at_model = project.run()

    assert at_server.code == 5, at_server.stderr
    assert at_model.code == 1, at_model.stderr
    assert elsewhere.connections == 0


@pytest.mark.requirement("X4")
def test_a_child_gets_its_secret_and_what_it_prints_is_masked(project: Project) -> None:
    script = "import os, sys; print(os.environ['IN_CHILD'], file=sys.stderr); sys.exit(3)"
    command = json.dumps([sys.executable, "-c", script])
    project.pipeline(
        f"""
        mcp:
          servers:
            s: {{command: {command}, env: {{IN_CHILD: "${{CHILD}}"}}}}
        run: [touch, never]
        """
    )

    done = project.run(env={"CHILD": CHILD})

    assert done.code == 5
    assert "<secret:CHILD>" in done.stderr
    assert leaks(project, done) == []


def test_what_the_query_of_a_servers_url_takes_from_the_environment_is_a_secret(
    project: Project,
) -> None:
    project.aish.env["SERVER_KEY"] = "query-key-98765"
    project.pipeline(
        """
        mcp:
          servers:
            w: {url: "http://127.0.0.1:1/mcp?key=${SERVER_KEY}", timeout: {connect: 300ms}}
        prompt: Say hello
        """
    )
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:1/v1"

    planned = project.aish("plan", "p.yaml")
    done = project.run("--format", "json")

    assert done.code == 5
    everything = planned.stdout + planned.stderr + done.stdout + done.stderr
    assert "query-key-98765" not in everything + project.everything_written()
    assert "<secret:SERVER_KEY>" in planned.stdout


IN_PATH = "path/planted 0123"
IN_QUERY = "qry-planted-01234567"


@pytest.mark.parametrize("known", [True, False], ids=["with-secrets", "without-secrets"])
def test_what_a_url_takes_from_the_environment_behind_its_host_is_recorded_and_replayed(
    project: Project, model_endpoint: ModelEndpoints, *, known: bool
) -> None:
    endpoint = model_endpoint([text_reply(f"You sent {IN_PATH} and {IN_QUERY}.")])
    secrets = {"TENANT": IN_PATH, "TOK": IN_QUERY}
    with McpEndpoint(Legacy()) as server:
        port = server.url.removeprefix("http://127.0.0.1:").partition("/")[0]
        project.pipeline(
            f"""
            models:
              m:
                base_url: "http://127.0.0.1:${{PORT}}/v1/${{TENANT}}?key=${{TOK}}"
                model: x
            mcp: {{servers: {{w: {{url: "http://127.0.0.1:{port}/${{TENANT}}/mcp?key=${{TOK}}"}}}}}}
            prompt: Say hello
            """
        )
        project.aish.env["PORT"] = str(endpoint.port)
        recorded = project.aish("record", "p.yaml", "-o", "c.yaml", env=secrets)
    endpoint.close()
    replayed = project.run("--cassette", "c.yaml", env=secrets if known else {})

    assert (recorded.code, replayed.code) == (0, 0), recorded.stderr + replayed.stderr
    assert endpoint.requests[0].path == "/v1/path/planted%200123/chat/completions?key=" + IN_QUERY
    seen = project.everything_written() + recorded.stdout + recorded.stderr + replayed.stdout
    seen += (project.folder / "c.yaml").read_text()
    assert IN_QUERY not in seen
    assert "planted 0123" not in seen
    assert "planted%200123" not in seen


def test_the_key_of_a_model_that_is_not_asked_is_masked_too(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply(f"The key is {KEY}, the header {HEADER}.")])
    project.uses(endpoint)
    project.pipeline(
        """
        models:
          m: {base_url: "${MODEL_URL}", model: x}
          other:
            base_url: http://127.0.0.1:1/v1
            model: y
            key_env: KEY
            headers: {X-Extra: "${HEADER}", X-Short: "${SHORT_KEY}", X-None: "${NOT_SET}"}
        model: m
        prompt: Say hello
        """
    )
    project.aish.env |= {"KEY": KEY, "HEADER": HEADER, "SHORT_KEY": "short"}

    done = project.run()

    assert done.code == 0, done.stderr
    assert done.stdout == "The key is <secret:KEY>, the header <secret:HEADER>.\n"
    assert leaks(project, done) == []


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "entry",
    [
        "models: {m: {base_url: http://127.0.0.1:1/v1, model: x, key_env: PASTED}}",
        "models: {m: {base_url: http://127.0.0.1:1/v1, model: x, key_env: [PASTED]}}",
        "models: {m: {base_url: http://127.0.0.1:1/v1, model: x, ky_env: PASTED}}",
        "models: {m: {base_url: http://127.0.0.1:1/v1, model: x, apikey: PASTED}}",
        "models: {m: {base_url: http://127.0.0.1:1/v1, model: x, key_env:\n  PASTED}}",
        'models: {m: {base_url: "http://PASTED@127.0.0.1:1/v1", model: x}}',
        'models: {m: {base_url: "http://u:PASTED@127.0.0.1:1/v1", model: x}}',
        'mcp: {servers: {w: {url: "http://PASTED@127.0.0.1:1/mcp"}}}',
        'mcp: {servers: {w: {url: "http://127.0.0.1:1/mcp", auth_env: PASTED}}}',
        'mcp: {servers: {w: {url: "http://127.0.0.1:1/mcp", auth_tokn: PASTED}}}',
        "secrets: [PASTED]",
        "secrets:\n- PASTED",
    ],
)
@pytest.mark.parametrize(
    "pasted", ["sk-1234-planted", "planted123456789abcdef", "12345678901234567"]
)
def test_a_key_that_is_pasted_where_a_name_belongs_is_not_shown(
    project: Project, entry: str, pasted: str
) -> None:
    project.pipeline(entry.replace("PASTED", pasted) + "\nprompt: Say hello\n")
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:1/v1"

    for command in ("validate", "plan", "run"):
        done = project.aish(command, "p.yaml")

        assert done.code == 2, done.stderr
        assert "error: p.yaml:" in done.stderr
        assert pasted not in done.stdout + done.stderr


def test_the_query_of_a_variable_that_is_a_whole_url_is_recorded_as_a_secret(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply(f"You sent {IN_QUERY}.")])
    project.pipeline(
        """
        models: {m: {base_url: "${WHOLE_URL}", model: x}}
        prompt: Say hello
        """
    )
    whole = f"{endpoint.base_url}?key={IN_QUERY}"

    recorded = project.aish("record", "p.yaml", "-o", "c.yaml", env={"WHOLE_URL": whole})
    endpoint.close()
    replayed = project.run("--cassette", "c.yaml")

    assert endpoint.requests[0].path == f"/v1/chat/completions?key={IN_QUERY}"
    assert recorded.stdout == replayed.stdout == "You sent <secret:WHOLE_URL>.\n"
    assert IN_QUERY not in project.everything_written() + (project.folder / "c.yaml").read_text()
