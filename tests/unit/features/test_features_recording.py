"""A run on a tape: what a replay is given in place of the environment, and what it must not do."""

import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from model_endpoint import ModelEndpoint, text_reply

from aish.cassettes.format.interaction import Cassette, CassetteFileError, RecordingMetadata
from aish.core.errors import PipelineError
from aish.core.events import Event, Exit, RunFinished
from aish.engine.environment import RunEnvironment
from aish.engine.execution.run import execute
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import load_checked, make_plan
from aish.engine.run_folder import RunFolder
from aish.features.recording.session import (
    CassetteChoice,
    CassetteSession,
    Mode,
    load_session,
    open_recorder,
)
from aish.system.clock import SystemClock
from aish.system.offline import OfflineError
from aish.terminal.unattended import Unattended

PIPELINE = """
aish: 1
models:
  m:
    base_url: "http://${HOST:-nobody.test}/v1"
    model: ${NAME}
    key_env: KEY
    headers: {X-Extra: "${EXTRA}", X-More: "${MORE:-nothing}"}
env: [SHA]
secrets: [NAMED]
mcp:
  servers:
    w: {url: "http://${PLACE}/mcp?key=${QUERY}", auth_env: TOKEN}
prompt: Hello
"""
RECORDED = {"HOST": "recorded.test", "NAME": "small", "PLACE": "server.test", "SHA": "a1"}


def session(env: Mapping[str, str] | None, **choice: Any) -> CassetteSession:
    """A cassette without interactions, recorded with these variables."""
    head = None if env is None else RecordingMetadata(True, "run", "2026-11-21T12:00:00Z", env)
    return CassetteSession(CassetteChoice(Path("c.yaml"), **choice), Cassette(head, ()))


@pytest.fixture
def pipeline(tmp_path: Path) -> Any:
    path = tmp_path / "p.yaml"
    path.write_text(PIPELINE, encoding="utf-8")
    return load_checked(path, ())


def test_a_replay_takes_variables_from_the_recording_and_needs_no_secret(pipeline: Any) -> None:
    machine = {"HOST": "other.test", "NAME": "big", "SHA": "b2", "EXTRA": "set-on-this-machine"}

    plan = make_plan(pipeline, RunOptions(environ=machine), session=session(RECORDED))

    model, (server,) = plan.models["m"], plan.servers
    assert (model.entry.base_url, model.entry.model) == ("http://recorded.test/v1", "small")
    assert model.key == "<secret:KEY>"
    assert model.entry.headers == {"X-Extra": "set-on-this-machine", "X-More": "nothing"}
    assert server.entry.url == "http://server.test/mcp?key=<secret:QUERY>"
    assert server.token == "<secret:TOKEN>"
    assert plan.variables == RECORDED
    assert plan.secrets.mask("set-on-this-machine <secret:KEY>") == "<secret:EXTRA> <secret:KEY>"


def test_a_stand_in_of_any_length_will_do_for_a_key_that_is_not_sent(pipeline: Any) -> None:
    given = RunOptions(environ={"KEY": "x", "NAMED": "y", "TOKEN": ""})

    plan = make_plan(pipeline, given, session=session(RECORDED))

    assert plan.models["m"].key == "<secret:KEY>"
    assert plan.servers[0].token == "<secret:TOKEN>"
    assert plan.secrets.mask("x y") == "x y"


def test_of_what_another_program_recorded_plain_variables_come_from_the_machine(
    pipeline: Any,
) -> None:
    machine = {"NAME": "big", "PLACE": "here.test"}

    plan = make_plan(pipeline, RunOptions(environ=machine), session=session(None))

    assert plan.models["m"].entry.model == "big"
    assert plan.models["m"].key == "<secret:KEY>"
    with pytest.raises(PipelineError) as caught:
        make_plan(pipeline, RunOptions(environ={"NAME": "big"}), session=session(None))
    assert [problem.message for problem in caught.value.problems] == [
        "the environment variable `PLACE` is not set"
    ]


@pytest.mark.parametrize(
    ("choice", "missing"),
    [
        ({"live_tools": True}, {"PLACE", "QUERY", "TOKEN"}),
        ({"live_model": "m"}, {"NAME", "KEY", "EXTRA"}),
        ({"mode": "new_episodes"}, {"PLACE", "QUERY", "TOKEN", "NAME", "KEY", "EXTRA"}),
    ],
)
def test_what_goes_live_needs_its_variables(pipeline: Any, choice: Any, missing: set[str]) -> None:
    with pytest.raises(PipelineError) as caught:
        make_plan(pipeline, RunOptions(environ={}), session=session(RECORDED, **choice))

    said = [problem.message for problem in caught.value.problems]
    assert {text.split("`")[1] for text in said} <= missing
    assert len(said) >= len(missing) - 1  # of a URL the first that is missing is told


@pytest.mark.parametrize("mode", ["once", "new_episodes"])
def test_where_there_is_no_cassette_everything_is_recorded(tmp_path: Path, mode: Mode) -> None:
    made = load_session(CassetteChoice(tmp_path / "c.yaml", mode))

    assert (made.records, made.mode) == (True, "all")
    assert not made.replays_models
    with pytest.raises(CassetteFileError, match="no such cassette"):
        load_session(CassetteChoice(tmp_path / "c.yaml", "none"))


def run(
    path: Path, choice: CassetteChoice, env: Mapping[str, str], emit: Callable[[Event], None]
) -> Exit:
    """One run on a tape, in this process."""
    made = load_session(choice)
    options = RunOptions(environ=env)
    plan = make_plan(load_checked(path, ()), options, session=made)
    clock, folder = SystemClock(), RunFolder(id="r", path=None)
    with open_recorder(made, plan, options, folder, clock) as tape:
        environment = RunEnvironment(emit, Unattended(), clock, folder, env, tape)
        return anyio.run(execute, plan, options, environment)


@pytest.mark.parametrize("swallowed", [False, True])
def test_an_attempt_to_reach_out_ends_a_replay_as_a_bug(
    tmp_path: Path, model_endpoint: Callable[..., ModelEndpoint], *, swallowed: bool
) -> None:
    endpoint = model_endpoint([text_reply("Hello.")])
    path, place = tmp_path / "p.yaml", tmp_path / "c.yaml"
    path.write_text(
        'aish: 1\nmodels: {m: {base_url: "${MODEL_URL}", model: x}}\nprompt: Hello\n',
        encoding="utf-8",
    )
    env = {"MODEL_URL": endpoint.base_url}
    ends: list[Event] = []

    def reaching(event: Event) -> None:
        ends.append(event)
        if type(event).__name__ == "TurnStarted":
            with suppress(*([OfflineError] if swallowed else [])):
                socket.create_connection(("127.0.0.1", endpoint.port)).close()

    recorded = run(path, CassetteChoice(place, "all"), env, reaching)
    requests = len(endpoint.requests)

    replayed = run(path, CassetteChoice(place), {}, reaching)

    assert recorded.code == 0, recorded.reason
    assert (replayed.code, replayed.name) == (70, "internal")
    assert "a replay must reach nothing" in replayed.reason
    assert isinstance(ends[-1], RunFinished)
    assert len(endpoint.requests) == requests
    socket.create_connection(("127.0.0.1", endpoint.port)).close()
