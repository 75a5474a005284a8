"""`:attach`: a file, a resource or a server's prompt, for the next question (S5, M12)."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from aish.config.steps import Attachment
from aish.errors import UsageError
from aish.run.attaching import Attached, attachment
from aish.shell.command import Command
from aish.shell.session import Session
from aish.text import for_line
from aish.vocab.resources import PromptMessage

_FORM = "`:attach PATH`, `:attach RESOURCE` and `:attach ALIAS__PROMPT k=v …` are the forms"


async def _attach(session: Session, rest: str) -> None:
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise UsageError(f"`{rest}` cannot be taken apart: {error}", hint=_FORM) from error
    if not words:
        raise UsageError("there is nothing to attach", hint=_FORM)
    await session.open.servers.roster.settled()
    name = words[0]
    found = await _found(session, name, words[1:])
    session.attached.names.append(name)
    session.attached.texts.append(found.text)
    session.attached.media.extend(found.media)
    size = f"{len(found.text):,} characters"
    pictures = f", {len(found.media)} pictures" if found.media else ""
    session.open.out.show(for_line(f"{name} goes out with the next line: {size}{pictures}"))


async def _found(session: Session, name: str, arguments: Sequence[str]) -> Attached:
    alias, mark, prompt = name.partition("__")
    registry = session.open.servers.roster.registry
    if mark and any(one.server == alias and one.name == prompt for one in await registry.prompts()):
        messages = await registry.get_prompt(alias, prompt, _pairs(arguments))
        return _prompt(messages)
    if arguments:
        raise UsageError(f"no server offers the prompt `{name}`", hint=_FORM)
    model = await session.open.models.get(session.model_alias())
    wanted, folder = Attachment(name), Path.cwd()
    if "://" not in name:
        # What a person names may be anywhere; the guard is for what a file names.
        path = Path(os.path.abspath(os.path.expanduser(name)))  # ruff: ignore[os-path-abspath, os-path-expanduser, blocking-path-method-in-async-function] - looked up at once
        wanted, folder = Attachment(path.name), path.parent
    limit = session.open.box.equipment.limits.result_limit
    return await attachment(wanted, registry, folder, limit, sees_images=model.sees_images)


def _pairs(arguments: Sequence[str]) -> dict[str, str]:
    found = {}
    for word in arguments:
        key, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"`{word}` is not KEY=VALUE")
        found[key] = value
    return found


def _prompt(messages: Sequence[PromptMessage]) -> Attached:
    """The messages as one text; who says each, where it is not the user alone."""
    alone = all(message.role == "user" for message in messages)
    texts = [one.text if alone else f"[{one.role}]\n{one.text}" for one in messages]
    media = tuple(one for message in messages for one in message.media)
    return Attached("\n\n".join(texts), media)


ATTACH = Command(
    "attach",
    "PATH|RESOURCE|ALIAS__PROMPT [k=v …]",
    "puts a file, a resource or a server's prompt before the next line",
    _attach,
    completes="attachment",
)
