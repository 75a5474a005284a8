"""What is done for models that are small: few tools, and answers that their server cannot read."""

import pytest
from model_endpoint import Gate, ModelEndpoint, delta, json_reply, sse, stream_reply, text_reply
from model_turns import a_model, a_request, a_tool, an_entry, text_of, turn

from aish.config.model import ModelEntry
from aish.core.errors import ExitCode, StepFailedError, UnavailableError
from aish.core.messages import Delta, Retrying, StreamNotice
from aish.core.protocols import ModelRequest
from aish.models import smollm2

pytestmark = pytest.mark.anyio

NAMES = [f"repo__tool_{letter}" for letter in "abcdefghij"]
TOOLS = tuple(a_tool(name) for name in NAMES)
ERROR = {
    "code": 500,
    "message": "The model produced output that does not match the expected peg-native format",
    "type": "server_error",
}
MALFORMED = json_reply(500, {"error": ERROR})
MALFORMED_ON_THE_WAY = stream_reply(sse([delta(content="{"), {"error": ERROR}], done=False))


def small(base_url: str) -> ModelEntry:
    """An embedded model that was started: it has an address."""
    return an_entry(base_url, embedded=smollm2.NAME, model=None)


def noticed(deltas: list[Delta]) -> list[str]:
    return [one.text for one in deltas if isinstance(one, StreamNotice)]


async def shown(*requests: ModelRequest, **changes: object) -> tuple[list[list[str]], list[str]]:
    """The tools that the endpoint was sent with each request, and the notices."""
    said: list[str] = []
    with ModelEndpoint([text_reply("ok")] * len(requests)) as endpoint:
        entry = an_entry(endpoint.base_url, **changes) if changes else small(endpoint.base_url)
        async with a_model(entry) as model:
            for request in requests:
                said += noticed(await turn(model, request))
    sent = [request.json.get("tools", []) for request in endpoint.requests]
    return [[tool["function"]["name"] for tool in tools] for tools in sent], said


async def test_a_small_model_is_shown_the_first_tools_which_is_told_once() -> None:
    names, said = await shown(a_request(tools=TOOLS), a_request("again", tools=TOOLS))

    assert names == [NAMES[:4]] * 2
    (text,) = said
    assert text == (
        "10 tools are too many for `cloud`, which gets `repo__tool_a`, `repo__tool_b`,"
        " `repo__tool_c`, `repo__tool_d`; name those it needs under `tools:`"
    )


@pytest.mark.parametrize(
    ("prompt", "choice", "expected"),
    [
        ("use repo__tool_h, please", "auto", NAMES[7:8]),
        ("first `tool_j`; then tool_b.", "auto", [NAMES[1], NAMES[9]]),
        ("tool_bb and my_tool_c are none", "auto", NAMES[:4]),
        ("all of " + " ".join(NAMES[2:]), "auto", NAMES[2:6]),
        ("go", NAMES[8], NAMES[8:9]),
    ],
)
async def test_a_small_model_is_shown_the_tools_that_the_prompt_names(
    prompt: str, choice: str, expected: list[str]
) -> None:
    names, said = await shown(a_request(prompt, tools=TOOLS, tool_choice=choice))

    assert names == [expected]
    assert len(said) == 1


@pytest.mark.parametrize("changes", [{"model": "m"}, {"embedded": "/models/large.gguf"}])
async def test_any_other_model_is_shown_all_tools(changes: dict[str, object]) -> None:
    assert await shown(a_request(tools=TOOLS), **changes) == ([NAMES], [])


async def test_as_many_tools_as_the_model_copes_with_are_left_alone() -> None:
    assert await shown(a_request(tools=TOOLS[:4])) == ([NAMES[:4]], [])


@pytest.mark.parametrize("reply", [MALFORMED, MALFORMED_ON_THE_WAY], ids=["status", "in stream"])
async def test_an_answer_that_its_server_cannot_read_is_asked_for_again_and_then_a_failure(
    reply: object,
) -> None:
    with ModelEndpoint([reply] * 3) as endpoint:  # type: ignore[list-item]  # one of two kinds
        async with a_model(small(endpoint.base_url)) as model:
            with pytest.raises(StepFailedError) as caught:
                await turn(model)

    assert len(endpoint.requests) == 3
    assert caught.value.exit_code is ExitCode.FAILED
    assert not isinstance(caught.value, UnavailableError)
    assert "the model's answer is malformed: " in str(caught.value)
    assert "(after 3 tries)" in str(caught.value)
    assert "fewer `tools:`" in str(caught.value.hint)


async def test_after_an_answer_that_cannot_be_read_the_next_one_counts() -> None:
    with ModelEndpoint([MALFORMED, text_reply("Hello.")]) as endpoint:
        async with a_model(small(endpoint.base_url)) as model:
            said = await turn(model)

    assert text_of(said) == "Hello."
    assert any(isinstance(one, Retrying) and "malformed" in one.reason for one in said)


async def test_who_waits_can_see_how_much_of_an_answer_has_come() -> None:
    gate = Gate()
    call = {"index": 0, "id": "c", "function": {"name": "a", "arguments": "{"}}
    pieces = [delta(content="On it."), delta(tool_calls=[call])]
    begun = stream_reply(
        sse(pieces, done=False), gate, sse([delta("tool_calls", tool_calls=[call | {"id": None}])])
    )
    request = a_request(tools=TOOLS[:1])

    assert request.received.tokens == 0
    with ModelEndpoint([begun]) as endpoint:
        async with a_model(an_entry(endpoint.base_url)) as model:
            stream = model.stream(request)
            async for _ in stream:
                # The text; what else came before the gate opens is a call that is not whole.
                gate.open()
                break
            seen = request.received.tokens
            async for _ in stream:
                pass

    assert 1 <= seen <= request.received.tokens == 3
