"""Options of the packs `shell` and `proc`."""

from pathlib import Path
from typing import Literal

from aish.core.frozen import frozen
from aish.core.options import option

Sandbox = Literal["auto", "bubblewrap", "landlock", "off", "required"]


@frozen
class ShellOptions:
    """`env_file` is absolute, `explain` the alias of a model."""

    env_file: Path | None = option(None, "literal", "environment_file")
    explain: str | None = option(None, "model")
    sandbox: Sandbox = "auto"
    network: bool = True
    keep_scripts: bool = False


@frozen
class ProcOptions:
    """`most` is the number of processes that may run at the same time."""

    env_file: Path | None = option(None, "literal", "environment_file")
    sandbox: Sandbox = "auto"
    network: bool = True
    most: int = 16
