"""Children and packs through a cassette: recorded once, played with nothing in reach."""

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_recorded_scenes import RecordedScene
from mcp_scenes import Scene, TwinPack, command, stdio
from waits import forward_after, put_forward

from aish.cassettes.format.interaction import CassetteMissError
from aish.cassettes.record.recorder import LEFT
from aish.config.model import ServerEntry
from aish.core.json import JsonObject
from aish.mcp.transports.settings import ServerConnection

ERAS = pytest.mark.parametrize("era", ["both", "legacy", "modern"])
GONE = command("/nonexistent/program")
LONG = 60.0
"""A time-out that is reached only where the clock is put forward."""


@pytest.fixture
def recorded_scene(tmp_path: Path) -> RecordedScene:
    return RecordedScene(tmp_path)


class Poet:
    """A sampler that answers with a verse, after a while."""

    async def sample(self, params: JsonObject) -> JsonObject:
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        return {"role": "assistant", "content": {"type": "text", "text": f"on {params['topic']}"}}


def said(recorded_scene: RecordedScene, part: str = "request") -> list[str]:
    """The methods of the messages of one side, in the order of the cassette."""
    found = []
    for one in recorded_scene.interactions:
        body = one.request.body if part == "request" else one.response.body
        for line in body.splitlines():
            message = json.loads(line)
            found.append(message.get("method", "error" if "error" in message else "answer"))
    return found


async def work(scene: Scene) -> list[Any]:
    """Calls that end in every way in which a server can end one."""
    return [
        await scene.call("kid__echo", text="snow \u2028 \ud800 é"),
        await scene.call("kid__add", a=1, b=2),
        await scene.call("kid__add", a=1, b=2),
        await scene.call("kid__fail"),
        await scene.call("kid__rpc_error"),
        await scene.call("kid__image"),
    ]


@ERAS
def test_a_child_is_played_without_its_program(era: str, recorded_scene: RecordedScene) -> None:
    recorded = recorded_scene.record(work, stdio("--era", era))

    played = recorded_scene.replay(work, GONE)

    assert played == recorded
    assert [one.kind for one in played.value] == ["ok"] * 3 + ["handler_error", "rpc_error", "ok"]
    assert {one.request.uri for one in recorded_scene.interactions} == {"mcp+stdio://kid"}


def test_numbers_of_messages_may_differ_from_run_to_run(recorded_scene: RecordedScene) -> None:
    async def two(scene: Scene) -> list[str]:
        return [await scene.text("kid__echo", text=text) for text in ("a", "b")]

    async def two_reversed(scene: Scene) -> list[str]:
        return [await scene.text("kid__echo", text=text) for text in ("b", "a")]

    recorded_scene.record(two, stdio())

    assert recorded_scene.replay(two_reversed, GONE).value == ["b", "a"]


def test_equal_calls_have_their_answers_in_order(
    tmp_path: Path, recorded_scene: RecordedScene
) -> None:
    script = tmp_path / "counting.py"
    script.write_text(COUNTING)

    async def three(scene: Scene) -> list[str]:
        return [await scene.text("kid__t") for _ in range(3)]

    recorded = recorded_scene.record(three, command(sys.executable, str(script)))

    assert recorded.value == ["1", "2", "3"]
    assert recorded_scene.replay(three, GONE) == recorded


COUNTING = """
import json, sys
count = 0
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {}}
    elif message["method"] == "tools/list":
        result = {"tools": [{"name": "t"}]}
    elif message["method"] == "tools/call":
        count += 1
        result = {"content": [{"type": "text", "text": str(count)}]}
    if message["method"] == "server/discover":
        fault = {"code": -32601, "message": "no"}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": fault}), flush=True)
    elif "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


def test_calls_side_by_side_are_matched_whatever_their_order(recorded_scene: RecordedScene) -> None:
    async def together(scene: Scene) -> dict[int, str]:
        found: dict[int, str] = {}

        async def one(number: int) -> None:
            found[number] = await scene.text("kid__echo", text=f"number {number}")
            await scene.text("pal__sleep", ms=20 - number)

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(one, number)
        return found

    pair = stdio(), stdio(alias="pal")
    recorded = recorded_scene.record(together, *pair)

    assert recorded_scene.replay(together, *pair).value == recorded.value


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_progress_reaches_its_call_again(era: str, recorded_scene: RecordedScene) -> None:
    async def count(scene: Scene) -> str:
        await scene.text("kid__add", a=1, b=1)
        return await scene.text("kid__count", steps=3)

    recorded = recorded_scene.record(count, stdio("--asks", "--era", era))

    assert len(recorded.progress) == 3
    assert recorded_scene.replay(count, GONE) == recorded


QUESTIONS: list[tuple[str, JsonObject]] = [
    ("elicitation/create", {"message": "Go on?"}),
    ("roots/list", {}),
    ("sampling/createMessage", {"topic": "rain", "messages": []}),
    ("ping", {}),
]


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_what_a_server_asks_in_mid_call_is_answered_again(
    era: str, recorded_scene: RecordedScene
) -> None:
    async def ask(scene: Scene) -> list[Any]:
        return [
            await scene.call("kid__ask_client", Poet(), method=method, params=params)
            for method, params in QUESTIONS
        ]

    options: dict[str, Any] = {"sampling": "allow", "roots": (Path("/srv"),)}
    recorded = recorded_scene.record(ask, stdio("--asks", "--era", era, **options))

    assert "on rain" in recorded.value[2].content
    played = recorded_scene.replay(ask, command("/nonexistent/program", **options))
    assert played == recorded


def test_an_answer_in_replay_comes_after_what_the_server_was_answered(
    recorded_scene: RecordedScene,
) -> None:
    order: list[str] = []

    class Slow(Poet):
        async def sample(self, params: JsonObject) -> JsonObject:
            found = await super().sample(params)
            order.append("sampled")
            return found

    async def ask(scene: Scene) -> None:
        method, params = QUESTIONS[2]
        await scene.call("kid__ask_client", Slow(), method=method, params=params)
        order.append("called")

    kid = stdio("--asks", "--era", "legacy", sampling="allow")
    recorded_scene.record(ask, kid)
    recorded_scene.replay(ask, kid)

    assert order == ["sampled", "called"] * 2


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_call_whose_time_was_over_while_its_server_waited_for_us(
    era: str, recorded_scene: RecordedScene
) -> None:
    begun: list[str] = []

    class Endless(Poet):
        async def sample(self, params: JsonObject) -> JsonObject:
            begun.append("sampled")
            put_forward(LONG)
            await anyio.sleep_forever()
            raise AssertionError("never")

    async def ask(scene: Scene) -> list[Any]:
        method, params = QUESTIONS[2]
        first = await scene.call("kid__ask_client", Endless(), method=method, params=params)
        return [first, await scene.text("kid__add", a=1, b=2)]

    options: dict[str, Any] = {"sampling": "allow", "seconds_by_tool": {"ask_client": LONG}}
    recorded = recorded_scene.record(ask, stdio("--asks", "--era", era, **options))
    options["seconds_by_tool"] = {"ask_client": LONG}
    played = recorded_scene.replay(ask, command("/nonexistent/program", **options))

    assert recorded.value[0].kind == "transport_error"
    assert played == recorded
    assert begun == ["sampled"] * 2


def test_tools_that_change_in_mid_session_change_again(recorded_scene: RecordedScene) -> None:
    async def change(scene: Scene) -> list[str]:
        before = scene.names
        await scene.text("kid__add", a=1, b=2)
        await scene.notices.wait_for("tools_changed")
        assert scene.names != before
        return [*before, "then", await scene.text("kid__add", a=1, b=2)]

    recorded = recorded_scene.record(change, stdio("--change-tools"))

    assert said(recorded_scene).count("tools/list") >= 2
    assert recorded_scene.replay(change, GONE, whole=False) == recorded


def test_a_child_that_died_dies_again_and_is_restarted_again(recorded_scene: RecordedScene) -> None:
    async def die_twice(scene: Scene) -> list[Any]:
        return [await scene.call("kid__add", a=n, b=2) for n in (1, 2, 3, 4, 5)]

    recorded = recorded_scene.record(die_twice, stdio("--die-after", "1"))

    assert [one.kind for one in recorded.value] == [
        "ok", "transport_error", "ok", "transport_error", "ok",
    ]  # fmt: skip
    restarted = ("kid", "server_restarted", "the server was lost; connecting to it again")
    assert recorded.notices == (restarted, restarted)
    assert recorded_scene.replay(die_twice, GONE) == recorded


def test_calls_under_way_end_together_again_when_their_server_dies(
    recorded_scene: RecordedScene,
) -> None:
    async def together(scene: Scene) -> list[str]:
        kinds: list[str] = []

        async def one(name: str) -> None:
            kinds.append((await scene.call(name, ms=20_000)).kind)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one, "kid__sleep")
            tasks.start_soon(one, "kid__crash")
        return kinds

    recorded = recorded_scene.record(together, stdio())

    assert recorded.value == ["transport_error"] * 2
    assert recorded_scene.replay(together, GONE) == recorded


@pytest.mark.parametrize(
    "flags",
    [["--die-at-start"], ["--hang-at-start"], ["--hang-at-start", "--stderr", "5"]],
)
def test_a_child_that_does_not_come_up_fails_with_its_last_words(
    flags: list[str], tmp_path: Path, recorded_scene: RecordedScene
) -> None:
    kid = stdio(*flags, "--notes", str(tmp_path / "hangs"), connect=LONG)
    # It is given up once it hangs, and has said what it says: half of the time is for the probe.
    given_up = forward_after(tmp_path / "hangs", LONG / 2, LONG / 2)
    meanwhile = given_up if "--hang-at-start" in flags else None
    recorded = recorded_scene.record(nothing, kid, meanwhile=meanwhile)

    (info,) = recorded.servers
    assert info.error is not None
    assert ("its stderr ends with" in info.error) is (flags != ["--hang-at-start"])
    assert recorded_scene.replay(nothing, command("/nonexistent/program", connect=LONG)) == recorded


async def nothing(scene: Scene) -> None:
    """Only connect."""


def test_a_program_that_is_not_there_fails_in_the_same_words(recorded_scene: RecordedScene) -> None:
    recorded = recorded_scene.record(nothing, command("/nonexistent/program"))

    (info,) = recorded.servers
    assert info.error == "cannot start `/nonexistent/program`: No such file or directory"
    assert recorded_scene.replay(nothing, command("/nonexistent/program")) == recorded


def test_a_call_that_took_too_long_fails_at_once_in_replay(recorded_scene: RecordedScene) -> None:
    async def wait(scene: Scene) -> list[str]:
        late = await scene.call("kid__sleep", ms=60_000)
        return [late.content, await scene.text("kid__add", a=1, b=2)]

    recorded_scene.record(wait, stdio(seconds_by_tool={"sleep": 0.3}))
    played = recorded_scene.replay(wait, stdio(seconds_by_tool={"sleep": 10}))
    at_once = recorded_scene.waited
    paced = recorded_scene.replay(wait, stdio(seconds_by_tool={"sleep": 0.5}), paced=True)

    assert played.value == ["[aish] tool transport error: no answer within 10 s", "3"]
    assert at_once < 0.5
    assert paced.value == ["[aish] tool transport error: no answer within 0.5 s", "3"]
    # Beside it, the pace of the server's answers, which took what they took.
    assert pytest.approx(0.5) in recorded_scene.waits
    assert "notifications/cancelled" not in said(recorded_scene)


def test_a_call_that_a_limit_of_the_run_cut_off_is_cut_off_by_it_again(
    recorded_scene: RecordedScene,
) -> None:
    async def cut_off(scene: Scene) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: scene.call("kid__sleep", ms=60_000))
            await anyio.wait_all_tasks_blocked()  # it is sent, and waits for its answer
            tasks.cancel_scope.cancel()

    async def limited(scene: Scene) -> bool:
        with anyio.move_on_after(0.3) as limit:
            await scene.call("kid__sleep", ms=60_000)
        return limit.cancelled_caught

    recorded_scene.record(cut_off, stdio())
    assert recorded_scene.replay(limited, GONE).value


def test_a_probe_that_was_never_answered_costs_no_time_in_replay(
    tmp_path: Path, recorded_scene: RecordedScene
) -> None:
    script = tmp_path / "silent.py"
    refusal = '    if message["method"] == "server/discover":'
    told = tmp_path / "probed"
    note = f"open({str(told)!r}, 'w').write('x')"
    script.write_text(COUNTING.replace(refusal, f"{refusal}\n        {note}\n        continue"))

    async def connect(scene: Scene) -> list[str]:
        return [await scene.text("kid__t")]

    # Half of its time is for the probe.
    kid = command(sys.executable, str(script), connect=LONG)
    recorded = recorded_scene.record(connect, kid, meanwhile=forward_after(told, LONG / 2))
    assert recorded.value == ["1"]
    assert recorded_scene.interactions[0].response.broken == LEFT

    played = recorded_scene.replay(connect, command("/nonexistent/program", connect=10_000))
    assert played.value == ["1"]


def test_noise_is_complained_of_again(recorded_scene: RecordedScene) -> None:
    recorded = recorded_scene.record(work, stdio("--noise"))

    assert [code for _, code, _ in recorded.notices] == ["stdout_noise"]
    assert recorded_scene.replay(work, GONE) == recorded


def test_the_recorded_pace_is_kept_if_that_is_wanted(recorded_scene: RecordedScene) -> None:
    async def nap(scene: Scene) -> str:
        return await scene.text("kid__sleep", ms=200)

    recorded = recorded_scene.record(nap, stdio())
    took = max(one.response.chunks[-1].seconds for one in recorded_scene.interactions)

    assert recorded_scene.replay(nap, GONE) == recorded
    at_once = recorded_scene.waited
    assert recorded_scene.replay(nap, GONE, paced=True) == recorded
    assert at_once < took == pytest.approx(recorded_scene.waited)


def test_a_call_with_other_arguments_is_a_miss_and_reaches_nothing(
    recorded_scene: RecordedScene,
) -> None:
    recorded_scene.record(work, stdio())

    async def other(scene: Scene) -> None:
        await scene.call("kid__add", a=1, b=3)

    with pytest.raises(CassetteMissError) as caught:
        recorded_scene.replay(other, GONE)
    assert "mcp+stdio://kid" in caught.value.message


def test_a_server_that_is_not_in_the_cassette_is_a_miss_of_its_own_kind(
    recorded_scene: RecordedScene,
) -> None:
    recorded_scene.record(nothing, stdio())

    with pytest.raises(CassetteMissError):
        recorded_scene.replay(nothing, GONE, command("/nonexistent/program", alias="other"))


def test_a_lenient_replay_fails_the_call_alone(recorded_scene: RecordedScene) -> None:
    recorded_scene.record(work, stdio())

    async def other(scene: Scene) -> list[Any]:
        return [await scene.call("kid__add", a=7, b=8), await scene.call("kid__add", a=1, b=2)]

    played = recorded_scene.replay(other, GONE, lenient=True, whole=False)

    assert [one.kind for one in played.value] == ["rpc_error", "ok"]
    assert played.value[0].content == ("[aish] tool dispatch failed: the cassette has no such call")


def test_a_call_that_is_not_made_again_is_left_over(recorded_scene: RecordedScene) -> None:
    recorded_scene.record(work, stdio())

    recorded_scene.replay(nothing, GONE, whole=False)

    assert [b"tools/call" in one.request.body for one in recorded_scene.leftovers] == [True] * 6


def test_an_extended_recording_asks_for_what_it_lacks_and_for_nothing_else(
    tmp_path: Path, recorded_scene: RecordedScene
) -> None:
    script = tmp_path / "counting.py"
    script.write_text(COUNTING)
    kid = command(sys.executable, str(script))

    async def once(scene: Scene) -> str:
        return await scene.text("kid__t", a=1)

    async def more(scene: Scene) -> list[str]:
        return [await scene.text("kid__t", a=1), await scene.text("kid__t", a=2)]

    recorded_scene.record(once, kid)
    # The child was started anew: what it is asked is its first call.
    assert recorded_scene.extend(more, kid).value == ["1", "1"]
    assert said(recorded_scene).count("initialize") == 1
    assert said(recorded_scene).count("tools/call") == 2
    assert recorded_scene.replay(more, GONE).value == ["1", "1"]


def test_a_pack_is_played_without_being_opened(recorded_scene: RecordedScene) -> None:
    entry = ServerEntry(alias="repo", pack=("fs",))

    async def use(scene: Scene) -> list[Any]:
        return [
            await scene.call("repo__read", path="a"),
            await scene.call("repo__read", path="bad"),
            await scene.call("repo__bug"),
        ]

    recorded = recorded_scene.record(use, ServerConnection(entry, pack=TwinPack()))
    played = recorded_scene.replay(use, ServerConnection(entry))

    assert played == recorded
    assert [one.kind for one in played.value] == ["ok", "handler_error", "rpc_error"]
    assert all(tool.parallel for tool in played.tools)
    assert {one.request.uri for one in recorded_scene.interactions} == {"mcp+pack://repo"}


def test_marks_of_a_pack_mean_nothing_on_a_strangers_list(recorded_scene: RecordedScene) -> None:
    entry = ServerEntry(alias="kid", pack=("fs",))
    recorded_scene.record(nothing, ServerConnection(entry, pack=TwinPack()))
    text = recorded_scene.path.read_text(encoding="utf-8").replace("mcp+pack://", "mcp+stdio://")
    recorded_scene.path.write_text(text, encoding="utf-8")

    played = recorded_scene.replay(nothing, GONE)

    assert len(played.tools) == 2
    assert not any(tool.parallel for tool in played.tools)
