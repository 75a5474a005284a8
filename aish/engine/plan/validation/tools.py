"""Checks of servers, tools named by steps, globs of rules, the lock, and limits."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
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
from aish.core.options import marked_options
from aish.core.patterns import lazy_pattern
from aish.core.phrases import backticked, first_of
from aish.core.rules import RuleEntry
from aish.core.tools import Annotations, Tool, ToolName
from aish.engine.plan.builtin_tools import presumed_tool
from aish.engine.plan.literals import literal_secrets
from aish.engine.plan.lock import (
    find_locked_tool,
    is_ignored,
    is_wanted,
    known_servers,
    locked_tools,
    pins_of_file,
    summary,
)
from aish.engine.plan.order import default_model, judges_of, with_fallbacks
from aish.engine.plan.validation.issue import (
    Issue,
    servers_hint,
    steps_with_paths,
    unknown_name,
    within,
)
from aish.engine.plan.validation.names import (
    LONGEST_SERVED,
    RESERVED,
    SERVED,
    alias_issues,
    check_verify,
)
from aish.models.dialect_choice import answer_limit
from aish.models.pricing import has_list, is_free, is_priced
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
        yield from _root_issues(alias, entry)
        yield from _pack_options(alias, entry, pipeline)
    for rule in pipeline.rules.all:
        yield from rule_issues(rule, pipeline)
    for test in pipeline.policy_tests:
        yield from _check_tool_name(test.tool, f"{test.path}.tool", pipeline, local=True)
    for path, step in steps_with_paths(pipeline):
        if isinstance(step, CallStep):
            yield from _check_tool_name(step.call, within(path, "call"), pipeline, local=False)
        elif isinstance(step, PromptStep):
            yield from _check_offered_tools(step, path, pipeline)


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
    yield from _pack_names(entry.pack, f"{path}.pack")
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
    yield from _login(entry, path)
    yield from check_verify(f"{path}.verify_tls", "server", verify=entry.verify_tls)


def _login(entry: ServerEntry, path: str) -> Iterator[Issue]:
    """Addresses of a login that are not secure."""
    if entry.oauth is None:
        return
    # Few files have a login.
    from aish.net.oauth.metadata import is_redirect, is_secure

    if entry.url is not None and not variables(entry.url) and not is_secure(entry.url):
        message = "the token of this server is sent without TLS"
        yield Issue(f"{path}.url", message, "use `https://`", warning=True)
    if (redirect := entry.oauth.redirect_url) is not None and not is_redirect(redirect):
        message = "a browser returns to this machine only"
        hint = "it looks like `http://127.0.0.1:8912/callback`"
        yield Issue(f"{path}.oauth.redirect_url", message, hint)
    for key in ("issuer", "token_url", "authorization_url"):
        url = getattr(entry.oauth, key)
        if url is not None and not variables(url) and not is_secure(url):
            message = "secrets are only sent to https, or to this machine"
            yield Issue(f"{path}.oauth.{key}", message, "it looks like `https://login.example.com`")


def _pack_names(packs: Sequence[str], path: str) -> Iterator[Issue]:
    """Problems of packs that are not built in; nothing of theirs is imported."""
    for name in packs:
        if name in PACKS:
            continue
        from aish.system.pack_index import entry_point, find_offered_pack

        try:
            offer = find_offered_pack(name)
        except UsageError as error:
            yield Issue(path, error.message, error.hint)
            continue
        if offer is None:
            others = f"`pip install` the distribution {entry_point(name)}"
            hint = did_you_mean(name, PACKS) or f"packs: {backticked(PACKS)}; or {others}"
            yield Issue(path, f"unknown pack `{name}`", hint)
        elif any(map(PACKS.get, packs)):
            message = f"the pack `{name}` is not built in, and needs a server of its own"
            yield Issue(path, message, "built-in tools are trusted, and those of others are not")


def shadow_issues(pipeline: Pipeline) -> Iterator[Issue]:
    """Built-in packs whose name a distribution offers too."""
    for alias, entry in pipeline.servers.items():
        for name in filter(PACKS.get, entry.pack):
            from aish.system.pack_index import offered_packs

            if offers := offered_packs().get(name):
                others = " and ".join(f"`{offer.requirement}`" for offer in offers)
                message = f"the pack `{name}` is the built-in one; that of {others} is not used"
                yield Issue(f"mcp.servers.{alias}.pack", message, warning=True)


def _root_issues(alias: str, entry: ServerEntry) -> Iterator[Issue]:
    """Packs that would have no tools: each of them needs a folder."""
    needy = [name for name in entry.pack if name in PACKS and pack_needs_root(name)]
    if needy and entry.root is None:
        which = f"the pack `{needy[0]}` needs" if len(needy) == 1 else f"{backticked(needy)} need"
        hint = "`root: .` is the folder of this file"
        message, path = f"{which} a `root`, the folder for its tools", f"mcp.servers.{alias}"
        yield Issue(path, message, hint, by=(f"{path}**",))


def rule_issues(rule: RuleEntry, pipeline: Pipeline) -> Iterator[Issue]:
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
    """Steps whose `retry` ends with a call that must not be repeated."""
    for path, step in steps_with_paths(pipeline):
        retry = step.flow.retry
        if retry.attempts == 1 or "call_unknown" in retry.on:
            continue
        call = next(_unrepeatable(step, pipeline, policy, inner), None)
        if call is None:
            continue
        name, file = call
        where = "" if file == pipeline.file else f" of `{file.name}`"
        yield Issue(
            within(path, "retry"),
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
        if step.file in above or (inner_pair := inner(step)) is None:
            return
        below, rules = inner_pair
        rules = replace(rules, deny=(*rules.deny, *policy.deny))
        for other in below.steps:
            yield from _unrepeatable(other, below, rules, inner, (*above, step.file))
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
    """Globs that appear to approve tools marked as destructive.

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


def long_name_issues(pipeline: Pipeline, lock: Lock | None) -> Iterator[Issue]:
    """Servers with tools whose names are too long for clients of a file that is served."""
    if "serve" not in pipeline.data or pipeline.serve.names == "plain":
        return
    locked = () if lock is None else locked_tools(pipeline, lock)
    for alias, entry in pipeline.servers.items():
        packed = (name for name, _ in tools_of(entry.pack) if is_wanted(entry, name))
        pinned = (tool.name for tool in locked if tool.server == alias)
        names = [f"{alias}__{name}" for name in (*packed, *pinned)]
        if long := [name for name in names if len(name) > LONGEST_SERVED]:
            listed = first_of([f"`{name}`" for name in long], _MOST_LISTED)
            message = (
                f"clients get shorter names for {listed}: with more than {LONGEST_SERVED} "
                "characters they leave no room for a client's own prefix"
            )
            hint = "a shorter alias keeps the whole names"
            yield Issue(f"mcp.servers.{alias}", message, hint, warning=True)


def unmatched_issues(pipeline: Pipeline) -> Iterator[Issue]:
    """Globs that match no tool of the packs of their server."""
    for glob, place in _globs(pipeline):
        server, _, name = glob.partition("__")
        entry = pipeline.servers.get(server)
        if name and entry is not None and not _NO_GLOB.search(glob):
            yield from pack_tool_issues(name, place, entry.pack, glob)
    for alias, entry in pipeline.servers.items():
        for n, name in enumerate(entry.tools):
            yield from pack_tool_issues(name, f"mcp.servers.{alias}.tools[{n}]", entry.pack, name)


def _globs(pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    """Globs for tools in rules, tests of rules and steps, with their paths."""
    yield from ((rule.tool, rule.path) for rule in pipeline.rules.all)
    yield from ((test.tool, f"{test.path}.tool") for test in pipeline.policy_tests)
    for path, step in steps_with_paths(pipeline):
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
    """Rules whose `**` approves an option that writes or runs something."""
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
    for path, step in steps_with_paths(pipeline):
        if not isinstance(step, RunStep) or step.asking.on_ask != "deny":
            continue
        words = [step.run] if isinstance(step.run, str) else list(step.run)
        arguments: JsonObject = {"command": step.run} if words == [step.run] else {"argv": words}
        ruling = decide(policy, tool, arguments)
        if ruling.verdict == "ask" and not ruling.rule and not any(map(is_template, words)):
            message = "no rule approves this command: it is denied where nobody is asked"
            by = ("mcp.auto_approve**",)
            yield Issue(within(path, "run"), message, ruling.hint, warning=True, by=by)


def _covers(rule: RuleEntry, name: ToolName) -> bool:
    server, _, tool = rule.tool.partition("__")
    return matches_word(server, name.server) and matches_word(tool, name.name)


def glob_issues(glob: str, path: str, pipeline: Pipeline, *, local: bool) -> Iterator[Issue]:
    """An invalid glob, or one that no declared server can ever match."""
    try:
        server, _ = split_glob(glob)
    except UsageError as error:
        yield Issue(path, error.message, _other_separator(glob, pipeline) or error.hint)
        return
    known = [*pipeline.servers, *((RESERVED,) if local else ())]
    if local and pipeline.serve.pipelines:
        known.append(SERVED)
    if match := _NO_GLOB.search(glob):
        message = f"`{match[0]}` has no meaning in a glob: only `*` and `?` have"
        yield Issue(path, message, "write a rule for each tool", warning=True)
    if not any(matches_word(server, alias) for alias in known):
        near = _other_separator(glob, pipeline) or did_you_mean(server, known)
        hint = near or servers_hint(pipeline)
        message = f"`{glob}` can match no server of this file"
        yield Issue(path, message, hint, by=("mcp.servers",))


def _check_tool_name(tool: str, path: str, pipeline: Pipeline, *, local: bool) -> Iterator[Issue]:
    """A tool with its full name; its server has to be declared, and to have it if that is known."""
    try:
        server, name = split_glob(tool)
    except UsageError as error:
        hint = _other_separator(tool, pipeline) or "a tool is named `alias__tool`"
        yield Issue(path, error.message, hint)
        return
    if server == RESERVED and not local:
        hint = "write `run:` with the command, and approve `shell__run`"
        yield Issue(path, f"`{RESERVED}` is not a server: a local command is a `run` step", hint)
    elif server not in pipeline.servers and server != RESERVED:
        if server == SERVED and local and pipeline.serve.pipelines:
            return
        near = _other_separator(tool, pipeline) or did_you_mean(server, pipeline.servers)
        hint = near or servers_hint(pipeline)
        yield Issue(path, f"unknown server `{server}`", hint, by=("mcp.servers",))
    elif not local:
        yield from pack_tool_issues(name, path, pipeline.servers[server].pack)


def pack_tool_issues(name: str, path: str, packs: Sequence[str], glob: str = "") -> Iterator[Issue]:
    """A tool that none of the packs of its server has; only a warning for one of a `glob`."""
    if not packs or any(pack not in PACKS for pack in packs):
        return
    known = [tool for tool, _ in tools_of(packs)]
    tool_name = own_name(packs, name)
    if not (any(matches_word(tool_name, tool) for tool in known) if glob else tool_name in known):
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


def _check_offered_tools(step: PromptStep, path: str, pipeline: Pipeline) -> Iterator[Issue]:
    for index, glob in enumerate(step.tools or ()):
        yield from glob_issues(glob, within(path, f"tools[{index}]"), pipeline, local=False)
    choice, place = step.tool_choice, within(path, "tool_choice")
    if choice in _CHOICES:
        if choice == "required" and (step.tools == () or not pipeline.servers):
            message = "a tool is required, and this step has none"
            yield Issue(place, message, by=("mcp.servers", *_SHOWN))
    elif "__" not in choice:
        listed = backticked(_CHOICES)
        hint = _other_separator(choice, pipeline) or did_you_mean(choice, _CHOICES)
        hint = hint or f"{listed}, or one tool as `alias__tool`"
        yield Issue(place, f"unknown tool choice `{choice}`", hint)
    else:
        yield from _check_tool_name(choice, place, pipeline, local=False)
        server, _, name = choice.partition("__")
        globs = [glob for glob in step.tools or () if "__" in glob.strip("_")]
        if step.tools is not None and not any(
            matches_tool(glob, ToolName(server, name)) for glob in globs
        ):
            message = f"`{choice}` is not among the `tools` of this step"
            yield Issue(place, message, by=_SHOWN)


def _other_separator(glob: str, pipeline: Pipeline) -> str | None:
    """The hint where a name is written as other programs do: `files_read`, `mcp__files__read`."""
    for alias in sorted(pipeline.servers, key=len, reverse=True):
        match = re.fullmatch(rf"(?:mcp__)?{re.escape(alias)}[_.:/-]+(.+)", glob)
        if match is not None:
            return f"did you mean `{alias}__{match[1]}`"
    return None


Path = tuple[str | int, ...]
_KEYS = frozenset({"required", "additionalProperties"})


@frozen
class _PinnedTools:
    """Servers with unchanged pins, and the names of their tools."""

    servers: frozenset[str]
    names: frozenset[ToolName]

    def lacks(self, name: ToolName) -> bool:
        """Return true if the tool certainly does not exist."""
        return name.server in self.servers and name not in self.names

    def matches_none(self, glob: str) -> bool:
        server, _ = split_glob(glob)
        if matches_word(server, LOCAL_COMMAND.server) or not self.servers:
            return False
        return not any(matches_tool(glob, name) for name in self.names)

    def near(self, name: str) -> str | None:
        return did_you_mean(name, map(str, sorted(self.names, key=str)))


def locked_issues(pipeline: Pipeline, lock: Lock) -> Iterator[Issue]:
    """Errors with the locked tools: steps that name others, or misuse them."""
    pinned = _pins(pipeline, lock)
    for path, step in steps_with_paths(pipeline):
        named = _full_tool_name(step)
        if named is None or "__" not in named[1].strip("_"):
            continue
        name = ToolName(*split_glob(named[1]))
        entry = pipeline.servers.get(name.server)
        if entry is not None and any(pack_tool_issues(name.name, path, entry.pack)):
            continue  # that is an error without a lock too
        if pinned.lacks(name):
            hint = pinned.near(str(name)) or f"`aish lock {pipeline.file} --update`, if it is new"
            message = f"`{name}` is not in the lock file"
            yield Issue(within(path, named[0]), message, hint)
        elif isinstance(step, CallStep):
            yield from _arguments(step, name, within(path, "with"), pipeline, lock)


def stale_issues(pipeline: Pipeline, lock: Lock) -> Iterator[Issue]:
    """Warnings: rules and globs that match no locked tool, outdated pins."""
    pinned = _pins(pipeline, lock)
    everything = pinned.servers >= set(pipeline.servers)
    paths = {issue.path for issue in unmatched_issues(pipeline)}
    yield from (issue for issue in _let_in(pipeline, lock, pinned) if issue.path not in paths)
    for glob, place in _globs(pipeline) if everything else ():
        if place in paths:
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


def argument_problems(tool: Tool | None, arguments: JsonObject) -> list[str]:
    """Violations of a locked tool's schema that are certain before the run."""
    from aish.system.schema.check import check_here

    problems = None if tool is None else check_here(tool.input_schema, arguments)
    return [str(problem) for problem in problems or ()]


def _outgrown(pipeline: Pipeline, lock: Lock) -> Iterator[Issue]:
    """Differences between the current file and the file when it was locked."""
    now = pins_of_file(pipeline, literal_secrets(pipeline))
    prompts = {step.id: within(path, "prompt") for path, step in steps_with_paths(pipeline)}
    for difference in (*address_differences(lock, now), *stale_differences(lock, now)):
        if is_ignored(difference, pipeline):
            continue
        hint = f"`aish lock {pipeline.file} --update`, after a review"
        paths = {"server": f"mcp.servers.{difference.name}", "model": f"models.{difference.name}"}
        path = paths.get(difference.kind) or prompts.get(difference.name, "")
        yield Issue(path, f"the lock: {summary(difference)}", hint, warning=True)


def _full_tool_name(step: object) -> tuple[str, str] | None:
    """The key and the name of the one tool that a step names in full."""
    match step:
        case CallStep(call=call):
            return "call", call
        case PromptStep(tool_choice=choice):
            return "tool_choice", choice
    return None


def _pins(pipeline: Pipeline, lock: Lock) -> _PinnedTools:
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
    tool = find_locked_tool(name, pipeline, lock)
    if tool is not None:
        what = f"does not fit the locked schema of `{name}`"
        yield from _misfits(step.arguments, tool.input_schema, what, path)


def argument_issues(pipeline: Pipeline) -> Iterator[Issue]:
    """Literal arguments that a tool of a pack does not take."""
    for path, step in steps_with_paths(pipeline):
        if not isinstance(step, CallStep) or "__" not in step.call.strip("_"):
            continue
        name = ToolName(*split_glob(step.call))
        entry = pipeline.servers.get(name.server)
        if entry is None or name.name not in dict(tools_of(entry.pack)):
            continue
        from aish.packs.framework.server import input_schema_of

        place = within(path, "with")
        schema = input_schema_of(name.name)
        if schema is not None:
            what = f"does not fit the schema of `{name}`"
            yield from _misfits(step.arguments, schema, what, place)
        model = step.arguments.get("model")
        if "ml" in entry.pack and isinstance(model, str) and not is_template(model):
            yield from unknown_model(model, f"{place}.model", pipeline)


def unknown_model(model: str, path: str, pipeline: Pipeline) -> Iterator[Issue]:
    if model not in pipeline.models:
        yield unknown_name("model", model, pipeline.models, path, ("models",))


def _misfits(
    values: Mapping[str, JsonValue], schema: JsonObject, what: str, path: str
) -> Iterator[Issue]:
    """Violations of a schema by literal arguments; templates may become anything."""
    from aish.system.schema.check import check_here

    arguments: JsonValue = dict(values)
    templates = tuple(_templates(arguments, ()))
    for problem in check_here(schema, arguments) or ():
        if _is_certain(problem, templates):
            place = f"{path}.{spell_path(problem.path)}" if problem.path else path
            yield Issue(place, f"{what}: {problem.message}")


def _is_certain(problem: SchemaProblem, templates: Iterable[Path]) -> bool:
    """Return true if a problem is independent of what a template will become."""
    here = problem.path
    for place in templates:
        inside = here[: len(place)] == place
        environment = place[: len(here)] == here and problem.keyword not in _KEYS
        if inside or environment:
            return False
    return True


def _templates(value: JsonValue, path: Path) -> Iterator[Path]:
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
    """Problems of options that no schema can say."""
    path = f"mcp.servers.{alias}.options"
    for name, options in entry.options.items():
        if name not in entry.pack and options != type(options)():
            hint = f"packs of this server: {backticked(entry.pack) or 'none'}"
            yield Issue(f"{path}.{name}", f"this server has no pack `{name}`", hint)
    for option, model in marked_options(entry.options, "model"):
        yield from unknown_model(model, f"{path}.{option}", pipeline)
    for option, file in marked_options(entry.options, "own_file"):
        if not file.is_file():
            yield Issue(f"{path}.{option}", f"there is no file `{file.name}`")
    store = getattr(entry.options.get("rag"), "store", None)
    if "rag" in entry.pack and entry.root is None and store is None:
        hint = "give the server a `root`, or name a folder with `options.rag.store`"
        message = "the pack `rag` has no place for its collections"
        yield Issue(f"mcp.servers.{alias}.pack", message, hint)
    for option, file in marked_options(entry.options, "environment_file"):
        if file.exists():
            # Most files name no environment file, and avoid these imports.
            from aish.packs.environment_file import read_environment
            from aish.system.process.child import child_environment

            try:
                read_environment(file, child_environment({}, os.environ))
            except UsageError as error:
                yield Issue(f"{path}.{option}", str(error))


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
    default = default or default_model(pipeline)
    if judges is None:
        judges = judges_of(expectation for case in pipeline.tests for expectation in case.expect)
    pairs: set[tuple[str, str]] = set()
    models = pipeline.models
    checks = [
        _of_uses(_uses(step, models, default), bounds, whose, models)
        for step in (pipeline.steps if steps is None else steps)
        for bounds, whose in ((run, ""), (step.flow.limits, f" of the step `{step.id}`"))
    ]
    uses = (_Use(alias, {}) for alias in with_fallbacks(judges, models))
    checks.append(_of_uses(uses, run, "", models))
    for issue in chain.from_iterable(checks):
        if (issue.path, issue.message) not in pairs:
            pairs.add((issue.path, issue.message))
            yield issue


def _of_uses(
    uses: Iterable[_Use], bounds: Limits, whose: str, models: Mapping[str, ModelEntry]
) -> Iterator[Issue]:
    if bounds.tokens is None and bounds.cost_usd is None:
        return
    key = "`limits.tokens`" if bounds.cost_usd is None else "`limits.cost_usd`"
    for use in uses:
        entry, path = models[use.alias], f"models.{use.alias}"
        if answer_limit(entry, use.params) is None and not is_free(entry):
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
        for alias in with_fallbacks((step.model or default,), models):
            yield _Use(alias, step.params)
        aside.append(step.context.summary_model if step.context.max_tokens else None)
    for alias in with_fallbacks(aside, models):
        yield _Use(alias, {})
