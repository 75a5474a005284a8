"""Servers, the tools steps name, and the globs of rules (F11, M3, M4, P1)."""

import re
from collections.abc import Iterator

from aish.config.environment import variables
from aish.config.pipeline import Pipeline
from aish.config.server_entry import ServerEntry
from aish.config.steps import CallStep, PromptStep
from aish.core.errors import UsageError, did_you_mean
from aish.core.rules import RuleEntry
from aish.core.tools import ToolName
from aish.packs.catalogue import PACKS
from aish.policy.commands import is_command_tool
from aish.policy.globs import is_exact, split_glob
from aish.policy.rules import matches_tool
from aish.run.checks.complaint import Complaint, step_path, within
from aish.run.checks.names import RESERVED, alias_complaints
from aish.system.globs import matches_word
from aish.system.secrets.secrets import SHORTEST

WEB_URL = re.compile(r"https?://[^/]", re.IGNORECASE)
WEB_URL_HINT = "it looks like `https://host/mcp`"
_SHOWN = ("tools**", "steps[].tools**")
_CHOICES = ("auto", "required", "none")


def tool_complaints(pipeline: Pipeline) -> Iterator[Complaint]:
    """About servers, rules, and what steps say of tools."""
    yield from alias_complaints(pipeline.servers, "mcp.servers")
    for alias, entry in pipeline.servers.items():
        yield from _server(alias, entry)
    for rule in pipeline.rules.all:
        yield from _rule(rule, pipeline)
    for test in pipeline.policy_tests:
        yield from _named(test.tool, f"{test.path}.tool", pipeline, local=True)
    listed = "steps" in pipeline.data
    for index, step in enumerate(pipeline.steps):
        path = step_path(index, listed=listed)
        if isinstance(step, CallStep):
            yield from _named(step.call, within(path, "call"), pipeline, local=False)
        elif isinstance(step, PromptStep):
            yield from _shown(step, path, pipeline)


def _server(alias: str, entry: ServerEntry) -> Iterator[Complaint]:
    path = f"mcp.servers.{alias}"
    if alias == RESERVED:
        message = f"the alias `{RESERVED}` is taken by the local commands of `run` steps"
        yield Complaint(path, message)
    if entry.url is not None and not variables(entry.url) and not WEB_URL.match(entry.url):
        message = "this is not the URL of a server"
        yield Complaint(f"{path}.url", message, WEB_URL_HINT)
    if entry.url is not None and "@" in entry.url.partition("//")[2].partition("/")[0]:
        message = "a user or a password in a URL would be shown in logs"
        yield Complaint(f"{path}.url", message, "use `auth_env`, or `headers` with a `${VAR}`")
    for name in entry.pack:
        if name not in PACKS:
            known = ", ".join(f"`{pack}`" for pack in PACKS)
            hint = did_you_mean(name, PACKS) or f"packs: {known}"
            yield Complaint(f"{path}.pack", f"unknown pack `{name}`", hint)
    if entry.auth_token is not None:
        message = "a token stands in the file"
        hint = "`auth_env: NAME` takes it from the environment"
        yield Complaint(f"{path}.auth_token", message, hint, warning=True)
        if len(entry.auth_token) < SHORTEST:
            message = f"the token is shorter than {SHORTEST} characters"
            hint = "a secret that short would be masked wherever its letters occur"
            yield Complaint(f"{path}.auth_token", message, hint)
        if entry.auth_env is not None:
            message = "`auth_env` is not used: `auth_token` stands beside it"
            yield Complaint(f"{path}.auth_env", message, "remove one of the two", warning=True)
    if not entry.verify_tls:
        message = "the certificate of this server is not checked"
        yield Complaint(f"{path}.verify_tls", message, warning=True)


def _rule(rule: RuleEntry, pipeline: Pipeline) -> Iterator[Complaint]:
    yield from glob_complaints(rule.tool, rule.path, pipeline, local=True)
    if rule.command is not None and "__" in rule.tool:
        server, _, name = rule.tool.partition("__")
        if not is_command_tool(ToolName(server, name)):
            message = "`command` is for rules about `shell__run` or a pack's `shell_run`"
            yield Complaint(f"{rule.path}.command", message)


def wildcard_complaints(pipeline: Pipeline) -> Iterator[Complaint]:
    """About globs that look as if they approved what calls itself destructive (P5).

    Only of our own tools that is known here. `repo__*` is about them all, and meant for the others.
    """
    rules = pipeline.rules
    elsewhere = (*rules.deny, *rules.ask, *rules.stage)
    exact = {rule.tool for rule in rules.auto_approve}
    called = {step.call for step in pipeline.steps if isinstance(step, CallStep)}
    packs = [alias for alias, entry in pipeline.servers.items() if entry.pack and not entry.trust]
    for rule in rules.auto_approve if packs else ():
        server, separator, tool = rule.tool.partition("__")
        if not separator or not tool or is_exact(rule.tool) or not server:
            continue
        if not tool.strip("*") and not called:
            continue
        from aish.run.locks.pins import is_wanted
        from aish.run.presumed import destructive_tools

        missed = [
            str(name)
            for name in destructive_tools(packs, pipeline)
            if is_wanted(pipeline.servers[name.server], name.name)
            and matches_tool(rule.tool, name)
            and (tool.strip("*") or str(name) in called)
            and str(name) not in exact
            and not any(_covers(other, name) for other in elsewhere)
        ]
        if missed:
            listed = ", ".join(f"`{name}`" for name in missed)
            they = "it calls itself" if len(missed) == 1 else "they call themselves"
            message = f"`{rule.tool}` does not approve {listed}: {they} destructive"
            hint = f"no wildcard is enough for that: add a rule such as `{missed[0]}`"
            by = ("mcp.auto_approve**", "mcp.ask**", "mcp.deny**", "mcp.stage**", "mcp.servers**")
            yield Complaint(rule.path, message, hint, warning=True, by=by)


def _covers(rule: RuleEntry, name: ToolName) -> bool:
    server, _, tool = rule.tool.partition("__")
    return matches_word(server, name.server) and matches_word(tool, name.name)


def glob_complaints(
    glob: str, path: str, pipeline: Pipeline, *, local: bool
) -> Iterator[Complaint]:
    """A glob that is none, or that no declared server can ever match."""
    try:
        server, _ = split_glob(glob)
    except UsageError as error:
        yield Complaint(path, error.message, error.hint)
        return
    known = [*pipeline.servers, *((RESERVED,) if local else ())]
    if not any(matches_word(server, alias) for alias in known):
        hint = did_you_mean(server, known) or _servers(pipeline)
        message = f"`{glob}` can match no server of this file"
        yield Complaint(path, message, hint, by=("mcp.servers",))


def _named(tool: str, path: str, pipeline: Pipeline, *, local: bool) -> Iterator[Complaint]:
    """A tool named in full; its server has to be declared."""
    try:
        server, _ = split_glob(tool)
    except UsageError as error:
        yield Complaint(path, error.message, "a tool is named `alias__tool`")
        return
    if server == RESERVED and not local:
        hint = "write `run:` with the command, and approve `shell__run`"
        yield Complaint(path, f"`{RESERVED}` is no server: a local command is a `run` step", hint)
    elif server not in pipeline.servers and server != RESERVED:
        hint = did_you_mean(server, pipeline.servers) or _servers(pipeline)
        yield Complaint(path, f"unknown server `{server}`", hint, by=("mcp.servers",))


def _shown(step: PromptStep, path: str, pipeline: Pipeline) -> Iterator[Complaint]:
    for index, glob in enumerate(step.tools or ()):
        yield from glob_complaints(glob, within(path, f"tools[{index}]"), pipeline, local=False)
    choice, place = step.tool_choice, within(path, "tool_choice")
    if choice in _CHOICES:
        if choice == "required" and (step.tools == () or not pipeline.servers):
            message = "a tool is required, and this step has none"
            yield Complaint(place, message, by=("mcp.servers", *_SHOWN))
    elif "__" not in choice:
        listed = ", ".join(f"`{word}`" for word in _CHOICES)
        hint = did_you_mean(choice, _CHOICES) or f"{listed}, or one tool as `alias__tool`"
        yield Complaint(place, f"unknown tool choice `{choice}`", hint)
    else:
        yield from _named(choice, place, pipeline, local=False)
        server, _, name = choice.partition("__")
        globs = [glob for glob in step.tools or () if "__" in glob.strip("_")]
        if step.tools is not None and not any(
            matches_tool(glob, ToolName(server, name)) for glob in globs
        ):
            message = f"`{choice}` is not among the `tools` of this step"
            yield Complaint(place, message, by=_SHOWN)


def _servers(pipeline: Pipeline) -> str:
    names = ", ".join(f"`{alias}`" for alias in pipeline.servers)
    return f"servers: {names}" if names else "`mcp.servers` declares none"
