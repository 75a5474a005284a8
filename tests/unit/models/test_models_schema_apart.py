"""Endpoints that do not take tools and an answer schema in one request (B9)."""

import pytest
from model_endpoint import Answer, ModelEndpoint, json_reply, sse, stream_reply, text_reply
from model_turns import Ticking, a_model, a_request, a_tool, an_entry, text_of, turn

from aish.core.errors import AishError, StepFailedError
from aish.core.messages import StreamNotice
from aish.core.protocols import AnswerSchema, ModelRequest
from aish.models.fallback import with_fallbacks
from aish.models.scripted import Scripted

pytestmark = pytest.mark.anyio
SCHEMA = AnswerSchema("answer", {"type": "object"})
# As endpoints are known to word it.
REFUSALS = [
    "json mode cannot be combined with tool/function calling",
    "Function calling with a response mime type: 'application/json' is unsupported",
    (
        "For controlled generation of only function calls, set the mode instead of populating "
        "'response_mime_type' and 'response_schema' fields"
    ),
    "Cannot use json response type with tools",
    "You cannot specify response format and function call at the same time",
    "Cannot use custom grammar constraints with tools.",
    '"tools" is incompatible with "response_format"',
]


def refusal(message: str, status: int = 400) -> Answer:
    return json_reply(status, {"error": {"message": message}})


def with_both() -> ModelRequest:
    return a_request(tools=(a_tool("repo__file_read"),), schema=SCHEMA)


@pytest.mark.parametrize("message", REFUSALS)
async def test_a_refusal_of_both_is_sent_again_without_the_schema(message: str) -> None:
    clock = Ticking()
    with ModelEndpoint([refusal(message), text_reply("hi"), text_reply("hi")]) as endpoint:
        async with a_model(an_entry(endpoint.base_url, json_schema=True), clock=clock) as model:
            before = model.schema_with_tools
            said = await turn(model, with_both())
            assert (before, model.schema_with_tools, model.enforces_schema) == (True, False, True)
            await turn(model, with_both())
    assert text_of(said) == "hi"
    assert isinstance(said[0], StreamNotice)
    assert said[0].code == "schema_apart"
    assert ["response_format" in asked for asked in endpoint.asked] == [True, False, False]
    assert all("tools" in asked for asked in endpoint.asked)
    assert clock.slept == []


async def test_a_refusal_inside_a_stream_is_one_too() -> None:
    error = sse([{"error": {"code": 400, "message": REFUSALS[0]}}], done=False)
    with ModelEndpoint([stream_reply(error), text_reply("hi")]) as endpoint:
        async with a_model(an_entry(endpoint.base_url, json_schema=True)) as model:
            assert text_of(await turn(model, with_both())) == "hi"


@pytest.mark.parametrize(
    ("reply", "changes"),
    [
        (refusal("no such model"), {}),
        (refusal("Invalid schema for function 'x': it must be a JSON Schema of type object"), {}),
        (refusal("response_format is not known here"), {}),
        (refusal(REFUSALS[0], 401), {}),
        (refusal(REFUSALS[0]), {"json_schema": False}),
        (refusal(REFUSALS[0]), {"json_schema": "without_tools"}),
    ],
)
async def test_any_other_refusal_is_final(reply: Answer, changes: dict[str, object]) -> None:
    with ModelEndpoint([reply]) as endpoint:
        async with a_model(
            an_entry(endpoint.base_url, **{"json_schema": True, **changes})
        ) as model:
            with pytest.raises(AishError):
                await turn(model, with_both())
    assert len(endpoint.asked) == 1


async def test_who_refuses_without_the_schema_too_is_not_asked_for_ever() -> None:
    with ModelEndpoint([refusal(REFUSALS[0])] * 3) as endpoint:
        async with a_model(an_entry(endpoint.base_url, json_schema=True)) as model:
            with pytest.raises(StepFailedError, match="json mode"):
                await turn(model, with_both())
    assert len(endpoint.asked) == 2


async def test_an_entry_that_says_so_never_sends_both() -> None:
    with ModelEndpoint([text_reply("hi"), text_reply("hi")]) as endpoint:
        entry = an_entry(endpoint.base_url, json_schema="without_tools")
        async with a_model(entry) as model:
            assert (model.enforces_schema, model.schema_with_tools) == (True, False)
            await turn(model, with_both())
            await turn(model, a_request(schema=SCHEMA))
    first, second = endpoint.asked
    assert ("tools" in first, "response_format" in first) == (True, False)
    assert ("tools" in second, "response_format" in second) == (False, True)


def test_models_together_take_both_if_each_of_them_does() -> None:
    able, apart = Scripted([]), Scripted([], schema_with_tools=False)
    assert with_fallbacks(able, [able]).schema_with_tools
    assert not with_fallbacks(able, [apart]).schema_with_tools
