"""Resources and prompts through a cassette, and servers that are connected while it records."""

from typing import Any

import mcp_offered_resources
import pytest
from mcp_dynamic_registry import DynamicScene
from mcp_emulators import Legacy, McpEndpoint, Modern
from mcp_recorded_scenes import RecordedScene
from mcp_scenes import Scene, command, http, stdio
from model_endpoint import Gate, Recorded

from aish.core.errors import AishError
from aish.mcp.transports.settings import ServerConnection

CAPABLE = {"tools": {}, **mcp_offered_resources.CAPABILITIES}
GONE = command("/nonexistent/program")


@pytest.fixture
def recorded_scene(tmp_path: Any) -> RecordedScene:
    return RecordedScene(tmp_path)


async def outcome(action: Any) -> Any:
    try:
        return await action
    except AishError as error:
        return type(error).__name__, str(error)


def work(alias: str) -> Any:
    async def act(scene: Scene) -> list[Any]:
        registry = scene.registry
        return [
            await registry.resources(),
            await registry.prompts(),
            await registry.read_resource(alias, "docs://guide"),
            await registry.read_resource(alias, "docs://logo"),
            await registry.read_resource(alias, "docs://guide"),
            await outcome(registry.read_resource(alias, "docs://nothing")),
            await outcome(registry.read_resource(alias, "docs://archive")),
            await registry.get_prompt(alias, "review", {"code": "x = 1"}),
            await outcome(registry.get_prompt(alias, "review", {})),
            await scene.text(f"{alias}__add", a=1, b=2),
        ]

    return act


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("live", [False, True], ids=["run", "session"])
def test_a_child_is_played_without_its_program(
    era: str, recorded_scene: RecordedScene, *, live: bool
) -> None:
    recorded = recorded_scene.record(work("kid"), stdio("--offers", "--era", era), live=live)

    assert recorded_scene.replay(work("kid"), GONE) == recorded
    assert recorded_scene.replay(work("kid"), GONE, live=live) == recorded
    assert len(recorded.value[0]) == 4


@pytest.mark.parametrize("kind", [Legacy, Modern])
def test_a_server_over_http_is_played_without_it(
    kind: type[Legacy], recorded_scene: RecordedScene
) -> None:
    with McpEndpoint(kind(capabilities=CAPABLE)) as end:
        recorded = recorded_scene.record(work("web"), http(end.url))

    assert recorded_scene.replay(work("web"), http(end.url)) == recorded
    assert "docs://guide" in recorded_scene.path.read_text("utf-8")


def test_an_answer_that_nobody_waited_for_is_left_again(recorded_scene: RecordedScene) -> None:
    gate = Gate()

    def silent(request: Recorded) -> Any:
        return Legacy(capabilities=CAPABLE).usual(request).but(before_head=gate)

    async def impatient(scene: Scene) -> Any:
        return await outcome(scene.registry.read_resource("web", "docs://guide"))

    with McpEndpoint(Legacy(capabilities=CAPABLE, resources__read=silent)) as end:
        recorded = recorded_scene.record(impatient, http(end.url, call=0.2))
        gate.open()

    assert recorded.value[0] == "UnavailableError"
    assert recorded_scene.replay(impatient, http(end.url, call=0.2)).value == recorded.value


def coming_and_going(*later: ServerConnection) -> Any:
    """Connect to servers one after the other, use each, and let go of each."""

    async def act(scene: DynamicScene) -> list[Any]:
        found: list[Any] = []
        for connection in later:
            alias = connection.entry.alias
            found.append(await outcome(scene.dynamic_registry.connect(connection)))
            if alias in scene.states:
                total = await scene.text(f"{alias}__add", a=1, b=2)
                found += [total, await scene.registry.read_resource(alias, "docs://guide")]
                await scene.dynamic_registry.disconnect(alias)
        return [one for one in found if not hasattr(one, "alias")]

    return act


def test_what_is_connected_later_is_on_the_tape_too(recorded_scene: RecordedScene) -> None:
    with McpEndpoint(Legacy(capabilities=CAPABLE)) as end:
        kid, web = stdio("--offers", alias="later"), http(end.url)
        recorded = recorded_scene.record(coming_and_going(kid, web, kid), stdio(), live=True)

    gone = command("/nonexistent/program", alias="later")
    played = recorded_scene.replay(coming_and_going(gone, web, gone), stdio(), live=True)

    assert played.value == recorded.value
    assert len(recorded.value) == 6


def test_a_connect_that_failed_fails_again(recorded_scene: RecordedScene) -> None:
    dead = stdio("--die-at-start", alias="dead")
    recorded = recorded_scene.record(coming_and_going(dead), stdio(), live=True)

    gone = command("/nonexistent/program", alias="dead")
    assert recorded_scene.replay(coming_and_going(gone), stdio(), live=True) == recorded
    assert "cannot find my configuration" in recorded.value[0][1]


def test_a_server_that_the_tape_does_not_hold_fails_alone(recorded_scene: RecordedScene) -> None:
    recorded_scene.record(coming_and_going(), stdio(), live=True)

    ended: list[Any] = []

    async def act(scene: DynamicScene) -> None:
        ended.append(await outcome(scene.dynamic_registry.connect(stdio(alias="other"))))

    with pytest.raises(AssertionError):
        # The tape remembers what it missed.
        recorded_scene.replay(act, stdio(), live=True)
    ((kind, message),) = ended
    assert kind == "UnavailableError"
    assert "mcp server `other`: " in message
