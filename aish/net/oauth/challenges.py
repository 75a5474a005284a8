"""The challenges of `WWW-Authenticate`, read as the lists that they are (RFC 9110, 11.6.1). Pure.

A header may hold several challenges, and a response several headers. Schemes and names of
parameters are compared without case.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from aish.core.frozen import frozen
from aish.core.patterns import lazy_pattern

INSUFFICIENT_SCOPE: Final = "insufficient_scope"
_LONGEST: Final = 16 * 1024
_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # ruff: ignore[hardcoded-password-string] - a pattern
_PARAMETER: Final = lazy_pattern(
    rf"[\s,]*(?P<name>{_TOKEN})\s*=\s*"
    rf'(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^\s,"=][^\s,"]*))(?=\s*(?:,|$))'
)
_SCHEME: Final = lazy_pattern(rf"[\s,]*(?P<scheme>{_TOKEN})(?=\s|,|$)(?!\s*=)")
_TOKEN68: Final = lazy_pattern(r"\s+[A-Za-z0-9._~+/-]+=*(?=\s*(?:,|$))")
_JUNK: Final = lazy_pattern(r'[\s,]*(?:"(?:[^"\\]|\\.)*"?|[^\s,"]+)')
_ESCAPE: Final = lazy_pattern(r"\\(.)")


@frozen
class Challenge:
    """A challenge: its scheme and the names of its parameters in lower case."""

    scheme: str
    parameters: Mapping[str, str]


@frozen
class AuthChallenge:
    """The words of a server with 401 or 403, as far as OAuth knows them."""

    error: str = ""
    description: str = ""
    scopes: tuple[str, ...] = ()
    metadata_url: str | None = None

    @property
    def wants_more_scopes(self) -> bool:
        return self.error == INSUFFICIENT_SCOPE


def read_challenges(headers: Iterable[str]) -> tuple[Challenge, ...]:
    """All challenges of all headers; what is not one is passed over."""
    return tuple(one for header in headers for one in _challenges(header[:_LONGEST]))


def read_refusal(headers: Iterable[str], body: bytes = b"") -> AuthChallenge:
    """Read all `Bearer` challenges together, and scopes that only a JSON body lacks."""
    said: dict[str, str] = {}
    for challenge in read_challenges(headers):
        if challenge.scheme == "bearer":
            said = {**challenge.parameters, **said}
    if "error" not in said:
        said = {**_from_body(body), **said}
    return AuthChallenge(
        error=said.get("error", ""),
        description=said.get("error_description", ""),
        scopes=tuple(dict.fromkeys(said.get("scope", "").split())),
        metadata_url=said.get("resource_metadata") or None,
    )


def _from_body(body: bytes) -> Mapping[str, str]:
    """`insufficient_scope` in the body alone, which some servers send; nothing else counts."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict) or found.get("error") != INSUFFICIENT_SCOPE:
        return {}
    return {name: value for name, value in found.items() if isinstance(value, str)}


def _challenges(header: str) -> Iterator[Challenge]:
    scheme, parameters = "", dict[str, str]()
    at = 0
    while at < len(header):
        if scheme and (found := _PARAMETER.match(header, at)):
            quoted = found["quoted"]
            value = found["plain"] if quoted is None else _ESCAPE.sub(r"\1", quoted)
            parameters.setdefault(found["name"].lower(), value)
        elif found := _SCHEME.match(header, at):
            if scheme:
                yield Challenge(scheme, parameters)
            scheme, parameters = found["scheme"].lower(), {}
            found = _TOKEN68.match(header, found.end()) or found
        elif not (found := _JUNK.match(header, at)):
            break
        at = found.end()
    if scheme:
        yield Challenge(scheme, parameters)
