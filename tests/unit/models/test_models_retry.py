"""When a request is tried again, and when (L8): the pure table."""

import json
from dataclasses import replace
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import each_case

from aish.config.model import ModelEntry, RetryPolicy
from aish.models.retry import (
    Advice,
    delay_before,
    hint_for,
    judge_code,
    judge_status,
)
from aish.net.rate_limits import header_wait

ENTRY = ModelEntry(alias="m", base_url="http://h:1/v1", key_env="KEY")
RETRIED = [408, 409, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529]
NOT_RETRIED = [300, 302, 400, 401, 402, 403, 404, 405, 413, 418, 422, 501, 505, 519, 525, 600]


def judge(status: int, body: str = "", **headers: str) -> Advice:
    return judge_status(
        status, {name.replace("_", "-"): value for name, value in headers.items()}, body, 1000.0
    )


@each_case("status", RETRIED)
def test_a_passing_failure_is_tried_again(status: int) -> None:
    advice = judge(status)
    assert advice.retry
    assert advice.unavailable


@each_case("status", NOT_RETRIED)
def test_a_lasting_failure_is_not_tried_again(status: int) -> None:
    assert not judge(status).retry


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_a_request_that_is_no_good_does_not_make_the_endpoint_unavailable(status: int) -> None:
    assert not judge(status).unavailable


@pytest.mark.parametrize("status", [401, 402, 403, 501, 505])
def test_refused_credentials_and_broken_servers_make_it_unavailable(status: int) -> None:
    assert judge(status).unavailable


# As gateways answer with 400 (issue 27, B8).
ABOUT_A_KEY = [
    {"error": {"code": 400, "message": "API key not valid. Please pass a valid API key."}},
    [{"error": {"message": "m", "details": [{"reason": "API_KEY_INVALID"}]}}],
    {"error": "Incorrect API key provided: sk***00. You can obtain an API key at the console."},
    {"error": {"message": "You must provide an API key", "type": "invalid_request_error"}},
    {"error": {"message": "Authentication Error, No api key passed in.", "type": "auth_error"}},
    {"error": {"message": "m", "code": "invalid_api_key"}},
    {"detail": "Missing API-key header"},
    {"message": "the api_key is expired"},
    {"error": {"message": "Invalid credentials"}},
]
NOT_ABOUT_A_KEY = [
    {"error": {"message": "Unrecognized request argument supplied: api_key"}},
    {"error": {"message": "Missing required parameter: 'messages[0].key'"}},
    {"error": {"message": "tool `login`: no schema for api_key_name", "code": "invalid_schema"}},
    {"error": {"message": "invalid JSON schema: duplicate key"}},
]


@each_case("error", ABOUT_A_KEY)
def test_a_400_about_the_key_is_one_about_credentials(error: object) -> None:
    body = json.dumps(error)

    assert judge(400, body) == judge(401)
    assert hint_for(400, ENTRY, body) == hint_for(401, ENTRY)


@pytest.mark.parametrize("error", NOT_ABOUT_A_KEY)
def test_a_400_about_anything_else_refuses_the_request(error: object) -> None:
    body = json.dumps(error)

    assert not judge(400, body).unavailable
    assert hint_for(400, ENTRY, body) is None


@pytest.mark.parametrize(
    "said",
    [
        "1 validation error for CreateChatCompletionRequest\nresponse_format\n  Input should be",
        "[json.exception.type_error.302] type must be string, but is null",
        "[{'type': 'missing', 'loc': ('body', 'messages'), 'msg': 'Field required'}]",
    ],
)
def test_a_500_about_a_body_that_cannot_be_read_is_judged_as_a_400(said: str) -> None:
    """Issue 27, B8."""
    assert judge(500, json.dumps({"error": {"message": said}})) == judge(400)
    assert judge(500, said) == judge(400)
    assert judge(500, "the validation of the token took too long").retry


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (400, "response_format is not known here"),
        (422, "1 validation error: body.response_format.type: Input should be 'text'"),
        (500, "1 validation error for Request\nresponse_format\n  Input should be 'text'"),
        (400, "failed to parse grammar"),
    ],
)
def test_a_refused_schema_has_a_hint_whatever_the_status(status: int, said: str) -> None:
    """Issue 27, B8."""
    entry = replace(ENTRY, json_schema=True)

    assert judge(status, said) == judge(400)
    assert "json_schema: false` describes the schema" in (hint_for(status, entry, said) or "")
    assert hint_for(status, ENTRY, said) is None
    assert hint_for(503, entry, said) is None


def test_an_error_about_the_key_in_a_stream_makes_the_endpoint_unavailable() -> None:
    refused = Advice(retry=False, refuses_key=True)
    assert judge_code("invalid_api_key", retryable=False) == refused


@each_case(
    "error",
    [
        {"error": {"code": "insufficient_quota", "message": "m"}},
        {"error": {"type": "insufficient_quota", "code": None}},
        {"error": {"code": "billing_hard_limit_reached"}},
        {"error": {"type": "exceeded_current_quota_error"}},
        {"code": "INSUFFICIENT_BALANCE"},
        [{"error": {"code": "billing_not_active"}}],
        "insufficient_quota",
        {"error": {"code": 429, "metadata": {"raw": '{"type": "insufficient_quota"}'}}},
        {"error": {"code": "429", "message": "OpenAIException: {'type': 'insufficient_quota'}"}},
    ],
)
def test_a_429_about_money_is_not_tried_again(error: object) -> None:
    advice = judge(429, json.dumps(error))
    assert not advice.retry
    assert not advice.cools
    assert advice.unavailable


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"error": {"code": "rate_limit_exceeded", "message": "your quota per minute"}}),
        "[]",
        "null",
        "{",
        '{"error": "slow down"}',
        "[" * 100_000,
    ],
)
def test_any_other_429_is(body: str) -> None:
    advice = judge(429, body)
    assert advice.retry
    assert advice.cools


def test_x_should_retry_wins_over_the_status() -> None:
    assert judge(400, x_should_retry="true").retry
    assert not judge(503, x_should_retry="false").retry
    quota = json.dumps({"error": {"code": "insufficient_quota"}})
    assert judge(429, quota, x_should_retry="TRUE").retry
    assert judge(503, x_should_retry="maybe").retry


@each_case(
    "headers, seconds",
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "7"}, 7.0),
        ({"retry-after": formatdate(1030, usegmt=True)}, 30.0),
        ({"retry-after": formatdate(1030)}, 30.0),
        ({"retry-after": formatdate(900, usegmt=True)}, 0.0),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "tomorrow"}, None),
        ({"retry-after": "Wed, 21 Oct 99999 07:28:00 GMT"}, None),
        ({}, None),
    ],
)
def test_the_endpoints_hint_is_read(headers: dict[str, str], seconds: float | None) -> None:
    assert header_wait(headers, 1000.0, limited=True) == seconds


# As endpoints and gateways name the time at which a limit is over (issue 27, B5).
NOW = 1_795_920_000.0
LIMITS: list[tuple[dict[str, str], object, float | None]] = [
    ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "11.20s"}, "", 11.2),
    ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m30s"}, "", 90.0),
    ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "850ms"}, "", 0.85),
    ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "7"}, "", 7.0),
    (
        {
            "x-ratelimit-remaining-requests": "0",
            "x-ratelimit-reset-requests": "2s",
            "x-ratelimit-remaining-tokens": "0",
            "x-ratelimit-reset-tokens": "9s",
        },
        "",
        9.0,
    ),
    (
        {
            "x-ratelimit-remaining-requests": "0",
            "x-ratelimit-reset-requests": "2s",
            "x-ratelimit-remaining-tokens": "14",
            "x-ratelimit-reset-tokens": "9s",
        },
        "",
        2.0,
    ),
    ({"x-ratelimit-reset-tokens": "9s"}, "", None),
    ({"x-ratelimit-reset": "1795920012000"}, "", 12.0),
    ({"x-ratelimit-reset": "1795920012"}, "", 12.0),
    ({"x-ratelimit-reset": "1795919000"}, "", None),
    ({"x-ratelimit-remaining": "3", "x-ratelimit-reset": "12"}, "", None),
    ({"x-rate-limit-reset": "12"}, "", 12.0),
    ({"ratelimit-remaining": "0", "ratelimit-reset": "12"}, "", 12.0),
    ({"x-ratelimit-remaining": "0", "x-ratelimit-reset-after": "1.5"}, "", 1.5),
    ({"ratelimit": "limit=9, remaining=0, reset=12"}, "", 12.0),
    ({"ratelimit": '"minute";r=0;t=12, "day";r=4;t=9000'}, "", 12.0),
    (
        {
            "anthropic-ratelimit-tokens-remaining": "0",
            "anthropic-ratelimit-tokens-reset": "2026-11-29T02:40:12Z",
        },
        "",
        12.0,
    ),
    ({"retry-after": "3", "x-ratelimit-reset": "12"}, "", 3.0),
    ({"llm_provider-retry-after": "12"}, "", 12.0),
    ({"x-gateway-retry-after": "12"}, "", 12.0),
    ({"x-ms-retry-after-ms": "1500"}, "", 1.5),
    ({"x-gateway-retry-after": "12", "retry-after": "3"}, "", 3.0),
    ({"retry-after": "12s"}, "", 12.0),
    ({}, {"error": {"message": "Please try again in 11.20s. Visit https://a"}}, 11.2),
    ({}, {"error": {"message": "Please try again in 1m30.5s."}}, 90.5),
    ({}, {"error": {"message": "try again in 850ms"}}, 0.85),
    ({}, {"error": {"message": "Please retry after 9 seconds."}}, 9.0),
    ({}, {"error": {"message": "Please retry in 38.5s."}}, 38.5),
    ({}, {"error": "Please wait 1 minute and 5 seconds"}, 65.0),
    ({}, {"message": "You are being rate limited.", "retry_after": 1.5}, 1.5),
    ({}, {"error": {"message": "m", "retryAfterMs": 1500}}, 1.5),
    ({}, {"error": {"message": "m"}, "retry_after": "12"}, 12.0),
    ({}, {"error": {"metadata": {"retry_after_seconds": 12}}}, 12.0),
    ({}, {"error": {"metadata": {"headers": {"X-RateLimit-Reset": "1795920012000"}}}}, 12.0),
    ({}, {"error": {"message": "try again in 5 attempts"}}, None),
    ({}, {"error": {"message": "try again in 99999999999999s"}}, None),
    ({}, {"error": {"message": "m", "retry_after": True, "retryAfter": [1]}}, None),
    ({}, "slow down, try again in 2 seconds", 2.0),
]


@each_case("headers, body, seconds", LIMITS)
def test_a_429_says_in_many_ways_when_its_limit_is_over(
    headers: dict[str, str], body: object, seconds: float | None
) -> None:
    text = body if isinstance(body, str) else json.dumps(body)
    advice = judge_status(429, headers, text, NOW)
    assert advice.wait == (None if seconds is None else pytest.approx(seconds))
    assert advice.retry


def test_only_a_429_waits_for_limits_to_be_renewed() -> None:
    headers = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "12"}
    assert judge_status(503, headers, "", NOW).wait is None


def test_the_words_of_a_busy_server_count_and_those_of_a_page_about_an_error_do_not() -> None:
    words = "try again in 30 seconds"
    assert judge_status(503, {}, words, NOW).wait == pytest.approx(30)
    assert judge_status(502, {}, words, NOW).wait is None


@given(st.text(max_size=60), st.sampled_from(["x-ratelimit-reset", "ratelimit", "a-retry-after"]))
def test_no_time_of_a_limit_is_too_odd_to_be_read(text: str, name: str) -> None:
    seconds = header_wait({name: text}, NOW, limited=True)
    assert seconds is None or seconds >= 0


@given(st.text(max_size=60))
def test_no_hint_is_too_odd_to_be_read(text: str) -> None:
    seconds = header_wait({"retry-after": text}, 1000.0, limited=True)
    assert seconds is None or seconds >= 0


def test_the_wait_has_full_jitter_and_grows_up_to_the_files_limit() -> None:
    policy, advice = RetryPolicy(max_delay=3.0), Advice(retry=True)
    waits = [delay_before(attempt, advice, policy, 0.999999) for attempt in range(1, 6)]
    assert waits == pytest.approx([0.5, 1.0, 2.0, 3.0, 3.0], abs=0.001)
    assert not delay_before(4, advice, policy, 0.0)


def test_a_hint_is_a_lower_bound_of_the_wait() -> None:
    policy, advice = RetryPolicy(max_delay=3.0), Advice(retry=True, wait=20.0)
    usual, now = Advice(retry=True), Advice(retry=True, wait=0.0)
    assert delay_before(2, now, policy, 0.5) == delay_before(2, usual, policy, 0.5)
    assert delay_before(1, advice, policy, 0.0) == pytest.approx(20.0)
    assert 20.0 < delay_before(1, advice, policy, 0.5) <= 21.0


@pytest.mark.parametrize(
    ("code", "retryable", "expected"),
    [
        (502, False, True),
        ("429", False, True),
        (400, True, False),
        ("insufficient_quota", True, False),
        ("overloaded_error", True, True),
        ("²", False, False),
        (1302, True, True),
        (None, True, True),
        (None, False, False),
    ],
)
def test_an_error_in_band_is_weighed_by_its_code(
    code: str | int | None, *, retryable: bool, expected: bool
) -> None:
    assert judge_code(code, retryable=retryable).retry is expected
