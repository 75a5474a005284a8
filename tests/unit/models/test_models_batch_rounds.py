"""When a batch is submitted: once no other request comes, however late a busy process is."""

import anyio
import httpx
import pytest
from batch_servers import BatchServer, answer_in_words
from model_turns import an_entry

from aish.models.batch_delivery import DeliveryPlace, open_delivery
from aish.models.retry import RetryTiming

pytestmark = pytest.mark.anyio
ROWS = 30


class LateClock:
    """A clock of a process that is behind: each look at it is minutes later."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.monotonic()

    def monotonic(self) -> float:
        self.seconds += 300.0
        return self.seconds


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_round_is_one_batch_though_the_process_is_behind() -> None:
    """Between two requests pass minutes of the clock, but only a few looks for another one."""
    due = iter(range(ROWS))
    answered = 0

    async with anyio.create_task_group() as tasks:

        async def ask(client: httpx.AsyncBaseTransport, row: int) -> None:
            nonlocal answered
            content = [{"role": "user", "content": str(row)}]
            body = {"model": "m", "max_tokens": 9, "messages": content}
            request = httpx.Request("POST", "http://batch/v1/messages", json=body)
            response = await client.handle_async_request(request)
            await response.aread()
            answered += 1

        looks = 0

        async def sleep(_: float) -> None:
            """Every fifth look finds one more request."""
            nonlocal looks
            looks += 1
            if looks % 5 == 0 and (row := next(due, None)) is not None:
                tasks.start_soon(ask, client, row)
            for _ in range(20):
                await anyio.lowlevel.checkpoint()

        with BatchServer("messages", lambda _: answer_in_words("messages", "y")) as server:
            entry = an_entry(server.base_url, api="messages")
            place = DeliveryPlace("cloud", "run", [], lambda _: None)
            pace = RetryTiming(clock=LateClock(), sleep=sleep)
            async with open_delivery(entry, None, None, place, pace) as delivery:
                client = delivery.make_client(entry)
                tasks.start_soon(ask, client, next(due))
                with anyio.fail_after(120):
                    while answered < ROWS:
                        await anyio.lowlevel.checkpoint()

    assert [len(batch.rows) for batch in server.batches] == [ROWS]
