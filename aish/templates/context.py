"""What a template is rendered with."""

from collections import UserDict
from collections.abc import Mapping
from pathlib import Path

from aish.core.json import JsonValue


class ProjectNames(UserDict[str, JsonValue]):
    """The names a template sees, and the folder in which its `readfile` may read."""

    def __init__(self, names: Mapping[str, JsonValue], root: Path) -> None:
        super().__init__(names)
        self.root = root
