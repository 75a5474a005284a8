"""The client of the control API for an event loop: the operations of `client`, awaited."""

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import anyio
import httpx

from aish.control import older_names, operations
from aish.control.answers import Reply
from aish.control.endpoint import Connections, Endpoint
from aish.control.operations import (
    Action,
    Close,
    Deadline,
    EventReader,
    Open,
    Opened,
    Pause,
    Program,
    Read,
    Request,
    Retries,
    Send,
)
from aish.core.json import JsonObject

P = ParamSpec("P")
T = TypeVar("T")


def _awaited(
    operation: Callable[Concatenate[Retries, P], Program[T]],
) -> "Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]":
    """The method that carries out an operation."""

    async def method(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.perform(operation(self._retries, *args, **kwargs))

    operations.describe(method, operation)
    return method


class AsyncClient(Connections[httpx.AsyncClient]):
    """A `Client` whose methods are awaited; `wait_for_` ones and streams can be cancelled.

    `async with` closes its connections. One event loop uses it.
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        while self._clients:
            _, client = self._clients.popitem()
            await client.aclose()

    status = _awaited(operations.status)
    events = _awaited(operations.events)
    approvals = _awaited(operations.approvals)
    approval = _awaited(operations.approval)
    answer = _awaited(operations.answer)
    approve = _awaited(operations.approve)
    deny = _awaited(operations.deny)
    session = _awaited(operations.session)
    performance = _awaited(operations.performance)
    values = _awaited(operations.values)
    value = _awaited(operations.value)
    change_value = _awaited(operations.change_value)
    ask = _awaited(operations.ask)
    respond = _awaited(operations.respond)
    command = _awaited(operations.command)
    stop = _awaited(operations.stop)
    cancel = _awaited(operations.cancel)
    wait_for_server = _awaited(operations.wait_for_server)
    wait_for_event = _awaited(operations.wait_for_event)
    wait_for_approval = _awaited(operations.wait_for_approval)
    wait_for_value = _awaited(operations.wait_for_value)
    wait_for_end = _awaited(operations.wait_for_end)

    # As older programs call them.
    get_status = _awaited(older_names.get_status)
    get_project = _awaited(older_names.get_project)
    get_session = _awaited(older_names.get_session)
    get_performance = _awaited(older_names.get_performance)
    get_mma_status = _awaited(older_names.get_mma_status)
    get_value = _awaited(older_names.get_value)
    get_text_value = _awaited(older_names.get_text_value)
    get_events = _awaited(older_names.get_events)
    get_indicator_state = _awaited(older_names.get_indicator_state)
    get_node_status = _awaited(older_names.get_node_status)
    set_value = _awaited(older_names.set_value)
    click = _awaited(older_names.click)
    select_tab = _awaited(older_names.select_tab)
    select_list_item = _awaited(older_names.select_list_item)
    push_event = _awaited(older_names.push_event)
    post_gui = _awaited(older_names.post_gui)
    reset_session = _awaited(older_names.reset_session)
    request_confirmation = _awaited(older_names.request_confirmation)

    def follow(
        self, after: int | None = None, *, timeout: float | None = None
    ) -> "AsyncEventStream":
        """The events after a number, from the oldest that are kept, as they happen.

        It ends with `run.finished`. With a `timeout`, iterating longer is a `WaitTimeoutError`.
        """
        return AsyncEventStream(self, EventReader(self._retries, after), timeout)

    async def perform(self, program: Program[T]) -> T:
        """Carry out an operation."""
        result: object = None
        error: BaseException | None = None
        while True:
            try:
                action = program.send(result) if error is None else program.throw(error)
            except StopIteration as end:
                value: T = end.value
                return value
            result, error = None, None
            try:
                result = await self._act(action)
            except BaseException as found:  # ruff: ignore[blind-except] - the operation gets it, and raises it
                error = found

    async def _act(self, action: Action) -> object:
        match action:
            case Send(request):
                _, response = await self._sent(request, stream=False)
                return Reply(response.status_code, response.content)
            case Open(request):
                endpoint, response = await self._sent(request, stream=True)
                return Opened(response.status_code, (endpoint, response, response.aiter_raw()))
            case Read((endpoint, _, pieces)):
                try:
                    return await anext(pieces, b"")
                except httpx.TransportError as error:
                    raise endpoint.failure(error) from error
            case Close((_, response, _)):
                with anyio.CancelScope(shield=True):
                    await response.aclose()
            case Pause(seconds):
                await anyio.sleep(seconds)
        return None

    async def _sent(self, request: Request, *, stream: bool) -> tuple[Endpoint, httpx.Response]:
        endpoint = self._endpoint or self._locate()
        self._endpoint = None
        client = self._clients.get(endpoint)
        if client is None:
            made = httpx.AsyncClient(
                transport=httpx.AsyncHTTPTransport(**endpoint.options(self._tls))
            )
            client = self._clients.setdefault(endpoint, made)
        try:
            response = await client.send(endpoint.request(request), stream=stream)
        except httpx.TransportError as error:
            raise endpoint.failure(error) from error
        self._endpoint = endpoint
        return endpoint, response


class AsyncEventStream:
    """The events of a run, one after the other, until its `run.finished`; in an `async with`.

    From the beginning of the block on no event is missed. `after` is the number of the last event.
    """

    def __init__(self, client: AsyncClient, events: EventReader, timeout: float | None) -> None:
        self._client = client
        self._events = events
        self._deadline = Deadline(timeout, "the stream of events did not end")

    async def __aenter__(self) -> Self:
        await self._client.perform(self._events.open(self._deadline))
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> JsonObject:
        event = await self._client.perform(self._events.next(self._deadline))
        if event is None:
            await self.close()
            raise StopAsyncIteration
        return event

    @property
    def after(self) -> int | None:
        """The number of the event that was given last."""
        return self._events.after

    async def close(self) -> None:
        """Close its connection."""
        await self._client.perform(self._events.close())
