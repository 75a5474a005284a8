"""The files of a run's folder, in memory, for turns that have images."""

from aish.core.tools import Media

IMAGE = Media("image/png", b"\x89PNG\r\n")


class Files:
    """The files of a run's folder, or of none."""

    def __init__(self, *, keeps: bool = True) -> None:
        self.content: dict[str, bytes] = {}
        self.keeps = keeps

    def keep(self, name: str, content: bytes) -> str | None:
        """As `RunFolder.keep`."""
        if not self.keeps:
            return None
        place = f"files/{len(self.content) + 1:04d}-{name}"
        self.content[place] = content
        return place

    def read(self, name: str) -> bytes | None:
        """As `RunFolder.read`."""
        return self.content.get(name)
