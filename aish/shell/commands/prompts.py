"""`:prompt`: a prompt of the file, filled in and sent as a line."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from aish.config.inputs import fits
from aish.config.model import Pipeline, Prompt, ServerPrompt
from aish.config.typed_text import as_typed
from aish.core.errors import UsageError, did_you_mean
from aish.core.json import JsonValue
from aish.core.phrases import backticked
from aish.core.sources import READFILE
from aish.core.text import for_line
from aish.engine.plan.template_context import template_context
from aish.engine.steps.attachments import AttachedText
from aish.shell.command import ShellCommand
from aish.shell.commands.attach import pairs_of, prompt_of_server, words_of
from aish.shell.exchange import ask
from aish.shell.pending_input import Enclosure
from aish.shell.session import ShellSession
from aish.templates.render import references, render

_RESERVED = frozenset({"inputs", "env", "steps", "stdin"})


async def _prompt(session: ShellSession, rest: str) -> None:
    pipeline = session.open.plan.pipeline
    if not rest:
        for name in pipeline.prompts:
            takes = "".join(f" {value}=…" for value in values_of(pipeline, name))
            session.show(for_line(f":prompt {name}{takes}"))
        if not pipeline.prompts:
            session.show("the file has no `prompts`")
        return
    name, *words = words_of(rest)
    prompt = pipeline.prompts.get(name)
    if prompt is None:
        listed = backticked(pipeline.prompts)
        known = f"prompts: {listed}" if listed else "the file has no `prompts`"
        hint = did_you_mean(name, pipeline.prompts) or known
        raise UsageError(f"unknown prompt `{name}`", hint=hint)
    content = await _content(session, prompt, _template_values(session, name, pairs_of(words)))
    if content.media:
        session.attached.add(Enclosure(name, "", content.media, content.sources))
    await ask(session, content.text, content.sources)


async def _content(
    session: ShellSession, prompt: Prompt | ServerPrompt, values: Mapping[str, JsonValue]
) -> AttachedText:
    """The text and pictures of a prompt; what it says as a system prompt comes first."""
    if isinstance(prompt, Prompt):
        parts = [part for part in (prompt.system, prompt.user) if part is not None]
        named = (name for part in parts for name in references(part))
        sources = {name for name in named if name.startswith("inputs.")}
        # Which of the values a filter reads is not looked at.
        sources |= {READFILE} if any(READFILE in part for part in parts) else set()
        text = "\n\n".join(render(part, values) for part in parts)
        return AttachedText(text, sources=frozenset(sources))
    arguments = {key: render(text, values) for key, text in prompt.arguments.items()}
    return await prompt_of_server(session, prompt.server, prompt.name, arguments)


def _template_values(
    session: ShellSession, name: str, values: Mapping[str, str]
) -> Mapping[str, JsonValue]:
    """Return what the templates of a prompt may use; a typed value is an input, or a new name."""
    pipeline = session.open.plan.pipeline
    known = values_of(pipeline, name)
    schemas = pipeline.inputs
    inputs = {key: schema["default"] for key, schema in schemas.items() if "default" in schema}
    inputs |= session.open.options.inputs
    own: dict[str, JsonValue] = {}
    for key, text in values.items():
        if key not in known:
            takes = f"it takes {backticked(known)}" if known else "it takes no values"
            hint = did_you_mean(key, known) or takes
            raise UsageError(f"the prompt `{name}` has no value `{key}`", hint=hint)
        if key not in schemas:
            own[key] = text
            continue
        inputs[key] = as_typed(text, schemas[key])
        for problem in fits(schemas[key], inputs[key]):
            raise UsageError(f"the input `{key}`: {problem.message}")
    if missing := [key for key in known if key in schemas and key not in inputs]:
        hint = f"`:prompt {name} {' '.join(f'{key}=…' for key in missing)}`"
        raise UsageError(f"the prompt `{name}` needs {backticked(missing)}", hint=hint)
    options = replace(session.open.options, inputs=inputs)
    return template_context(pipeline, options, {}, session.open.plan.variables, own)


def values_of(pipeline: Pipeline, name: str) -> Sequence[str]:
    prompt = pipeline.prompts.get(name)
    return () if prompt is None else tuple(dict.fromkeys(_names_in(prompt)))


def _names_in(prompt: Prompt | ServerPrompt) -> Iterator[str]:
    texts = (
        prompt.arguments.values()
        if isinstance(prompt, ServerPrompt)
        else (prompt.system or "", prompt.user)
    )
    for path in sorted({path for text in texts for path in references(text)}):
        first, _, second = path.partition(".")
        if first == "inputs" and second:
            yield second.partition(".")[0]
        elif first not in _RESERVED:
            yield first


PROMPT = ShellCommand(
    "prompt [NAME [k=v …]]",
    "sends a prompt of the file to the model",
    _prompt,
    details="`k=v` sets an input, or another name of its template. Without an argument it lists "
    "the prompts of the file and what they take.",
    completes="prompt",
)
