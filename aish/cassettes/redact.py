"""No secret reaches a cassette (C8): headers by name, values wherever and however they stand."""

from collections.abc import Iterator
from dataclasses import replace

from aish.cassettes.assembled import masks, replaced
from aish.cassettes.edits import bytes_of, edited, text_of
from aish.cassettes.interaction import Head, Headers, Interaction, Request, Response
from aish.system.secrets import Secrets

SENSITIVE = frozenset(
    {
        "authorization",
        "cookie",
        "set-cookie",
        "x-api-key",
        "api-key",
        "proxy-authorization",
        "mcp-session-id",
    }
)


def redact(interaction: Interaction, secrets: Secrets) -> Interaction:
    """The interaction as it may be written; chunks are cut anew where secrets stood."""
    return Interaction(
        _request(interaction.request, secrets), _response(interaction.response, secrets)
    )


def redact_request(request: Request, secrets: Secrets) -> Request:
    """The request as it may be written, and as it is compared."""
    if not secrets:
        return replace(request, headers=_headers(request.headers, _Thorough(secrets)))
    return _request(request, secrets)


def redact_head(head: Head, secrets: Secrets) -> Head:
    """The head as it may be written."""
    thorough = _Thorough(secrets)
    env = {name: thorough.mask(value) for name, value in head.env.items()}
    return replace(head, env=env, run=thorough.mask(head.run))


class _Thorough:
    """Finds secrets in any spelling."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def spans(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Where secrets stand: start, end, tag."""
        return self._secrets.spans_in_any_spelling(text)

    def mask(self, text: str) -> str:
        """The text with every secret replaced by its tag."""
        pieces: list[str] = []
        end = 0
        for start, stop, tag in self.spans(text) if self else ():
            pieces += (text[end:start], tag)
            end = stop
        return "".join((*pieces, text[end:])) if end else text


def _request(request: Request, secrets: Secrets) -> Request:
    thorough = _Thorough(secrets)
    text = text_of(request.body)
    if "\\u" in text:
        # Some of it is spelled in a way that only who reads the JSON can see.
        text = text_of(edited(request.body, masks(text, thorough)))
    return replace(
        request,
        method=thorough.mask(request.method),
        uri=thorough.mask(request.uri),
        headers=_headers(request.headers, thorough),
        body=bytes_of(thorough.mask(text)),
    )


def _response(response: Response, secrets: Secrets) -> Response:
    thorough = _Thorough(secrets)
    made = replaced(response, thorough)
    return replace(
        made,
        reason=thorough.mask(made.reason),
        headers=_headers(made.headers, thorough),
        broken=None if made.broken is None else thorough.mask(made.broken),
    )


def _headers(headers: Headers, thorough: _Thorough) -> Headers:
    return tuple(
        (
            thorough.mask(name),
            f"<secret:{name.lower()}>" if name.lower() in SENSITIVE else thorough.mask(value),
        )
        for name, value in headers
    )
