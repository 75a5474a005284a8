"""The blocking client of the control API of a run."""

import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Self, TypeVar

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


def _blocking(
    operation: Callable[Concatenate[Retries, P], Program[T]],
) -> "Callable[Concatenate[Client, P], T]":
    """The method that carries out an operation."""

    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.perform(operation(self._retries, *args, **kwargs))

    operations.describe(method, operation)
    return method


class Client(Connections[httpx.Client]):
    """Asks and answers a live run over its control API, and waits for what happens in it.

    `address` is `unix:PATH`, `HOST:PORT` or a URL; a port needs the `token`. Without one it is the
    only run that listens, in this folder or anywhere. A read, and whatever
    was refused a connection, is tried `max_retries` times more, after `retry_delay` seconds each;
    nothing else is sent twice. `tls` replaces the certificates that the system trusts.

    Nothing is connected before the first call. Several threads may use one client. Use it in a
    `with`, or `close` it.

    Raises:
        UsageError: the address is not one.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        while self._clients:
            _, client = self._clients.popitem()
            client.close()

    status = _blocking(operations.status)
    events = _blocking(operations.events)
    approvals = _blocking(operations.approvals)
    approval = _blocking(operations.approval)
    answer = _blocking(operations.answer)
    approve = _blocking(operations.approve)
    deny = _blocking(operations.deny)
    session = _blocking(operations.session)
    performance = _blocking(operations.performance)
    values = _blocking(operations.values)
    value = _blocking(operations.value)
    change_value = _blocking(operations.change_value)
    ask = _blocking(operations.ask)
    respond = _blocking(operations.respond)
    command = _blocking(operations.command)
    stop = _blocking(operations.stop)
    cancel = _blocking(operations.cancel)
    wait_for_server = _blocking(operations.wait_for_server)
    wait_for_event = _blocking(operations.wait_for_event)
    wait_for_approval = _blocking(operations.wait_for_approval)
    wait_for_value = _blocking(operations.wait_for_value)
    wait_for_end = _blocking(operations.wait_for_end)

    # As older programs call them.
    get_status = _blocking(older_names.get_status)
    get_project = _blocking(older_names.get_project)
    get_session = _blocking(older_names.get_session)
    get_performance = _blocking(older_names.get_performance)
    get_mma_status = _blocking(older_names.get_mma_status)
    get_value = _blocking(older_names.get_value)
    get_text_value = _blocking(older_names.get_text_value)
    get_events = _blocking(older_names.get_events)
    get_indicator_state = _blocking(older_names.get_indicator_state)
    get_node_status = _blocking(older_names.get_node_status)
    set_value = _blocking(older_names.set_value)
    click = _blocking(older_names.click)
    select_tab = _blocking(older_names.select_tab)
    select_list_item = _blocking(older_names.select_list_item)
    push_event = _blocking(older_names.push_event)
    post_gui = _blocking(older_names.post_gui)
    reset_session = _blocking(older_names.reset_session)
    request_confirmation = _blocking(older_names.request_confirmation)

    def follow(self, after: int | None = None, *, timeout: float | None = None) -> "EventStream":
        """The events after a number, from the oldest that are kept, as they happen.

        It ends with `run.finished`. With a `timeout`, iterating longer is a `WaitTimeoutError`.
        """
        return EventStream(self, EventReader(self._retries, after), timeout)

    def perform(self, program: Program[T]) -> T:
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
                result = self._act(action)
            except BaseException as found:  # ruff: ignore[blind-except] - the operation gets it, and raises it
                error = found

    def _act(self, action: Action) -> object:
        match action:
            case Send(request):
                _, response = self._sent(request, stream=False)
                return Reply(response.status_code, response.content)
            case Open(request):
                endpoint, response = self._sent(request, stream=True)
                return Opened(response.status_code, (endpoint, response, response.iter_raw()))
            case Read((endpoint, _, pieces)):
                try:
                    return next(pieces, b"")
                except httpx.TransportError as error:
                    raise endpoint.failure(error) from error
            case Close((_, response, _)):
                response.close()
            case Pause(seconds):
                time.sleep(seconds)
        return None

    def _sent(self, request: Request, *, stream: bool) -> tuple[Endpoint, httpx.Response]:
        endpoint = self._endpoint or self._locate()
        self._endpoint = None
        endpoint.require_listener()
        client = self._clients.get(endpoint)
        if client is None:
            made = httpx.Client(transport=httpx.HTTPTransport(**endpoint.options(self._tls)))
            client = self._clients.setdefault(endpoint, made)
        try:
            response = client.send(endpoint.request(request), stream=stream)
        except httpx.TransportError as error:
            raise endpoint.failure(error) from error
        self._endpoint = endpoint
        return endpoint, response


class EventStream:
    """The events of a run, one after the other, until its `run.finished`; use it in a `with`.

    From the beginning of the block on no event is missed. `after` is the number of the last event.
    """

    def __init__(self, client: Client, events: EventReader, timeout: float | None) -> None:
        self._client = client
        self._events = events
        self._deadline = Deadline(timeout, "the stream of events did not end")

    def __enter__(self) -> Self:
        self._client.perform(self._events.open(self._deadline))
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> JsonObject:
        event = self._client.perform(self._events.next(self._deadline))
        if event is None:
            self.close()
            raise StopIteration
        return event

    @property
    def after(self) -> int | None:
        """The number of the event that was given last."""
        return self._events.after

    def close(self) -> None:
        """Close its connection."""
        self._client.perform(self._events.close())
