"""Options of the pack `browser`."""

from collections.abc import Iterator

from aish.core.frozen import frozen
from aish.core.options import option
from aish.packs.framework.option_checks import destination_problems


@frozen
class BrowserOptions:
    """Options of the pack: `program` is a name or a path, empty for Chromium in PATH.

    `allow` are addresses `host:port` that pages may reach although they are not public. `attach`
    permits a browser that is already running, which has its user's cookies.
    """

    program: str = option("", "literal")
    allow: tuple[str, ...] = option((), "literal")
    attach: bool = False

    def problems(self) -> Iterator[tuple[str, str]]:
        return destination_problems(self.allow)
