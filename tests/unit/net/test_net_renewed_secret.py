"""Secrets that are made and renewed: one renewal at a time, shared, by a clock of the test."""

import base64
import json
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from samples import each_case

from aish.core.errors import UnavailableError
from aish.net.renewed_secret import RenewedSecret, Token, jwt_expiry, seconds_of_use

pytestmark = pytest.mark.anyio


def value_of(token: Token | None) -> str:
    assert token is not None
    return token.value


class Maker:
    """Makes `token-1`, `token-2`, … each after the gate was opened, and counts."""

    def __init__(self, seconds: float | None = None, *, open_gate: bool = True) -> None:
        self.seconds = seconds
        self.made = 0
        self.at_once = self.most_at_once = 0
        self.now = 0.0
        self.failure: Exception | None = None
        self.gate = anyio.Event()
        self.begun = anyio.Event()
        if open_gate:
            self.gate.set()

    async def __call__(self) -> Token:
        self.made += 1
        number = self.made
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.begun.set()
        try:
            await self.gate.wait()
        finally:
            self.at_once -= 1
        if self.failure is not None:
            raise self.failure
        return Token(f"token-{number}", self.seconds)

    def secret(self) -> RenewedSecret:
        return RenewedSecret(self, lambda: self.now)


async def test_nothing_is_made_before_the_first_use_and_then_once() -> None:
    make = Maker()
    secret = make.secret()
    assert make.made == 0

    tokens = [await secret.current() for _ in range(3)]

    assert [token.value for token in tokens] == ["token-1"] * 3
    assert make.made == 1


async def test_everybody_who_waits_shares_one_making() -> None:
    make = Maker(open_gate=False)
    secret = make.secret()
    got: list[str] = []

    async def use() -> None:
        got.append((await secret.current()).value)

    async with anyio.create_task_group() as tasks:
        for _ in range(32):
            tasks.start_soon(use)
        await make.begun.wait()
        make.gate.set()

    assert got == ["token-1"] * 32
    assert (make.made, make.most_at_once) == (1, 1)


async def test_a_token_is_made_anew_when_its_time_is_over() -> None:
    make = Maker(seconds=20.0)
    secret = make.secret()
    first = await secret.current()
    make.now = 19.9
    assert await secret.current() is first
    make.now = 20.0

    assert (await secret.current()).value == "token-2"


async def test_a_refused_token_is_replaced_once_for_all_who_were_refused() -> None:
    make = Maker()
    secret = make.secret()
    first = await secret.current()
    make.gate, make.begun = anyio.Event(), anyio.Event()
    got: list[str] = []

    async def was_refused() -> None:
        got.append(value_of(await secret.replacement(first)))

    async with anyio.create_task_group() as tasks:
        for _ in range(32):
            tasks.start_soon(was_refused)
        await make.begun.wait()
        make.gate.set()
    late = await secret.replacement(first)

    assert got == ["token-2"] * 32
    assert value_of(late) == "token-2"
    assert (make.made, make.most_at_once) == (2, 1)


async def test_the_same_value_made_again_counts_as_another_token() -> None:
    made = [Token("same"), Token("same")]

    async def make() -> Token:
        await anyio.lowlevel.checkpoint()
        return made.pop()

    secret = RenewedSecret(make)
    first = await secret.current()
    second = await secret.replacement(first)

    assert second is not first
    assert await secret.replacement(first) is second


async def test_who_waited_shares_the_failure_and_who_comes_later_tries_again() -> None:
    make = Maker(open_gate=False)
    make.failure = UnavailableError("no key")
    secret = make.secret()
    failed: list[str] = []

    async def use() -> None:
        try:
            await secret.current()
        except UnavailableError as error:
            failed.append(error.message)

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(use)
        await make.begun.wait()
        make.gate.set()
    assert failed == ["no key"] * 8
    assert make.made == 1
    make.failure = None

    assert (await secret.current()).value == "token-2"


async def test_a_failed_renewal_leaves_no_token_that_was_refused() -> None:
    make = Maker()
    secret = make.secret()
    first = await secret.current()
    make.failure = UnavailableError("no key")
    with pytest.raises(UnavailableError):
        await secret.replacement(first)
    make.failure = None

    assert value_of(await secret.replacement(first)) == "token-3"


async def test_who_must_not_make_one_gets_only_what_others_made() -> None:
    make = Maker()
    secret = make.secret()
    first = await secret.current()

    assert await secret.replacement_if(first, lambda: False) is None
    second = await secret.replacement(first)
    assert await secret.replacement_if(first, lambda: False) is second
    assert make.made == 2


async def test_the_next_one_begins_again_where_the_maker_was_cancelled() -> None:
    make = Maker(open_gate=False)
    secret = make.secret()
    got: list[str] = []

    async def use() -> None:
        got.append((await secret.current()).value)

    async with anyio.create_task_group() as tasks:
        scope = anyio.CancelScope()

        async def be_cancelled() -> None:
            with scope:
                await secret.current()

        tasks.start_soon(be_cancelled)
        await make.begun.wait()
        tasks.start_soon(use)
        scope.cancel()
        make.gate.set()

    assert got == ["token-2"]
    assert make.most_at_once == 1


@pytest.mark.parametrize(("seconds", "used"), [(20.0, 18.0), (600.0, 540.0), (7200.0, 7140.0)])
def test_a_secret_is_used_a_little_less_than_it_lasts(seconds: float, used: float) -> None:
    assert seconds_of_use(seconds) == pytest.approx(used)


def jwt(claims: Any, encode: Callable[[bytes], bytes] = base64.urlsafe_b64encode) -> str:
    payload = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
    head = base64.urlsafe_b64encode(b'{"alg":"none"}')
    return b".".join((head, encode(payload), b"c2ln")).replace(b"=", b"").decode()


@each_case(
    "value, expiry",
    [
        (jwt({"exp": 1_900_000_000}), 1_900_000_000.0),
        (jwt({"exp": 1_900_000_000.5, "sub": "ÿÿ>>??"}), 1_900_000_000.5),
        (jwt({"exp": "1900000000"}), None),
        (jwt({"exp": True}), None),
        (jwt({"sub": "x"}), None),
        (jwt([1]), None),
        (jwt(b'{"exp": NaN}'), None),
        (jwt(b'{"exp": 1e999}'), None),
        (jwt(b'{"exp": 1' + b"0" * 400 + b"}"), None),
        (jwt(b"[" * 60_000), None),
        (jwt(b"\xff\xfe"), None),
        ("ya29.a0AfH6-not-a-jwt", None),
        ("a.b.c", None),
        ("..", None),
        ("a.ü.c", None),
        ("sk-plain", None),
        ("", None),
        ("." * 100_000, None),
    ],
)
def test_the_expiry_of_a_jwt_is_read_and_of_nothing_else(value: str, expiry: float | None) -> None:
    assert jwt_expiry(value) == expiry
