"""What is not found before a run is never held in it: generated pipelines, run for real."""

import json
import os
import random
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from e2e_project import http_server
from model_endpoint import ModelEndpoint, Reply, text_reply, tool_reply

from aish.core.events import Event, ToolDecided
from aish.engine.environment import RunEnvironment
from aish.engine.execution.run import execute
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import load_checked, make_plan
from aish.engine.plan.validation.validate import find_held_calls
from aish.engine.run_folder import RunsPlace, open_folder
from aish.engine.steps.context import StepContext
from aish.system.clock import SystemClock
from aish.system.globs import matches_word
from aish.terminal.unattended import Unattended

WORDS_ONLY = {"rag": {"embeddings": {"provider": "none"}}}
RELEASED = {"enum": ["x", "y"]}
ARGUMENTS = {
    "file_read": {"path": "n"},
    "file_write": {"path": "w", "content": "x"},
    "file_exists": {"path": "n"},
    "web_fetch": {"url": "http://127.0.0.1:1/"},
    "echo": {"text": "x"},
    "rag_query": {"query": "x"},
}
TOOLS = (
    *("repo__file_read", "repo__file_write", "repo__file_exists"),
    *("web__web_fetch", "far__echo", "ours__echo", "know__rag_query"),
)
SOURCES = (*TOOLS, "repo__*", "far__*", "*__echo", "far.tools", "inputs.i", "readfile", "attach")


def answer(request: Any) -> Reply:
    """Call every tool, then every tool again, then say what fits the schema."""
    rounds = sum(message["role"] == "assistant" for message in request.get("messages", ()))
    names = [tool["function"]["name"] for tool in request.get("tools", ())]
    if names and rounds % 3 < 2:
        return tool_reply(
            [
                (f"c{rounds}-{at}", name, json.dumps(ARGUMENTS[name.partition("__")[2]]))
                for at, name in enumerate(names)
            ]
        )
    return text_reply('"x"')


class Maker:
    """A pipeline made at random."""

    def __init__(self, seed: int, folder: Path, url: str, server: str) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.url = url
        self.server = server

    def some(self, *values: Any, likely: float = 0.5) -> list[Any]:
        return [value for value in values if self.random.random() < likely]

    def write(self, name: str, depth: int) -> None:
        steps: list[dict[str, Any]] = []
        for at in range(self.random.randint(2, 5)):
            steps.append(self.step(f"s{at}", steps, depth))
        data: dict[str, Any] = {
            "aish": 1,
            "name": "p",
            "models": {"m": {"base_url": self.url, "model": "m"}},
            "on_denied": "continue",
            "mcp": self.mcp(),
            "inputs": {"i": {"default": "x"}, "j": {"default": "x"}},
            "steps": steps,
        }
        used = json.dumps(steps)
        unused = "".join(
            f"{{{{ inputs.{name} }}}}" for name in "ij" if f"inputs.{name}" not in used
        )
        if unused or self.random.random() < 0.5:
            data["outputs"] = {"o": self.template(steps), "p": unused or "x"}
        (self.folder / name).write_text(json.dumps(data))

    def mcp(self) -> dict[str, Any]:
        kinds = ["untrusted", "private"]
        held = ["ask", "deny", "warn"]
        mcp: dict[str, Any] = {
            "servers": {
                "repo": {"pack": ["fs", "edit"], "root": "."},
                "web": {"pack": "web"},
                "know": {"pack": "rag", "root": ".", "options": WORDS_ONLY},
                "far": {"url": self.server},
                "ours": {"url": self.server, "trust": True},
            },
            "auto_approve": ["*__*", "repo__file_write", {"tool": "shell__run", "command": ["**"]}],
            "labels": {one: self.some(*kinds) for one in self.some(*SOURCES, likely=0.15)},
        }
        if self.random.random() < 0.7:
            mcp["exfiltration"] = self.random.choice(held)
        if self.random.random() < 0.5:
            mcp["flow"] = [
                {
                    "from": self.some(*kinds, *SOURCES, likely=0.2) or ["untrusted"],
                    "to": self.some("sends", "changes", *TOOLS, "*__echo", likely=0.3) or ["sends"],
                    "then": self.random.choice(held[:2]),
                }
                for _ in range(self.random.randint(1, 2))
            ]
        return mcp

    def template(self, before: list[dict[str, Any]]) -> str:
        parts = ["{{ inputs.i }}", "{{ inputs.j }}", "{{ inputs }}", "{{ steps | tojson }}"]
        parts += ["{{ 'n' | readfile }}", "{{ 'w0' | readfile }}"]
        for step in before:
            id, fields = step["id"], ("text", "output", "status") if "foreach" not in step else ()
            parts += [f"{{{{ steps.{id}.{field} }}}}" for field in fields]
            parts.append(f"{{{{ steps.{id} | tojson }}}}")
        return " ".join(["x", *self.some(*parts, likely=0.25)])

    def step(self, id: str, before: list[dict[str, Any]], depth: int) -> dict[str, Any]:
        step: dict[str, Any] = {"id": id, "on_error": "continue"}
        choice = self.random.random()
        if choice < 0.5:
            step |= self.prompt(before)
        elif choice < 0.85 or not depth:
            step |= self.call(before)
        else:
            inner = f"{id}-{depth}-{self.random.randint(0, 10**9)}.yaml"
            self.write(inner, depth - 1)
            given = {one: self.template(before) for one in self.some("i", "j")}
            step |= {"pipeline": inner, "with": given}
        if before and self.random.random() < 0.3:
            step["when"] = f"(steps.{self.random.choice(before)['id']} | string | length) > 0"
        if self.random.random() < 0.2:
            step["foreach"] = self.random.choice(["['x']", "[inputs.i]", "['n' | readfile]"])
        prompts = [one["id"] for one in before if "prompt" in one and "foreach" not in one]
        if prompts and "prompt" in step and "foreach" not in step and self.random.random() < 0.2:
            step["continues"] = self.random.choice(prompts)
        return step

    def prompt(self, before: list[dict[str, Any]]) -> dict[str, Any]:
        tools = self.some(*TOOLS, "far__*", likely=0.3)
        step: dict[str, Any] = {"prompt": self.template(before), "tools": tools}
        if self.random.random() < 0.5:
            release = self.some("untrusted", "private")
            step["output"] = {"schema": RELEASED, **({"release": release} if release else {})}
        if self.random.random() < 0.2:
            step["attach"] = ["n"]
        if self.random.random() < 0.1:
            search = {"server": "know", "query": self.template(before)}
            step["attach"] = [*step.get("attach", ()), search]
        if self.random.random() < 0.2:
            step["context"] = {"files": ["n"]}
        return step

    def call(self, before: list[dict[str, Any]]) -> dict[str, Any]:
        tool = self.random.choice(TOOLS)
        arguments = dict(ARGUMENTS[tool.partition("__")[2]])
        key = "content" if "content" in arguments else next(iter(arguments))
        if key in {"content", "text"}:
            arguments[key] = self.template(before)
        else:
            arguments[key] += "{% if false %}" + self.template(before) + "{% endif %}"
        return {"call": tool, "with": arguments}


@asynccontextmanager
async def no_carrier(_: StepContext) -> AsyncGenerator[Any]:
    """Workers of which there is none: all runs here, and knows that others might write."""
    yield None


async def run(file: Path, where: RunsPlace, *, on_workers: bool) -> list[Event]:
    """The events of a real run."""
    options = RunOptions(inputs={"i": "x", "j": "x"}, environ={"PATH": "/usr/bin:/bin"})
    plan = make_plan(load_checked(file, ()), options)
    clock, events = SystemClock(), list[Event]()
    folder = open_folder("p", where, clock.now(), ephemeral=True, mask=plan.secrets.mask)
    environment = RunEnvironment(
        emit=events.append,
        approver=Unattended(),
        clock=clock,
        folder=folder,
        environ=options.environ,
    )
    carriers = no_carrier if on_workers else None
    await execute(plan, options, environment, carriers=carriers)
    return events


def unfound(file: Path, events: list[Event], *, on_workers: bool) -> list[str]:
    """The calls that were held and were not found before."""
    found = find_held_calls(load_checked(file, ()), on_workers=on_workers)
    missing = []
    for event in events:
        if not isinstance(event, ToolDecided) or event.flow is None or event.verdict == "auto":
            continue
        step = (event.place.step or "").rpartition("/")[2]
        if not any(
            held.step == step
            and held.then != "warn"
            and any(matches_word(one, event.tool) for one in held.tools)
            for held in found
        ):
            missing.append(f"{event.place.step}: {event.tool}: {event.flow}")
    return missing


PARTS = 20
EACH = 500 if os.environ.get("AISH_TEST_ALL") else 15


@pytest.mark.requirement("T44")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", range(PARTS))
def test_what_is_not_found_before_a_run_is_never_held(tmp_path: Path, part: int) -> None:
    held = 0
    with ModelEndpoint(answer, record_bodies=False) as endpoint, http_server() as url:
        for seed in range(part * EACH, (part + 1) * EACH):
            folder = tmp_path / str(seed)
            folder.mkdir()
            for name in ("n", "w0"):
                (folder / name).write_text("x")
            Maker(seed, folder, endpoint.base_url, url).write("p.yaml", 1)
            file, on_workers = folder / "p.yaml", seed % 3 == 0
            events = anyio.run(partial(run, file, RunsPlace(folder), on_workers=on_workers))
            assert unfound(file, events, on_workers=on_workers) == [], file.read_text()
            held += sum(isinstance(one, ToolDecided) and one.flow is not None for one in events)
            shutil.rmtree(folder)
    assert held > EACH // 10, "the pipelines are too tame"
