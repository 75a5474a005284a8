"""What a prompt opens with from elsewhere: servers' prompts, attachments, earlier turns (F11)."""

from collections.abc import Iterator

from aish.config.pipeline import Pipeline
from aish.config.steps import Prompt, PromptStep, ServerPrompt
from aish.core.errors import did_you_mean
from aish.run.checks.complaint import STEPS, Complaint, step_path, within
from aish.run.uris import is_uri
from aish.templates.plain import is_template


def opening_complaints(pipeline: Pipeline) -> Iterator[Complaint]:
    """About servers that steps name, and conversations that go on."""
    for name, prompt in pipeline.prompts.items():
        yield from _prompt(prompt, f"prompts.{name}", pipeline)
    listed = "steps" in pipeline.data
    for index, step in enumerate(pipeline.steps):
        if isinstance(step, PromptStep):
            path = step_path(index, listed=listed)
            if step.prompt_name is None:
                yield from _prompt(step.prompt, within(path, "prompt"), pipeline)
            yield from _attached(step, within(path, "attach"), pipeline)
            if step.continues is not None:
                yield from _continued(step, step.continues, path, pipeline)


def _prompt(prompt: Prompt | ServerPrompt, path: str, pipeline: Pipeline) -> Iterator[Complaint]:
    if isinstance(prompt, ServerPrompt):
        yield from _server(prompt.server, f"{path}.server", "prompts", pipeline)


def _attached(step: PromptStep, path: str, pipeline: Pipeline) -> Iterator[Complaint]:
    for index, one in enumerate(step.attach):
        own = f"{path}[{index}]"
        place = own if own in pipeline.positions else path
        if one.server is not None:
            yield from _server(one.server, f"{place}.server", "resources", pipeline)
            place = f"{place}.uri"
        if not is_uri(one.ref):
            if one.server is not None and not is_template(one.ref):
                message = f"`{one.ref}` is no URI such as `docs://guide/intro`"
                yield Complaint(place, message, "without `server` it would be a file")
        elif one.server is None and all(entry.pack for entry in pipeline.servers.values()):
            message = f"there is no server to read `{one.ref}` from"
            hint = "declare it under `mcp.servers`"
            yield Complaint(place, message, hint, by=("mcp.servers",))


def _server(alias: str, path: str, what: str, pipeline: Pipeline) -> Iterator[Complaint]:
    """About the name of a server that has to have `what`."""
    entry = pipeline.servers.get(alias)
    if entry is None:
        known = ", ".join(f"`{name}`" for name in pipeline.servers)
        listed = f"servers: {known}" if known else "`mcp.servers` declares none"
        hint = did_you_mean(alias, pipeline.servers) or listed
        yield Complaint(path, f"unknown server `{alias}`", hint, by=("mcp.servers",))
    elif entry.pack:
        yield Complaint(path, f"the server `{alias}` is a pack of tools, and has no {what}")


def _continued(step: PromptStep, wanted: str, path: str, pipeline: Pipeline) -> Iterator[Complaint]:
    """About the step whose conversation is to go on, and what cannot be said anew."""
    place = within(path, "continues")
    steps = {one.id: one for one in pipeline.steps}
    before = steps.get(wanted)
    if before is None:
        prompts = [id for id, one in steps.items() if isinstance(one, PromptStep) and id != step.id]
        yield Complaint(place, f"unknown step `{wanted}`", did_you_mean(wanted, prompts), by=STEPS)
    elif before is step:
        yield Complaint(place, f"the step `{wanted}` continues itself")
    elif not isinstance(before, PromptStep):
        message = f"the step `{wanted}` has no conversation: it asks no model"
        yield Complaint(place, message, by=(*STEPS, "steps[].call"))
    elif before.flow.foreach is not None:
        yield Complaint(place, f"the step `{wanted}` has a conversation for each item")
    if step.flow.foreach is not None:
        yield Complaint(place, "a step with `foreach` cannot go on with a conversation")
    own = within(path, "system")
    if isinstance(step.prompt, Prompt) and step.prompt.system is not None:
        own = own if step.system is not None else within(path, "prompt")
    elif step.system is None:
        return
    message = f"the system prompt of a step that continues another is that of `{wanted}`"
    yield Complaint(own, message, "leave `system` out")
