"""Checks of `aish doctor`: this machine, and the needs of one pipeline."""

import os
import platform
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Literal

from aish.config.model import ModelEntry, Pipeline
from aish.core.errors import AishError, LockDiffersError, PipelineError
from aish.core.events import ServerInfo
from aish.core.frozen import frozen
from aish.core.phrases import backticked, counted
from aish.engine.environment import Opening
from aish.engine.plan.credentials import ResolvedKey
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import Plan, load_checked, make_plan, most_patient
from aish.engine.preview.preview import describe_login, kept_login
from aish.engine.preview.tool_listing import bare_environment, look
from aish.engine.resources.resources import watch_of
from aish.models import smollm2
from aish.models.embedded import model_file
from aish.models.probe import probe
from aish.system.platform.differences import DIFFERENCES
from aish.system.platform.forms import is_portable
from aish.system.process.reaper import Reaper

EXTRA_HINT = "pip install 'aish-pipelines[local]'"
OAUTH_HINT = "pip install 'aish-pipelines[oauth]'"
SERVE_HINT = "pip install 'aish-pipelines[serve]'"
MODEL_HINT = smollm2.INSTALL


State = Literal["ok", "--", "bad"]


@frozen
class CheckResult:
    """A check result: `ok`, `--` (optional and absent), `bad` (needed and missing)."""

    subject: str
    state: State
    text: str
    hint: str | None = None


def check_machine() -> Iterator[CheckResult]:
    yield CheckResult("python", "ok", f"{platform.python_version()} on {platform.system()}")
    yield _check_smollm2()
    yield _serve_extra()
    for program, use in (("uvx", "Python"), ("npx", "JavaScript")):
        path = which(program)
        state: State = "ok" if path else "--"
        yield CheckResult(program, state, path or f"not found; {use} MCP servers often need it")


def check_system() -> Iterator[CheckResult]:
    """Yield what is weaker where the forms of Linux are not in force; nothing on Linux."""
    for difference in DIFFERENCES if is_portable() else ():
        if difference.weaker:
            yield CheckResult(difference.subject, "--", difference.weaker)


def _check_smollm2() -> CheckResult:
    subject = "embedded models"
    if find_spec("xllamacpp") is None:
        return CheckResult(
            subject, "--", "llama.cpp is not installed", f"{EXTRA_HINT} && {MODEL_HINT}"
        )
    try:
        model_file(ModelEntry(alias=smollm2.NAME, embedded=smollm2.NAME))
    except AishError as error:
        return CheckResult(subject, "--", error.message, MODEL_HINT)
    return CheckResult(subject, "ok", f"`{smollm2.NAME}` is ready")


async def check_pipeline(file: Path, opening: Opening | None = None) -> list[CheckResult]:
    """The file, its keys, its endpoints and its servers; no model is asked for an answer."""
    try:
        pipeline = load_checked(file, ())
        plan = make_plan(pipeline, RunOptions(environ=dict(os.environ)))
    except PipelineError as error:
        return [
            CheckResult(
                str(problem.position),
                "bad",
                f"{problem.path}: {problem.message}" if problem.path else problem.message,
                problem.hint,
            )
            for problem in error.problems
        ]
    except AishError as error:
        return [CheckResult(str(file), "bad", str(error), error.hint)]
    findings = [CheckResult(str(file), "ok", counted(len(pipeline.steps), "step"))]
    findings += [await _model(alias, plan) for alias in plan.models]
    findings += _check_logins(plan)
    findings += await _servers(pipeline, plan, opening)
    findings += _check_listeners(plan)
    mask = plan.secrets.mask
    return [replace(one, text=mask(one.text), hint=one.hint and mask(one.hint)) for one in findings]


def _serve_extra() -> CheckResult:
    missing = _missing_serve_libraries()
    if missing:
        text = f"{backticked(missing)} not installed: no HTTP in `aish serve`, no `--control`"
        return CheckResult("extra `serve`", "--", text, SERVE_HINT)
    return CheckResult("extra `serve`", "ok", "`aish serve` over HTTP, `--control`")


def _missing_serve_libraries() -> list[str]:
    return [name for name in ("starlette", "httptools") if find_spec(name) is None]


def _check_listeners(plan: Plan) -> Iterator[CheckResult]:
    """The extra `serve`, if a run of the file listens."""
    on_ask, listens = most_patient(plan), bool(plan.pipeline.control.listen)
    if on_ask == "deny" and not listens:
        return
    missing = _missing_serve_libraries()
    why = "`control.listen`" if listens else f"`on_ask: {on_ask}`"
    if missing:
        state: State = "bad" if listens else "--"
        text = f"{why} needs {backticked(missing, by=' and ')}, not installed here"
        yield CheckResult("control API", state, text, SERVE_HINT)
    else:
        yield CheckResult("control API", "ok", f"{why} can open its socket")


async def _model(alias: str, plan: Plan) -> CheckResult:
    subject = f"model `{alias}`"
    resolved = plan.models[alias]
    if resolved.entry.embedded is not None:
        if find_spec("xllamacpp") is None:
            return CheckResult(subject, "bad", "llama.cpp is not installed", EXTRA_HINT)
        try:
            path = model_file(resolved.entry)
        except AishError as error:
            return CheckResult(subject, "bad", error.message, error.hint)
        return CheckResult(subject, "ok", f"embedded, {path.name}")
    try:
        key = resolved.key if resolved.made is None else await _made_key(resolved.made, plan)
        text = await probe(resolved.entry, key, plan.secrets)
    except AishError as error:
        made = "" if resolved.made is None else resolved.made.source.place
        place = f"{made}: " if error.where == made else ""
        return CheckResult(subject, "bad", f"{place}{error.message}", error.hint)
    return CheckResult(subject, "ok", text)


def _check_logins(plan: Plan) -> Iterator[CheckResult]:
    """The logins of servers, and what of them is missing here; nobody is asked."""
    for server in plan.servers:
        if server.login is None:
            continue
        subject, settings = f"login of `{server.entry.alias}`", server.login.settings
        path = settings.private_key_file
        if path is not None and not path.is_file():
            hint = "`private_key_file` is relative to the pipeline file"
            yield CheckResult(subject, "bad", f"there is no private key `{path}`", hint)
        elif path is not None and find_spec("joserfc") is None:
            text = "`joserfc` is not installed, and `private_key_file` needs it"
            yield CheckResult(subject, "bad", text, OAUTH_HINT)
        elif settings.login and kept_login(server) is None:
            text = describe_login(settings, server)
            yield CheckResult(subject, "bad", text, f"`{server.login.command}` logs in")
        else:
            yield CheckResult(subject, "ok", describe_login(settings, server))


async def _made_key(key: ResolvedKey, plan: Plan) -> str:
    """The key that a command prints or a file holds.

    Raises:
        LockDiffersError: the command may be another one than was pinned.
        UnavailableError: there is none.
    """
    from aish.engine.resources.made_keys import made_key

    watch_of(plan, lambda _event: None)
    reaper = Reaper()
    try:
        secret = made_key(key, plan.secrets, reaper, bare_environment(plan, lambda _event: None))
        return (await secret.current()).value
    finally:
        reaper.close()


async def _servers(pipeline: Pipeline, plan: Plan, opening: Opening | None) -> list[CheckResult]:
    environment = bare_environment(plan, lambda _event: None, opening)
    try:
        view = await look(plan, environment)
    except LockDiffersError as error:
        return [CheckResult("lock file", "bad", str(error), error.hint)]
    except AishError as error:
        return [CheckResult("tool servers", "bad", str(error), error.hint)]
    locked = [CheckResult("lock file", "bad", str(error), error.hint) for error in view.locked]
    return locked + [
        CheckResult(
            f"mcp server `{info.alias}`",
            _server_state(info.state, required=pipeline.servers[info.alias].required is not False),
            info.error or _tools(info),
        )
        for info in view.servers
    ]


def _tools(info: ServerInfo) -> str:
    text = f"{counted(info.tools, 'tool')} over {info.transport}"
    return f"{text}; {info.sandbox}" if info.sandbox else text


def _server_state(state: str, *, required: bool) -> State:
    if state == "ready":
        return "ok"
    return "bad" if required else "--"
