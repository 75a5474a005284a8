"""What requests mark for the endpoint's cache: on each wire, and with what is read from it then."""

import json
from typing import Any, cast

import messages_streams as m
import pytest
import responses_streams as r
from cache_counter import Api, CacheCounter
from model_endpoint import delta, sse
from samples import each_case
from wire_bodies import READ, result
from wire_streams import PLACE

from aish.core.messages import AssistantTurn, Finish, History, SystemTurn, Turn, Usage, UserTurn
from aish.core.protocols import ModelRequest
from aish.core.tools import ToolCall
from aish.core.wires import WIRES
from aish.wire.dialect import Dialect, WireEncoder, load_decoder, load_encoder

HI = UserTurn("Hello")
BRIEF = SystemTurn("Be brief.")


def encoder_of(api: Api, cache: str, **more: Any) -> WireEncoder[Any]:
    plain: dict[str, Any] = {
        "model": "m", "params": {}, "usage": True, "json_schema": True, "tool_role": True,
        "origin": "o", "vision": False, "pdf": False,
    }  # fmt: skip
    return load_encoder(WIRES[api])(Dialect(**plain | more, api=api, cache=cache))


def bodies(api: Api, cache: str, turns: int, size: int = 1, **more: Any) -> list[Any]:
    """The requests of a conversation that calls a tool in each turn but the last."""
    encoder, history, sent = encoder_of(api, cache, **more), History([BRIEF, HI]), []
    for number in range(turns):
        sent.append(json.loads(encoder.body(ModelRequest(history, tools=(READ,)))))
        id = f"call_{number}"
        call = ToolCall(id, "repo__read", "{}")
        history.turns += [AssistantTurn("", (call,)), result(id, f"{number:04}" * size)]
    return sent


def marks(asked: Any) -> list[tuple[int, Any]]:
    """Where a request is marked: the messages or items by their places, with the marks."""
    return [
        (at, block.get("cache_control") or block["prompt_cache_breakpoint"])
        for at, item in enumerate(asked.get("messages") or asked["input"])
        for content in [item.get("content", item.get("output"))]
        for block in (content if isinstance(content, list) else ())
        if block.keys() & {"cache_control", "prompt_cache_breakpoint"}
    ]


@pytest.mark.requirement("W10")
@each_case(
    "api, cache, places, mark, options",
    [
        ("messages", "5m", [2, 4], {"type": "ephemeral", "ttl": "5m"}, None),
        ("messages", "off", [], None, None),
        ("responses", "30m", [2, 4], {"mode": "explicit"}, {"mode": "explicit", "ttl": "30m"}),
        ("responses", "12h", [2, 4], {"mode": "explicit"}, {"mode": "explicit", "ttl": "12h"}),
        ("responses", "off", [], None, {"mode": "explicit"}),
        ("responses", "auto", [], None, None),
        ("chat", "auto", [0, 3, 5], {"type": "ephemeral"}, None),
        ("chat", "1h", [0, 3, 5], {"type": "ephemeral", "ttl": "1h"}, None),
        ("chat", "off", [], None, None),
    ],
)
def test_the_last_two_user_turns_are_marked_as_the_endpoint_spells_it(
    api: Api, cache: str, places: list[int], mark: Any, options: Any
) -> None:
    sent = bodies(api, cache, 3)[-1]
    assert marks(sent) == [(at, mark) for at in places]
    assert sent.get("prompt_cache_options") == options
    assert "prompt_cache_key" not in sent
    if api == "responses":
        r_types().validate_python(sent)


def r_types() -> Any:
    pydantic = pytest.importorskip("pydantic")
    params = pytest.importorskip("openai.types.responses.response_create_params")
    return pydantic.TypeAdapter(params.ResponseCreateParamsStreaming)


def test_params_name_the_key_of_a_cache_and_go_before_its_options() -> None:
    params = {"prompt_cache_key": "a", "prompt_cache_options": {"comparison_response_id": "r"}}
    sent = bodies("responses", "30m", 1, params=params)[0]
    assert sent["prompt_cache_key"] == "a"
    assert sent["prompt_cache_options"] == {
        "mode": "explicit", "ttl": "30m", "comparison_response_id": "r"
    }  # fmt: skip


def test_results_without_a_tool_role_are_marked_too() -> None:
    sent = bodies("chat", "auto", 3, tool_role=False)[-1]
    assert [at for at, _ in marks(sent)] == [0, 3, 5]
    assert sent["messages"][5]["content"][0]["text"].startswith("[tool: repo__read]")


def usage_of(api: Api, counts: Any) -> Finish:
    """The end of an answer with these counts, as the wire reads it."""
    decoder = load_decoder(WIRES[api])(place=PLACE, mask=str)
    if api == "messages":
        raw = m.start(counts) + m.text("Hi") + m.ends(output=1)
    elif api == "responses":
        raw = r.stream(r.message("Hi"), usage=counts)
    else:
        raw = sse([delta(content="Hi"), delta("stop"), {**delta(), "choices": [], "usage": counts}])
    return cast("Finish", [*decoder.feed(raw), *decoder.close()][-1])


@pytest.mark.requirement("W12")
@each_case(
    "api, cache, is_long",
    [
        ("messages", "auto", False),
        ("messages", "1h", True),
        ("responses", "30m", False),
        ("responses", "12h", True),
        ("chat", "auto", False),
    ],
)
def test_nine_tenths_of_what_is_sent_again_are_read_from_the_cache(
    api: Api, cache: str, *, is_long: bool
) -> None:
    counter, total, long_written = CacheCounter(api), Usage(0, 0), 0
    for sent in bodies(api, cache, 20, size=1024):
        finish = usage_of(api, counter.count(sent))
        assert finish.usage.input is not None
        assert finish.usage.cached is not None
        assert finish.usage.cache_written is not None
        total = Usage(
            (total.input or 0) + finish.usage.input,
            0,
            (total.cached or 0) + finish.usage.cached,
            None,
            (total.cache_written or 0) + finish.usage.cache_written,
        )
        long_written += finish.long_written or 0

    assert counter.read >= 0.9 * counter.again
    assert total.cached == counter.read
    assert total.input is not None
    assert total.cached + (total.cache_written or 0) <= total.input
    # What is not told apart counts as kept for the usual time.
    assert long_written == (total.cache_written if is_long else 0)


def test_what_the_system_says_in_the_middle_has_a_place_on_each_wire() -> None:
    turns: list[Turn] = [BRIEF, HI, AssistantTurn("Yes?"), SystemTurn("Be kind.")]
    turns.append(UserTurn("Go on."))
    sent = {}
    apis: tuple[Api, ...] = ("chat", "messages", "responses")
    for api in apis:
        request = ModelRequest(History(list(turns)))
        sent[api] = json.loads(encoder_of(api, "off").body(request))

    # In its place, but for the wire whose older endpoints know no such role: there it is a part of
    # the system prompt.
    roles = ["system", "user", "assistant", "system", "user"]
    assert [one["role"] for one in sent["chat"]["messages"]] == roles
    assert sent["responses"]["instructions"] == "Be brief."
    assert [one["role"] for one in sent["responses"]["input"]] == roles[1:]
    assert [block["text"] for block in sent["messages"]["system"]] == ["Be brief.", "Be kind."]
    assert [one["role"] for one in sent["messages"]["messages"]] == ["user", "assistant", "user"]
