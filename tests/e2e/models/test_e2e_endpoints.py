"""An endpoint that cannot be one is found before anything is started or asked."""

import pytest
from e2e_project import Project, stdio

SERVER = "mcp: {{servers: {{s: {{command: {}}}}}}}"


@pytest.mark.slow(reason="validates a file for each endpoint")
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("base_url: nowhere", "models.m.base_url: this is not the URL of an endpoint"),
        ("base_url: http://a, proxy: 'socks5://a:1'", "models.m.proxy: this is not the URL of a"),
        ("base_url: http://a, proxy: nowhere", "models.m.proxy: this is not the URL of a proxy"),
        (
            "base_url: 'http://a/v1/chat/completions/?v=1'",
            "models.m.base_url: this URL ends with `/chat/completions`",
        ),
        ("base_url: http://a/v1/messages, api: messages", "hint: leave `/v1/messages` out\n"),
        (
            "base_url: http://a/v1/responses",
            "hint: leave `/v1/responses` out, and write `api: responses`",
        ),
        ("base_url: http://a/v1, headers: {b c: d}", "models.m: `b c` is not a header to be set"),
    ],
)
def test_validate_refuses_an_endpoint_that_cannot_be_asked(
    project: Project, entry: str, said: str
) -> None:
    project.pipeline(f"models: {{m: {{{entry}, model: x}}}}\nprompt: Say something")

    done = project.aish("validate", "p.yaml")

    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: p.yaml:2:")
    assert said in done.stderr


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"URL": "nowhere"}, ": models.m.base_url: this is not the URL of an endpoint"),
        ({"TOKEN": "ends in a line\n"}, ": models.m.headers.x-token: the value for the header"),
    ],
)
def test_a_variable_that_spoils_an_endpoint_starts_no_server(
    project: Project, value: dict[str, str], said: str
) -> None:
    note = project.folder / "note"
    project.pipeline(
        f"""
        models: {{m: {{base_url: "${{URL}}", model: x, headers: {{x-token: "${{TOKEN}}"}}}}}}
        {SERVER.format(stdio("--print-environment", note))}
        prompt: Say something
        """
    )

    done = project.run(env={"URL": "http://127.0.0.1/v1", "TOKEN": "long-enough", **value})

    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: p.yaml:2:")
    assert said in done.stderr
    assert not note.exists(), "the server was started"
    assert not project.run_folders
