"""Equal calls of a client while their run has not ended: one run, and each call has its result."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup

from aish.core.json import JsonObject
from aish.core.protocols import Progress
from aish.core.tools import ToolResult
from aish.engine.environment import RunEnvironment
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import load_checked
from aish.engine.run_folder import RunFolder
from aish.mcp.client.server_requests import Call
from aish.serve.offer.pipeline_tools import RUN_KEY, OfferedPipeline, PipelineRuns, load_pipelines
from aish.system.clock import SystemClock
from aish.system.secrets.secrets import Secrets
from aish.terminal.unattended import Unattended

pytestmark = pytest.mark.anyio
WAITS = """
aish: 1
name: waits
inputs: {{word: {{type: string, default: usual}}, n: {{type: number, default: 1}}}}
mcp: {{auto_approve: [shell__run]}}
run: [dd, "if={pipe}", bs=5, count=1, status=none]
description: {words}
"""


class Caller:
    """A call under way: what it has heard, its run, and its result."""

    def __init__(self) -> None:
        self.run = ""
        self.heard: list[float] = []
        self.result: Any = None
        self.refusal: ToolResult | None = None
        self.scope = anyio.CancelScope()
        self.begun, self.ended = anyio.Event(), anyio.Event()

    @property
    def text(self) -> str:
        return str(self.result["content"][0]["text"])

    async def cancel(self) -> None:
        self.scope.cancel()
        await self.ended.wait()

    def hear(self, progress: Progress) -> None:
        self.heard.append(progress.progress)

    def note_run(self, run: str) -> None:
        self.run = run
        self.begun.set()

    async def recheck(self) -> ToolResult | None:
        return self.refusal


class Hub:
    """Calls of the pipeline `waits`, whose runs wait for a line each."""

    def __init__(self, folder: Path, tasks: TaskGroup, limit: int) -> None:
        self._folder, self._tasks = folder, tasks
        self._pipe = folder / "pipe"
        os.mkfifo(self._pipe)
        # Both ends: what is written stays until a run reads it.
        self.lines = os.open(self._pipe, os.O_RDWR)
        environment = RunEnvironment(
            emit=lambda _: None,
            approver=Unattended(),
            clock=SystemClock(),
            folder=RunFolder("hub", folder, Secrets().mask),
            environ={},
        )
        self.runs = PipelineRuns(limit, environment, tasks)
        self.pipeline = self.load()

    def load(self, words: str = "first") -> OfferedPipeline:
        text = WAITS.format(pipe=self._pipe, words=words)
        (self._folder / "waits.yaml").write_text(text)
        hub = self._folder / "hub.yaml"
        hub.write_text("aish: 1\nserve: {pipelines: [waits.yaml]}\n")
        options = RunOptions(environ={"PATH": os.environ["PATH"]})
        (loaded,) = load_pipelines(load_checked(hub, ()), options, Secrets())
        return loaded

    def call(self, client: str = "bot", run_key: str = "", **inputs: Any) -> Caller:
        caller = Caller()
        self._tasks.start_soon(self._call, caller, client, run_key, inputs)
        return caller

    async def begin(self, client: str = "bot", run_key: str = "", **inputs: Any) -> Caller:
        """A call whose run has begun, or was there."""
        caller = self.call(client, run_key, **inputs)
        await caller.begun.wait()
        return caller

    async def finish(self, *callers: Caller) -> None:
        """Let the runs of these calls end."""
        os.write(self.lines, b"said\n" * len({caller.run for caller in callers}))
        for caller in callers:
            await caller.ended.wait()

    @property
    def folders(self) -> int:
        return len(list((self._folder / ".aish" / "runs").glob("*-waits-*")))

    async def _call(self, caller: Caller, client: str, run_key: str, inputs: JsonObject) -> None:
        about = Call(caller.hear, run_key=run_key)
        terms = caller.note_run, caller.recheck, None
        with caller.scope:
            caller.result = await self.runs.call(client, self.pipeline, inputs, about, *terms)
        caller.begun.set()
        caller.ended.set()


@asynccontextmanager
async def open_hub(folder: Path, limit: int = 4) -> AsyncGenerator[Hub]:
    async with anyio.create_task_group() as tasks:
        hub = Hub(folder, tasks, limit)
        try:
            yield hub
        finally:
            await hub.runs.end()
            os.close(hub.lines)


async def test_an_equal_call_gets_the_result_of_the_run_that_is_there(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        first = await hub.begin()
        # A default is a value like one that is given, and the order does not count.
        second = await hub.begin(n=1, word="usual")
        await hub.finish(first, second)
        third = await hub.begin()
        await hub.finish(third)
        assert hub.folders == 2

    assert first.result == second.result
    assert first.text == "said\n"
    assert first.run == second.run == first.result["_meta"][RUN_KEY]
    assert first.heard == second.heard == [1.0]
    assert third.run != first.run


async def test_other_clients_inputs_keys_and_files_have_runs_of_their_own(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        calls = [
            await hub.begin(),
            await hub.begin("other"),
            await hub.begin(word="x"),
        ]
        calls.append(await hub.begin(run_key="again"))
        joined = await hub.begin(run_key="again", n=1)
        await hub.finish(*calls, joined)
        before = await hub.begin()
        hub.pipeline = hub.load()  # a reload of the same file
        same = await hub.begin()
        hub.pipeline = hub.load("second")
        after = await hub.begin()
        await hub.finish(before, same, after)

    assert len({call.run for call in calls}) == 4
    assert joined.run == calls[-1].run
    assert before.run == same.run
    assert after.run != same.run


async def test_a_run_ends_when_the_last_of_its_calls_is_cancelled(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        first, second = await hub.begin(), await hub.begin()
        await first.cancel()
        third = await hub.begin()
        await hub.finish(second, third)
        assert third.text == "said\n"
        assert first.run == second.run == third.run
        assert first.result is None

        alone = await hub.begin()
        await alone.cancel()
        # The run of that is ending, and is no run to wait for.
        last = await hub.begin()
        os.write(hub.lines, b"said\n")  # the command of the ending run may take a line before
        await hub.finish(last)

    assert last.run != alone.run
    assert last.text == "said\n"


async def test_equal_calls_that_wait_for_a_place_begin_one_run(tmp_path: Path) -> None:
    async with open_hub(tmp_path, limit=1) as hub:
        running = await hub.begin(word="other")
        waiting = [hub.call() for _ in range(3)]
        await anyio.wait_all_tasks_blocked()
        await waiting[0].cancel()
        assert hub.folders == 1
        await hub.finish(running)
        for one in waiting[1:]:
            await one.begun.wait()
        await hub.finish(*waiting[1:])
        assert hub.folders == 2

    assert [one.text for one in waiting[1:]] == ["said\n"] * 2


async def test_a_call_that_the_rules_refuse_by_now_does_not_join(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        first = await hub.begin()
        second = Caller()
        second.refusal = ToolResult("denied", "other rules")
        about = Call(second.hear)
        terms = second.note_run, second.recheck, None
        result = await hub.runs.call("bot", hub.pipeline, {}, about, *terms)
        await hub.finish(first)

    assert result == second.refusal
    assert first.text == "said\n"


async def test_two_tasks_of_one_run_that_was_interrupted_resume_it_once(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        first = await hub.begin()
        await hub.runs.end()
        results: list[Any] = []

        async def resume() -> None:
            results.append(await hub.runs.resume(hub.pipeline, first.run, first.hear, None))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(resume)
            tasks.start_soon(resume)
            os.write(hub.lines, b"said\n")
        await resume()
        assert hub.folders == 1

    assert [one["content"][0]["text"] for one in results] == ["said\n"] * 3
