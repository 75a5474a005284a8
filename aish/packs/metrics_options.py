"""Options of the pack `metrics`."""

from pathlib import Path

from aish.core.frozen import frozen
from aish.core.options import option


@frozen
class MetricsOptions:
    """Events are in a folder `metrics` of the absolute `folder`, else of the state folder."""

    folder: Path | None = option(None, "literal")
