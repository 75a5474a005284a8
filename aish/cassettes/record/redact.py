"""Keeps secrets out of a cassette: headers by name, values anywhere and in any encoding.

Folders of this machine are replaced by their placeholders.
"""

from collections.abc import Iterator
from dataclasses import replace

from aish.cassettes.format.edits import bytes_of, text_of
from aish.cassettes.format.interaction import (
    Headers,
    Interaction,
    RecordingMetadata,
    Request,
    Response,
)
from aish.cassettes.format.path_placeholders import PathPlaceholders
from aish.cassettes.format.stream_text import replace_matches
from aish.cassettes.record.repeated_secrets import Repeated, mask_spans
from aish.system.secrets.secrets import Secrets

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


def redact(
    interaction: Interaction, secrets: Secrets, repeated: Repeated | None = None
) -> Interaction:
    """The interaction, redacted; chunks are split anew at secrets."""
    asked = redact_request(interaction.request, secrets, repeated)
    return Interaction(asked, _response(interaction.response, secrets))


def redact_request(request: Request, secrets: Secrets, repeated: Repeated | None = None) -> Request:
    """The request, redacted for writing and comparison; `repeated` knows the earlier ones."""
    thorough = _Thorough(secrets)
    result = replace(request, headers=_headers(request.headers, thorough))
    if not secrets:
        return result
    text = text_of(request.body)
    clean = (repeated or Repeated()).clean_body(text, request.uri, len(secrets), thorough.spans)
    return replace(
        result,
        method=thorough.mask(request.method),
        uri=thorough.mask(request.uri),
        body=request.body if clean is text else bytes_of(clean),
    )


def redact_head(head: RecordingMetadata, secrets: Secrets) -> RecordingMetadata:
    """The head, redacted."""
    thorough = _Thorough(secrets)
    env = {name: thorough.mask(value) for name, value in head.env.items()}
    return replace(head, env=env, run=thorough.mask(head.run))


class _Thorough:
    """Finds secrets in any encoding."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def spans(self, text: str) -> Iterator[tuple[int, int, str]]:
        """The positions of secrets: start, end, tag."""
        return self._secrets.spans_in_any_spelling(text)

    def mask(self, text: str) -> str:
        """The text with every secret replaced by its tag."""
        return mask_spans(text, self.spans(text)) if self else text


def _response(response: Response, secrets: Secrets) -> Response:
    thorough = _Thorough(secrets)
    response_copy = replace_matches(response, thorough)
    return replace(
        response_copy,
        reason=thorough.mask(response_copy.reason),
        headers=_headers(response_copy.headers, thorough),
        broken=None if response_copy.broken is None else thorough.mask(response_copy.broken),
    )


def _headers(headers: Headers, thorough: _Thorough) -> Headers:
    return tuple(
        (
            thorough.mask(name),
            f"<secret:{name.lower()}>" if name.lower() in SENSITIVE else thorough.mask(value),
        )
        for name, value in headers
    )


def hide_paths(interaction: Interaction, places: PathPlaceholders) -> Interaction:
    """The interaction with paths replaced by placeholders, as it is written."""
    if not places:
        return interaction
    request = interaction.request
    asked = replace(
        request, uri=places.hide(request.uri), body=bytes_of(places.hide(text_of(request.body)))
    )
    return Interaction(asked, replace_matches(interaction.response, places))
