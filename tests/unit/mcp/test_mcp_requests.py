import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_emulators import Legacy, McpEndpoint, Modern, accepted, event, events
from mcp_scenes import command, http, play, registry, stdio
from model_endpoint import Gate, Part, Recorded, Reply
from waits import put_forward, waits_of

from aish.core.errors import UnavailableError
from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.mcp.client.server_requests import Answers, Call, InFlight
from aish.mcp.protocol.messages import REFUSED_BY_USER, RpcError

ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])
QUESTION = {"message": "Go on?", "requestedSchema": {"type": "object", "properties": {}}}


class Poet:
    """A sampler that answers everything with the same verse."""

    def __init__(self) -> None:
        self.asked: list[JsonObject] = []

    async def sample(self, params: JsonObject) -> JsonObject:
        self.asked.append(params)
        content = {"type": "text", "text": "a verse"}
        return {"role": "assistant", "content": content, "model": "poet"}


class Broken:
    """A sampler whose model is not there."""

    async def sample(self, params: JsonObject) -> JsonObject:
        raise UnavailableError("the model is away")


def asked(method: str, params: Any = None, *, era: str = "legacy", **fields: Any) -> Any:
    """What a server hears that asks this while a call runs; or the failed call."""
    elicit, sample = fields.pop("elicit", None), fields.pop("sample", None)

    async def scene() -> Any:
        kid = stdio("--asks", "--era", era, **fields)
        async with registry(kid, elicit=elicit) as s:
            arguments = {"method": method, "params": params or {}}
            found = await s.call("kid__ask_client", sample, **arguments)
            return json.loads(found.content) if found.kind == "ok" else found

    return play(scene)


@ERAS
def test_elicitation_is_declined_where_nobody_can_be_asked(era: str) -> None:
    assert asked("elicitation/create", QUESTION, era=era) == {"action": "decline"}


@ERAS
def test_elicitation_asks_the_person_where_there_is_one(era: str) -> None:
    heard: list[Any] = []

    async def person(alias: str, params: JsonObject) -> JsonObject:  # ruff: ignore[unused-async] - `Elicit`
        heard.append((alias, params))
        return {"action": "accept", "content": {"name": "Ada"}}

    answer = asked("elicitation/create", QUESTION, era=era, elicit=person)
    assert answer == {"action": "accept", "content": {"name": "Ada"}}
    assert heard == [("kid", QUESTION)]


PUSHING = """
import json, sys

def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

def ask(id):
    send(id=id, method="elicitation/create", params={"message": "?"})

answers = []
for line in sys.stdin:
    message = json.loads(line)
    method = message.get("method")
    if method == "notifications/initialized":
        ask("unasked")
    elif method is None:
        answers.append(message["result"]["action"])
        if len(answers) < 5 and message["id"] != "unasked":
            ask("again")
        elif message["id"] != "unasked":
            content = [{"type": "text", "text": json.dumps(answers)}]
            send(id=call, result={"content": content})
    elif method == "tools/call":
        call = message["id"]
        ask("first")
    elif method == "initialize":
        send(id=message["id"], result={
            "protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
            "serverInfo": {"name": "pushing", "version": "1"}})
    elif method == "tools/list":
        tools = [{"name": "push", "inputSchema": {"type": "object"}}]
        send(id=message["id"], result={"tools": tools})
    elif "id" in message:
        send(id=message["id"], error={"code": -32601, "message": "unknown"})
"""


def test_nobody_is_asked_at_other_times_than_in_a_call_nor_after_a_cancel() -> None:
    replies = ["decline", "cancel"]

    async def person(alias: str, params: JsonObject) -> JsonObject:  # ruff: ignore[unused-async] - `Elicit`
        return {"action": replies.pop(0)}

    async def scene() -> Any:
        kid = command(sys.executable, "-c", PUSHING, protocol="legacy")
        async with registry(kid, elicit=person) as s:
            return json.loads(await s.text("kid__push"))

    assert play(scene) == ["decline", "decline", "cancel", "decline", "decline"]
    assert replies == []


@pytest.mark.requirement("M11")
def test_a_stateless_server_asks_a_person_in_a_call_only_too() -> None:
    question = {"method": "elicitation/create", "params": QUESTION}
    heard: list[Any] = []

    def pushed(request: Recorded) -> Any:
        params = request.json["params"]
        if "inputResponses" not in params:
            wanted = {str(number): question for number in range(3)}
            return {"resultType": "input_required", "inputRequests": wanted}
        heard.append([one["action"] for one in params["inputResponses"].values()])
        if request.json["method"] == "tools/list":
            return {"resultType": "complete", "tools": [{"name": "push", "inputSchema": {}}]}
        return {"resultType": "complete", "content": []}

    async def person(alias: str, params: JsonObject) -> JsonObject:  # ruff: ignore[unused-async] - `Elicit`
        return {"action": "cancel"}

    async def scene(url: str) -> None:
        async with registry(http(url), elicit=person) as s:
            await s.call("web__push")

    with McpEndpoint(Modern(tools__list=pushed, tools__call=pushed)) as end:
        play(lambda: scene(end.url))
    assert heard == [["decline"] * 3, ["cancel", "decline", "decline"]]


class Endless:
    """A sampler, or a person, that never answers; `left` says that nobody waits any more."""

    def __init__(self) -> None:
        self.asked = anyio.Event()
        self.left = anyio.Event()

    async def sample(self, params: JsonObject) -> JsonObject:
        return await self.elicit("", params)

    async def elicit(self, alias: str, params: JsonObject) -> JsonObject:
        self.asked.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.left.set()
        raise AssertionError("never")


ENDLESS = pytest.mark.parametrize("method", ["sampling/createMessage", "elicitation/create"])


@ENDLESS
@ERAS
def test_what_a_server_asks_ends_with_the_time_of_its_call(era: str, method: str) -> None:
    async def scene() -> None:
        endless = Endless()

        async def time_out() -> None:
            await endless.asked.wait()
            put_forward(60)

        kid = stdio("--asks", "--era", era, sampling="allow", seconds_by_tool={"ask_client": 60})
        async with registry(kid, elicit=endless.elicit) as s, anyio.create_task_group() as tasks:
            tasks.start_soon(time_out)
            found = await s.call("kid__ask_client", endless, method=method, params=QUESTION)
            assert found.kind == "transport_error"
            assert "no answer within 60 s" in found.content
            await endless.left.wait()
            # The server lives on, and what it is asked next is answered.
            assert await s.text("kid__add", a=1, b=2) == "3"

    play(scene, seconds=120, run=waits_of)


@ENDLESS
def test_what_a_server_asks_ends_with_a_call_that_is_interrupted(method: str) -> None:
    async def scene() -> None:
        endless = Endless()
        kid = stdio("--asks", sampling="allow")
        async with registry(kid, elicit=endless.elicit) as s, anyio.create_task_group() as tasks:

            async def interrupted() -> None:
                with anyio.CancelScope() as scope:
                    scopes.append(scope)
                    await s.call("kid__ask_client", endless, method=method, params=QUESTION)

            scopes: list[anyio.CancelScope] = []
            tasks.start_soon(interrupted)
            await endless.asked.wait()
            scopes[0].cancel()
            await endless.left.wait()

    play(scene)


@ERAS
def test_roots_are_what_the_file_declares(era: str, tmp_path: Path) -> None:
    roots = (tmp_path / "a b", Path("/srv"))
    assert asked("roots/list", era=era, roots=roots) == {
        "roots": [
            {"uri": f"file://{tmp_path}/a%20b", "name": "a b"},
            {"uri": "file:///srv", "name": "srv"},
        ]
    }


def test_without_roots_the_list_is_empty() -> None:
    assert asked("roots/list") == {"roots": []}


@ERAS
def test_sampling_is_answered_by_the_steps_model_where_it_is_allowed(era: str) -> None:
    poet = Poet()
    question = {"messages": [], "maxTokens": 5}
    answer = asked("sampling/createMessage", question, era=era, sampling="allow", sample=poet)
    assert answer["content"]["text"] == "a verse"
    assert poet.asked == [question]


def test_sampling_is_denied_by_default() -> None:
    poet = Poet()
    answer = asked("sampling/createMessage", {"messages": []}, sample=poet)
    assert answer == {"code": -1, "message": "sampling is denied by the configuration"}
    assert poet.asked == []


def test_sampling_that_is_denied_ends_a_call_of_the_stateless_era() -> None:
    found = asked("sampling/createMessage", {"messages": []}, era="modern", sample=Poet())
    assert (found.kind, found.content) == (
        "rpc_error",
        "[aish] tool dispatch failed: sampling is denied by the configuration",
    )


def test_sampling_without_a_call_of_a_step_is_refused() -> None:
    answer = asked("sampling/createMessage", {}, sampling="allow")
    assert answer["message"] == "sampling is answered only while a step's call runs"


def test_a_model_that_fails_to_sample_fails_that_request_only() -> None:
    answer = asked("sampling/createMessage", {}, sampling="allow", sample=Broken())
    assert answer == {"code": -32603, "message": "the model is away"}


def test_ping_is_answered() -> None:
    assert asked("ping") == {}


@pytest.mark.parametrize("method", ["tasks/get", "x"])
def test_an_unknown_request_hears_method_not_found(method: str) -> None:
    assert asked(method) == {"code": -32601, "message": f"method not found: {method}"}


def test_a_server_over_http_asks_on_the_stream_of_a_call() -> None:
    gate = Gate()
    answers: list[Any] = []

    def call(request: Recorded) -> Reply:
        question = {"jsonrpc": "2.0", "id": "q1", "method": "elicitation/create", "params": {}}

        def parts() -> Iterator[Part]:
            yield event(question)
            yield gate
            content = [{"type": "text", "text": json.dumps(answers[0])}]
            result = {"jsonrpc": "2.0", "id": request.json["id"], "result": {"content": content}}
            yield event(result)

        return events().but(parts=parts())

    def answer(request: Recorded) -> Reply:
        answers.append(request.json)
        gate.open()
        return accepted()

    async def scene(end: McpEndpoint) -> str:
        async with registry(http(end.url)) as s:
            return await s.text("web__add", a=1, b=2)

    with McpEndpoint(Legacy(tools__call=call, answer=answer)) as end:
        said = play(lambda: scene(end))
    assert json.loads(said) == {"jsonrpc": "2.0", "id": "q1", "result": {"action": "decline"}}


def test_what_we_can_do_is_declared() -> None:
    def declared(**fields: Any) -> Any:
        with McpEndpoint(Legacy()) as end:

            async def run() -> Any:
                async with registry(http(end.url, protocol="legacy", **fields)):
                    return end.requests[0].json["params"]["capabilities"]

            return play(run)

    assert declared() == {"elicitation": {}}
    assert declared(sampling="allow", roots=(Path("/srv"),)) == {
        "elicitation": {},
        "roots": {},
        "sampling": {},
    }


@frozen
class Talkative:
    """A client of a hub that tells of its progress, and then refuses."""

    client: str = "c"

    def capabilities(self) -> JsonObject:
        return {}

    def client_params(self, server: str, method: str, params: JsonObject) -> JsonObject:
        return {"of": server, "method": method, **params}

    def is_given(self, requests: Mapping[str, JsonObject]) -> bool:
        return bool(requests)

    async def ask(
        self, method: str, params: JsonObject, on_progress: Callable[[JsonObject], None]
    ) -> JsonObject:
        on_progress({"progress": 1, "message": "a secret"})
        raise RpcError(-1, "a secret", {"a": method, **params})


@pytest.mark.parametrize("held", [{}, {"progress": 1}, {"error": "a secret"}])
def test_whatever_a_client_says_to_a_server_is_judged(held: JsonObject) -> None:
    heard: list[JsonObject] = []

    def check(alias: str, said: JsonObject) -> None:
        assert alias == "s"
        if held.items() <= said.items():
            raise RpcError(REFUSED_BY_USER, "it may not")

    running, answers = InFlight(Call(owner=Talkative(), check_answer=check)), Answers("s")
    with pytest.raises(RpcError) as raised:
        anyio.run(answers.answer_on_the_way, "elicitation/create", {}, running, heard.append)
    assert bool(heard) is ("error" in held)
    assert ("a secret" in str(raised.value)) is ("progress" in held)
