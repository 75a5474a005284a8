"""The words for a person when a token endpoint gives no token. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from aish.core.frozen import frozen
from aish.core.phrases import backticked
from aish.net.oauth.failure import quote
from aish.net.oauth.settings import OAuthSettings
from aish.net.oauth.token_answer import TokenRefusal

_GOOD: Final = 200
_PROGRAM: Final = "client_credentials"


@frozen
class TokenQuestion:
    """A request for a token, as far as its refusal is about it; `grant` is the kind of request."""

    settings: OAuthSettings
    endpoint: str
    resource: str
    scopes: Sequence[str]
    grant: str = _PROGRAM


def explain_refusal(asked: TokenQuestion, refusal: TokenRefusal) -> str:
    """Explain in one sentence who refuses, in which words, and what to do next."""
    code = f" `{quote(refusal.error)}`" if refusal.error else ""
    status = "" if refusal.status == _GOOD or code else f" HTTP {refusal.status}"
    said = f" ({quote(refusal.said)})" if refusal.said and (code or status) else ""
    said = said or (f" {quote(refusal.said)}" if refusal.said else "")
    advice = advise(asked, refusal.error)
    return f"no token from `{quote(asked.endpoint)}`:{code}{status}{said}{advice}"


def advise(asked: TokenQuestion, error: str) -> str:
    """The end of a sentence about a refusal: what to do next, if there is anything to say."""
    next_ = _NEXT.get(error)
    return "" if next_ is None else f"; {next_(asked)}"


def scopes_asked(scopes: Sequence[str]) -> str:
    """The scopes that were asked for, for a message."""
    return f"the scopes {backticked(map(quote, scopes))}" if scopes else "no scopes"


def _of_client(asked: TokenQuestion) -> str:
    settings = asked.settings
    if settings.private_key_file is not None:
        return (
            f"it does not know the client `{settings.client_id}` by this key: register the public"
            " key there, or set `assertion_audience: token_url` if it wants its own address as"
            " the audience"
        )
    if settings.client_secret_env is None:
        return f"it does not know the client `{quote(settings.client_id)}`"
    return (
        f"it does not know the client `{settings.client_id}` by this secret: see `client_id` and"
        f" the variable `{settings.client_secret_env}`, or set `token_auth` if it wants the secret"
        " elsewhere"
    )


def _of_target(asked: TokenQuestion) -> str:
    return (
        f"it does not know the server as the resource `{quote(asked.resource)}`: register it there,"
        " or set `resource: false` to ask without naming it"
    )


def _of_scopes(asked: TokenQuestion) -> str:
    where = "set `scopes`" if asked.settings.scopes is None else "see `scopes`"
    return f"asked for {scopes_asked(asked.scopes)}: {where}"


def _of_grant(asked: TokenQuestion) -> str:
    return f"allow the client `{asked.settings.client_id}` the grant `{asked.grant}` there"


_NEXT: Final[Mapping[str, Callable[[TokenQuestion], str]]] = {
    "invalid_client": _of_client,
    "invalid_target": _of_target,
    "invalid_scope": _of_scopes,
    "access_denied": _of_scopes,
    "unauthorized_client": _of_grant,
    "unsupported_grant_type": _of_grant,
}
