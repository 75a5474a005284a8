"""The turns that a prompt step opens with, where servers or files have a part in them (M12)."""

from dataclasses import replace

from aish.config.steps import Prompt, PromptStep, ServerPrompt
from aish.core.messages import UserTurn
from aish.run.attaching import attachment, joined
from aish.run.server_prompts import Turns, prompt_turns
from aish.run.stage import Stage
from aish.templates.render import render


async def opening_turns(
    step: PromptStep, stage: Stage, *, sees_images: bool
) -> tuple[Turns, UserTurn]:
    """What is said first, and the user's turn to be answered, with what is attached before it.

    Raises:
        StepFailedError: something cannot be had, or is too long.
        UnavailableError: a server is out of reach.
    """
    context, servers = stage.context(), stage.resources.tools.servers
    limit = step.limits.result_limit
    turns: Turns
    match step.prompt:
        case Prompt(user=user):
            turns = (UserTurn(render(user, context)),)
        case ServerPrompt(arguments=arguments):
            filled = {name: render(text, context) for name, text in arguments.items()}
            kept = replace(step.prompt, arguments=filled)
            turns = await prompt_turns(kept, servers, limit, sees_images=sees_images)
    # One after the other, so that a recording has them in the order of the file.
    pieces = [
        await attachment(
            replace(one, ref=render(one.ref, context)),
            servers,
            stage.plan.pipeline.file.parent,
            limit,
            sees_images=sees_images,
        )
        for one in step.attach
    ]
    *before, last = turns
    assert isinstance(last, UserTurn)
    opened = joined(pieces, last.text)
    return tuple(before), UserTurn(opened.text, opened.media + last.media)
