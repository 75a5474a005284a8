"""How much of a batch is in memory at once: few answers, however many there are (W16)."""

import gc
from collections.abc import Iterator

import anyio
import httpx
import pytest
from batch_servers import BatchServer, answer_in_words
from model_turns import an_entry

from aish.core.events import Event
from aish.models import batch_delivery
from aish.models.batch_delivery import DeliveryPlace, open_delivery
from aish.models.retry import RetryTiming

pytestmark = pytest.mark.anyio

ROWS = 400


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def responses_in_memory() -> int:
    return sum(type(one) is httpx.Response for one in gc.get_objects())


@pytest.mark.usefixtures("no_collector")
async def test_answers_are_handed_out_as_they_are_taken_and_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is free is counted without looking for cycles: their turn comes rarely in a long run."""
    monkeypatch.setattr(batch_delivery, "IDLE_SECONDS", 0.1)
    events: list[Event] = []
    counts: list[int] = []
    taken = 0
    all_taken = anyio.Event()

    async def take(client: httpx.AsyncBaseTransport, row: int) -> None:
        nonlocal taken
        body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": str(row)}]}
        request = httpx.Request("POST", "http://batch/v1/messages", json=body)
        response = await client.handle_async_request(request)
        # Slower than they come.
        for _ in range(ROWS // 10):
            await anyio.lowlevel.checkpoint()
        await response.aread()
        del response
        taken += 1
        if taken % 40 == 0:
            counts.append(responses_in_memory())
        if taken == ROWS:
            all_taken.set()
        await all_taken.wait()

    with BatchServer("messages", lambda _: answer_in_words("messages", "y")) as server:
        entry = an_entry(server.base_url, api="messages")
        place = DeliveryPlace("cloud", "run", [], events.append)
        before = responses_in_memory()
        async with open_delivery(entry, None, None, place, RetryTiming()) as delivery:
            client = delivery.make_client(entry)
            with anyio.fail_after(120):
                async with anyio.create_task_group() as tasks:
                    for row in range(ROWS):
                        tasks.start_soon(take, client, row)

    assert sum(len(batch.rows) for batch in server.batches) == ROWS
    assert len(counts) == ROWS // 40
    # Each has a second response, which tells when it was taken.
    assert max(counts) - before <= 2 * batch_delivery._MOST_UNTAKEN + 10
    assert counts[-1] - before <= 10
