"""How each `api` tells a model that a tool failed, or was not called."""

import json
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, stdio
from wire_replies import answer, asking

CALLS = (
    ("c1", "s__fail", "{}"),
    ("c2", "box__file_read", '{"path": "not-there.txt"}'),
    ("c3", "box__file_write", '{"path": "b.txt", "content": "b"}'),
    ("c4", "box__file_read", '{"path": "a.txt"}'),
)
FAILED = ("c1", "c2", "c3")


def told(api: str, body: Any) -> dict[str, tuple[str, bool]]:
    """What a request says of each call, and whether as an error."""
    match api:
        case "messages":
            return {
                block["tool_use_id"]: (block["content"][0]["text"], block.get("is_error", False))
                for block in body["messages"][-1]["content"]
            }
        case "responses":
            outputs = {item["call_id"]: item["output"] for item in body["input"][-len(CALLS) :]}
            return {
                id: (output, False)
                if not output.startswith("{")
                else (json.loads(output)["error"], True)
                for id, output in outputs.items()
            }
        case _:
            results = body["messages"][-len(CALLS) :]
            return {one["tool_call_id"]: (one["content"], False) for one in results}


@pytest.mark.requirement("W3")
@pytest.mark.parametrize("api", ["messages", "responses", "chat"])
def test_the_error_of_a_tool_and_a_denial_are_told_as_errors_where_the_api_can(
    project: Project, model_endpoint: ModelEndpoints, api: str
) -> None:
    project.write("a.txt", "from the file")
    endpoint = model_endpoint([asking(api, *CALLS), answer(api, "Done.")])
    project.uses(endpoint)
    project.pipeline(
        f"""
        models: {{m: {{api: {api}, base_url: "${{MODEL_URL}}", model: scripted}}}}
        mcp:
          servers:
            s: {{command: {stdio()}}}
            box: {{pack: [fs], root: .}}
          auto_approve: [s__fail, box__file_read]
        on_denied: continue
        prompt: Look at it.
        """
    )

    recorded = project.aish("record", "p.yaml", "-o", "c.yaml")
    endpoint.close()
    replayed = project.run("--replay", "c.yaml")

    assert recorded.code == 0, recorded.stderr
    assert (replayed.code, replayed.stdout) == (0, recorded.stdout), replayed.stderr
    sent = told(api, endpoint.asked[1])
    assert sent["c1"][0] == "the handler failed on purpose"
    assert "not-there.txt" in sent["c2"][0]
    assert "denied" in sent["c3"][0]
    assert "from the file" in sent["c4"][0]
    as_errors = tuple(id for id, (_, is_error) in sent.items() if is_error)
    # What was recorded of chat before has the plain text.
    assert as_errors == (() if api == "chat" else FAILED)
