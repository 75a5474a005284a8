"""Options of the pack `ml`."""

from collections.abc import Iterator
from pathlib import Path

from aish.core.frozen import frozen
from aish.core.options import option
from aish.packs.framework.option_checks import is_plain_address


@frozen
class InfluxOptions:
    """A database whose points `ml_status` shows; `token_env` names a variable."""

    url: str
    database: str
    token_env: str = option("", "variable")

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.url and not is_plain_address(self.url):
            yield "url", f"`{self.url}` is not the address of an InfluxDB"


@frozen
class MlOptions:
    """Options of the pack: `judge` is the alias of a model that scores by the file `rubric`."""

    judge: str | None = option(None, "model")
    rubric: Path | None = option(None, "literal", "own_file")
    influx: InfluxOptions | None = None
