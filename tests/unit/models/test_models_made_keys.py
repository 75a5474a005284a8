"""A key that is made: when it is sent, and when it is made anew (W13)."""

from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import pytest
from key_scenes import REFUSED, TokenGate
from model_endpoint import Gate, ModelEndpoint, json_reply, text_reply
from model_turns import a_model, a_request, an_entry, text_of, turn

from aish.config.model import KeySource, RetryPolicy
from aish.core.errors import AishError, UnavailableError
from aish.core.messages import Retrying
from aish.net.renewed_secret import RenewedSecret, Token

pytestmark = pytest.mark.anyio

SOURCE = KeySource("models.cloud.key_command", ("make-token",))


class Made:
    """Makes `made-token-1-0123456789` and so on, or what it is told to."""

    def __init__(self, *values: str) -> None:
        self._values = values
        self.count = 0
        self.failure: AishError | None = None

    async def __call__(self) -> Token:
        await anyio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure
        self.count += 1
        if self._values:
            return Token(self._values[min(self.count, len(self._values)) - 1])
        return Token(f"made-token-{self.count}-0123456789")


def keys_sent(endpoint: ModelEndpoint) -> list[str]:
    sent = (request.headers.get("authorization", "") for request in endpoint.requests)
    return [value.removeprefix("Bearer made-token-").partition("-")[0] for value in sent]


async def test_a_made_key_is_sent_and_made_once_for_many_requests() -> None:
    make = Made()
    with ModelEndpoint(TokenGate()) as endpoint:
        entry = an_entry(endpoint.base_url, key_source=SOURCE)
        async with a_model(entry, secret=RenewedSecret(make)) as model:
            assert make.count == 0
            for _ in range(3):
                assert text_of(await turn(model)) == "hello"
    assert keys_sent(endpoint) == ["1", "1", "1"]
    assert make.count == 1


@pytest.mark.parametrize(
    "refusal",
    [
        REFUSED,
        json_reply(400, {"error": {"message": "API key expired. Please renew the API key."}}),
    ],
)
async def test_a_refused_key_is_made_anew_and_the_request_sent_again(refusal: object) -> None:
    make = Made()
    with ModelEndpoint([refusal, text_reply("hi")]) as endpoint:  # type: ignore[list-item]  # replies
        entry = an_entry(endpoint.base_url, key_source=SOURCE, retry=RetryPolicy(attempts=1))
        async with a_model(entry, secret=RenewedSecret(make)) as model:
            said = await turn(model)
    assert text_of(said) == "hi"
    assert [piece.delay for piece in said if isinstance(piece, Retrying)] == [0.0]
    assert keys_sent(endpoint) == ["1", "2"]


async def test_a_request_makes_a_key_anew_once() -> None:
    make = Made()
    with ModelEndpoint([REFUSED] * 5) as endpoint:
        entry = an_entry(endpoint.base_url, key_source=SOURCE)
        async with a_model(entry, secret=RenewedSecret(make)) as model:
            with pytest.raises(UnavailableError) as caught:
                await turn(model)
    assert keys_sent(endpoint) == ["1", "2"]
    assert make.count == 2
    assert "HTTP 401" in caught.value.message
    assert caught.value.hint is not None
    assert "`models.cloud.key_command`" in caught.value.hint


async def test_the_same_key_again_is_not_sent_again() -> None:
    make = Made("always-the-same")
    with ModelEndpoint([REFUSED] * 5) as endpoint:
        entry = an_entry(endpoint.base_url, key_source=SOURCE)
        async with a_model(entry, secret=RenewedSecret(make)) as model:
            with pytest.raises(UnavailableError) as caught:
                await turn(model)
    assert len(endpoint.requests) == 1
    assert caught.value.hint is not None
    assert "gives the same key again" in caught.value.hint


async def test_other_refusals_leave_the_key_alone() -> None:
    make = Made()
    with ModelEndpoint([json_reply(403, {"error": "not for you"})] * 2) as endpoint:
        entry = an_entry(endpoint.base_url, key_source=SOURCE)
        async with a_model(entry, secret=RenewedSecret(make)) as model:
            with pytest.raises(UnavailableError):
                await turn(model)
    assert make.count == 1


async def test_a_key_that_cannot_be_made_fails_the_turn_and_sends_nothing() -> None:
    make = Made()
    make.failure = UnavailableError("`make-token` printed nothing", where=SOURCE.place)
    with ModelEndpoint([text_reply("hi")]) as endpoint:
        entry = an_entry(endpoint.base_url, key_source=SOURCE)
        async with a_model(entry, secret=RenewedSecret(make)) as model:
            with pytest.raises(UnavailableError, match="printed nothing"):
                await turn(model)
            make.failure = None
            assert text_of(await turn(model)) == "hi"
    assert len(endpoint.requests) == 1


async def test_a_redirect_does_not_carry_the_key_away() -> None:
    make = Made()
    with ModelEndpoint([text_reply("stolen")]) as other:
        away = json_reply(307, {}, {"location": f"{other.base_url}/chat/completions"})
        with ModelEndpoint([away]) as endpoint:
            entry = an_entry(endpoint.base_url, key_source=SOURCE)
            async with a_model(entry, secret=RenewedSecret(make)) as model:
                with pytest.raises(AishError, match="307"):
                    await turn(model)
    assert other.requests == []


async def run_many(count: int, work: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    async with anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(work, number)


@pytest.mark.requirement("W13")
async def test_many_requests_with_an_old_key_share_one_renewal() -> None:
    make, gate, arrived = Made(), Gate(opens_at=32), TokenGate()

    def answer(request: object) -> object:
        if len(endpoint.requests) <= 32:
            # All of them have been sent with the first key before any is refused.
            return REFUSED.but(before_head=gate)
        return arrived(request)  # type: ignore[arg-type]  # a request

    answer.reads_head = True  # type: ignore[attr-defined]  # as of a class
    with ModelEndpoint(answer) as endpoint:  # type: ignore[arg-type]  # answers any request
        entry = an_entry(endpoint.base_url, key_source=SOURCE)
        async with a_model(entry, secret=RenewedSecret(make)) as model:

            async def work(number: int) -> None:
                assert text_of(await turn(model, a_request(f"w{number}"))) == f"w{number}"

            await run_many(32, work)
    assert make.count == 2
    assert sorted(keys_sent(endpoint)) == ["1"] * 32 + ["2"] * 32


async def test_no_request_is_lost_where_each_key_is_good_for_a_few_requests() -> None:
    """Ten minutes of a batch whose token lives 20 s are 30 tokens; these are 40, of 20 uses."""
    make, gate = Made(), TokenGate(uses=20)
    numbers = iter(range(800))
    with ModelEndpoint(gate) as endpoint:
        entry = an_entry(endpoint.base_url, key_source=SOURCE)
        async with a_model(entry, secret=RenewedSecret(make)) as model:

            async def work(_: int) -> None:
                for number in numbers:
                    assert text_of(await turn(model, a_request(f"w{number}"))) == f"w{number}"

            await run_many(32, work)
    assert len(gate.served) == 800
    assert set(gate.served.values()) == {1}
    assert make.count == 40
