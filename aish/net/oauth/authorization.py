"""The request that a browser takes to a login page, and the answer that it brings back. Pure.

The code of the answer is bound to this login by a proof key (PKCE, RFC 7636), by `state`, and by
the issuer that the answer names (RFC 9207).
"""

from base64 import urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from aish.core.frozen import frozen
from aish.core.patterns import lazy_pattern
from aish.net.oauth.failure import LoginError, quote
from aish.net.oauth.metadata import IssuerMetadata, is_secure
from aish.net.oauth.refusals import TokenQuestion, advise

METHOD: Final = "S256"
OFFLINE: Final = "offline_access"
_ADDRESS: Final = lazy_pattern(r"[A-Za-z0-9._~:/?#\[\]@!$&()*+,;=%-]+")
_MOST_FIELDS: Final = 50


@frozen
class Authorization:
    """A request for one login, and what its answer has to agree with.

    `issuer` is empty where nobody knows how it spells itself. `question` is what is asked for.
    """

    question: TokenQuestion
    redirect_url: str
    state: str
    verifier: str
    issuer: str
    promises_issuer: bool


@frozen
class RejectedAnswer:
    """An answer that is not that of this login; nothing of it counts, and `said` is only shown."""

    said: str


def check_login_page(issuer: IssuerMetadata, *, is_named: bool) -> str:
    """The address of the login page of an issuer; `is_named` if the file has it.

    Raises:
        LoginError: there is none that a browser may be sent to, or it ignores the proof key.
    """
    page = issuer.authorization_endpoint
    if page is None:
        message = "has no login page: it names no `authorization_endpoint`"
        raise LoginError(f"the authorization server `{quote(issuer.issuer)}` {message}")
    if not is_secure(page) or not _ADDRESS.fullmatch(page):
        message = "is not opened: it is not https, nor of this machine"
        raise LoginError(f"the login page `{quote(page)}` {message}")
    if not is_named and METHOD not in issuer.challenge_methods:
        raise LoginError(
            f"the authorization server `{quote(issuer.issuer)}` does not say that it binds a code"
            f" to its login (`{METHOD}` in `code_challenge_methods_supported`); if it does,"
            " write its `authorization_url` and `token_url`"
        )
    return page


def page_address(asked: Authorization) -> str:
    """The address of a login page, with the request in it."""
    question = asked.question
    scopes = question.scopes
    challenge = urlsafe_b64encode(sha256(asked.verifier.encode()).digest()).decode().rstrip("=")
    fields = {
        "response_type": "code",
        "client_id": question.settings.client_id,
        "redirect_uri": asked.redirect_url,
        "state": asked.state,
        "code_challenge": challenge,
        "code_challenge_method": METHOD,
    }
    if scopes:
        fields["scope"] = " ".join(scopes)
    if OFFLINE in scopes:
        # OpenID Connect has it ignored otherwise.
        fields["prompt"] = "consent"
    if question.settings.resource:
        fields["resource"] = question.resource
    parts = urlsplit(question.endpoint)
    own = parse_qsl(parts.query, keep_blank_values=True)
    kept = [(name, value) for name, value in own if name not in fields]
    return urlunsplit(parts._replace(query=urlencode([*kept, *fields.items()], errors="replace")))


def read_redirect(query: str, asked: Authorization) -> str | RejectedAnswer:
    """The code that a browser brings, or why the answer is not that of this login.

    Raises:
        LoginError: it is, and there is no code; or another issuer has answered.
    """
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        return RejectedAnswer("it has too many fields")
    fields = dict(pairs)
    said = _error_words(fields)
    if len(fields) != len(pairs):
        return RejectedAnswer("it has a field twice")
    if not compare_digest(fields.get("state", "").encode(), asked.state.encode()):
        is_other = "its `state` is not that of this login"
        text = is_other if "state" in fields else "it has no `state`"
        return RejectedAnswer(f"{text} ({said})" if said else text)
    _check_issuer(fields.get("iss"), asked)
    if said:
        advice = advise(asked.question, fields["error"])
        raise LoginError(f"`{quote(asked.issuer)}` refuses the login: {said}{advice}")
    code = fields.get("code", "")
    if not code:
        raise LoginError(f"`{quote(asked.issuer)}` answers the login without a code")
    return code


def _check_issuer(named: str | None, asked: Authorization) -> None:
    if not asked.issuer:
        return
    if named is None and asked.promises_issuer:
        raise LoginError(
            f"the answer to the login does not name its issuer, and `{quote(asked.issuer)}` says"
            " that it always does: nothing of it is used"
        )
    if named is not None and named != asked.issuer:
        raise LoginError(
            f"the answer to the login is of the issuer `{quote(named)}`, and the login began at"
            f" `{quote(asked.issuer)}`: nothing of it is used"
        )


def _error_words(fields: Mapping[str, str]) -> str:
    error, text = fields.get("error", ""), fields.get("error_description", "")
    if not error:
        return ""
    return f"`{quote(error)}` ({quote(text)})" if text else f"`{quote(error)}`"
