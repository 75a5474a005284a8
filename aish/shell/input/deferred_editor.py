"""Gives the editor the data of a session that does not exist yet when the editor is created."""

from collections.abc import Callable, Mapping, Sequence

from aish.core.events import NOWHERE, Notice
from aish.core.frozen import frozen
from aish.core.protocols import Emit
from aish.shell.input.lines import Words


@frozen
class Shown:
    """The texts beside the line; each callable is called when it is drawn."""

    words: Words
    prompt: Callable[[], str]
    toolbar: Callable[[], str]


class DeferredEditor:
    """`lines.Words`, the prompt and the toolbar of a session, once it is set by `hold`."""

    def __init__(self, model: str | None) -> None:
        self.emit: Emit | None = None
        self._model = model
        self._shown: Shown | None = None
        self._waiting: list[str] = []

    def hold(self, shown: Shown) -> None:
        self._shown = shown
        for text in self._waiting:
            self.notice(text)
        self._waiting.clear()

    def notice(self, text: str) -> None:
        """Report a problem that does not end the session."""
        if self.emit is None or self._shown is None:
            self._waiting.append(text)
        else:
            self.emit(Notice(NOWHERE, "warning", "input", text))

    def prompt(self) -> str:
        """The name before the line: the model's alias."""
        return self._shown.prompt() if self._shown is not None else self._model or "aish"

    def toolbar(self) -> str:
        return "" if self._shown is None else self._shown.toolbar()

    def commands(self) -> Mapping[str, str]:
        return {} if self._shown is None else self._shown.words.commands()

    def arguments(self, command: str) -> Sequence[str]:
        return () if self._shown is None else self._shown.words.arguments(command)

    def paths(self, command: str) -> bool:
        return self._shown is not None and self._shown.words.paths(command)

    def tools(self) -> Sequence[str]:
        return () if self._shown is None else self._shown.words.tools()
