"""A server's prompt as turns of a conversation (M12).

What a server says there is a stranger's text: it is sent as it is, and never template source.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from aish.agent.result_limit import can_be_attached, describe
from aish.config.steps import ServerPrompt
from aish.core.errors import StepFailedError, UsageError
from aish.core.messages import AssistantTurn, UserTurn
from aish.core.resources import PromptMessage
from aish.core.text import safe_utf8
from aish.run.attaching import refuse_long

Turns = tuple[UserTurn | AssistantTurn, ...]


class Prompter(Protocol):
    """Servers, as far as they have prompts: `run.tools.Offers`."""

    async def get_prompt(
        self, server: str, name: str, arguments: Mapping[str, str]
    ) -> tuple[PromptMessage, ...]:
        """The messages of a server's prompt."""
        ...


async def prompt_turns(
    prompt: ServerPrompt, servers: Prompter | None, limit: int, *, sees_images: bool
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
    turns = _joined(_turn(message, sees_images=sees_images) for message in messages)
    if not turns:
        raise StepFailedError(f"the prompt `{prompt.name}` says nothing", where=where)
    for turn, end in ((turns[0], "begins"), (turns[-1], "ends")):
        if isinstance(turn, AssistantTurn):
            said = f"the prompt `{prompt.name}` {end} with what a model is to have said"
            raise StepFailedError(said, where=where)
    return turns


def _turn(message: PromptMessage, *, sees_images: bool) -> UserTurn | AssistantTurn:
    """A message as a turn; pictures in it that are not sent are named."""
    user = message.role == "user"
    media = [one for one in message.media if user and sees_images and can_be_attached(one)]
    lines = [safe_utf8(message.text)]
    lines += [describe(one, attached=one in media) for one in message.media]
    text = "\n".join(line for line in lines if line.strip())
    return UserTurn(text, tuple(media)) if user else AssistantTurn(text)


def _joined(turns: Iterable[UserTurn | AssistantTurn]) -> Turns:
    """Turns of one role in a row as one, and none that says nothing."""
    found: list[UserTurn | AssistantTurn] = []
    for turn in turns:
        if not turn.text:
            continue
        last = found[-1] if found else None
        match last, turn:
            case (UserTurn(), UserTurn()):
                text = f"{last.text}\n\n{turn.text}"
                found[-1] = replace(last, text=text, media=last.media + turn.media)
            case (AssistantTurn(), AssistantTurn()):
                found[-1] = replace(last, text=f"{last.text}\n\n{turn.text}")
            case _:
                found.append(turn)
    return tuple(found)
