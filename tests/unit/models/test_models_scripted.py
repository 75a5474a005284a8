"""The shipped twin, and falling back from one model to the next (L9), which it plays."""

from collections.abc import Sequence

import anyio
import pytest

from aish.core.errors import StepFailedError, UnavailableError
from aish.core.messages import (
    Delta,
    FellBack,
    Finish,
    History,
    TextPiece,
    Usage,
    UserTurn,
    Withdrawn,
)
from aish.core.protocols import Model, ModelRequest
from aish.core.tools import ToolCall
from aish.models.fallback import with_fallbacks
from aish.models.scripted import Scripted, ScriptedTurn, says

CALL = ToolCall("c1", "repo__file_read", "{}")


def a_request(text: str = "hello") -> ModelRequest:
    return ModelRequest(history=History([UserTurn(text)]))


def answer(model: Model, request: ModelRequest | None = None) -> list[Delta]:
    """All deltas of one turn."""

    async def collect() -> list[Delta]:
        said: list[Delta] = []
        async for batch in model.stream(request or a_request()):
            said.extend(batch)
        return said

    return anyio.run(collect)


def unavailable(alias: str) -> UnavailableError:
    return UnavailableError("no connection", where=f"model `{alias}`", hint="start it")


def down(alias: str) -> Scripted:
    return Scripted([unavailable(alias)], alias=alias)


def test_a_script_is_played_in_order() -> None:
    model = Scripted(["one", says("two", CALL, usage=Usage(input=3)), lambda _: "three"])
    assert answer(model) == [
        TextPiece("one"),
        Finish("stop", Usage(), raw="stop", model="scripted"),
    ]
    assert answer(model) == [
        TextPiece("two"),
        CALL,
        Finish("tool_calls", Usage(input=3), raw="tool_calls", model="scripted"),
    ]
    assert answer(model)[0] == TextPiece("three")


def test_a_script_answers_what_it_is_asked() -> None:
    model = Scripted([lambda request: f"you said {request.history.turns[-1]}"])
    assert "ping" in str(answer(model, a_request("ping"))[0])


def test_what_was_asked_is_kept_as_it_was() -> None:
    model, history = Scripted(["one"]), History([UserTurn("hello")])
    answer(model, ModelRequest(history=history, tool_choice="required"))
    history.turns.append(UserTurn("later"))
    assert model.requests[0].turns == (UserTurn("hello"),)
    assert model.requests[0].request.tool_choice == "required"


def test_a_script_that_is_over_fails_the_step() -> None:
    with pytest.raises(StepFailedError, match="no turn left"):
        answer(Scripted([]))


def test_a_script_can_break_off() -> None:
    model = Scripted([ScriptedTurn(((TextPiece("hal"),),), error=unavailable("m"))])
    said: list[Delta] = []

    async def collect() -> None:
        async for batch in model.stream(a_request()):
            said.extend(batch)

    with pytest.raises(UnavailableError):
        anyio.run(collect)
    assert said == [TextPiece("hal")]


def test_a_script_can_hang_until_it_is_cancelled() -> None:
    model = Scripted([ScriptedTurn(((TextPiece("wait"),),), hangs=True)])
    said: list[Sequence[Delta]] = []

    async def leave() -> None:
        async with anyio.create_task_group() as tasks:

            async def listen() -> None:
                async for batch in model.stream(a_request()):
                    said.append(batch)
                    tasks.cancel_scope.cancel()

            tasks.start_soon(listen)

    anyio.run(leave)
    assert said == [(TextPiece("wait"),)]


@pytest.mark.requirement("L9")
def test_the_next_model_answers_when_one_is_unavailable() -> None:
    model = with_fallbacks(down("cloud"), [down("fast"), Scripted(["hi"], alias="local")])
    assert model.alias == "cloud"
    assert answer(model) == [
        FellBack("cloud", "fast", "no connection"),
        FellBack("fast", "local", "no connection"),
        TextPiece("hi"),
        Finish("stop", Usage(), raw="stop", model="local"),
    ]


def test_what_a_model_had_withdrawn_stays_so_before_the_next_one_answers() -> None:
    torn = ScriptedTurn(((TextPiece("hal"),), (Withdrawn("cut"),)), error=unavailable("cloud"))
    model = with_fallbacks(Scripted([torn], alias="cloud"), [Scripted(["hi"], alias="local")])
    kinds = [type(delta) for delta in answer(model)]
    assert kinds == [TextPiece, Withdrawn, FellBack, TextPiece, Finish]


def test_a_refused_request_is_not_given_to_the_next_model() -> None:
    refused = StepFailedError("HTTP 400: no")
    second = Scripted(["hi"], alias="local")
    with pytest.raises(StepFailedError):
        answer(with_fallbacks(Scripted([refused], alias="cloud"), [second]))
    assert not second.requests


def test_when_no_model_answers_every_reason_is_given() -> None:
    with pytest.raises(UnavailableError) as caught:
        answer(with_fallbacks(down("cloud"), [down("fast")]))
    assert "model `cloud`: no connection; model `fast`: no connection" in str(caught.value)
    assert caught.value.hint == "start it"
    assert caught.value.exit_code == 5


def test_a_model_that_answers_is_asked_first_again_in_the_next_turn() -> None:
    first = Scripted([unavailable("cloud"), "back"], alias="cloud")
    model = with_fallbacks(first, [Scripted(["hi"], alias="local")])
    answer(model)
    assert answer(model)[0] == TextPiece("back")


def test_models_together_can_do_what_each_of_them_can() -> None:
    able = Scripted([], enforces_schema=True, media_kinds=frozenset({"image"}))
    plain = Scripted([])
    assert with_fallbacks(able, []) is able
    assert with_fallbacks(able, [able]).enforces_schema
    assert with_fallbacks(able, [able]).media_kinds
    assert not with_fallbacks(able, [plain]).enforces_schema
    assert not with_fallbacks(able, [plain]).media_kinds
