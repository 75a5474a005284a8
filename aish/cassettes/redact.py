"""No secret reaches a cassette (C8): headers by name, values wherever and however they stand."""

from dataclasses import replace

from aish.cassettes.assembled import replaced
from aish.cassettes.edits import bytes_of, text_of
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
        return replace(request, headers=_headers(request.headers, secrets))
    return _request(request, secrets)


def redact_head(head: Head, secrets: Secrets) -> Head:
    """The head as it may be written."""
    env = {name: secrets.mask(value) for name, value in head.env.items()}
    return replace(head, env=env, run=secrets.mask(head.run))


def _request(request: Request, secrets: Secrets) -> Request:
    return replace(
        request,
        uri=secrets.mask(request.uri),
        headers=_headers(request.headers, secrets),
        body=bytes_of(secrets.mask(text_of(request.body))),
    )


def _response(response: Response, secrets: Secrets) -> Response:
    made = replaced(response, secrets)
    return replace(
        made,
        reason=secrets.mask(made.reason),
        headers=_headers(made.headers, secrets),
        broken=None if made.broken is None else secrets.mask(made.broken),
    )


def _headers(headers: Headers, secrets: Secrets) -> Headers:
    return tuple(
        (
            name,
            f"<secret:{name.lower()}>" if name.lower() in SENSITIVE else secrets.mask(value),
        )
        for name, value in headers
    )
