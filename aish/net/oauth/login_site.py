"""The server at which a program or a person logs in, and what a login there needs."""

from collections.abc import Callable
from pathlib import Path

from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.net.oauth.failure import LoginError
from aish.net.oauth.requests import OAuthClient, open_client
from aish.net.oauth.settings import Credentials, OAuthSettings

Notice = Callable[[str, str], None]
"""Takes a code and a sentence."""


@frozen
class SecretMask:
    """Hides what is secret: `add` takes a name and a value, `mask` a text."""

    add: Callable[[str, str], None]
    mask: Callable[[str], str]


@frozen
class LoginSite:
    """A server with this URL, called `name` in messages, and the client for its login."""

    url: str
    name: str
    credentials: Credentials
    client: OAuthClient
    secret_mask: SecretMask
    notice: Notice

    @property
    def settings(self) -> OAuthSettings:
        return self.credentials.settings

    def hide(self, what: str, value: str) -> None:
        """Mask a secret from now on.

        Raises:
            LoginError: it is so short that it would be masked in ordinary text.
        """
        name = f"{self.name}.{what}"
        try:
            self.secret_mask.add(name, value)
        except UsageError as error:
            raise LoginError(f"`{name}`: {error.message}") from error


def open_site(
    url: str,
    credentials: Credentials,
    *,
    name: str,
    verify_server: bool | Path,
    seconds: float,
    secret_mask: SecretMask,
    notice: Notice,
) -> LoginSite:
    """The site of the server with this URL; nothing is asked yet."""
    client = open_client(url, credentials.settings, verify_server=verify_server, seconds=seconds)
    return LoginSite(url, name, credentials, client, secret_mask, notice)
