"""Names of models and steps, and circular dependencies."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from aish.config.fields import find_malformed, is_variable_name, variables
from aish.config.file_schema import model_entry
from aish.config.model import ModelEntry, Pipeline, PromptStep
from aish.config.yaml_tree import texts_with_paths
from aish.core.errors import UsageError, did_you_mean
from aish.core.json import JsonObject
from aish.core.phrases import backticked
from aish.core.wires import CHAT
from aish.engine.plan.literals import literals
from aish.engine.plan.order import default_model, needs_of
from aish.engine.plan.validation.issue import STEPS, Issue, step_path, steps_with_paths, within
from aish.models.dialect_choice import wire_of
from aish.models.headers import check_endpoint
from aish.system.secrets.secrets import resembles_key
from aish.wire.dialect import is_expressible

_ENDINGS = (".md", ".txt", ".j2")
_LONGEST_PATH = 255
RESERVED = "shell"
SERVED = "pipeline"
"""The alias of the pipelines of a file among the tools that it serves."""
LONGEST_SERVED = 56
"""Characters of a tool's name for clients, which put a prefix of their own before it."""


def name_issues(pipeline: Pipeline) -> Iterator[Issue]:
    """Problems in models, steps, and the names under `env` and `secrets`."""
    yield from alias_issues(pipeline.models, "models")
    yield from _models(pipeline)
    for path, name in texts_with_paths(pipeline.data, ""):
        if is_variable_name(path) and resembles_key(name):
            message = "this looks like a key, and the name of a variable belongs here"
            yield Issue(path, message, "export the key, and write the variable's name here")
    for path in dict.fromkeys(path for path, _ in literals(pipeline)):
        if not is_variable_name(path):
            hint = "take it from the environment; text that is no key goes under `cassette.allow`"
            yield Issue(path, "the file contains what looks like a key", hint, warning=True)
    for index, name in enumerate(pipeline.env):
        if name in pipeline.secrets:
            message = f"`{name}` is under `env` and under `secrets`"
            hint = "values of `env` names are shown to models and recorded"
            yield Issue(f"env[{index}]", message, hint)
    yield from _steps(pipeline)
    yield from _prompts(pipeline)
    yield from _params_of_steps(pipeline)
    yield from _answer_schemas(pipeline)
    yield from _summary_models(pipeline)
    yield from _step_circles(pipeline)


def alias_issues(aliases: Iterable[str], path: str) -> Iterator[Issue]:
    """Aliases that are not allowed."""
    for alias in aliases:
        if "__" in alias:
            message = f"the alias `{alias}` contains `__`, which separates server and tool"
            yield Issue(f"{path}.{alias}", message)
        elif alias.endswith(("-", "_")):
            message = f"the alias `{alias}` ends in `{alias[-1]}`"
            yield Issue(f"{path}.{alias}", message, "end it with a letter or a digit")


def _models(pipeline: Pipeline) -> Iterator[Issue]:
    if pipeline.model is not None:
        yield from _check_model(pipeline.model, pipeline, "model")
    for alias, entry in pipeline.models.items():
        yield from _endpoint(entry)
        yield from _params_of_wire(entry)
        for index, other in enumerate(entry.fallback):
            yield from _check_model(other, pipeline, f"models.{alias}.fallback[{index}]")
        yield from check_verify(f"models.{alias}.verify_tls", "endpoint", verify=entry.verify_tls)
    graph = {alias: entry.fallback for alias, entry in pipeline.models.items()}
    for circle in circles(graph):
        message = f"circular fallback between models: {_chain(circle)}"
        yield Issue(f"models.{circle[0]}.fallback", message)


def check_verify(path: str, peer: str, *, verify: bool | Path) -> Iterator[Issue]:
    """Yield a warning where no certificate is checked, and an error for unreadable authorities."""
    if not verify:
        yield Issue(path, f"the certificate of this {peer} is not checked", warning=True)
    elif isinstance(verify, Path):
        # Few files name their own.
        import ssl

        try:
            ssl.create_default_context(cafile=verify)
        except OSError as error:
            message = f"no authorities in PEM can be read there: {error.strerror or error}"
            yield Issue(path, message)


def _endpoint(entry: ModelEntry) -> Iterator[Issue]:
    """Settings that no endpoint accepts, as far as they are in the file."""
    if entry.base_url is None and entry.embedded is None:
        return  # reported when the file is read
    if find_malformed(entry.base_url or "") is not None:
        return  # the same
    headers = {name: value for name, value in entry.headers.items() if not variables(value)}
    known = replace(entry, headers=headers)
    if entry.base_url is not None and variables(entry.base_url):
        known = replace(known, base_url="http://unknown")
    if entry.proxy is not None and variables(entry.proxy):
        known = replace(known, proxy=None)
    try:
        check_endpoint(known, None)
    except UsageError as error:
        yield Issue(error.where or f"models.{entry.alias}", error.message, error.hint)


def _params_of_wire(entry: ModelEntry) -> Iterator[Issue]:
    """Parameters that the wire sets itself, and those of another wire."""
    wire, path = wire_of(entry), f"models.{entry.alias}"
    for name in entry.params:
        where = f"{path}.params.{name}"
        if name in wire.own:
            yield Issue(where, f"`{name}` is set by `api: {wire.api}` itself")
        elif name in wire.foreign:
            message = f"`{name}` is a parameter of another `api` than `{wire.api}`"
            yield Issue(where, message, f"here it is `{wire.foreign[name]}`", warning=True)
    if "tools" in entry.params and "tools" not in wire.own and wire.api != CHAT:
        message = "the vendor runs these tools, and no rule is asked about their calls"
        yield Issue(f"{path}.params.tools", message, warning=True)
        listed = entry.params["tools"]
        for index, tool in enumerate(listed if isinstance(listed, list | tuple) else ()):
            if isinstance(tool, Mapping) and tool.get("type") in {"function", "custom", None}:
                where = f"{path}.params.tools[{index}]"
                yield Issue(where, "only tools of the vendor belong here, by their `type`")
    if "prompt_cache_retention" in entry.params:
        message = "`prompt_cache_retention` is deprecated by the vendor"
        hint = "`cache: 30m` or `12h`, or `params: {prompt_cache_options: {ttl: …}}`"
        yield Issue(f"{path}.params.prompt_cache_retention", message, hint, warning=True)
    if entry.effort == "minimal" and wire.api == "messages":
        message = "`minimal` is not known to `api: messages`; `low` is sent"
        yield Issue(f"{path}.effort", message, warning=True)


def _params_of_steps(pipeline: Pipeline) -> Iterator[Issue]:
    """Parameters of steps that the wire of their model sets itself."""
    for path, step in steps_with_paths(pipeline):
        if not isinstance(step, PromptStep):
            continue
        entry = pipeline.models.get(step.model or default_model(pipeline) or "")
        if entry is None or entry.api == CHAT:
            continue
        for name in step.params:
            if name in {"tools", *wire_of(entry).own}:
                message = f"`{name}` is set by `api: {entry.api}` itself"
                yield Issue(within(path, f"params.{name}"), message)


def _answer_schemas(pipeline: Pipeline) -> Iterator[Issue]:
    """Schemas of answers that the API of their model has no form for."""
    for path, step in steps_with_paths(pipeline):
        if not isinstance(step, PromptStep) or step.output is None:
            continue
        entry = pipeline.models.get(step.model or default_model(pipeline) or "")
        if entry is None or entry.json_schema is False:
            continue
        if not is_expressible(wire_of(entry), step.output.schema):
            message = f"`api: {entry.api}` has no form for this schema; it is described in words"
            hint = "objects need their `properties`: `additionalProperties` cannot hold a schema"
            yield Issue(within(path, "output.schema"), message, hint, warning=True)


def _check_model(alias: str, pipeline: Pipeline, path: str) -> Iterator[Issue]:
    if alias not in pipeline.models:
        new = f"write `model: main`, and under `models`\n{model_entry('main', alias)}"
        hint = did_you_mean(alias, pipeline.models) or _names_hint("models", pipeline.models) or new
        yield Issue(path, f"unknown model `{alias}`", hint, by=("models",))


def _steps(pipeline: Pipeline) -> Iterator[Issue]:
    ids: dict[str, int] = {}
    known = [step.id for step in pipeline.steps]
    for index, (path, step) in enumerate(steps_with_paths(pipeline)):
        if step.id in ids:
            message = f"the id `{step.id}` is also used by step {ids[step.id] + 1}"
            yield Issue(within(path, "id"), message)
        ids.setdefault(step.id, index)
        for number, need in enumerate(step.needs):
            if need not in known:
                place = within(path, f"needs[{number}]")
                hint = did_you_mean(need, known)
                yield Issue(place, f"unknown step `{need}`", hint, by=STEPS)
        if isinstance(step, PromptStep):
            yield from _model_of(step, path, pipeline)


def _prompts(pipeline: Pipeline) -> Iterator[Issue]:
    """Warnings of texts that were probably meant as the name of a prompt, or as a file."""
    for path, text in _prompt_texts(pipeline.data):
        if text in pipeline.prompts and not path.startswith("prompts."):
            message = f"`{text}` is sent as text, and `prompts` has a prompt of this name"
            yield Issue(path, message, f"write `prompt: {{name: {text}}}`", warning=True)
        elif _is_file(pipeline.file.parent, text):
            message = f"`{text}` is sent as text, and looks like the path of a file"
            hint = f"`{{file: {text}}}` sends what is in it"
            yield Issue(path, message, hint, warning=True)


def _prompt_texts(data: JsonObject) -> Iterator[tuple[str, str]]:
    steps, prompts = data.get("steps"), data.get("prompts")
    rows = steps if isinstance(steps, Sequence) and not isinstance(steps, str) else (data,)
    for index, row in enumerate(rows):
        text = row.get("prompt") if isinstance(row, Mapping) else None
        if isinstance(text, str):
            yield within(step_path(index, listed=rows is steps), "prompt"), text
    for name, text in prompts.items() if isinstance(prompts, Mapping) else ():
        if isinstance(text, str):
            yield f"prompts.{name}", text


def _is_file(folder: Path, text: str) -> bool:
    """Tell whether a text is the name of a text file, or the path of a file that exists."""
    if text.endswith(_ENDINGS) and text.split() == [text]:
        return True
    if len(text) > _LONGEST_PATH or not text.isprintable():
        return False
    try:
        return (folder / text).is_file()
    except OSError:
        return False


def _model_of(step: PromptStep, path: str, pipeline: Pipeline) -> Iterator[Issue]:
    if step.model is not None:
        # At the root of a file of one step this is the file's own default.
        if path:
            yield from _check_model(step.model, pipeline, within(path, "model"))
    elif pipeline.model is None and len(pipeline.models) != 1:
        if pipeline.models:
            names = backticked(pipeline.models)
            message = f"several models are declared and none is chosen: {names}"
            hint = "write `model: ALIAS`"
        else:
            message = "no model is declared"
            hint = "for example `models: {local: {embedded: smollm2}}`"
        yield Issue(within(path, "prompt"), message, hint, by=("models", "model"))


def _summary_models(pipeline: Pipeline) -> Iterator[Issue]:
    """Problems in the models under `context`, of a step or the file."""
    at_top = "context.summary_model"
    places: set[str] = set()
    for path, step in steps_with_paths(pipeline):
        if not isinstance(step, PromptStep) or step.context.summary_model is None:
            continue
        own = within(path, at_top)
        place = own if own in pipeline.positions else at_top
        if place not in places:
            yield from _check_model(step.context.summary_model, pipeline, place)
            if step.context.max_tokens is None:
                hint = "add `context.max_tokens`: above it a conversation is shortened"
                message = "there are no summaries without `max_tokens`"
                by = ("context.max_tokens", "steps[].context.max_tokens")
                yield Issue(place, message, hint, warning=True, by=by)
        places.add(place)


def _step_circles(pipeline: Pipeline) -> Iterator[Issue]:
    listed = "steps" in pipeline.data
    known = [step.id for step in pipeline.steps]
    graph: dict[str, tuple[str, ...]] = {}
    for step in pipeline.steps:
        try:
            own = (step.id,) if step.id in step.needs else ()
            graph.setdefault(step.id, (*needs_of(step, known), *own))
        except UsageError:
            # An invalid template is reported by the check of templates.
            graph.setdefault(step.id, step.needs)
    for circle in circles(graph):
        index = known.index(circle[0])
        if len(circle) == 1:
            message = f"the step `{circle[0]}` depends on itself"
        else:
            message = f"circular dependency between steps: {_chain(circle)}"
        yield Issue(step_path(index, listed=listed), message)


def circles(graph: Mapping[str, Iterable[str]]) -> list[tuple[str, ...]]:
    """The circles of a graph, one for each that is reached from the first name."""
    result: list[tuple[str, ...]] = []
    done: set[str] = set()
    for start in graph:
        walk = [(start, iter(graph[start]))] if start not in done else []
        while walk:
            name, ahead = walk[-1]
            after = next(ahead, None)
            trail = [step for step, _ in walk]
            if after is None:
                done.add(name)
                walk.pop()
            elif after in trail:
                result.append(tuple(trail[trail.index(after) :]))
            elif after in graph and after not in done:
                walk.append((after, iter(graph[after])))
    return result


def _chain(circle: tuple[str, ...]) -> str:
    return " → ".join(f"`{name}`" for name in (*circle, circle[0]))


def _names_hint(what: str, names: Iterable[str]) -> str | None:
    listed = backticked(names)
    return f"{what}: {listed}" if listed else None
