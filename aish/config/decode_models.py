"""`models:` into entries (design 2.1)."""

from collections.abc import Mapping

from aish.config.models import (
    EMBEDDED_TOKENS,
    JsonSchemaUse,
    ModelEntry,
    ModelTimeout,
    Price,
    RetryPolicy,
)
from aish.config.reading import Table
from aish.core.json import JsonValue

EMBEDDED = "smollm2"
_MOST_TOKENS = ("max_tokens", "max_completion_tokens")
_ONLY_REMOTE = ("model", "key_env", "headers", "proxy", "verify_tls")


def decode_models(models: Table) -> dict[str, ModelEntry]:
    """Every entry by its alias."""
    return {alias: _entry(alias, table) for alias, table in models.tables()}


def _entry(alias: str, table: Table) -> ModelEntry:
    _check_kind(table)
    for key in ("base_url", "model", "headers", "proxy"):
        table.check_references(key)
    retry, timeout = table.part("retry"), table.part("timeout")
    return ModelEntry(
        alias=alias,
        base_url=table.text("base_url"),
        model=table.text("model"),
        embedded=_embedded(table),
        key_env=table.text("key_env"),
        headers=table.pairs("headers"),
        params=_params(table),
        fallback=table.texts("fallback"),
        retry=RetryPolicy(
            attempts=retry.whole("attempts", RetryPolicy().attempts),
            max_delay=retry.seconds("max_delay", RetryPolicy().max_delay),
        ),
        timeout=_timeout(timeout),
        tool_role=table.flag("tool_role", default=True),
        json_schema=_json_schema(table),
        vision=table.flag("vision", default=False),
        usage=table.flag("usage", default=True),
        max_tool_name=table.whole("max_tool_name", 64),
        verify_tls=table.flag("verify_tls", default=True),
        proxy=table.text("proxy"),
        price=_price(table.child("price")),
    )


def _params(table: Table) -> Mapping[str, JsonValue]:
    params = table.mapping("params")
    if not table.has("embedded") or any(name in params for name in _MOST_TOKENS):
        return params
    return {**params, _MOST_TOKENS[0]: EMBEDDED_TOKENS}


def _price(price: Table | None) -> Price | None:
    if price is None:
        return None
    parts = (price.data("input"), price.data("output"))
    read, written = (float(p) if isinstance(p, (int, float)) else 0.0 for p in parts)
    return Price(read, written)


def _json_schema(table: Table) -> JsonSchemaUse:
    if not table.has("json_schema") and table.has("embedded"):
        return "without_tools"
    return (
        "without_tools" if table.text("json_schema") else table.flag("json_schema", default=False)
    )


def _check_kind(table: Table) -> None:
    if table.has("base_url") and table.has("embedded"):
        table.problem("embedded", "a model has `base_url` or `embedded`, not both")
    elif table.has("embedded"):
        for key in _ONLY_REMOTE:
            if table.has(key):
                table.problem(key, f"an embedded model has no `{key}`")
    elif not table.has("base_url"):
        hint = "`base_url: http://…/v1` for an endpoint, `embedded: smollm2` for one of our own"
        table.problem(None, "a model needs `base_url` or `embedded`", hint)
    elif not table.has("model"):
        table.problem(None, "an endpoint needs `model`, the name it goes by there")


def _embedded(table: Table) -> str | None:
    text = table.text("embedded")
    if text is None or text == EMBEDDED:
        return text
    path = table.absolute("embedded")
    if path is None or path.suffix != ".gguf":
        hint = "write `smollm2`, or the path of a `.gguf` file"
        table.problem("embedded", f"`{text}` is no embedded model", hint)
    return str(path)


def _timeout(table: Table) -> ModelTimeout:
    default = ModelTimeout()
    return ModelTimeout(
        connect=table.seconds("connect", default.connect),
        first_token=table.seconds("first_token", default.first_token),
        idle=table.seconds("idle", default.idle),
        turn=table.seconds("turn", default.turn),
    )
