"""Whole turns of a model through a tape: with and without an endpoint, errors included."""

import anyio
import pytest
from cassette_exchanges import HEAD
from cassette_recorders import nothing, recorder
from model_endpoint import Gate, ModelEndpoint, Pause, Reply, delta, sse, stream_reply, text_reply
from model_turns import Ticking, an_entry, text_of, turn
from waits import waits_of

from aish.cassettes.format.interaction import Interaction
from aish.cassettes.http import cassette_transport
from aish.cassettes.record.recorder import CassetteRecorder
from aish.config.model import ModelEntry, ModelTimeout, RetryPolicy
from aish.core.errors import AishError
from aish.models.client import open_model
from aish.models.transport import open_client
from aish.system.secrets.secrets import Secrets

pytestmark = pytest.mark.anyio


def limits(**seconds: float) -> ModelTimeout:
    return ModelTimeout(**({"connect": 30.0, "first_token": 30.0, "idle": 30.0} | seconds))


async def outcome(entry: ModelEntry, one: CassetteRecorder, *, live: bool) -> str:
    """What was said, or why nothing was."""
    make = (lambda: open_client(entry)) if live else nothing
    opened = open_model(
        entry,
        None,
        secrets=Secrets(),
        pace=Ticking().pace(),
        make_client=lambda _: cassette_transport(one, "model", make),
    )
    async with opened as model:
        try:
            return text_of(await turn(model))
        except AishError as error:
            return f"{type(error).__name__}: {error.message}"


async def twice(entry: ModelEntry) -> tuple[str, str, tuple[Interaction, ...]]:
    """How a turn ends live, and how it ends replayed; at once, whatever it waited for."""
    recording = recorder("record")
    live = await outcome(entry, recording, live=True)
    kept = recording.finish(HEAD)
    with anyio.fail_after(60):
        return live, await outcome(entry, recorder("replay", *kept), live=False), kept


@pytest.mark.parametrize("compressed", [False, True])
async def test_a_turn_is_replayed_without_its_endpoint(*, compressed: bool) -> None:
    headers = {"content-encoding": "br"} if compressed else {}
    with ModelEndpoint([text_reply("hello", pieces=["hel", "lo"]).but(headers=headers)]) as served:
        live, again, _ = await twice(an_entry(served.base_url, retry=RetryPolicy(attempts=1)))

    assert live == again
    assert ("compressed" in live) is compressed


@pytest.mark.parametrize(
    ("reply", "seconds", "said"),
    [
        (text_reply("late").but(before_head=Gate()), {"first_token": 0.15}, "no answer within"),
        (
            stream_reply(sse([delta(content="hal")], done=False), Pause(9)),
            {"idle": 0.15},
            "the answer stopped",
        ),
        (
            stream_reply(sse([delta(content="hal")], done=False), Pause(9)),
            {"turn": 0.3},
            "the turn took longer",
        ),
    ],
    ids=["first-token", "idle", "turn"],
)
async def test_a_deadline_that_passed_passes_again_at_once(
    reply: Reply, seconds: dict[str, float], said: str
) -> None:
    with ModelEndpoint([reply]) as served:
        entry = an_entry(served.base_url, timeout=limits(**seconds), retry=RetryPolicy(attempts=1))
        live, _, kept = await twice(entry)
        patient = an_entry(served.base_url, timeout=limits(), retry=RetryPolicy(attempts=1))
        again = await outcome(patient, recorder("replay", *kept), live=False)

    assert said in live
    assert said in again
    assert (kept[0].response.broken or "").startswith("deadline: ")


def test_an_endpoint_that_stays_open_after_the_end_keeps_no_replay_waiting() -> None:
    parts = (sse([delta(content="all"), delta("stop")]), Pause(9))
    with ModelEndpoint([stream_reply(*parts)]) as served:
        entry = an_entry(served.base_url, retry=RetryPolicy(attempts=1))
        live, _, kept = anyio.run(twice, entry)

    async def replayed() -> str:
        return await outcome(entry, recorder("replay", *kept), live=False)

    again, waits = waits_of(replayed)

    assert live == again == "all"
    assert waits == []
