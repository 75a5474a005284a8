"""Makes of a pipeline file what `policy.flow` judges by."""

from aish.config.fields import variables
from aish.config.model import Pipeline, ServerEntry
from aish.packs.catalogue import is_builtin
from aish.packs.command_options import ShellOptions
from aish.policy.flow import LOCAL, FlowFile, ServerFacts
from aish.policy.lock import Lock
from aish.policy.rules import rule_of
from aish.system.secrets.secrets import names_credential


def flow_file(pipeline: Pipeline, lock: Lock | None) -> FlowFile:
    """The file with the facts of its servers; `lock` is one that is enforced.

    Raises:
        UsageError: a rule under `except` is none.
    """
    settings = pipeline.flows
    asked = settings.exfiltration
    return FlowFile(
        pipeline.file.name,
        settings,
        {
            alias: _facts(entry, pipeline, is_pinned=lock is not None and _has_pins(lock, alias))
            for alias, entry in pipeline.servers.items()
        },
        tuple(rule_of("auto_approve", entry) for entry in (asked.excepted if asked else ())),
    )


def _has_pins(lock: Lock, alias: str) -> bool:
    return alias in lock.servers and bool(lock.servers[alias].tools)


def _facts(entry: ServerEntry, pipeline: Pipeline, *, is_pinned: bool) -> ServerFacts:
    if is_builtin(entry.pack):
        options = (entry.options.get(name) for name in ("shell", "proc") if name in entry.pack)
        online = any((one or ShellOptions()).network for one in options)
        return ServerFacts(entry.pack, online, trusted=True, reads_files=True)
    sandbox = entry.sandbox
    is_confined = sandbox is not None and not sandbox.best_effort
    can_read = not is_confined or bool(sandbox and (sandbox.read or sandbox.write))
    own_place = entry.url or " ".join(entry.command)
    has_own_place = entry.url is not None or bool(is_confined and sandbox and not sandbox.write)
    return ServerFacts(
        trusted=entry.trust,
        pinned=is_pinned,
        has_credential=_has_credential(entry, pipeline),
        reads_files=entry.url is None and can_read,
        offline=bool(is_confined and sandbox and sandbox.network == "none"),
        place=own_place if has_own_place else LOCAL,
    )


def _has_credential(entry: ServerEntry, pipeline: Pipeline) -> bool:
    """Return true if a server gets anything that may be a credential."""
    if entry.auth_env or entry.auth_token or entry.oauth or entry.key_sources:
        return True
    if "${" in (entry.url or "") or "?" in (entry.url or ""):
        return True
    values = (*entry.headers.values(), *entry.command, *filter(None, entry.env.values()))
    if any(variables(value) for value in values):
        return True
    names = (*entry.headers, *entry.env)
    return any(name in pipeline.secrets or names_credential(name) for name in names)
