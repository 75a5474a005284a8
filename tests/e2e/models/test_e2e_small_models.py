"""Small models: a bound on what they say, and what comes of an answer that cannot be read."""

import json

import pytest
from e2e_project import ModelEndpoints, Project, of_type
from model_endpoint import delta, json_reply, sse, stream_reply, text_reply

ERROR = {
    "code": 500,
    "message": "The model produced output that does not match the expected peg-native format",
    "type": "server_error",
}
AT_ONCE = json_reply(500, {"error": ERROR})
ON_THE_WAY = stream_reply(sse([delta(content=""), {"error": ERROR}], done=False))
FILE = """
models: {m: {base_url: "${MODEL_URL}", model: x, retry: {attempts: 2, max_delay: 1s}}}
prompt: Say hello
"""


@pytest.mark.parametrize("reply", [AT_ONCE, ON_THE_WAY], ids=["at once", "on the way"])
def test_an_answer_that_cannot_be_read_is_a_failed_step_and_no_missing_endpoint(
    project: Project, model_endpoint: ModelEndpoints, reply: object
) -> None:
    endpoint = model_endpoint([reply, reply])
    project.uses(endpoint)
    project.pipeline(FILE)

    done = project.run()

    assert (done.code, done.stdout, len(endpoint.asked)) == (1, "", 2)
    assert "main: retry: " in done.stderr
    assert "model `m`: the model's answer is malformed: " in done.stderr
    assert "(after 2 tries)" in done.stderr
    assert "hint: a larger model, fewer `tools:` or a shorter prompt may help" in done.stderr


def test_an_answer_that_cannot_be_read_may_be_followed_by_one_that_can(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([ON_THE_WAY, text_reply("Hello.")]))
    project.pipeline(FILE)

    done = project.run()

    assert (done.code, done.stdout) == (0, "Hello.\n")
    (retried,) = of_type(project.journal, "retry")
    assert "malformed" in retried["reason"]


@pytest.mark.parametrize(("params", "most"), [("", 256), (", params: {max_tokens: 40}", 40)])
def test_plan_shows_how_much_an_embedded_model_may_say(
    project: Project, params: str, most: int
) -> None:
    project.pipeline(f"models: {{local: {{embedded: smollm2{params}}}}}\nprompt: Say hello\n")

    text = project.aish("plan", "p.yaml", "--offline")
    data = project.aish("plan", "p.yaml", "--offline", "--format", "json")

    assert f"  local  smollm2  embedded  {most} tokens an answer at most\n" in text.stdout
    assert json.loads(data.stdout)["models"][0]["max_tokens"] == most
