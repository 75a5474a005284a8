"""`:attach`: a file, a resource or a server's prompt, for the next question."""

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from aish.agent.result_limit import describe, media_count
from aish.config.model import Attachment
from aish.core.errors import StepFailedError, UsageError, did_you_mean
from aish.core.phrases import backticked, counted
from aish.core.sources import ATTACH as ATTACHED
from aish.core.text import for_line
from aish.core.tools import PDF, MediaKind, MediaKinds, ServerPromptInfo, media_kind
from aish.engine.plan.uris import is_uri
from aish.engine.steps.attachments import AttachedText, attachment, refuse_long, with_server
from aish.shell.command import Form, ShellCommand
from aish.shell.pending_input import Enclosure
from aish.shell.session import ShellSession

_FORM = "`:attach PATH`, `:attach RESOURCE` and `:attach ALIAS__PROMPT k=v …` are the forms"
_NOTHING = "no file, resource or prompt is given"
_SERVER = "server"
_OFF = "off"
_UNSEEN = "[aish] not shown to this model: "
_MEDIA: Final[tuple[tuple[MediaKind, str, str, str], ...]] = (
    ("image", "image/", "image", "vision"),
    ("pdf", PDF, "PDF", "pdf"),
)


async def _attach(session: ShellSession, rest: str) -> None:
    if not rest:
        names = session.attached.names
        for name in names:
            session.show(for_line(f"{name} is sent with the next line"))
        session.show("`:attach off` drops them" if names else f"nothing is attached: {_FORM}")
        return
    if rest == _OFF:
        count = len(session.attached.names)
        session.attached.clear()
        session.show(f"{counted(count, 'attachment')} dropped")
        return
    name, *arguments = words_of(rest)
    content = await _find(session, name, arguments)
    session.attached.add(Enclosure(name, content.text, content.media, content.sources))
    size = counted(len(content.text), "character")
    media = f", {media_count(content.media)}" if content.media else ""
    session.show(for_line(f"{name} is sent with the next line: {size}{media}"))
    kinds = await _media_kinds(session)
    for kind, mime, word, key in _MEDIA:
        if kind not in kinds and f"{_UNSEEN}{mime}" in content.text:
            session.show(
                f"the model {session.model_alias()} gets a note instead of the {word}:"
                f" `{key}: true` in the file enables {word}s for a model"
            )


async def _media_kinds(session: ShellSession) -> MediaKinds:
    return (await session.open.models.get(session.model_alias())).media_kinds


def words_of(rest: str, form: str = _FORM, missing: str = _NOTHING) -> list[str]:
    if _path(rest).is_file():
        # As completion writes it: a name may contain blanks.
        return [rest]
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise UsageError(f"`{rest}` cannot be parsed: {error}", hint=form) from error
    if not words or not words[0]:
        raise UsageError(missing, hint=None if missing == form else form)
    return words


def _path(name: str) -> Path:
    return Path(os.path.abspath(os.path.expanduser(name)))  # ruff: ignore[os-path-abspath, os-path-expanduser] - as the person means it, links and all


async def _find(session: ShellSession, name: str, arguments: Sequence[str]) -> AttachedText:
    alias, mark, prompt = name.partition("__")
    path = _path(name)
    there = os.path.lexists(path)  # ruff: ignore[blocking-path-method-in-async-function] - looked up at once
    if not (there or arguments) and is_uri(name):
        return await _resource(session, Attachment(name))
    servers = session.servers
    if mark and not there and any(server.alias == alias for server in servers):
        return await prompt_of_server(session, alias, prompt, pairs_of(arguments))
    if is_uri(name) and not there:
        pairs = pairs_of(arguments)
        if set(pairs) == {_SERVER}:
            return await _resource(session, Attachment(name, pairs[_SERVER]))
    if arguments:
        hint = f"put a name with spaces in quotes; {_FORM}"
        raise UsageError(f"`{name}` takes no arguments", hint=hint)
    return await _file(session, name, path)


async def _file(session: ShellSession, name: str, path: Path) -> AttachedText:
    """The path that a person names may be anywhere; only paths in a pipeline file are confined."""
    folder = _folder(path, session.open.plan.pipeline.file.parent)
    beneath = str(path.relative_to(folder))
    source = Attachment(f"./{beneath}" if is_uri(beneath) else beneath)
    try:
        return await _as_shown(session, source, folder)
    except StepFailedError as error:
        message = error.message.replace(f"`{source.ref}`", f"`{name}`", 1)
        hint = error.hint
        if "is a link" in message:
            hint = f"name the file itself, `{os.path.realpath(path)}`, to attach its content"  # ruff: ignore[blocking-path-method-in-async-function] - looked up at once
        elif "pipeline's own folder" in (hint or ""):
            hint = f"paths are relative to {Path.cwd()}" if name != str(path) else _FORM
        raise StepFailedError(message, hint=hint) from error


def _folder(path: Path, project: Path) -> Path:
    """The project folder for a file in it, as in steps, so that an exported file sends the same."""
    whole = project.resolve()
    return whole if path.is_relative_to(whole) and path.resolve() == path else path.parent


async def _resource(session: ShellSession, source: Attachment) -> AttachedText:
    await session.open.servers.dynamic_registry.wait_until_settled()
    try:
        return await _as_shown(session, source, Path.cwd())
    except StepFailedError as error:
        hint = error.hint
        if source.server is None and hint and hint.startswith("name its server"):
            able = await session.open.servers.dynamic_registry.registry.aliases_with("resources")
            hint = f"`:attach {source.ref} {_SERVER}={able[0]}` names one of them"
        raise StepFailedError(error.message, where=error.where, hint=hint) from error


async def _as_shown(session: ShellSession, source: Attachment, folder: Path) -> AttachedText:
    kinds = await _media_kinds(session)
    registry = session.open.servers.dynamic_registry.registry
    limit = session.open.box.runtime.limits.result_limit
    source = await with_server(source, registry)
    piece = await attachment(source, registry, folder, limit, media_kinds=kinds)
    return replace(piece, sources=frozenset({source.server or ATTACHED}))


def pairs_of(arguments: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for word in arguments:
        key, equals, value = word.partition("=")
        if not equals or not key:
            hint = "put a value with spaces in quotes: `code='a b'`"
            raise UsageError(f"`{word}` is not KEY=VALUE", hint=hint)
        pairs[key] = value
    return pairs


async def prompt_of_server(
    session: ShellSession, alias: str, name: str, arguments: Mapping[str, str]
) -> AttachedText:
    opened = session.open
    registry = opened.servers.dynamic_registry.registry
    await opened.servers.dynamic_registry.wait_until_settled()
    known = [prompt for prompt in await registry.prompts() if prompt.server == alias]
    prompt = next((entry for entry in known if entry.name == name), None)
    if prompt is None:
        names = [f"{alias}__{entry.name}" for entry in known]
        hint = did_you_mean(f"{alias}__{name}", names) or _prompts_of(alias, names)
        raise UsageError(f"the server `{alias}` offers no prompt `{name}`", hint=hint)
    _check(prompt, arguments)
    messages = await registry.get_prompt(alias, name, arguments)
    kinds = await _media_kinds(session)
    alone = all(message.role == "user" for message in messages)
    texts = [message.text if alone else f"[{message.role}]\n{message.text}" for message in messages]
    given = [medium for message in messages for medium in message.media]
    media = tuple(medium for medium in given if media_kind(medium) in kinds)
    texts += [describe(medium, attached=False) for medium in given if medium not in media]
    attached = AttachedText("\n\n".join(texts), media, frozenset({alias}))
    limit = opened.box.runtime.limits.result_limit
    refuse_long(f"the prompt `{alias}__{name}`", [attached.text], limit)
    return attached


def _prompts_of(alias: str, names: Iterable[str]) -> str:
    listed = backticked(map(for_line, names))
    return f"its prompts: {listed}" if listed else f"`{alias}` has no prompts; {_FORM}"


def _check(prompt: ServerPromptInfo, values: Mapping[str, str]) -> None:
    """Check the arguments here, in our own words: the messages of servers differ or are missing."""
    name = for_line(f"{prompt.server}__{prompt.name}")
    known = [for_line(argument.name) for argument in prompt.arguments]
    takes = f"it takes {', '.join(f'`{one}`' for one in known)}" if known else "it takes none"
    for key in values:
        if key not in known:
            hint = did_you_mean(key, known) or takes
            raise UsageError(f"the prompt `{name}` has no argument `{key}`", hint=hint)
    missing = [for_line(argument.name) for argument in prompt.arguments if argument.required]
    missing = [one for one in missing if one not in values]
    if missing:
        hint = f"`:attach {name} {' '.join(f'{one}=…' for one in missing)}`"
        listed = backticked(missing)
        raise UsageError(f"the prompt `{name}` needs {listed}", hint=hint)


ATTACH = ShellCommand(
    "attach [PATH|RESOURCE|ALIAS__PROMPT [k=v …]]",
    "attaches a file, a resource or a server's prompt to the next line",
    _attach,
    details="Paths are relative to the working directory, and `~` is your home. A resource is its "
    f"URI; `{_SERVER}=ALIAS` after it names the server, if several have it. Without an "
    "argument it lists what is sent with the next line.",
    completes="attachment",
    forms=(Form(_OFF, "drops what is attached"),),
)
