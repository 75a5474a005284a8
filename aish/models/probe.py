"""Checks that an endpoint responds and accepts the key, without a model request (`doctor`)."""

from aish.config.model import ModelEntry
from aish.core.errors import UnavailableError
from aish.models.headers import check_base_url, headers_of
from aish.models.retry import AttemptError, hint_for, origin_of
from aish.models.transport import ask_for
from aish.system.secrets.secrets import Secrets

_REFUSED = frozenset({401, 403})
_OK = 200


async def probe(entry: ModelEntry, key: str | None, secrets: Secrets) -> str:
    """The result of `GET {base_url}/models`, in a few words.

    Raises:
        UnavailableError: the endpoint does not respond, or refuses the key.
        UsageError: the entry cannot be used to send anything.
    """
    check_base_url(entry)
    try:
        status = await ask_for(entry, headers_of(entry, key), "/models")
    except AttemptError as error:
        error.message = secrets.mask(error.message)
        raise error.final(entry.alias) from None
    if status in _REFUSED:
        raise UnavailableError(
            f"HTTP {status}: the credentials are refused",
            where=f"model `{entry.alias}`",
            hint=hint_for(status, entry),
        )
    origin = origin_of(entry.base_url)
    # Many endpoints have no list of models; any response is sufficient here.
    return f"{origin} answers" if status == _OK else f"{origin} answers (HTTP {status})"
