"""Failures, retries and fallbacks of a model (L5 to L9), against a real endpoint."""

import json
import socket
from collections.abc import Iterator
from email.utils import formatdate

import anyio
import messages_streams as s
import pytest
import responses_streams as r
from model_endpoint import (
    CUT,
    RESET,
    Answer,
    Gate,
    ModelEndpoint,
    Pause,
    Reply,
    delta,
    json_reply,
    sse,
    stream_reply,
    text_reply,
    tool_reply,
)
from model_turns import Ticking, a_model, a_request, a_tool, an_entry, text_of, turn
from wire_streams import joined

from aish.config.model import ModelEntry, ModelTimeout, RetryPolicy
from aish.core.errors import AishError, StepFailedError, UnavailableError
from aish.core.json import JsonObject, JsonValue
from aish.core.messages import (
    AssistantTurn,
    Delta,
    Extras,
    FellBack,
    Finish,
    History,
    Retrying,
    StreamNotice,
    TextPiece,
    UserTurn,
    Withdrawn,
)
from aish.core.tools import ToolCall
from aish.models.dialect_choice import dialect_of
from aish.models.fallback import with_fallbacks
from aish.models.throttle import Throttles
from aish.system.secrets.secrets import Secrets

pytestmark = pytest.mark.anyio

HALF = sse([delta(content="half an ans")], done=False)
UNFINISHED = stream_reply(sse([delta(content="half an ans")]))
BUSY = json_reply(503, {"error": {"message": "busy"}})


def limited(**headers: str) -> Reply:
    return json_reply(
        429,
        {"error": {"code": "rate_limit_exceeded"}},
        {name.replace("_", "-"): value for name, value in headers.items()},
    )


async def told(
    *replies: Answer, clock: Ticking | None = None, **changes: object
) -> tuple[list[Delta], ModelEndpoint]:
    """What a model says with this script behind it, and its endpoint."""
    with ModelEndpoint(replies) as endpoint:
        async with a_model(an_entry(endpoint.base_url, **changes), clock=clock) as model:
            return await turn(model), endpoint


async def fails(
    *replies: Answer,
    clock: Ticking | None = None,
    said: list[Delta] | None = None,
    tries: int = 3,
    **changes: object,
) -> tuple[AishError, ModelEndpoint]:
    """What a turn fails with."""
    with ModelEndpoint(replies) as endpoint:
        entry = an_entry(endpoint.base_url, retry=RetryPolicy(attempts=tries), **changes)
        async with a_model(entry, clock=clock) as model:
            with pytest.raises(AishError) as caught:
                await turn(model, said=said)
    return caught.value, endpoint


# Answers ------------------------------------------------------------------------------------


async def test_a_tool_call_comes_once_and_whole_after_the_text() -> None:
    said, _ = await told(tool_reply([("c1", "repo__file_read", '{"path": "README.md"}')], "Let me"))
    assert [type(piece) for piece in said] == [TextPiece, ToolCall, Finish]
    assert said[1] == ToolCall("c1", "repo__file_read", '{"path": "README.md"}')


async def test_what_the_entry_says_goes_into_the_body() -> None:
    said, endpoint = await told(text_reply("hi"), params={"temperature": 0.5, "seed": 7})
    assert text_of(said) == "hi"
    assert endpoint.asked[0]["temperature"] == pytest.approx(0.5)
    assert endpoint.asked[0]["seed"] == 7


async def test_an_embedded_model_gets_careful_params_which_the_file_can_change() -> None:
    with ModelEndpoint([text_reply("hi"), text_reply("hi")]) as endpoint:
        plain = an_entry(endpoint.base_url, embedded="smollm2", model=None)
        changed = an_entry(endpoint.base_url, embedded="smollm2", params={"temperature": 1})
        for entry in (plain, changed):
            async with a_model(entry) as model:
                await turn(model, a_request(tools=(a_tool("repo__file_read"),)))
    first, second = endpoint.asked
    assert first["model"] == "smollm2"
    assert first["temperature"] == 0
    assert first["parallel_tool_calls"] is False
    assert second["temperature"] == 1


@pytest.mark.requirement("L2")
async def test_tools_are_sent_as_they_are_and_left_out_where_there_are_none() -> None:
    schema: JsonObject = {
        "type": "object",
        "properties": {"path": {"type": "string"}},
        "required": ["path"],
    }
    with ModelEndpoint([text_reply("hi"), text_reply("hi")]) as endpoint:
        async with a_model(an_entry(endpoint.base_url)) as model:
            await turn(model, a_request(tools=(a_tool("repo__file_read", schema),)))
            await turn(model)
    assert endpoint.asked[0]["tools"][0]["function"]["parameters"] == schema
    assert "tools" not in endpoint.asked[1]


# Statuses -----------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 404, 409, 413, 418, 422])
async def test_a_refused_request_fails_the_step_with_status_and_body(status: int) -> None:
    refusal = json_reply(status, {"error": {"message": "no such model"}})
    error, _ = await fails(refusal, tries=1)
    if status != 409:
        assert isinstance(error, StepFailedError)
    assert error.message == f'HTTP {status}: {{"error": {{"message": "no such model"}}}}'
    assert str(error).startswith("model `cloud`: HTTP ")


async def test_a_body_is_shown_up_to_400_characters() -> None:
    error, _ = await fails(Reply(parts=(("é" * 3000).encode(),), status=422))
    assert error.message == "HTTP 422: " + "é" * 400


async def test_an_empty_body_shows_the_reason() -> None:
    error, _ = await fails(Reply(status=404))
    assert error.message == "HTTP 404: Not Found"


async def test_a_secret_in_an_error_is_masked_even_where_the_text_is_cut() -> None:
    key = "sk-planted-0123456789"
    secrets = Secrets()
    secrets.add("CLOUD_KEY", key)
    body = f"bad key {key} " + "x" * 355 + key
    with ModelEndpoint([Reply(parts=(body.encode(),), status=400)]) as endpoint:
        entry = an_entry(endpoint.base_url, key_env="CLOUD_KEY")
        async with a_model(entry, key=key, secrets=secrets) as model:
            with pytest.raises(StepFailedError) as caught:
                await turn(model)
    assert "bad key <secret:CLOUD_KEY>" in caught.value.message
    assert "planted" not in caught.value.message
    assert endpoint.requests[0].headers["authorization"] == f"Bearer {key}"


@pytest.mark.parametrize("status", [401, 403])
async def test_refused_credentials_name_the_variable(status: int) -> None:
    error, endpoint = await fails(json_reply(status, {"error": "no"}), key_env="CLOUD_KEY")
    assert isinstance(error, UnavailableError)
    assert error.hint == f"is the key in `CLOUD_KEY` one for {endpoint.origin}?"
    error, _ = await fails(json_reply(status, {"error": "no"}))
    assert error.hint == "`models.cloud.key_env` names the variable that holds the key"


# Streams that are no answers ----------------------------------------------------------------


async def test_an_error_inside_a_stream_is_an_error_with_the_alias() -> None:
    broken = sse([{"error": {"message": "context overflow", "code": 400}}])
    error, endpoint = await fails(stream_reply(HALF, broken))
    assert isinstance(error, StepFailedError)
    assert "context overflow" in error.message
    assert error.where == "model `cloud`"
    assert len(endpoint.requests) == 1


async def test_an_error_inside_a_stream_that_may_pass_is_tried_again() -> None:
    gate, broken = Gate(), sse([{"error": {"message": "overloaded", "code": 503}}])
    said: list[Delta] = []
    with ModelEndpoint([stream_reply(HALF, gate, broken), text_reply("better")]) as endpoint:
        async with a_model(an_entry(endpoint.base_url)) as model:
            async for batch in model.stream(a_request()):
                said.extend(batch)
                gate.open()
    assert [type(piece) for piece in said] == [TextPiece, Withdrawn, Retrying, TextPiece, Finish]


@pytest.mark.parametrize("ending", [(), (CUT,), (RESET,)])
async def test_a_stream_that_breaks_off_is_withdrawn_and_tried_again(
    ending: tuple[object, ...],
) -> None:
    clock = Ticking()
    said, endpoint = await told(
        stream_reply(HALF, *ending),  # type: ignore[arg-type]  # parts, one by one
        text_reply("a whole answer"),
        clock=clock,
    )
    assert [type(piece) for piece in said] == [TextPiece, Withdrawn, Retrying, TextPiece, Finish]
    withdrawn, retrying = said[1], said[2]
    assert isinstance(withdrawn, Withdrawn)
    assert isinstance(retrying, Retrying)
    assert retrying.endpoint == endpoint.origin
    assert retrying.attempt == 2
    assert retrying.reason == withdrawn.reason
    assert [retrying.delay] == clock.slept
    assert endpoint.asked[0] == endpoint.asked[1]


async def test_no_call_of_a_stream_that_broke_off_is_told() -> None:
    opening = {"index": 0, "id": "c1", "function": {"name": "repo__file_read", "arguments": "{}"}}
    torn = stream_reply(sse([delta(tool_calls=[opening])], done=False))
    said: list[Delta] = []
    error, endpoint = await fails(torn, torn, torn, said=said)
    assert isinstance(error, UnavailableError)
    assert "after 3 tries" in error.message
    assert len(endpoint.requests) == 3
    assert not [piece for piece in said if isinstance(piece, ToolCall | Finish)]


async def test_what_the_last_try_showed_is_withdrawn_too() -> None:
    said: list[Delta] = []
    await fails(stream_reply(HALF, CUT), stream_reply(HALF, CUT), said=said, tries=2)
    kinds = [type(piece) for piece in said]
    assert kinds == [TextPiece, Withdrawn, Retrying, TextPiece, Withdrawn]


async def test_an_empty_stream_is_tried_again() -> None:
    said, _ = await told(stream_reply(), text_reply("hi"))
    assert [type(piece) for piece in said] == [Retrying, TextPiece, Finish]


async def test_an_empty_stream_says_what_it_may_mean() -> None:
    error, _ = await fails(stream_reply(), stream_reply(), stream_reply())
    assert error.hint is not None
    assert "its log" in error.hint


async def test_an_answer_whose_finish_reason_stays_null_is_asked_again() -> None:
    said, _ = await told(UNFINISHED, text_reply("a whole answer"))
    assert [type(piece) for piece in said] == [TextPiece, Withdrawn, Retrying, TextPiece, Finish]


async def test_answers_that_all_end_so_are_an_error_with_the_key_that_accepts_them() -> None:
    error, endpoint = await fails(UNFINISHED, UNFINISHED, UNFINISHED)
    assert isinstance(error, UnavailableError)
    assert "without a `finish_reason`" in error.message
    assert "`models.cloud.finish: optional`" in (error.hint or "")
    assert len(endpoint.requests) == 3


async def test_the_file_can_accept_answers_without_a_finish_reason() -> None:
    said, _ = await told(UNFINISHED, finish="optional")
    assert [type(piece) for piece in said] == [TextPiece, StreamNotice, Finish]


async def test_unfinished_answers_that_are_repeated_lower_the_concurrency() -> None:
    throttles = Throttles()
    replies = (UNFINISHED, text_reply("hi"), UNFINISHED, text_reply("hi"))
    with ModelEndpoint(replies) as endpoint:
        async with a_model(an_entry(endpoint.base_url), throttles=throttles) as model:
            throttle = throttles.of(endpoint.origin)
            await turn(model)
            assert throttle.cuts == 0
            await turn(model)
            assert throttle.cuts == 1


async def test_an_endpoint_that_interrupts_an_answer_for_the_next_request_answers_them_all() -> (
    None
):
    """As llama-cpp-python does: a request ends the answer that is being streamed."""
    newest = 0

    def interrupting(request: JsonObject) -> Reply:
        nonlocal newest
        newest += 1
        mine = newest

        def parts() -> Iterator[bytes | Pause]:
            yield sse([delta(content="h")], done=False)
            yield Pause(0.03)
            yield sse([delta("stop", content="i")] if mine == newest else [])

        return stream_reply().but(parts=parts())

    answers: list[str] = []
    with ModelEndpoint(interrupting) as endpoint:
        entry = an_entry(endpoint.base_url, retry=RetryPolicy(attempts=4))
        async with a_model(entry) as model, anyio.create_task_group() as crowd:

            async def ask() -> None:
                answers.append(text_of(joined(await turn(model))))

            for _ in range(16):
                crowd.start_soon(ask)
    assert answers == ["hi"] * 16


async def test_a_page_from_a_proxy_is_not_an_answer() -> None:
    page = Reply(
        parts=(b"<html><body>\x1b[2JSign in</body>",), headers={"content-type": "text/html"}
    )
    error, _ = await fails(page, page, page)
    assert "<html>" in error.message
    assert "\x1b" not in error.message


async def test_a_call_cut_by_the_token_limit_fails_the_step() -> None:
    opening = {"index": 0, "id": "c1", "function": {"name": "x__y", "arguments": '{"path": "RE'}}
    cut = stream_reply(sse([delta(tool_calls=[opening]), delta("length")]))
    error, endpoint = await fails(cut)
    assert isinstance(error, StepFailedError)
    assert "truncated tool call" in error.message
    assert len(endpoint.requests) == 1


async def test_a_connection_that_breaks_after_the_answer_is_no_loss() -> None:
    said, _ = await told(stream_reply(sse([delta(content="hi"), delta("stop")]), RESET))
    assert text_of(said) == "hi"
    assert isinstance(said[-1], Finish)


# Retries ------------------------------------------------------------------------------------


async def test_a_server_that_is_not_there_is_tried_and_then_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        origin = f"http://127.0.0.1:{free.getsockname()[1]}"
        clock, said = Ticking(), list[Delta]()
        async with a_model(an_entry(f"{origin}/v1"), clock=clock) as model:
            with pytest.raises(UnavailableError) as caught:
                await turn(model, said=said)
    assert [type(piece) for piece in said] == [Retrying, Retrying]
    assert len(clock.slept) == 2
    assert caught.value.message.startswith(f"no connection to {origin}: ")
    assert caught.value.message.endswith(" (after 3 tries)")
    assert caught.value.hint == f"is the server running at {origin}?"
    assert caught.value.exit_code == 5


async def test_a_busy_endpoint_is_tried_as_often_as_the_file_says() -> None:
    error, endpoint = await fails(*[BUSY] * 9, tries=5)
    assert isinstance(error, UnavailableError)
    assert len(endpoint.requests) == 5


async def test_x_should_retry_wins() -> None:
    final = json_reply(503, {}, {"x-should-retry": "false"})
    error, endpoint = await fails(final)
    assert isinstance(error, UnavailableError)
    assert len(endpoint.requests) == 1
    again = json_reply(400, {}, {"x-should-retry": "true"})
    said, _ = await told(again, text_reply("hi"))
    assert text_of(said) == "hi"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry_after": "30"}, 30.0),
        ({"retry_after": formatdate(Ticking().now() + 45, usegmt=True)}, 45.0),
        ({"retry_after_ms": "1500", "retry_after": "30"}, 1.5),
    ],
)
async def test_the_endpoint_is_given_the_time_it_asks_for(
    headers: dict[str, str], seconds: float
) -> None:
    clock = Ticking()
    said, _ = await told(limited(**headers), text_reply("hi"), clock=clock)
    assert clock.slept == pytest.approx([seconds], abs=1.0)
    assert text_of(said) == "hi"


@pytest.mark.parametrize(
    ("asked", "allowed", "said"),
    [
        ("121", 60.0, "it asks to wait 2m1s, and `retry.max_delay` allows 2m"),
        ("7200", 5.0, "it asks to wait 2h, and `retry.max_delay` allows 2m"),
        ("190", 180.0, "it asks to wait 3m10s, and `retry.max_delay` allows 3m"),
    ],
)
async def test_a_hint_over_what_retry_allows_gives_up_at_once(
    asked: str, allowed: float, said: str
) -> None:
    clock = Ticking()
    with ModelEndpoint([limited(retry_after=asked)]) as endpoint:
        retry = RetryPolicy(attempts=3, max_delay=allowed)
        async with a_model(an_entry(endpoint.base_url, retry=retry), clock=clock) as model:
            with pytest.raises(UnavailableError) as caught:
                await turn(model)
    assert said in caught.value.message
    assert not clock.slept
    assert len(endpoint.requests) == 1


async def test_a_longer_wait_can_be_allowed() -> None:
    clock = Ticking()
    retry, timeout = RetryPolicy(attempts=3, max_delay=400.0), ModelTimeout(turn=900.0)
    replies = [limited(retry_after="300"), text_reply("hi")]
    said, _ = await told(*replies, clock=clock, retry=retry, timeout=timeout)
    assert clock.slept[-1] == pytest.approx(300.0, abs=1.0)
    assert text_of(said) == "hi"


async def test_no_try_is_waited_for_that_the_steps_deadline_would_cut() -> None:
    clock = Ticking()
    with anyio.fail_after(60):
        error, endpoint = await fails(limited(retry_after="90"), clock=clock)
    assert isinstance(error, UnavailableError)
    assert "no time left" in error.message
    assert not clock.slept
    assert len(endpoint.requests) == 1


async def test_a_quota_that_is_used_up_is_not_asked_again() -> None:
    quota = json_reply(429, {"error": {"code": "insufficient_quota", "message": "pay"}})
    error, endpoint = await fails(quota)
    assert isinstance(error, UnavailableError)
    assert len(endpoint.requests) == 1


async def test_a_wait_in_the_words_of_an_error_in_a_stream_counts() -> None:
    error = {"error": {"code": 429, "message": "Rate limit reached. Please try again in 11.2s."}}
    clock = Ticking()
    said, _ = await told(stream_reply(sse([error])), text_reply("hi"), clock=clock)
    assert text_of(said) == "hi"
    assert max(clock.slept) == pytest.approx(11.2)


async def test_a_time_in_an_error_in_a_stream_is_read_by_the_clock() -> None:
    clock = Ticking()
    at = str(int((clock.now() + 12) * 1000))
    error = {"error": {"code": 429, "metadata": {"headers": {"X-RateLimit-Reset": at}}}}
    said, _ = await told(stream_reply(sse([error])), text_reply("hi"), clock=clock)
    assert text_of(said) == "hi"
    assert max(clock.slept) == pytest.approx(12.0)


async def test_a_named_wait_is_no_attempt_while_the_endpoint_answers_others() -> None:
    """Ten refusals in a row; after each of them another request is answered."""
    refusals = 0

    def reply(request: JsonObject) -> Reply:
        nonlocal refusals
        if "other" in json.dumps(request) or refusals == 10:
            return text_reply("hi")
        refusals += 1
        return limited(retry_after="1")

    clock, throttles = Ticking(), Throttles()
    with ModelEndpoint(reply) as endpoint:
        entry = an_entry(endpoint.base_url, retry=RetryPolicy(attempts=2))
        async with (
            a_model(entry, clock=clock, throttles=throttles) as model,
            a_model(entry, clock=clock, throttles=throttles) as second,
        ):
            await turn(second, a_request("other"))
            said: list[Delta] = []
            async for batch in model.stream(a_request()):
                said.extend(batch)
                if isinstance(batch[-1], Retrying):
                    await turn(second, a_request("other"))
    assert refusals == 10
    assert text_of(said) == "hi"


async def test_a_named_wait_is_an_attempt_where_nobody_is_answered() -> None:
    error, endpoint = await fails(*[limited(retry_after="1")] * 3)
    assert isinstance(error, UnavailableError)
    assert len(endpoint.requests) == 3


async def test_a_429_cools_the_endpoint_down_for_everyone() -> None:
    clock, throttles = Ticking(), Throttles()
    with ModelEndpoint([limited(retry_after="40"), text_reply("hi")]) as endpoint:
        entry = an_entry(endpoint.base_url, retry=RetryPolicy(attempts=1))
        other = an_entry(endpoint.base_url, alias="other")
        async with (
            a_model(entry, clock=clock, throttles=throttles) as first,
            a_model(other, clock=clock, throttles=throttles) as second,
        ):
            with pytest.raises(UnavailableError):
                await turn(first)
            said = await turn(second)
    assert clock.slept == [40.0]
    notice = said[0]
    assert isinstance(notice, StreamNotice)
    assert notice.code == "cooldown"
    assert notice.text == f"waiting 40 s for {endpoint.origin}"
    assert text_of(said) == "hi"


async def test_other_endpoints_are_not_cooled_down() -> None:
    clock, throttles = Ticking(), Throttles()
    with (
        ModelEndpoint([limited(retry_after="40")]) as busy,
        ModelEndpoint([text_reply("hi")]) as free,
    ):
        entry = an_entry(busy.base_url, retry=RetryPolicy(attempts=1))
        async with (
            a_model(entry, clock=clock, throttles=throttles) as first,
            a_model(an_entry(free.base_url), clock=clock, throttles=throttles) as second,
        ):
            with pytest.raises(UnavailableError):
                await turn(first)
            await turn(second)
    assert not clock.slept


async def test_a_pause_of_an_hour_fails_every_request_at_once() -> None:
    clock, throttles = Ticking(), Throttles()
    with ModelEndpoint([limited(retry_after="3600")]) as endpoint:
        async with a_model(an_entry(endpoint.base_url), clock=clock, throttles=throttles) as model:
            for _ in range(2):
                with pytest.raises(UnavailableError):
                    await turn(model)
    assert len(endpoint.requests) == 1
    assert not clock.slept


# Fallbacks ----------------------------------------------------------------------------------


async def test_the_fallback_answers_the_same_turn_and_signs_it() -> None:
    with ModelEndpoint([BUSY, BUSY]) as down, ModelEndpoint([text_reply("hi")]) as up:
        first = an_entry(down.base_url, retry=RetryPolicy(attempts=2))
        second = an_entry(up.base_url, alias="fast", model="small")
        async with a_model(first) as cloud, a_model(second) as fast:
            said = await turn(with_fallbacks(cloud, [fast]), a_request("the same"))
    assert [type(piece) for piece in said] == [Retrying, FellBack, TextPiece, Finish]
    fell = said[1]
    assert isinstance(fell, FellBack)
    assert (fell.source, fell.target) == ("cloud", "fast")
    assert fell.reason.startswith("HTTP 503: ")
    finish = said[-1]
    assert isinstance(finish, Finish)
    assert finish.model == "fast"
    assert down.asked[0]["messages"] == up.asked[0]["messages"]
    assert (down.asked[0]["model"], up.asked[0]["model"]) == ("m", "small")


async def test_a_key_stays_with_its_own_endpoint() -> None:
    with ModelEndpoint([BUSY]) as down, ModelEndpoint([text_reply("hi")]) as up:
        first: ModelEntry = an_entry(down.base_url, retry=RetryPolicy(attempts=1))
        second = an_entry(up.base_url, alias="fast")
        async with a_model(first, key="sk-planted-key") as cloud, a_model(second) as fast:
            await turn(with_fallbacks(cloud, [fast]))
    assert down.requests[0].headers["authorization"] == "Bearer sk-planted-key"
    assert "sk-planted" not in json.dumps(up.requests[0].headers)


# Refused fields -----------------------------------------------------------------------------

NO_USAGE = json_reply(
    422, {"detail": [{"type": "extra_forbidden", "loc": ["body", "stream_options"]}]}
)


@pytest.mark.requirement("Q63")
@pytest.mark.parametrize(
    "refusal",
    [
        NO_USAGE,
        json_reply(400, {"error": {"message": "Unrecognized request argument: stream_options"}}),
    ],
    ids=["422", "400"],
)
async def test_an_endpoint_that_refuses_stream_options_is_asked_without_them_from_then_on(
    refusal: Reply,
) -> None:
    replies = [refusal, text_reply("one"), text_reply("two")]
    with ModelEndpoint(replies) as endpoint:
        entry = an_entry(endpoint.base_url, retry=RetryPolicy(attempts=1))
        async with a_model(entry) as model:
            first, second = await turn(model), await turn(model)
    notices = [piece for piece in (*first, *second) if isinstance(piece, StreamNotice)]
    assert [text_of(first), text_of(second)] == ["one", "two"]
    assert [notice.code for notice in notices] == ["usage_refused"]
    assert ["stream_options" in body for body in endpoint.asked] == [True, False, False]


@pytest.mark.parametrize(
    "said",
    [
        "messages.1.content.0: Invalid `signature` in `thinking` block",
        "Invalid signature in thinking block",
    ],
)
async def test_thoughts_that_another_model_signed_are_left_out_and_new_ones_are_sent(
    said: str,
) -> None:
    refusal = json_reply(400, {"type": "error", "error": {"message": said}})
    answer = stream_reply(s.start() + s.thinking("new") + s.text("Hello", 1) + s.ends())
    with ModelEndpoint([refusal, answer, answer, refusal, answer, refusal]) as endpoint:
        entry = an_entry(endpoint.base_url, api="messages", retry=RetryPolicy(attempts=1))
        origin = dialect_of(entry).origin
        old = {"content": [{"type": "thinking", "thinking": "old", "signature": "x"}]}
        history = History([UserTurn("Hi"), AssistantTurn("Hm", (), old, origin), UserTurn("Go")])
        async with a_model(entry) as model:
            for _ in range(3):
                heard = await turn(model, a_request(history=history))
                extras = next(piece.fields for piece in heard if isinstance(piece, Extras))
                finish = heard[-1]
                assert isinstance(finish, Finish)
                history.turns += [AssistantTurn("", (), extras, finish.origin), UserTurn("Go")]
            with pytest.raises(StepFailedError):
                await turn(model, a_request())

    thoughts = [
        [block["thinking"] for turn in body["messages"] for block in turn["content"]
         if block["type"] == "thinking"]
        for body in endpoint.asked
    ]  # fmt: skip
    assert thoughts == [["old"], [], ["new"], ["new", "new"], [], []]


@pytest.mark.parametrize(
    ("api", "cache", "field", "answer"),
    [
        ("messages", "auto", "cache_control", s.start() + s.text("Hello") + s.ends()),
        ("responses", "30m", "prompt_cache_options", r.stream(r.message("Hello"))),
        ("responses", "off", "prompt_cache_options", r.stream(r.message("Hello"))),
    ],
)
async def test_marks_for_a_cache_that_are_refused_are_left_out_from_then_on(
    api: str, cache: str, field: str, answer: bytes
) -> None:
    refusal = json_reply(400, {"type": "error", "error": {"message": f"Unknown field: {field}"}})
    replies = [refusal, *[stream_reply(answer)] * 2, refusal]
    request = a_request(tools=(a_tool("repo__file_read"),))
    with ModelEndpoint(replies) as endpoint:
        once = RetryPolicy(attempts=1)
        entry = an_entry(endpoint.base_url, api=api, cache=cache, retry=once)
        async with a_model(entry) as model:
            first, second = await turn(model, request), await turn(model, request)
            with pytest.raises(StepFailedError, match="Unknown field"):
                await turn(model, request)

    notices = [piece for piece in (*first, *second) if isinstance(piece, StreamNotice)]
    assert [notice.code for notice in notices] == ["cache_refused"]
    assert [field in json.dumps(body) for body in endpoint.asked] == [True, *[False] * 3]
    assert "prompt_cache_breakpoint" not in json.dumps(endpoint.asked[1:])


async def test_requests_that_were_refused_together_are_told_once() -> None:
    gate = Gate(opens_at=2)
    refusals = [NO_USAGE.but(before_head=gate)] * 2
    with ModelEndpoint([*refusals, text_reply("hi"), text_reply("hi")]) as endpoint:
        said: list[Delta] = []
        async with a_model(an_entry(endpoint.base_url)) as model, anyio.create_task_group() as both:
            for _ in range(2):
                both.start_soon(lambda: turn(model, said=said))
    assert [p.code for p in said if isinstance(p, StreamNotice)] == ["usage_refused"]
    assert text_of(said) == "hihi"


@pytest.mark.parametrize(
    ("refusal", "params"),
    [
        (NO_USAGE, {"stream_options": {"include_usage": True}}),
        (json_reply(422, {"detail": "no such model"}), {}),
        (json_reply(403, {"detail": "stream_options"}), {}),
    ],
    ids=["own", "other", "status"],
)
async def test_any_other_refusal_is_final(refusal: Reply, params: JsonObject) -> None:
    _, endpoint = await fails(refusal, params=params, tries=1)
    assert len(endpoint.requests) == 1


def exhausted(quota: str, delay: JsonValue) -> JsonObject:
    """An error as Gemini's compatible endpoint sends it, in a list."""
    google = "type.googleapis.com/google.rpc."
    details: list[JsonObject] = [
        {"@type": f"{google}QuotaFailure", "violations": [{"quotaId": quota}]},
        {"@type": f"{google}Help", "links": []},
        {"@type": f"{google}RetryInfo", "retryDelay": delay},
    ]
    return {
        "error": {
            "code": 429,
            "message": "You exceeded your current quota",
            "status": "RESOURCE_EXHAUSTED",
            "details": details,
        }
    }


@pytest.mark.requirement("Q61")
@pytest.mark.parametrize("in_band", [False, True])
async def test_a_wait_in_the_body_counts_as_a_hint(*, in_band: bool) -> None:
    error = exhausted("GenerateRequestsPerMinutePerProject", "38.5s")
    reply = stream_reply(sse([error])) if in_band else json_reply(429, [error])
    clock = Ticking()
    said, _ = await told(reply, text_reply("hi"), clock=clock)
    assert text_of(said) == "hi"
    assert max(clock.slept) == pytest.approx(38.5)


@pytest.mark.parametrize("in_band", [False, True])
@pytest.mark.parametrize(
    ("quota", "delay"),
    [("GenerateRequestsPerMinute", "121s"), ("GenerateRequestsPerDayPerProject", "1s")],
    ids=["too-long", "daily"],
)
async def test_a_daily_quota_and_a_long_wait_in_the_body_give_up(
    quota: str, delay: str, *, in_band: bool
) -> None:
    error = exhausted(quota, delay)
    reply = stream_reply(sse([error])) if in_band else json_reply(429, error)
    caught, endpoint = await fails(reply)
    assert isinstance(caught, UnavailableError)
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("delay", [None, "soon", "-3s", {"seconds": 3}, "9" * 30 + "s"])
async def test_an_odd_wait_in_the_body_is_none(delay: JsonValue) -> None:
    clock = Ticking()
    said, _ = await told(
        json_reply(429, exhausted("PerMinute", delay)), text_reply("hi"), clock=clock
    )
    assert text_of(said) == "hi"
    assert max(clock.slept, default=0) == 0
