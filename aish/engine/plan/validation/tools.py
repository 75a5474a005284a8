"""Checks of servers, tools named by steps, globs of rules, the lock, and limits.

(F11, M3, M4, P1, P8, B8)
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path as FilePath

from aish.config.fields import variables
from aish.config.model import (
    CallStep,
    Limits,
    ModelEntry,
    Pipeline,
    PipelineStep,
    PromptStep,
    RunStep,
    ServerEntry,
    Step,
)
from aish.core.errors import UsageError, did_you_mean
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.pack_options import PackOptions
from aish.core.patterns import lazy_pattern
from aish.core.phrases import backticked, first_of
from aish.core.rules import RuleEntry
from aish.core.tools import Annotations, Tool, ToolName
from aish.engine.plan.builtin_tools import presumed_tool
from aish.engine.plan.literals import literal_secrets
from aish.engine.plan.lock import (
    declared,
    is_ignored,
    is_wanted,
    known_servers,
    locked_tool_named,
    summary,
)
from aish.engine.plan.order import is_free, judges_of
from aish.engine.plan.validation.issue import Issue, step_path, within
from aish.engine.plan.validation.names import RESERVED, SERVED, alias_issues
from aish.models.pricing import has_list, is_priced
from aish.packs.catalogue import PACKS, own_name, pack_needs_root, tools_of
from aish.policy.decide import decide
from aish.policy.lock import Lock, address_differences, stale_differences
from aish.policy.rules import (
    LOCAL_COMMAND,
    REST,
    Policy,
    is_command_tool,
    is_exact,
    matches_tool,
    may_approve,
    split_glob,
)
from aish.system.globs import matches_word
from aish.system.schema.check import SchemaProblem, spell_path
from aish.system.secrets.secrets import SHORTEST
from aish.templates.values import is_template
from aish.wire.chat.encode import answer_limit

WEB_URL = lazy_pattern(r"https?://[^/]", re.IGNORECASE)
WEB_URL_HINT = "it looks like `https://host/mcp`"
_SHOWN = ("tools**", "steps[].tools**")
_CHOICES = ("auto", "required", "none")
_MOST_LISTED = 5
_NO_GLOB = lazy_pattern(r"\{[^{}]*\}|\[[^\[\]]*\]")
_CHOICE_OF_WORDS = lazy_pattern(r"\{[^{}]*,[^{}]*\}")


def tool_issues(pipeline: Pipeline) -> Iterator[Issue]:
    """Problems of servers, rules, and the tools named by steps."""
    yield from alias_issues(pipeline.servers, "mcp.servers")
    if SERVED in pipeline.servers and "serve" in pipeline.data:
        message = f"the alias `{SERVED}` is that of the pipelines of a file that is served"
        yield Issue(f"mcp.servers.{SERVED}", message, "choose another alias", by=("serve",))
    for alias, entry in pipeline.servers.items():
        yield from _server(alias, entry)
        yield from _missing_root(alias, entry)
        yield from _pack_options(alias, entry, pipeline)
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


def _server(alias: str, entry: ServerEntry) -> Iterator[Issue]:
    path = f"mcp.servers.{alias}"
    if alias == RESERVED:
        message = f"the alias `{RESERVED}` is reserved for the local commands of `run` steps"
        yield Issue(path, message)
    if entry.url is not None and not variables(entry.url) and not WEB_URL.match(entry.url):
        message = "this is not the URL of a server"
        yield Issue(f"{path}.url", message, WEB_URL_HINT)
    if entry.url is not None and "@" in entry.url.partition("//")[2].partition("/")[0]:
        message = "a user or a password in a URL would be shown in logs"
        yield Issue(f"{path}.url", message, "use `auth_env`, or `headers` with a `${VAR}`")
    for name in entry.pack:
        if name not in PACKS:
            known = backticked(PACKS)
            hint = did_you_mean(name, PACKS) or f"packs: {known}"
            yield Issue(f"{path}.pack", f"unknown pack `{name}`", hint)
    if entry.auth_token is not None:
        message = "the file contains a token"
        hint = "`auth_env: NAME` takes it from the environment"
        yield Issue(f"{path}.auth_token", message, hint, warning=True)
        if len(entry.auth_token) < SHORTEST:
            message = f"the token is shorter than {SHORTEST} characters"
            hint = "a short secret would be masked in ordinary text"
            yield Issue(f"{path}.auth_token", message, hint)
        if entry.auth_env is not None:
            message = "`auth_env` is not used: `auth_token` is set too"
            yield Issue(f"{path}.auth_env", message, "remove one of the two", warning=True)
    if not entry.verify_tls:
        message = "the certificate of this server is not checked"
        yield Issue(f"{path}.verify_tls", message, warning=True)


def _missing_root(alias: str, entry: ServerEntry) -> Iterator[Issue]:
    """Packs that would have no tools: each of them needs a folder (K4)."""
    needy = [name for name in entry.pack if name in PACKS and pack_needs_root(name)]
    if needy and entry.root is None:
        which = f"the pack `{needy[0]}` needs" if len(needy) == 1 else f"{backticked(needy)} need"
        hint = "`root: .` is the folder of this file"
        said, path = f"{which} a `root`, the folder for its tools", f"mcp.servers.{alias}"
        yield Issue(path, said, hint, by=(f"{path}**",))


def _rule(rule: RuleEntry, pipeline: Pipeline) -> Iterator[Issue]:
    yield from glob_issues(rule.tool, rule.path, pipeline, local=True)
    for name, value in rule.when.items():
        if isinstance(value, str) and (odd := _CHOICE_OF_WORDS.search(value)):
            message = f"`{odd[0]}` has no meaning in a glob: `{value}` matches these braces"
            yield Issue(rule.path, message, f"write a rule for each `{name}`", warning=True)
    if rule.command is not None and "__" in rule.tool:
        server, _, name = rule.tool.partition("__")
        if not is_command_tool(ToolName(server, name)):
            message = "`command` is for rules about `shell__run`, `shell_run` or `process_start`"
            yield Issue(f"{rule.path}.command", message)


InnerPipelines = Callable[[PipelineStep], tuple[Pipeline, Policy] | None]
"""The file that a step runs, and its rules, if they can be read."""


def retry_issues(pipeline: Pipeline, policy: Policy, inner: InnerPipelines) -> Iterator[Issue]:
    """Steps whose `retry` ends with a call that must not be repeated (L8)."""
    for index, step in enumerate(pipeline.steps):
        retry = step.flow.retry
        if retry.attempts == 1 or "call_unknown" in retry.on:
            continue
        found = next(_unrepeatable(step, pipeline, policy, inner), None)
        if found is None:
            continue
        name, file = found
        where = "" if file == pipeline.file else f" of `{file.name}`"
        path = within(step_path(index, listed="steps" in pipeline.data), "retry")
        yield Issue(
            path,
            f"an attempt that has called `{name}`{where} is not repeated: the call may have taken "
            "effect",
            f"name the tool under `mcp.idempotent`{where} if it may be called again, or allow it "
            "for this step: `on: [call_unknown]`",
            warning=True,
            by=("mcp**", "steps[].tools**", "tools**"),
        )


def _unrepeatable(
    step: Step,
    pipeline: Pipeline,
    policy: Policy,
    inner: InnerPipelines,
    above: tuple[FilePath, ...] = (),
) -> Iterator[tuple[ToolName, FilePath]]:
    """The tools that a step may call unasked and not repeat, each with the file that has the call.

    Globs where only a server knows its tools. `above` are the files that lead to this one.
    """
    if isinstance(step, PipelineStep):
        if step.file in above or (found := inner(step)) is None:
            return
        below, rules = found
        rules = replace(rules, deny=(*rules.deny, *policy.deny))
        for one in below.steps:
            yield from _unrepeatable(one, below, rules, inner, (*above, step.file))
    for name in _callable(step, pipeline, policy):
        tool = presumed_tool(name, pipeline)
        tool = tool or Tool(name, str(name), "", input_schema={}, annotations=Annotations())
        asked = isinstance(step, PromptStep)
        denied = any(rule.unconditional and rule.covers(name) for rule in policy.deny)
        approved = any(may_approve(rule, tool) for rule in policy.auto_approve)
        if not policy.is_repeatable(tool) and (not asked or (approved and not denied)):
            yield name, pipeline.file


def _callable(step: Step, pipeline: Pipeline, policy: Policy) -> Iterator[ToolName]:
    if isinstance(step, RunStep):
        yield LOCAL_COMMAND
    elif isinstance(step, CallStep):
        server, _, name = step.call.partition("__")
        yield ToolName(server, name)
    elif isinstance(step, PromptStep):
        for alias, entry in pipeline.servers.items():
            globs = (rule.tool for rule in policy.auto_approve if matches_word(rule.server, alias))
            names = [name for name, _ in tools_of(entry.pack)] if entry.pack else globs
            tools = (ToolName(alias, name) for name in names if is_wanted(entry, name))
            shown = step.tools
            yield from (
                tool
                for tool in tools
                if shown is None or any(matches_tool(glob, tool) for glob in shown)
            )


def wildcard_issues(pipeline: Pipeline) -> Iterator[Issue]:
    """Globs that appear to approve tools marked as destructive (P5).

    Only for built-in tools, where that is known.
    """
    rules = pipeline.rules
    elsewhere = (*rules.deny, *rules.ask, *rules.stage)
    exact = {rule.tool for rule in rules.auto_approve}
    packs = [alias for alias, entry in pipeline.servers.items() if entry.pack and not entry.trust]
    for rule in rules.auto_approve if packs else ():
        server, separator, tool = rule.tool.partition("__")
        if not separator or not tool or is_exact(rule.tool) or not server:
            continue
        from aish.engine.plan.builtin_tools import destructive_tools

        missed = [
            str(name)
            for name in destructive_tools(packs, pipeline)
            if is_wanted(pipeline.servers[name.server], name.name)
            and matches_tool(rule.tool, name)
            and str(name) not in exact
            and not any(_covers(other, name) for other in elsewhere)
        ]
        if missed:
            listed = first_of([f"`{name}`" for name in missed], _MOST_LISTED)
            they = "it calls itself" if len(missed) == 1 else "they call themselves"
            message = f"`{rule.tool}` does not approve {listed}: {they} destructive"
            hint = f"wildcards do not approve destructive tools: add a rule such as `{missed[0]}`"
            by = ("mcp.auto_approve**", "mcp.ask**", "mcp.deny**", "mcp.stage**", "mcp.servers**")
            yield Issue(rule.path, message, hint, warning=True, by=by)


def unmatched_issues(pipeline: Pipeline) -> Iterator[Issue]:
    """Globs that match no tool of the packs of their server (P1)."""
    for glob, place in _globs(pipeline):
        server, _, name = glob.partition("__")
        entry = pipeline.servers.get(server)
        if name and entry is not None and not _NO_GLOB.search(glob):
            yield from _of_packs(name, place, entry.pack, glob)
    for alias, entry in pipeline.servers.items():
        for n, name in enumerate(entry.tools):
            yield from _of_packs(name, f"mcp.servers.{alias}.tools[{n}]", entry.pack, name)


def _globs(pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    """What rules, tests of rules and steps write about tools, and where."""
    yield from ((rule.tool, rule.path) for rule in pipeline.rules.all)
    yield from ((test.tool, f"{test.path}.tool") for test in pipeline.policy_tests)
    for index, step in enumerate(pipeline.steps):
        path = step_path(index, listed="steps" in pipeline.data)
        for n, glob in enumerate((step.tools or ()) if isinstance(step, PromptStep) else ()):
            yield glob, within(path, f"tools[{n}]")


_RUNS, _WRITES = "runs a program", "writes a file"
_OPTIONS: Mapping[tuple[str, ...], tuple[str, str]] = {
    ("git", "log"): ("--output", _WRITES),
    ("git", "diff"): ("--output", _WRITES),
    ("git", "show"): ("--output", _WRITES),
    ("git", "archive"): ("--output", _WRITES),
    ("git", "format-patch"): ("--output-directory", _WRITES),
    ("git", "grep"): ("--open-files-in-pager", _RUNS),
    ("git", "difftool"): ("--extcmd", _RUNS),
    ("git", "rebase"): ("--exec", _RUNS),
    ("git", "clone"): ("--upload-pack", _RUNS),
    ("git", "fetch"): ("--upload-pack", _RUNS),
    ("git", "pull"): ("--upload-pack", _RUNS),
    ("git", "ls-remote"): ("--upload-pack", _RUNS),
    ("git", "push"): ("--receive-pack", _RUNS),
    ("find",): ("-exec", _RUNS),
    ("fd",): ("--exec", _RUNS),
    ("rg",): ("--pre", _RUNS),
    ("tar",): ("--to-command", _RUNS),
    ("rsync",): ("--rsh", _RUNS),
    ("ssh",): ("-o", _RUNS),
    ("sort",): ("--compress-program", _RUNS),
    ("sed",): ("--in-place", _WRITES),
    ("curl",): ("--output", _WRITES),
    ("wget",): ("--output-document", _WRITES),
    ("make",): ("--eval", _RUNS),
    ("pytest",): ("-p", "loads a module"),
    ("go", "build"): ("-toolexec", _RUNS),
    ("go", "test"): ("-exec", _RUNS),
    ("go", "vet"): ("-vettool", _RUNS),
    ("cargo",): ("--config", _RUNS),
    ("python",): ("-c", "runs code"),
    ("python3",): ("-c", "runs code"),
    ("node",): ("--eval", "runs code"),
    ("perl",): ("-e", "runs code"),
    ("ruby",): ("-e", "runs code"),
    ("awk",): ("-e", "runs code"),
    ("env",): ("--split-string", _RUNS),
    ("sh",): ("-c", _RUNS),
    ("bash",): ("-c", _RUNS),
}
"""Well-known commands with an option that one would not expect; no list could be complete."""


def command_issues(pipeline: Pipeline) -> Iterator[Issue]:
    """Rules whose `**` approves an option that writes or runs something (P4)."""
    for rule in (*pipeline.rules.auto_approve, *pipeline.shell.auto_approve):
        pattern = rule.command or ()
        if not pattern or pattern[-1] != REST:
            continue
        fixed = pattern[:-1]
        for command, (option, does) in _OPTIONS.items():
            if all(map(matches_word, fixed, command)):
                message = f"`{' '.join(pattern)}` also approves the option `{option}`, which {does}"
                hint = "write the words that are needed, with `*` for a value, instead of `**`"
                by = ("mcp.auto_approve**", "shell.auto_approve**")
                yield Issue(rule.path, message, hint, warning=True, by=by)
                break


def run_issues(pipeline: Pipeline, policy: Policy) -> Iterator[Issue]:
    """Yield a warning for each command of the file that will be denied for want of a rule."""
    tool = presumed_tool(LOCAL_COMMAND, pipeline)
    assert tool is not None, "it is known in every pipeline"
    listed = "steps" in pipeline.data
    for index, step in enumerate(pipeline.steps):
        if not isinstance(step, RunStep) or step.asking.on_ask != "deny":
            continue
        words = [step.run] if isinstance(step.run, str) else list(step.run)
        arguments: JsonObject = {"command": step.run} if words == [step.run] else {"argv": words}
        ruling = decide(policy, tool, arguments)
        if ruling.verdict == "ask" and not ruling.rule and not any(map(is_template, words)):
            path = within(step_path(index, listed=listed), "run")
            message = "no rule approves this command: it is denied where nobody is asked"
            yield Issue(path, message, ruling.hint, warning=True, by=("mcp.auto_approve**",))


def _covers(rule: RuleEntry, name: ToolName) -> bool:
    server, _, tool = rule.tool.partition("__")
    return matches_word(server, name.server) and matches_word(tool, name.name)


def glob_issues(glob: str, path: str, pipeline: Pipeline, *, local: bool) -> Iterator[Issue]:
    """An invalid glob, or one that no declared server can ever match."""
    try:
        server, _ = split_glob(glob)
    except UsageError as error:
        yield Issue(path, error.message, error.hint)
        return
    known = [*pipeline.servers, *((RESERVED,) if local else ())]
    if local and pipeline.serve.pipelines:
        known.append(SERVED)
    if found := _NO_GLOB.search(glob):
        message = f"`{found[0]}` has no meaning in a glob: only `*` and `?` have"
        yield Issue(path, message, "write a rule for each tool", warning=True)
    if not any(matches_word(server, alias) for alias in known):
        hint = did_you_mean(server, known) or _servers(pipeline)
        message = f"`{glob}` can match no server of this file"
        yield Issue(path, message, hint, by=("mcp.servers",))


def _named(tool: str, path: str, pipeline: Pipeline, *, local: bool) -> Iterator[Issue]:
    """A tool with its full name; its server has to be declared, and to have it if that is known."""
    try:
        server, name = split_glob(tool)
    except UsageError as error:
        yield Issue(path, error.message, "a tool is named `alias__tool`")
        return
    if server == RESERVED and not local:
        hint = "write `run:` with the command, and approve `shell__run`"
        yield Issue(path, f"`{RESERVED}` is not a server: a local command is a `run` step", hint)
    elif server not in pipeline.servers and server != RESERVED:
        if server == SERVED and local and pipeline.serve.pipelines:
            return
        hint = did_you_mean(server, pipeline.servers) or _servers(pipeline)
        yield Issue(path, f"unknown server `{server}`", hint, by=("mcp.servers",))
    elif not local:
        yield from _of_packs(name, path, pipeline.servers[server].pack)


def _of_packs(name: str, path: str, packs: Sequence[str], glob: str = "") -> Iterator[Issue]:
    """A tool that none of the packs of its server has; only a warning for one of a `glob`."""
    if not packs or any(pack not in PACKS for pack in packs):
        return
    known = [tool for tool, _ in tools_of(packs)]
    wanted = own_name(packs, name)
    if not (any(matches_word(wanted, tool) for tool in known) if glob else wanted in known):
        which = (
            f"the pack `{packs[0]}` has"
            if len(packs) == 1
            else f"the packs {backticked(packs)} have"
        )
        message = f"{which} no tool `{name}`"
        if glob:
            message = f"`{glob}` matches no tool: {message}"
        hint = did_you_mean(name, known) or f"tools: {backticked(known)}"
        yield Issue(path, message, hint, warning=bool(glob), by=("mcp.servers",))


def _shown(step: PromptStep, path: str, pipeline: Pipeline) -> Iterator[Issue]:
    for index, glob in enumerate(step.tools or ()):
        yield from glob_issues(glob, within(path, f"tools[{index}]"), pipeline, local=False)
    choice, place = step.tool_choice, within(path, "tool_choice")
    if choice in _CHOICES:
        if choice == "required" and (step.tools == () or not pipeline.servers):
            message = "a tool is required, and this step has none"
            yield Issue(place, message, by=("mcp.servers", *_SHOWN))
    elif "__" not in choice:
        listed = backticked(_CHOICES)
        hint = did_you_mean(choice, _CHOICES) or f"{listed}, or one tool as `alias__tool`"
        yield Issue(place, f"unknown tool choice `{choice}`", hint)
    else:
        yield from _named(choice, place, pipeline, local=False)
        server, _, name = choice.partition("__")
        globs = [glob for glob in step.tools or () if "__" in glob.strip("_")]
        if step.tools is not None and not any(
            matches_tool(glob, ToolName(server, name)) for glob in globs
        ):
            message = f"`{choice}` is not among the `tools` of this step"
            yield Issue(place, message, by=_SHOWN)


def _servers(pipeline: Pipeline) -> str:
    names = backticked(pipeline.servers)
    return f"servers: {names}" if names else "`mcp.servers` declares none"


Path = tuple[str | int, ...]
_KEYS = frozenset({"required", "additionalProperties"})


@frozen
class _PinnedTools:
    """Servers with unchanged pins, and the names of their tools."""

    servers: frozenset[str]
    names: frozenset[ToolName]

    def lacks(self, name: ToolName) -> bool:
        """Whether the tool certainly does not exist."""
        return name.server in self.servers and name not in self.names

    def matches_none(self, glob: str) -> bool:
        """Whether a glob certainly matches no tool."""
        server, _ = split_glob(glob)
        if matches_word(server, LOCAL_COMMAND.server) or not self.servers:
            return False
        return not any(matches_tool(glob, name) for name in self.names)

    def near(self, name: str) -> str | None:
        """The hint with the closest known tool."""
        return did_you_mean(name, map(str, sorted(self.names, key=str)))


def locked_issues(pipeline: Pipeline, lock: Lock) -> Iterator[Issue]:
    """Errors with the locked tools: steps that name others, or misuse them."""
    pinned = _pinned(pipeline, lock)
    for index, step in enumerate(pipeline.steps):
        path = step_path(index, listed="steps" in pipeline.data)
        named = _quoted_names(step)
        if named is None or "__" not in named[1].strip("_"):
            continue
        name = ToolName(*split_glob(named[1]))
        entry = pipeline.servers.get(name.server)
        if entry is not None and any(_of_packs(name.name, path, entry.pack)):
            continue  # that is an error without a lock too
        if pinned.lacks(name):
            hint = pinned.near(str(name)) or f"`aish lock {pipeline.file} --update`, if it is new"
            message = f"`{name}` is not in the lock file"
            yield Issue(within(path, named[0]), message, hint)
        elif isinstance(step, CallStep):
            yield from _arguments(step, name, within(path, "with"), pipeline, lock)


def stale_issues(pipeline: Pipeline, lock: Lock) -> Iterator[Issue]:
    """Warnings: rules and globs that match no locked tool, outdated pins."""
    pinned = _pinned(pipeline, lock)
    everything = pinned.servers >= set(pipeline.servers)
    told = {issue.path for issue in unmatched_issues(pipeline)}
    yield from (issue for issue in _let_in(pipeline, lock, pinned) if issue.path not in told)
    for glob, place in _globs(pipeline) if everything else ():
        if place in told:
            continue
        is_served = bool(pipeline.serve.pipelines) and glob.partition("__")[0] == SERVED
        if not is_served and pinned.matches_none(glob):
            message = f"`{glob}` matches none of the locked tools"
            yield Issue(place, message, pinned.near(glob), warning=True)
    yield from _outgrown(pipeline, lock)


def _let_in(pipeline: Pipeline, lock: Lock, pinned: _PinnedTools) -> Iterator[Issue]:
    """Tools that the `tools` of a server now admit and the lock does not contain."""
    for alias in sorted(pinned.servers):
        entry, pins = pipeline.servers[alias], lock.servers[alias].tools
        for n, glob in enumerate(entry.tools):
            if not any(matches_word(glob, name) for name in pins):
                message = f"`{glob}` matches none of the locked tools of `{alias}`"
                near = did_you_mean(glob, sorted(pins))
                hint = near or f"`aish lock {pipeline.file} --update`, after a review"
                yield Issue(f"mcp.servers.{alias}.tools[{n}]", message, hint, warning=True)


def locked_misfits(tool: Tool | None, arguments: JsonObject) -> list[str]:
    """How arguments violate the schema of a locked tool, as far as known before the run."""
    from aish.system.schema.check import check, is_simple

    if tool is None or not is_simple(tool.input_schema):
        return []
    return [str(problem) for problem in check(tool.input_schema, arguments)]


def _outgrown(pipeline: Pipeline, lock: Lock) -> Iterator[Issue]:
    """Differences between the current file and the file when it was locked."""
    now = declared(pipeline, literal_secrets(pipeline))
    prompts = {
        step.id: within(step_path(index, listed="steps" in pipeline.data), "prompt")
        for index, step in enumerate(pipeline.steps)
    }
    for found in (*address_differences(lock, now), *stale_differences(lock, now)):
        if is_ignored(found, pipeline):
            continue
        hint = f"`aish lock {pipeline.file} --update`, after a review"
        paths = {"server": f"mcp.servers.{found.name}", "model": f"models.{found.name}"}
        path = paths.get(found.kind) or prompts.get(found.name, "")
        yield Issue(path, f"the lock: {summary(found)}", hint, warning=True)


def _quoted_names(step: object) -> tuple[str, str] | None:
    """The key and the name of the one tool that a step names in full."""
    match step:
        case CallStep(call=call):
            return "call", call
        case PromptStep(tool_choice=choice):
            return "tool_choice", choice
    return None


def _pinned(pipeline: Pipeline, lock: Lock) -> _PinnedTools:
    servers = known_servers(pipeline, lock)
    names = (
        ToolName(alias, name)
        for alias in servers
        for name in lock.servers[alias].tools
        if is_wanted(pipeline.servers[alias], name)
    )
    return _PinnedTools(frozenset(servers), frozenset(names))


def _arguments(
    step: CallStep, name: ToolName, path: str, pipeline: Pipeline, lock: Lock
) -> Iterator[Issue]:
    """Problems of literal arguments."""
    tool = locked_tool_named(name, pipeline, lock)
    if tool is not None:
        what = f"does not fit the locked schema of `{name}`"
        yield from _misfits(step.arguments, tool.input_schema, what, path)


def argument_issues(pipeline: Pipeline) -> Iterator[Issue]:
    """Literal arguments that a tool of a pack does not take."""
    for index, step in enumerate(pipeline.steps):
        if not isinstance(step, CallStep) or "__" not in step.call.strip("_"):
            continue
        name = ToolName(*split_glob(step.call))
        entry = pipeline.servers.get(name.server)
        if entry is None or name.name not in dict(tools_of(entry.pack)):
            continue
        from aish.packs.framework.server import input_schema_of

        path = within(step_path(index, listed="steps" in pipeline.data), "with")
        schema = input_schema_of(name.name)
        if schema is not None:
            what = f"does not fit the schema of `{name}`"
            yield from _misfits(step.arguments, schema, what, path)
        model = step.arguments.get("model")
        if "ml" in entry.pack and isinstance(model, str) and not is_template(model):
            yield from _unknown_model(model, f"{path}.model", pipeline)


def _unknown_model(model: str, path: str, pipeline: Pipeline) -> Iterator[Issue]:
    if model not in pipeline.models:
        hint = did_you_mean(model, pipeline.models)
        hint = hint or f"models: {backticked(pipeline.models) or 'none'}"
        yield Issue(path, f"unknown model `{model}`", hint, by=("models",))


def _misfits(
    given: Mapping[str, JsonValue], schema: JsonObject, what: str, path: str
) -> Iterator[Issue]:
    """How literal arguments violate a schema; templates may become anything."""
    from aish.system.schema.check import check, is_simple

    if not is_simple(schema):
        return
    arguments: JsonValue = dict(given)
    open_ = tuple(_templates(arguments, ()))
    for problem in check(schema, arguments):
        if _is_certain(problem, open_):
            place = f"{path}.{spell_path(problem.path)}" if problem.path else path
            yield Issue(place, f"{what}: {problem.message}")


def _is_certain(problem: SchemaProblem, open_: Iterable[Path]) -> bool:
    """Whether a problem is independent of what a template will become."""
    here = problem.path
    for place in open_:
        inside = here[: len(place)] == place
        environment = place[: len(here)] == here and problem.keyword not in _KEYS
        if inside or environment:
            return False
    return True


def _templates(value: JsonValue, path: Path) -> Iterator[Path]:
    """The paths of templates in arguments."""
    if isinstance(value, str):
        if is_template(value):
            yield path
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _templates(inner, (*path, key))
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from _templates(inner, (*path, index))


_BY = (
    *("model", "models**", "limits**", "params**"),
    *(f"steps[].{key}" for key in ("model", "limits**", "params**", "expect**")),
)
_PRICE = "`price: {input: 3.0, output: 15.0}` gives it in US dollars per million tokens"
_LIST = "`pip install 'aish-pipelines[prices]'` brings a price list"


@frozen
class _Use:
    """A model used by a step, with the parameters of that step over its own."""

    alias: str
    params: Mapping[str, JsonValue]


def _pack_options(alias: str, entry: ServerEntry, pipeline: Pipeline) -> Iterator[Issue]:
    """Problems of options that no schema can say (K48, K51)."""
    path = f"mcp.servers.{alias}.options"
    usual = PackOptions()
    for name in (field.name for field in fields(PackOptions)):
        unchanged = getattr(entry.options, name) == getattr(usual, name)
        if not unchanged and name not in entry.pack:
            hint = f"packs of this server: {backticked(entry.pack) or 'none'}"
            yield Issue(f"{path}.{name}", f"this server has no pack `{name}`", hint)
    for option, model in entry.options.models.items():
        yield from _unknown_model(model, f"{path}.{option}", pipeline)
    rubric = entry.options.ml.rubric
    if rubric is not None and not rubric.is_file():
        yield Issue(f"{path}.ml.rubric", f"there is no file `{rubric.name}`")
    if "rag" in entry.pack and entry.root is None and entry.options.rag.store is None:
        hint = "give the server a `root`, or name a folder with `options.rag.store`"
        message = "the pack `rag` has no place for its collections"
        yield Issue(f"mcp.servers.{alias}.pack", message, hint)
    for pack, file in entry.options.environment_files.items():
        if file.exists():
            # Most files name no environment file, and avoid these imports.
            from aish.packs.environment_file import read_environment
            from aish.system.process.child import child_environment

            try:
                read_environment(file, child_environment({}, os.environ))
            except UsageError as error:
                yield Issue(f"{path}.{pack}.env_file", str(error))


def limit_issues(
    pipeline: Pipeline,
    limits: Limits | None = None,
    steps: Sequence[Step] | None = None,
    default: str | None = None,
    judges: Iterable[str] | None = None,
) -> Iterator[Issue]:
    """Problems of models with settings that a limit requires.

    `limits`, `steps`, the `default` model and the `judges` beside those of steps are those of the
    file, if a run has no others.
    """
    run = pipeline.limits if limits is None else limits
    default = default or _default(pipeline)
    if judges is None:
        judges = judges_of(one for case in pipeline.tests for one in case.expect)
    told: set[tuple[str, str]] = set()
    for issue in (
        *_of_steps(pipeline.steps if steps is None else steps, run, pipeline, default),
        *_of_uses(
            (_Use(alias, {}) for alias in _with_fallbacks(judges, pipeline.models)),
            run,
            "",
            pipeline.models,
        ),
    ):
        if (issue.path, issue.message) not in told:
            told.add((issue.path, issue.message))
            yield issue


def _of_steps(
    steps: Iterable[Step], run: Limits, pipeline: Pipeline, default: str | None
) -> Iterator[Issue]:
    models = pipeline.models
    for step in steps:
        for bounds, whose in ((run, ""), (step.flow.limits, f" of the step `{step.id}`")):
            yield from _of_uses(_uses(step, models, default), bounds, whose, models)


def _of_uses(
    uses: Iterable[_Use], bounds: Limits, whose: str, models: Mapping[str, ModelEntry]
) -> Iterator[Issue]:
    if bounds.tokens is None and bounds.cost_usd is None:
        return
    key = "`limits.tokens`" if bounds.cost_usd is None else "`limits.cost_usd`"
    for use in uses:
        entry, path = models[use.alias], f"models.{use.alias}"
        if answer_limit({**entry.params, **use.params}) is None and not is_free(entry):
            message = f"{key}{whose} needs `max_tokens` in the `params` of the model `{use.alias}`"
            hint = "otherwise the length of an answer is unbounded; `params` of the step work too"
            yield Issue(f"{path}.params", message, hint, by=_BY)
        if bounds.cost_usd is not None and not is_priced(entry):
            message = f"`limits.cost_usd`{whose} needs a price for the model `{use.alias}`"
            hint = _PRICE if has_list() else f"{_PRICE}, or {_LIST}"
            yield Issue(path, message, hint, by=_BY)


def _uses(step: Step, models: Mapping[str, ModelEntry], default: str | None) -> Iterator[_Use]:
    """The models a step may use: its own, fallbacks, judges, summarizers."""
    aside: list[str | None] = list(judges_of(step.expect))
    if isinstance(step, PromptStep):
        for alias in _with_fallbacks((step.model or default,), models):
            yield _Use(alias, step.params)
        aside.append(step.context.summary_model if step.context.max_tokens else None)
    for alias in _with_fallbacks(aside, models):
        yield _Use(alias, {})


def _with_fallbacks(
    aliases: Iterable[str | None], models: Mapping[str, ModelEntry]
) -> Iterator[str]:
    waiting, seen = [alias for alias in aliases if alias], set[str]()
    while waiting:
        alias = waiting.pop(0)
        # A missing one is reported elsewhere.
        if alias in models and alias not in seen:
            seen.add(alias)
            yield alias
            waiting.extend(models[alias].fallback)


def _default(pipeline: Pipeline) -> str | None:
    if pipeline.model is not None:
        return pipeline.model
    return next(iter(pipeline.models)) if len(pipeline.models) == 1 else None
