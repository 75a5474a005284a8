"""The opening turns of a prompt step, if they use servers or files."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from aish.agent.result_limit import describe
from aish.config.model import Attachment, Prompt, PromptStep, Retrieval, ServerPrompt
from aish.core.errors import StepFailedError, UsageError
from aish.core.events import Notice
from aish.core.json import JsonObject
from aish.core.messages import AssistantTurn, UserTurn
from aish.core.sources import ATTACH, Sources, union
from aish.core.text import safe_utf8
from aish.core.tools import MediaKinds, PromptMessage, media_kind
from aish.engine.steps.attachments import (
    AttachedText,
    attachment,
    join_attachments,
    refuse_long,
    with_server,
)
from aish.engine.steps.context import StepContext
from aish.templates.render import render

if TYPE_CHECKING:
    from aish.mcp.client.registry import Registry

Turns = tuple[UserTurn | AssistantTurn, ...]


async def prompt_turns(
    prompt: ServerPrompt, servers: "Registry | None", limit: int, *, media_kinds: MediaKinds
) -> Turns:
    """The turns of a prompt, a user's first and last; its arguments are no templates here.

    Raises:
        StepFailedError: there is none, it has more than `limit` bytes of text, or no model could
            be asked to answer it.
        UnavailableError: its server is out of reach.
    """
    where = f"mcp server `{prompt.server}`"
    if servers is None:
        raise StepFailedError("there is no such server", where=where)
    try:
        messages = await servers.get_prompt(prompt.server, prompt.name, prompt.arguments)
    except UsageError as error:
        raise StepFailedError(error.message, where=error.where, hint=error.hint) from error
    name = f"prompt `{prompt.name}` of the server `{prompt.server}`"
    refuse_long(f"the {name}", (message.text for message in messages), limit)
    turns = _join_turns(_turn(message, media_kinds=media_kinds) for message in messages)
    if not turns:
        raise StepFailedError(f"the prompt `{prompt.name}` is empty", where=where)
    for turn, end in ((turns[0], "begins"), (turns[-1], "ends")):
        if isinstance(turn, AssistantTurn):
            message = f"the prompt `{prompt.name}` {end} with what a model is to have said"
            raise StepFailedError(message, where=where)
    return turns


def _turn(message: PromptMessage, *, media_kinds: MediaKinds) -> UserTurn | AssistantTurn:
    """A message as a turn; media that are not sent are named."""
    user = message.role == "user"
    media = [item for item in message.media if user and media_kind(item) in media_kinds]
    lines = [safe_utf8(message.text)]
    lines += [describe(item, attached=item in media) for item in message.media]
    text = "\n".join(line for line in lines if line.strip())
    return UserTurn(text, tuple(media)) if user else AssistantTurn(text)


def _join_turns(turns: Iterable[UserTurn | AssistantTurn]) -> Turns:
    """Consecutive turns of one role merged, and empty ones removed."""
    result: list[UserTurn | AssistantTurn] = []
    for turn in turns:
        if not turn.text:
            continue
        last = result[-1] if result else None
        match last, turn:
            case (UserTurn(), UserTurn()):
                text = f"{last.text}\n\n{turn.text}"
                result[-1] = replace(last, text=text, media=last.media + turn.media)
            case (AssistantTurn(), AssistantTurn()):
                result[-1] = replace(last, text=f"{last.text}\n\n{turn.text}")
            case _:
                result.append(turn)
    return tuple(result)


async def opening_turns(
    step: PromptStep, context: StepContext, *, media_kinds: MediaKinds, sources: Sources
) -> tuple[Turns, UserTurn]:
    """The system prompt, and the user turn with its attachments first.

    `sources` are those of the templates; all turns get them and those of what is taken from
    elsewhere.

    Raises:
        StepFailedError: something cannot be had, or is too long.
        UnavailableError: a server is unreachable.
    """
    values, servers = context.template_values(), context.resources.tools.servers
    limit = step.limits.result_limit
    turns: Turns
    match step.prompt:
        case Prompt(user=user):
            turns = (UserTurn(render(user, values)),)
        case ServerPrompt(arguments=arguments):
            filled = {name: render(text, values) for name, text in arguments.items()}
            prompt = replace(step.prompt, arguments=filled)
            judge_request(prompt.server, filled, sources, step, context)
            turns = await prompt_turns(prompt, servers, limit, media_kinds=media_kinds)
            if context.agent.flow is not None:
                sources = context.agent.flow.of_request(prompt.server, sources)
    # Sequentially, so that a recording has them in the order of the file.
    pieces = [await _attached(one, step, context, sources, media_kinds) for one in step.attach]
    *before, last = turns
    assert isinstance(last, UserTurn)
    opened = join_attachments(pieces, last.text)
    sources = union((sources, *(piece.sources for piece in pieces)))
    opening = (replace(turn, sources=sources) for turn in before)
    return tuple(opening), UserTurn(opened.text, opened.media + last.media, sources)


async def _attached(
    source: Attachment | Retrieval,
    step: PromptStep,
    context: StepContext,
    sources: Sources,
    media_kinds: MediaKinds,
) -> AttachedText:
    values, servers = context.template_values(), context.resources.tools.servers
    if isinstance(source, Retrieval):
        from aish.engine.steps.passages import retrieve

        return await retrieve(source, render(source.query, values), step, context, sources)
    read, flow = replace(source, ref=render(source.ref, values)), context.agent.flow
    if flow is not None:
        read = await with_server(read, servers)
        if read.server is not None:
            judge_request(read.server, {"uri": read.ref}, sources, step, context)
    folder, limit = context.plan.pipeline.file.parent, step.limits.result_limit
    piece = await attachment(read, servers, folder, limit, media_kinds=media_kinds)
    if flow is None:
        return piece
    if read.server is not None:
        return replace(piece, sources=flow.of_request(read.server, sources))
    # Another step may have written it meanwhile.
    return replace(piece, sources=union((sources, frozenset({ATTACH}), flow.local)))


def judge_request(
    alias: str, given: JsonObject, sources: Sources, step: PromptStep, context: StepContext
) -> None:
    """Judge a request for a resource or a prompt of a server, with text of some sources.

    Raises:
        StepFailedError: the text that its URI or arguments are of holds the request.
    """
    flow = context.agent.flow
    if flow is None:
        return
    why, warning = flow.begin_request(alias, given, sources)
    if warning:
        context.emit(Notice(context.place(step), "security", "exfiltration", warning))
    if why:
        raise StepFailedError(why, hint=flow.cure)
