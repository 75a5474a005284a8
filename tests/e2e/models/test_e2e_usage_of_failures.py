"""What a step has used is told however it ends: limits and bills depend on it."""

from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, stdio
from model_endpoint import Reply, json_reply, text_reply, tool_reply

PIPELINE = f"""
models: {{m: {{base_url: "${{MODEL_URL}}", model: x, retry: {{attempts: 1}}}}}}
mcp: {{servers: {{s: {{command: {stdio()}}}}}, auto_approve: [s__echo]}}
prompt: Go on
max_tool_depth: 1
"""
CALL = tool_reply([("c1", "s__echo", '{"text": "looked"}')])
REFUSED = json_reply(400, {"error": {"message": "no more of that"}})
AWAY = json_reply(503, {"error": {"message": "away"}})


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("replies", "code", "finished"),
    [
        ([REFUSED], 1, 0),
        ([CALL, REFUSED], 1, 1),
        ([CALL, AWAY], 5, 1),
        ([CALL, CALL], 4, 2),
        ([CALL, text_reply("", finish="length")], 1, 2),
    ],
    ids=["at once", "refused later", "away later", "too deep", "cut off"],
)
def test_a_step_that_fails_has_used_what_its_turns_used(
    project: Project, model_endpoint: ModelEndpoints, replies: list[Reply], code: int, finished: int
) -> None:
    project.uses(model_endpoint(replies))
    project.pipeline(PIPELINE)

    found: Any = project.result()

    expected = 7 * finished or None
    assert found["exit"]["code"] == code
    assert found["steps"]["main"]["usage"]["input"] == expected
    assert found["usage"]["input"] == expected
