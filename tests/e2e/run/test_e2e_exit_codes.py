"""Every exit code of a run, with the sentence, the place and what to do next."""

import json
import shlex
import socket
import subprocess
from collections.abc import Iterator

import pytest
from e2e_project import ModelEndpoints, Project, of_type, stdio
from model_endpoint import Gate, hanging_reply, json_reply, text_reply, tool_reply
from samples import sampled

ASK_S = f"""
mcp:
  servers: {{s: {{command: {stdio()}}}}}
  auto_approve: [s__echo, s__fail, s__sleep]
"""


@pytest.fixture
def refused_port() -> Iterator[int]:
    """A port of this machine at which nobody listens, and that nobody else can have."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.mark.requirement("exit-1")
def test_a_failed_step_is_1_and_the_rest_is_skipped(project: Project) -> None:
    project.pipeline(
        ASK_S
        + """
steps:
  - {id: bad, call: s__fail}
  - {id: never, needs: [bad], run: [touch, never]}
"""
    )

    found = project.result()

    assert (found["status"], found["exit"]["code"], found["exit"]["name"]) == (
        "failed",
        1,
        "failed",
    )
    assert "step `bad`" in found["exit"]["reason"]
    assert "the handler failed on purpose" in found["exit"]["reason"]
    assert found["steps"]["never"]["status"] == "skipped"
    assert not (project.folder / "never").exists()


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ("run: ls /no/such/file", "the command ended with exit code 2: ls: cannot access"),
        ("run: [no-such-program-anywhere]", "cannot start `no-such-program-anywhere`"),
        ("call: s__nothing", "no server offers the tool `s__nothing`"),
        ("call: s__echo", "tool arguments do not fit the schema: text"),
    ],
)
def test_a_step_that_cannot_work_says_why(project: Project, step: str, reason: str) -> None:
    project.pipeline(ASK_S + f"steps:\n  - id: it\n    {step}\n")

    done = project.run("--allow", "shell__run")

    assert (done.code, done.stdout) == (1, "")
    assert f"exit 1 (failed): step `it`: {reason}" in done.stderr


def test_a_request_the_endpoint_refuses_is_1_and_not_tried_again(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([json_reply(400, {"error": {"message": "no such sampler"}})])
    project.uses(endpoint)
    project.pipeline("prompt: Say hello")

    done = project.run()

    assert done.code == 1
    assert "HTTP 400" in done.stderr
    assert "no such sampler" in done.stderr
    assert len(endpoint.asked) == 1


@pytest.mark.requirement("exit-2")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-m", "other"], "no model `other`"),
        (["-i", "word=7"], "word"),
        (["-i", "wrod=yes"], "did you mean `word`"),
        (["-i", "word"], "NAME=VALUE"),
        (["-i", "word=@missing.txt"], "missing.txt"),
        (["--inputs", "missing.yaml"], "missing.yaml"),
        (["--set", "models.m.modle=x"], "modle"),
        (["--timeout", "soon"], "--timeout"),
        (["--allow", "echo"], "__"),
        (["--format", "xml"], "xml"),
        (["-o", "no/such/folder/x"], "its folder does not exist"),
        (["-o", "-"], "-o -: names no file"),
        (["--max-cost-usd", "1,5"], "`1,5` is not a number"),
        (["--concurrency", "many"], "`many` is not a whole number"),
        (["--no-such-flag"], "--no-such-flag"),
    ],
)
def test_bad_usage_is_2_and_nothing_is_contacted(
    project: Project, model_endpoint: ModelEndpoints, arguments: list[str], said: str
) -> None:
    endpoint = model_endpoint()
    project.uses(endpoint)
    project.pipeline(
        "inputs: {word: {enum: ['yes', 'no'], default: 'yes'}}\nprompt: 'So {{ inputs.word }}'"
    )

    done = project.run(*arguments)

    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert said in done.stderr
    assert endpoint.requests == []
    assert not project.run_folders


@pytest.mark.parametrize(
    ("stdin", "arguments", "said"),
    [
        (b"caf\xe9", [], "stdin: not UTF-8 at byte 3"),
        (b"x" * (64 * 1024 * 1024 + 1), [], "stdin: more than 64 MiB"),
        (b"{}", ["--inputs", "-"], "`--inputs -` cannot read it too"),
    ],
    ids=["not UTF-8", "too much", "wanted twice"],
)
def test_bad_stdin_is_2(
    project: Project,
    model_endpoint: ModelEndpoints,
    stdin: bytes,
    arguments: list[str],
    said: str,
) -> None:
    endpoint = model_endpoint()
    project.uses(endpoint)
    project.pipeline("prompt: 'Read {{ stdin }}'")

    done = project.run(*arguments, stdin=stdin)

    assert (done.code, done.stdout) == (2, "")
    assert said in done.stderr
    assert endpoint.requests == []


@pytest.mark.parametrize(
    ("stdin", "said"),
    [
        (b"", "what is piped in is empty"),
        (b" \n\t\r\n", "what is piped in is empty"),
        (None, "what is piped in is empty"),
    ],
    ids=["an empty pipe", "white space", "the null device"],
)
def test_no_text_where_the_file_reads_stdin_is_2(
    project: Project, model_endpoint: ModelEndpoints, stdin: bytes | None, said: str
) -> None:
    endpoint = model_endpoint(lambda _: text_reply("nothing to review"))
    project.uses(endpoint)
    project.pipeline("prompt: 'Review {{ stdin }}'")

    done = project.run("-q", stdin=stdin)

    assert (done.code, done.stdout) == (2, "")
    assert f"error: p.yaml: the file reads `{{{{ stdin }}}}`, and {said}\n" in done.stderr
    assert (
        "hint: check that the command before the pipe succeeds (`set -o pipefail`)" in done.stderr
    )
    assert endpoint.requests == []
    assert not project.run_folders


@pytest.mark.parametrize("stdin", [b"", b"\n", None])
def test_a_file_may_say_that_it_needs_no_stdin(
    project: Project, model_endpoint: ModelEndpoints, stdin: bytes | None
) -> None:
    endpoint = model_endpoint(lambda _: text_reply("fine"))
    project.uses(endpoint)
    project.pipeline("stdin: optional\nprompt: 'Review {{ stdin }}.'")

    done = project.run(stdin=stdin)

    assert (done.code, done.stdout) == (0, "fine\n")
    assert "stdin" not in done.stderr


def test_a_failed_command_before_the_pipe_is_no_green_run(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint()
    project.uses(endpoint)
    project.pipeline("prompt: 'Review {{ stdin }}'")
    argv = shlex.join([*project.aish.python, "-m", "aish", "run", "p.yaml", "-q"])

    done = subprocess.run(
        ["sh", "-c", f"git diff nosuchbranch... | {argv}"],
        cwd=project.folder,
        env=project.aish.env,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert "what is piped in is empty" in done.stderr
    assert endpoint.requests == []


def test_a_variable_that_is_not_set_is_2_with_its_place(project: Project) -> None:
    project.write(
        "p.yaml",
        """
        aish: 1
        models:
          m: {base_url: "${NOWHERE_URL}", model: x, key_env: NO_KEY}
        mcp:
          servers:
            s: {command: [server, "${NO_ARG}"], env: {A: "${NO_ENV}"}}
            w: {url: "http://127.0.0.1:9/", auth_env: NO_TOKEN, headers: {X-A: "${NO_HEADER}"}}
        prompt: Say hello
        """,
    )

    done = project.run()

    assert (done.code, done.stdout) == (2, "")
    for name, line in {
        "NOWHERE_URL": 4,
        "NO_KEY": 4,
        "NO_ARG": 7,
        "NO_ENV": 7,
        "NO_TOKEN": 8,
        "NO_HEADER": 8,
    }.items():
        (said,) = [row for row in done.stderr.splitlines() if f"`{name}` is not set" in row]
        assert said.startswith(f"error: p.yaml:{line}:"), said
    assert "hint: export NO_KEY=" in done.stderr


@pytest.mark.requirement("L15")
def test_too_many_tool_rounds_are_4(project: Project, model_endpoint: ModelEndpoints) -> None:
    asking = tool_reply([("c1", "s__echo", '{"text": "again"}')], "One more.")
    endpoint = model_endpoint(lambda _: asking)
    project.uses(endpoint)
    project.pipeline(ASK_S + "prompt: Use your tools\nmax_tool_depth: 2\n")

    found = project.result()

    assert (found["status"], found["exit"]["name"]) == ("budget", "budget")
    assert len(endpoint.asked) == 3
    assert found["steps"]["main"]["text"] == "One more."
    assert [c["kind"] for c in found["steps"]["main"]["tool_calls"]][:2] == ["ok", "ok"]


@pytest.mark.parametrize(
    "where", sampled(["file", "command line"], often={0}, reason="cases of the same kind")
)
def test_a_run_that_takes_too_long_is_4(
    project: Project, model_endpoint: ModelEndpoints, where: str
) -> None:
    endpoint = model_endpoint([hanging_reply(Gate())])
    project.uses(endpoint)
    limit = "limits: {time: 20s}\n" if where == "file" else ""
    project.pipeline(ASK_S + limit + "prompt: Say hello\n")
    project.times_out(20, "late")

    running = project.aish.start("run", "p.yaml", *([] if limit else ["--timeout", "20s"]))
    endpoint.wait_requests(1)
    project.write("late", "")
    done = running.finish()

    assert done.code == 4
    assert "exit 4 (budget): the time limit of 20 s is exceeded" in done.stderr
    assert "--timeout" in done.stderr
    (finished,) = of_type(project.journal, "run.finished")
    assert finished["status"] == "budget"
    assert endpoint.requests[0].aborted.wait(60)


@pytest.mark.requirement("L8")
def test_an_endpoint_that_is_down_is_5_after_retries(project: Project, refused_port: int) -> None:
    project.pipeline(
        f"""
        models:
          m:
            base_url: "http://127.0.0.1:{refused_port}/v1"
            model: x
            retry: {{attempts: 2, max_delay: 1s}}
        prompt: Say hello
        """
    )

    done = project.run()

    assert (done.code, done.stdout) == (5, "")
    assert "exit 5 (unavailable)" in done.stderr
    assert str(refused_port) in done.stderr
    assert "`m`" in done.stderr
    assert len(of_type(project.journal, "retry")) == 1


def test_refused_credentials_are_5_at_once(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([json_reply(401, {"error": {"message": "bad key"}})])
    project.uses(endpoint)
    project.pipeline("prompt: Say hello")

    found = project.result()

    assert (found["exit"]["code"], found["exit"]["retryable"]) == (5, False)
    assert "HTTP 401" in found["exit"]["reason"]
    assert len(endpoint.asked) == 1


@pytest.mark.requirement("M5", "exit-5")
def test_a_required_server_that_is_missing_is_5_and_an_optional_one_a_warning(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("without it")])
    project.uses(endpoint)
    text = f"""
        mcp: {{servers: {{s: {{command: {stdio("--die-at-start")}, required: REQUIRED}}}}}}
        prompt: Say hello
        """
    project.pipeline(text.replace("REQUIRED", "true"))
    refused = project.run()
    assert endpoint.requests == []
    project.pipeline(text.replace("REQUIRED", "false"))
    found = project.result()

    assert refused.code == 5
    assert "exit 5 (unavailable): mcp server `s`" in refused.stderr
    assert "cannot find my configuration" in refused.stderr
    assert "required: false" in refused.stderr
    assert found["exit"]["code"] == 0
    (notice,) = found["notices"]
    assert notice["code"] == "server_missing"
    assert "cannot find my configuration" in notice["text"]


@pytest.mark.requirement("exit-4")
def test_steps_that_the_time_limit_never_reached_are_skipped(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([hanging_reply(Gate())])
    project.uses(endpoint)
    project.pipeline(
        """
        steps:
          - {id: first, prompt: Say hello}
          - {id: second, prompt: Say more, needs: [first]}
        limits: {time: 20s}
        """
    )
    project.times_out(20, "late")

    running = project.aish.start("run", "p.yaml", "--format", "json")
    endpoint.wait_requests(1)
    project.write("late", "")
    done = running.finish()
    found = json.loads(done.stdout)

    assert found["exit"]["code"] == done.code == 4
    assert [step["status"] for step in found["steps"].values()] == ["budget", "skipped"]
