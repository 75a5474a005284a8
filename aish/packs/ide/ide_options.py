"""Options of the pack `ide`."""

from collections.abc import Iterator
from dataclasses import MISSING

from aish.core.frozen import frozen
from aish.core.options import option

_LOCAL_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})


@frozen
class BridgeOptions:
    """A WebSocket that answers instead of the pack `ide`; times in seconds.

    `token_env` names the variable with its token. A lost connection is reopened after `reconnect`,
    then after twice as long each time, up to `most`.
    """

    url: str = option(MISSING, "literal")
    token_env: str = option("", "variable")
    reconnect: float = 2.0
    most: float = 30.0

    def problems(self) -> Iterator[tuple[str, str]]:
        """Check that the token is sent encrypted, or stays on this machine."""
        from urllib.parse import urlsplit

        try:
            parts = urlsplit(self.url)
            is_one = parts.hostname is not None and parts.port != 0 and "@" not in parts.netloc
        except ValueError:
            is_one = False
        if not is_one or parts.scheme not in {"ws", "wss"} or parts.fragment:
            yield "url", f"`{self.url}` is not the address of a WebSocket"
        elif self.token_env and parts.scheme == "ws" and parts.hostname not in _LOCAL_HOSTS:
            message = (
                "the token would be sent unencrypted: use `wss`, or an address of this machine"
            )
            yield "url", message
        if not 1 <= self.reconnect <= self.most:
            yield "reconnect", "must be at least 1s, and not more than `most`"


@frozen
class IdeOptions:
    """Options of the pack: `model` is the alias for chats."""

    model: str | None = option(None, "model")
    bridge: BridgeOptions | None = None
