"""Providers of models that speak chat completions, by the names that other programs give them."""

from collections.abc import Mapping

from aish.cli.importing.draft import ImportDraft
from aish.core.errors import Position
from aish.core.json import JsonValue

# Address, and the variable that holds the key by custom.
_ENDPOINTS: Mapping[str, tuple[str, str | None]] = {
    "openai": ("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "anthropic": ("https://api.anthropic.com/v1", "ANTHROPIC_API_KEY"),
    "openrouter": ("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "google": ("https://generativelanguage.googleapis.com/v1beta/openai", "GOOGLE_API_KEY"),
    "groq": ("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "mistral": ("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "deepseek": ("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "xai": ("https://api.x.ai/v1", "XAI_API_KEY"),
    "ollama": ("http://localhost:11434/v1", None),
}


DEFAULT = "cloud"


def default_models(draft: ImportDraft) -> dict[str, JsonValue]:
    """The model of a file that names none: the one of the starters, to be chosen by variables."""
    draft.uses(
        "MODEL_KEY", "the key of the model; `MODEL_URL` and `MODEL_NAME` choose another endpoint"
    )
    draft.read |= {"MODEL_URL", "MODEL_NAME"}
    return {
        DEFAULT: {
            "base_url": "${MODEL_URL:-https://openrouter.ai/api/v1}",
            "model": "${MODEL_NAME:-anthropic/claude-sonnet-4.5}",
            "key_env": "MODEL_KEY",
        }
    }


def is_known(provider: str) -> bool:
    return provider.lower() in _ENDPOINTS


def model_entry(
    provider: str, model: str, draft: ImportDraft, position: Position, path: str
) -> dict[str, JsonValue]:
    """An entry under `models`; of a provider that is not known, with variables to fill in."""
    known = _ENDPOINTS.get(provider.lower())
    if known is None:
        draft.skip(
            position, path, f"the provider `{provider}`: a chat completions endpoint in `MODEL_URL`"
        )
        draft.uses("MODEL_URL", f"the endpoint of `{model}`, without `/chat/completions`")
        draft.uses("MODEL_KEY", f"the key of the model `{model}`")
        return {"base_url": "${MODEL_URL}", "model": model, "key_env": "MODEL_KEY"}
    url, key = known
    if key is None:
        return {"base_url": url, "model": model}
    draft.uses(key, f"the key of the model `{model}`")
    return {"base_url": url, "model": model, "key_env": key}
