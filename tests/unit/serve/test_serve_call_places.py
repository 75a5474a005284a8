"""Places of calls: taken at once if free, and given back on every way."""

import anyio
import pytest

from aish.serve.calls.waiting_calls import BusyError, CallPlace, CallPlaces

pytestmark = pytest.mark.anyio


def is_free(places: CallPlaces, of_session: anyio.Semaphore) -> bool:
    return (places.open, places.waiting, places.all.value, of_session.value) == (0, 0, 1, 1)


async def test_a_call_that_is_cancelled_already_takes_no_free_place() -> None:
    places, of_session = CallPlaces(1, 1), anyio.Semaphore(1)
    made = False
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with CallPlace(places, of_session):
            made = True

    assert not made
    assert is_free(places, of_session)


async def test_a_place_is_given_back_when_its_call_fails_or_is_cancelled_while_it_waits() -> None:
    places, of_session = CallPlaces(1, 1), anyio.Semaphore(1)

    async def fail() -> None:
        async with CallPlace(places, of_session) as place:
            place.release()
            await place.take()
            with anyio.CancelScope() as scope:
                scope.cancel()
                async with CallPlace(places, of_session):
                    pytest.fail("there is no place")
            assert (places.open, places.waiting) == (1, 0)
            raise LookupError

    with pytest.raises(LookupError):
        await fail()
    assert is_free(places, of_session)


async def test_a_call_is_refused_where_too_many_wait() -> None:
    places, of_session = CallPlaces(1, 0), anyio.Semaphore(1)

    async def call() -> None:
        async with CallPlace(places, anyio.Semaphore(1)):
            pytest.fail("there is no place")

    async with CallPlace(places, of_session):
        with pytest.raises(BusyError, match="0 calls wait"):
            await call()

    assert is_free(places, of_session)
