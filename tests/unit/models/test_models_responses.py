"""A client of `api: responses`: what it takes back, and what its schemas have null for."""

import pytest
import responses_streams as s
from model_endpoint import ModelEndpoint, json_reply
from model_turns import a_model, a_request, an_entry, turn

from aish.core.messages import (
    AssistantTurn,
    Finish,
    History,
    StreamNotice,
    ToolTurn,
    Turn,
    UserTurn,
)
from aish.core.protocols import AnswerSchema
from aish.core.tools import ToolCall
from aish.models.dialect_choice import dialect_of
from aish.models.fallback import with_fallbacks
from aish.models.scripted import Scripted

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "message",
    [
        "The encrypted content gAAA could not be verified.",
        "Item 'rs_1' of type 'reasoning' was provided without its required following item.",
    ],
)
async def test_thoughts_that_are_refused_are_left_out_and_those_after_them_go_nowhere(
    message: str,
) -> None:
    refused = json_reply(400, {"error": {"message": message}})
    replies = [refused, s.reply(s.reasoning(), s.message("Done."))]
    with ModelEndpoint(replies) as endpoint:
        entry = an_entry(endpoint.base_url, api="responses")
        output = [s.reasoning(), {"type": "function_call", "id": "fc_1"}]
        call = ToolCall("c1", "repo__read", "{}")
        turns: list[Turn] = [
            UserTurn("Hi"),
            AssistantTurn("", (call,), {"output": output}, dialect_of(entry).origin),
            ToolTurn("c1", "repo__read", "one"),
        ]
        async with a_model(entry) as model:
            told = await turn(model, a_request(history=History(turns)))
    assert isinstance(told[0], StreamNotice)
    assert told[0].code == "thoughts_refused"
    assert [len(asked["input"]) for asked in endpoint.asked] == [4, 3]
    assert isinstance(told[-1], Finish)
    # Not the alias alone, which is the origin of turns for `api: chat`.
    assert told[-1].origin == f"{entry.alias} responses"


async def test_null_stands_for_what_is_absent_where_the_schema_was_made_so() -> None:
    refused = json_reply(400, {"error": {"message": "Invalid schema for response_format"}})
    schema = AnswerSchema("answer", {"type": "object", "properties": {"a": {"type": "string"}}})
    with ModelEndpoint([refused, s.reply(s.message("{}"))]) as endpoint:
        entry = an_entry(endpoint.base_url, api="responses", json_schema=True)
        async with a_model(entry) as model:
            assert with_fallbacks(Scripted([]), [model]).nulls_for_absent
            before = model.nulls_for_absent
            await turn(model, a_request(schema=schema))
            assert (before, model.nulls_for_absent) == (True, False)
        for changes in ({"api": "chat"}, {"api": "messages"}, {"json_schema": False}):
            more = {"api": "responses", "json_schema": True, **changes}
            async with a_model(an_entry(endpoint.base_url, **more)) as model:
                assert not model.nulls_for_absent
