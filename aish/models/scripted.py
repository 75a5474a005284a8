"""A substitute for a model endpoint: a list of turns, played in order, without a socket.

For tests, and for trying a pipeline without a model.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence

import anyio

from aish.core.errors import StepFailedError
from aish.core.frozen import frozen
from aish.core.messages import Delta, Finish, FinishReason, TextPiece, Turn, Usage
from aish.core.protocols import ModelRequest
from aish.core.tools import NO_MEDIA, MediaKinds, ToolCall


@frozen
class ScriptedTurn:
    """An answer as batches of deltas.

    `error` is raised after them; with `hangs` the stream then waits until the consumer leaves.
    """

    batches: tuple[tuple[Delta, ...], ...] = ()
    error: Exception | None = None
    hangs: bool = False


@frozen
class SeenRequest:
    """A snapshot of a request: unlike its history, `turns` does not grow."""

    request: ModelRequest
    turns: tuple[Turn, ...]


Script = str | Exception | ScriptedTurn | Callable[[ModelRequest], "str | ScriptedTurn"]


def says(
    text: str = "", *calls: ToolCall, usage: Usage | None = None, alias: str = "scripted"
) -> ScriptedTurn:
    """A complete answer: text, then complete tool calls."""
    words: tuple[Delta, ...] = (TextPiece(text),) if text else ()
    reason: FinishReason = "tool_calls" if calls else "stop"
    finish = Finish(reason=reason, usage=usage or Usage(), raw=reason, model=alias)
    return ScriptedTurn(batches=(words, (*calls, finish)))


class Scripted:
    """Plays its turns in order and records its requests.

    A turn is text, a `ScriptedTurn`, an exception to raise, or a function of the request.
    """

    def __init__(
        self,
        turns: Iterable[Script],
        *,
        alias: str = "scripted",
        enforces_schema: bool = False,
        schema_with_tools: bool = True,
        media_kinds: MediaKinds = NO_MEDIA,
    ) -> None:
        self._turns = iter(turns)
        self._alias = alias
        self._enforces_schema = enforces_schema
        self._schema_with_tools = schema_with_tools
        self._media_kinds = media_kinds
        self.requests: list[SeenRequest] = []

    @property
    def alias(self) -> str:
        return self._alias

    @property
    def enforces_schema(self) -> bool:
        return self._enforces_schema

    @property
    def schema_with_tools(self) -> bool:
        return self._schema_with_tools

    @property
    def nulls_for_absent(self) -> bool:
        return False

    @property
    def media_kinds(self) -> MediaKinds:
        return self._media_kinds

    async def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Delta]]:
        """Play the next turn.

        Raises:
            StepFailedError: the script has no turn left, or contains this error.
        """
        self.requests.append(SeenRequest(request, tuple(request.history.turns)))
        turn = self._next(request)
        for batch in turn.batches:
            await anyio.lowlevel.checkpoint()
            if batch:
                yield batch
        if turn.error is not None:
            raise turn.error
        if turn.hangs:
            await anyio.sleep_forever()

    def _next(self, request: ModelRequest) -> ScriptedTurn:
        script = next(self._turns, None)
        if script is None:
            raise StepFailedError("the script has no turn left", where=f"model `{self._alias}`")
        if callable(script):
            script = script(request)
        if isinstance(script, Exception):
            return ScriptedTurn(error=script)
        return says(script, alias=self._alias) if isinstance(script, str) else script
