"""The login at a server, as its file says. Imported by every run: holds no code."""

from pathlib import Path
from typing import Literal

from aish.core.frozen import frozen

SecretPlace = Literal["basic", "post", "basic-plain"]
"""Where a token request has the client's secret; `basic-plain` does not encode it for a form."""
AssertionAudience = Literal["issuer", "token_url"]


@frozen
class OAuthSettings:
    """`mcp.servers.ALIAS.oauth`. A program has `client_secret_env` or `private_key_file`.

    With `login` a person logs in, in a browser; the client may have neither, and no `client_id`
    before it is registered. `authorization_url` is where the browser is sent, and `redirect_url`
    where it returns to. `scopes` of `None` leaves them to the server; an empty list asks for none.
    `issuer` is the only authorization server that the credentials are for; `token_url` is its token
    endpoint, and nothing is looked up then. Without `resource` the request does not name the MCP
    server.
    """

    client_id: str = ""
    login: bool = False
    client_secret_env: str | None = None
    private_key_file: Path | None = None
    key_id: str | None = None
    scopes: tuple[str, ...] | None = None
    issuer: str | None = None
    token_url: str | None = None
    authorization_url: str | None = None
    redirect_url: str | None = None
    token_auth: SecretPlace | None = None
    resource: bool = True
    assertion_audience: AssertionAudience = "issuer"


@frozen
class Credentials:
    """The settings with their variables expanded, and the client's secret if it has one.

    `command` is what a person types to log in.
    """

    settings: OAuthSettings
    secret: str | None = None
    command: str = ""
