"""Whether an endpoint is there and takes the key, without asking its model anything (`doctor`)."""

import httpx

from aish.config.pipeline import ModelEntry
from aish.errors import UnavailableError
from aish.models.failure import hint_for, not_connected, origin_of
from aish.models.headers import check_base_url, headers_of
from aish.models.transport import open_client
from aish.system.secrets import Secrets

_REFUSED = frozenset({401, 403})
_OK = 200


async def probe(entry: ModelEntry, key: str | None, secrets: Secrets) -> str:
    """What `GET {base_url}/models` says, in a few words.

    Raises:
        UnavailableError: nobody answers there, or the key is refused.
        UsageError: the entry cannot be used to send anything.
    """
    check_base_url(entry)
    headers = dict(headers_of(entry, key))
    base = httpx.URL(entry.base_url or "")
    url = base.copy_with(path=f"{base.path.rstrip('/')}/models")
    limits = httpx.Timeout(entry.timeout.connect).as_dict()
    request = httpx.Request("GET", url, headers=headers, extensions={"timeout": limits})
    transport = open_client(entry)
    try:
        response = await transport.handle_async_request(request)
        await response.aclose()
    except httpx.HTTPError as error:
        why = secrets.mask(str(error) or type(error).__name__)
        raise not_connected(why, entry).final(entry.alias) from error
    finally:
        await transport.aclose()
    status = response.status_code
    if status in _REFUSED:
        raise UnavailableError(
            f"HTTP {status}: the credentials are refused",
            where=f"model `{entry.alias}`",
            hint=hint_for(status, entry),
        )
    origin = origin_of(entry.base_url)
    # Many endpoints have no list of models; that they answer is what counts here.
    return f"{origin} answers" if status == _OK else f"{origin} answers (HTTP {status})"
