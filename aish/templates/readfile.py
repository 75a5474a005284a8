"""The filter `readfile`: files of the project, and nothing beside it (F6)."""

from collections.abc import Callable
from pathlib import Path

from aish.templates.limits import MAX_OUTPUT, TemplateLimitError
from aish.templates.project_file import ProjectFileError, project_file


def readfile_in(root: Path) -> Callable[[object], str]:
    """A filter that reads UTF-8 files inside `root` and nowhere else."""

    def readfile(value: object) -> str:
        """The text of a file of the project."""
        name = str(value)
        try:
            return project_file(root, name, MAX_OUTPUT).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise TemplateLimitError(f"readfile: `{name}` is not UTF-8") from error
        except ProjectFileError as error:
            raise TemplateLimitError(f"readfile: `{name}` {error}") from error

    return readfile
