"""Options of the pack `metrics`."""

from pathlib import Path

from aish.core.frozen import frozen
from aish.core.options import option


@frozen
class MetricsOptions:
    """Options of the pack: events are in `metrics` of the absolute `folder` or the state folder."""

    folder: Path | None = option(None, "literal")
