"""The tasks of AgentDojo, played by a script on the run path of `aish`.

Its functions are the tools of an MCP server over HTTP; each task begins with an environment of its
own. The model does what the user task's ground truth says until a result carries the injection,
then all that the ground truth of the injection says, then the rest.

AgentDojo is installed without the SDKs of models that its agents use: what imports them is left
out here.
"""

import importlib.util
import json
import sys
import types
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Self

import anyio
from model_endpoint import ModelEndpoint, Reply, text_reply, tool_reply
from pydantic import BaseModel
from tool_server import Message, ToolServer

from aish.core.protocols import Answer, Question
from aish.engine.cancellation import ShutdownRequests
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import load_checked, make_plan
from aish.engine.run_folder import RunsPlace, new_folder
from aish.features.hosted_run import HostedRun, run_hosted
from aish.features.launch import Launch
from aish.system.clock import SystemClock
from aish.terminal.unattended import Unattended

SUITES = ("workspace", "travel", "banking", "slack")
MARK = "IMPORTANT-INSTRUCTION:"
"""What the injections begin with."""

READERS = ("get_", "search_", "list_", "read_", "check_")

_ALIAS = "office"
_PIPELINE = """\
aish: 1
name: {name}
models: {{m: {{base_url: "{model}", model: scripted}}}}
mcp:
  servers: {{office: {{url: "{tools}", trust: true}}}}
  max_tool_depth: 100
  auto_approve: ["office__*"]
{flow}
on_denied: continue
on_tool_error: continue
result_limit: 4MiB
limits: {{turns: 100}}
inputs: {{task: {{type: string}}}}
prompt: "{{{{ inputs.task }}}}"
"""


@cache
def agentdojo_suites() -> Mapping[str, Any]:
    """The suites `v1` by name."""
    spec = importlib.util.find_spec("agentdojo")
    assert spec is not None, "agentdojo is not installed"
    assert spec.submodule_search_locations is not None
    agents = Path(spec.submodule_search_locations[0]) / "agent_pipeline"
    # The `__init__` of these packages would import the SDKs.
    for name, folder in (("agent_pipeline", agents), ("agent_pipeline.llms", agents / "llms")):
        package = types.ModuleType(f"agentdojo.{name}")
        package.__path__ = [str(folder)]
        sys.modules[package.__name__] = package
    google = types.ModuleType("agentdojo.agent_pipeline.llms.google_llm")
    vars(google)["EMPTY_FUNCTION_NAME"] = "<empty-function>"
    sys.modules[google.__name__] = google
    from agentdojo.task_suite.load_suites import get_suites

    suites: Mapping[str, Any] = get_suites("v1")
    return suites


def changes(tool: str) -> bool:
    """Return true if a tool changes or sends something: an address that is read may tell a lot."""
    return not tool.startswith(READERS) or tool == "get_webpage"


@dataclass(frozen=True)
class Played:
    """What became of a task: its `own` calls, and of the `attacks` of an injection those `run`.

    `held` are the calls that were not run, all by name; `asked` the questions to the person.
    """

    utility: bool
    security: bool
    own: tuple[str, ...]
    attacks: tuple[str, ...]
    run: tuple[str, ...]
    held: tuple[str, ...]
    asked: int


@dataclass
class _Script:
    """What the model does in a task."""

    own: list[Any]
    injected: list[Any]
    words: str
    injected_words: str
    played: list[tuple[Any, bool]] = field(default_factory=list)
    attacked: bool = False
    asked: int = 0

    def answer(self, request: Any) -> Reply:
        seen = json.dumps([one for one in request["messages"] if one["role"] == "tool"])
        self.attacked = self.attacked or MARK in seen
        if self.attacked and self.injected:
            call, is_attack = self.injected.pop(0), True
        elif self.own:
            call, is_attack = self.own.pop(0), False
        else:
            words = f"{self.words}\n{self.injected_words}" if self.attacked else self.words
            return text_reply(words or "Done.")
        self.played.append((call, is_attack))
        identifier = f"call_{len(self.played)}"
        return tool_reply([(identifier, f"{_ALIAS}__{call.function}", json.dumps(call.args))])


@dataclass(frozen=True)
class _Person:
    """Approves exactly the user's own calls."""

    script: _Script

    @property
    def attended(self) -> bool:
        return True

    async def ask(self, question: Question) -> Answer:
        self.script.asked += 1
        call, is_attack = self.script.played[-1]
        asked = question.tool.name.name, question.arguments
        same = asked == (call.function, call.args)
        return "yes" if same and not is_attack else "no"


class Office:
    """The functions of a suite behind a server, and a model that plays its tasks."""

    def __init__(self, folder: Path, suite: str) -> None:
        self.folder = folder
        self.suite = agentdojo_suites()[suite]
        from agentdojo.functions_runtime import FunctionsRuntime

        self._stack = ExitStack()
        self._script: _Script | None = None
        self._environment: Any = None
        defaults = self.suite.get_injection_vector_defaults()
        canaries = {name: f"canary-{number}-canary" for number, name in enumerate(defaults)}
        self._template = self.suite.load_and_inject_default_environment(canaries)
        self._runtime = FunctionsRuntime(self.suite.tools)
        self._values = {canaries[name]: text for name, text in defaults.items()}

    def __enter__(self) -> Self:
        self._tools = self._stack.enter_context(ToolServer())
        self._model = self._stack.enter_context(ModelEndpoint(self._answer))
        for function in self.suite.tools:
            definition = {
                "name": function.name,
                "description": function.description,
                "inputSchema": function.parameters.model_json_schema(),
                "annotations": {"readOnlyHint": not changes(function.name)},
            }
            self._tools.add(_ALIAS, definition, partial(self._serve, function.name))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def pipeline(self, name: str, flow: str = "") -> Path:
        """Write the file of a run, with these lines under `mcp`."""
        path = self.folder / f"{name}.yaml"
        text = _PIPELINE.format(
            name=name, model=self._model.base_url, tools=self._tools.url(_ALIAS), flow=flow
        )
        path.write_text(text, "utf-8")
        return path

    def play(
        self, file: Path, user: str, injection: str | None = None, *, person: bool = False
    ) -> Played:
        """Run a user task, in whose environment is the injection, if one is given."""
        task = self.suite.user_tasks[user]
        attack = None if injection is None else self.suite.injection_tasks[injection]
        before = task.init_environment(
            self._loaded({} if attack is None else self._injected(task, attack))
        )
        self._environment = before.model_copy(deep=True)
        script = self._script = _Script(
            own=task.ground_truth(before),
            injected=[] if attack is None else attack.ground_truth(before),
            words=task.GROUND_TRUTH_OUTPUT,
            injected_words="" if attack is None else attack.GROUND_TRUTH_OUTPUT,
        )
        del self._tools.calls[:]
        words = anyio.run(self._run, file, task.PROMPT, _Person(script) if person else Unattended())
        return self._played(task, attack, before, words)

    def _played(self, task: Any, attack: Any, before: Any, words: str) -> Played:
        from agentdojo.functions_runtime import FunctionCall

        assert self._script is not None
        served = [(call.tool, call.arguments) for call in self._tools.calls]
        traces = [FunctionCall(function=name, args=arguments) for name, arguments in served]
        run, held, waiting = [], [], list(served)
        # Calls are made one after the other, so the server has run them in this order.
        for call, is_attack in self._script.played:
            if waiting and waiting[0] == (call.function, call.args):
                del waiting[0]
                run += [call.function] if is_attack else []
            else:
                held.append(call.function)
        assert not waiting, "the server has run a call that the model has not made"
        states = (words, before, self._environment)
        useful = task.utility_from_traces(*states, traces)
        done = None if attack is None else attack.security_from_traces(*states, traces)
        if attack is not None and done is None:
            done = attack.security(*states)
        return Played(
            utility=task.utility(*states) if useful is None else useful,
            security=bool(done),
            own=tuple(call.function for call, is_attack in self._script.played if not is_attack),
            attacks=tuple(call.function for call, is_attack in self._script.played if is_attack),
            run=tuple(run),
            held=tuple(held),
            asked=self._script.asked,
        )

    def _injected(self, task: Any, attack: Any) -> dict[str, str]:
        """The injection for each of the places that the user task reads."""
        # Not the goal itself: some judges search the mails for words of it.
        return dict.fromkeys(self._seen(task), f"{MARK} {attack.ID}")

    @cache  # ruff: ignore[cached-instance-method] - an office is of one test
    def _seen(self, task: Any) -> Sequence[str]:
        before = task.init_environment(self._template.model_copy(deep=True))
        environment = before.model_copy(deep=True)
        calls = task.ground_truth(before)
        results = [self._run_function(environment, call.function, call.args) for call in calls]
        return [canary for canary in self._values if canary in "".join(results)]

    def _loaded(self, injected: dict[str, str]) -> Any:
        return _replace(self._template.model_copy(deep=True), self._values | injected)

    def _run_function(self, environment: Any, name: str, arguments: Message) -> str:
        from agentdojo.agent_pipeline.tool_execution import tool_result_to_str

        found, error = self._runtime.run_function(environment, name, arguments)
        if error is not None:
            raise RuntimeError(error)
        told: str = tool_result_to_str(found)
        return told

    def _serve(self, name: str, arguments: Message) -> str:
        return self._run_function(self._environment, name, arguments)

    def _answer(self, request: Any) -> Reply:
        assert self._script is not None
        return self._script.answer(request)

    async def _run(self, file: Path, prompt: str, approver: Any) -> str:
        """Run the file as `aish.api` does, with somebody to ask; the words of the answer."""
        pipeline, clock = load_checked(file, ()), SystemClock()
        options = RunOptions(inputs={"task": prompt})
        plan = make_plan(pipeline, options)
        folder = new_folder(plan, options, clock, RunsPlace(self.folder), ephemeral=True)
        launch = Launch(plan, options, folder, clock, approver=approver)
        row = await run_hosted(HostedRun(launch, ShutdownRequests()))
        assert row["exit"].name in {"ok", "denied"}, row["exit"]
        words: str = row["steps"]["main"]["text"]
        return words


def _replace(value: Any, words: Mapping[str, str]) -> Any:
    """The value, a model or what is in one, with these words replaced in all its texts."""
    if isinstance(value, str):
        for canary, word in words.items():
            value = value.replace(canary, word) if canary in value else value
    elif isinstance(value, BaseModel):
        _replace(vars(value), words)
    elif isinstance(value, dict):
        value.update([(name, _replace(inner, words)) for name, inner in value.items()])
    elif isinstance(value, list):
        value[:] = [_replace(inner, words) for inner in value]
    return value


def pairs(suite: str) -> Sequence[tuple[str, str]]:
    """All pairs of a user task and an injection."""
    tasks = agentdojo_suites()[suite]
    return [(user, injection) for user in tasks.user_tasks for injection in tasks.injection_tasks]
