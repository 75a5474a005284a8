"""Options of the pack `ws`."""

from collections.abc import Iterator

from aish.core.frozen import frozen
from aish.core.options import option


@frozen
class WsOptions:
    """Options of the event hub: `origins` are the pages that may connect, as written.

    `token_env` names the variable that has the token of its clients.
    """

    allow_remote: bool = False
    origins: tuple[str, ...] = option((), "literal")
    token_env: str = option("", "variable")

    def problems(self) -> Iterator[tuple[str, str]]:
        """Check the origins of pages, which are compared as browsers send them."""
        from urllib.parse import urlsplit

        for text in self.origins:
            try:
                parts = urlsplit(text)
                whole = f"{parts.scheme}://{parts.netloc}"
                is_one = parts.hostname is not None and parts.port != 0 and "@" not in parts.netloc
            except ValueError:
                whole, is_one = "", False
            if not is_one or text != whole.lower() or parts.scheme not in {"http", "https"}:
                message = f"`{text}` is not an origin: write `http://HOST:PORT` in lower case"
                yield "origins", message
