"""Keys that are written in a pipeline file itself: masked like those of the environment."""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from aish.config.loader import path_text
from aish.config.model import Pipeline, Prompt, PromptStep
from aish.system.secrets.literal_keys import literal_keys, without_keys
from aish.system.secrets.secrets import Secrets

_LONGEST_NAME = 60


def mask_literals(pipeline: Pipeline, secrets: Secrets) -> None:
    """Mask each key that the file contains, under the name of its place."""
    for path, key in literals(pipeline):
        secrets.add(re.sub(r"[^\w.-]+", "_", without_keys(path))[:_LONGEST_NAME], key)


def literal_secrets(pipeline: Pipeline) -> Secrets:
    secrets = Secrets()
    mask_literals(pipeline, secrets)
    return secrets


def literals(pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    """Each key that the file contains, after its path."""
    allow = () if pipeline.cassette is None else pipeline.cassette.allow
    keys = [(path_text(steps), key) for steps, key in literal_keys(pipeline.data)]
    for path, prompt in _prompts(pipeline):
        texts = [prompt.user, prompt.system or ""] if prompt.file is not None else []
        keys += ((path, key) for _, key in literal_keys(texts))
    for path, key in keys:
        # `auth_token` is the place for one, with a warning of its own.
        is_known = path.endswith(".auth_token")
        if not is_known and not any(fnmatchcase(key, glob) for glob in allow):
            yield path, key


def _prompts(pipeline: Pipeline) -> Iterator[tuple[str, Prompt]]:
    for index, step in enumerate(pipeline.steps):
        if isinstance(step, PromptStep) and isinstance(step.prompt, Prompt):
            yield (f"steps[{index}].prompt" if "steps" in pipeline.data else "prompt"), step.prompt
    for name, prompt in pipeline.prompts.items():
        if isinstance(prompt, Prompt):
            yield f"prompts.{name}", prompt
