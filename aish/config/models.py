"""`models` as declared (design 2.1): nothing is resolved; durations are seconds."""

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from aish.core.frozen import frozen
from aish.core.json import JsonValue

JsonSchemaUse = bool | Literal["without_tools"]


@frozen
class RetryPolicy:
    """How often a model request is tried, the first time included; `max_delay` in seconds."""

    attempts: int = 4
    max_delay: float = 60.0


@frozen
class ModelTimeout:
    """Seconds (L10)."""

    connect: float = 10.0
    first_token: float = 120.0
    idle: float = 60.0
    turn: float = 600.0


@frozen
class Price:
    """USD per million tokens (B10)."""

    input: float
    output: float


EMBEDDED_TOKENS = 256
"""A small model may never come to an end by itself, and takes minutes for what it has room for."""


@frozen
class ModelEntry:
    """`models.ALIAS`. Exactly one of `base_url` and `embedded` is set.

    `embedded` is `smollm2` or an absolute path to a `.gguf`. Embedded models have `json_schema:
    without_tools`: their server enforces a schema so strictly that no tool could be called. They
    answer with at most `EMBEDDED_TOKENS` where `params` do not say otherwise.
    """

    alias: str
    base_url: str | None = None
    model: str | None = None
    embedded: str | None = None
    key_env: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, JsonValue] = field(default_factory=dict)
    fallback: tuple[str, ...] = ()
    retry: RetryPolicy = RetryPolicy()
    timeout: ModelTimeout = ModelTimeout()
    tool_role: bool = True
    json_schema: JsonSchemaUse = False
    vision: bool = False
    usage: bool = True
    max_tool_name: int = 64
    verify_tls: bool = True
    proxy: str | None = None
    price: Price | None = None
