"""Requests and notifications of a server to its client.

Legacy servers send requests of their own, those of the stateless era put them into an
`input_required` result; the answers are the same. A hub passes them on to the client whose call
they belong to. In a replay, a notification that tools changed is
delivered as soon as it may have been sent, though it led to what is recorded later: the list of
tools that was requested again.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import field
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from aish.core.errors import AishError, BudgetError, UnavailableError
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonObject
from aish.core.options import ModelConsent
from aish.core.protocols import Progress, Sampler
from aish.core.tools import SAMPLING_FAILURE, SamplingFailure, model_hint
from aish.mcp.protocol.messages import (
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    REFUSED_BY_USER,
    Noted,
    RpcError,
    ServerRequest,
)
from aish.mcp.protocol.revisions import LIST_CHANGES
from aish.mcp.transports.settings import CallTime
from aish.mcp.transports.transport import Headers


class CallOwner(Protocol):
    """The client that a call is made for, where a hub makes it."""

    @property
    def client(self) -> str: ...

    def capabilities(self) -> JsonObject: ...

    def client_params(self, server: str, method: str, params: JsonObject) -> JsonObject | None:
        """The params of a server's request as they are passed on to it, or `None`."""

    def is_given(self, requests: Mapping[str, JsonObject]) -> bool:
        """Return true if a stateless server gets these requests in the result of the call."""

    async def ask(
        self, method: str, params: JsonObject, on_progress: Callable[[JsonObject], None]
    ) -> JsonObject:
        """Its answer to a request.

        Raises:
            RpcError: it refuses, or does not answer.
        """


CheckAnswer = Callable[[str, JsonObject], None]
"""Judges what a client says to the server with an alias.

Raises:
    RpcError: the server may not have it.
"""


def _check_nothing(alias: str, answer: JsonObject) -> None:
    """Let each server have each answer: nobody follows the text."""


@frozen
class Call:
    """Parts of a single request: its progress listener, its sampler, its headers.

    `continuation` is what a client of a hub sends again: its answers, and the server's state.
    `on_log` takes the params of the log messages about it, `log_level` is the least important level
    that it wants. `limit` are seconds, where the server's entry allows more. `trace` goes into
    `_meta`. With different `run_key`s equal calls of a hub's pipeline have runs of their own. What
    the client answers to a server passes `check_answer`.
    """

    on_progress: Callable[[Progress], None] | None = None
    sample: Sampler | None = None
    headers: Headers = ()
    owner: CallOwner | None = None
    continuation: JsonObject = field(default_factory=dict)
    time: CallTime | None = None
    on_log: Callable[[JsonObject], None] | None = None
    log_level: str | None = None
    limit: float = inf
    trace: JsonObject = field(default_factory=dict)
    run_key: str = ""
    check_answer: CheckAnswer = _check_nothing


NO_CALL = Call()
ELICITING = frozenset({"tools/call", "resources/read", "prompts/get"})
"""Requests on the way to whose answer a person may be asked; at any other time nobody is."""


@slotted
class InFlight:
    """A pending request; `elicits` says that the user may be asked while it runs."""

    call: Call
    elicits: bool = False
    progress_seen: int = 0
    asked: int = 0
    passed_on: int = 0
    missed: AishError | None = None
    answered: anyio.Event = field(default_factory=anyio.Event)
    answering: set[anyio.CancelScope] = field(default_factory=set)

    async def all_answered(self) -> None:
        """Wait until the server has an answer to everything that it asked so far."""
        while self.asked:
            await self.answered.wait()

    def abandon(self) -> None:
        """Cancel the wait for the answer, and for what the server asks meanwhile."""
        for scope in self.answering:
            scope.cancel()


Elicit = Callable[[str, JsonObject], Awaitable[JsonObject]]
"""Asks the person: the server's alias and its `elicitation/create` params in, the result out."""

MODEL_PREFERENCES = "modelPreferences"
ELICITATION = "elicitation/create"
SAMPLING = "sampling/createMessage"
ROOTS = "roots/list"
OnProgress = Callable[[JsonObject], None]
"""Takes what is told of the progress of an answer."""
MAX_PASSED_ON = 100
"""Requests of a server that are passed on for one call: later ones are refused."""
PASSED_ON: Mapping[str, JsonObject] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}},
    "roots": {},
}
"""What is declared to a server of the handshake era, whose clients are not known yet."""
DECLINED: JsonObject = {"action": "decline"}


@frozen
class Answers:
    """The answers of one server's entry.

    Elicitation is declared even if no user can be asked: a server that wants to ask before it
    continues receives a refusal, and does not continue without asking.

    `consent` is that of built-in packs: their requests may name a model of the file, and are for no
    other one. `forwards` are the capabilities of clients that requests are passed on to.
    """

    alias: str
    roots: Sequence[Path] = ()
    sampling: bool = False
    elicit: Elicit | None = None
    consent: ModelConsent | None = None
    forwards: frozenset[str] = frozenset()

    def capabilities(self, owner: CallOwner | None = None) -> JsonObject:
        declared: dict[str, Any] = {"elicitation": {}}
        if self.roots:
            declared["roots"] = {}
        if self.sampling:
            declared["sampling"] = {}
        if owner is not None:
            return {**declared, **owner.capabilities()}
        return declared | {kind: PASSED_ON[kind] for kind in sorted(self.forwards)}

    async def answer_on_the_way(
        self,
        method: str,
        params: JsonObject,
        running: InFlight,
        on_progress: OnProgress = lambda _: None,
    ) -> JsonObject:
        """The result for a request that the server makes while it handles a request of the client.

        Raises:
            RpcError: the request is refused, or unknown.
        """
        owner = running.call.owner
        running.passed_on += 1
        is_passed_on = self.consent is None and running.passed_on <= MAX_PASSED_ON
        if owner is not None and is_passed_on:
            asked = owner.client_params(self.alias, method, params)
            if asked is not None:
                time = running.call.time
                with nullcontext() if time is None else time.pause():
                    return await self._ask_owner(owner, method, asked, running.call, on_progress)
        elicits = method == ELICITATION
        if elicits and not running.elicits:
            return DECLINED
        result = await self.answer(method, params, running.call.sample)
        if elicits and result.get("action") == "cancel":
            # A user who cancelled is not asked again.
            running.elicits = False
        return result

    async def _ask_owner(
        self,
        owner: CallOwner,
        method: str,
        params: JsonObject,
        call: Call,
        on_progress: OnProgress,
    ) -> JsonObject:
        """The client's answer; it is not asked if the server could not have it.

        Raises:
            RpcError: the client refuses, or may not say that to the server.
        """
        check = partial(call.check_answer, self.alias)

        def tell(params: JsonObject) -> None:
            with suppress(RpcError):
                check(params)
                on_progress(params)

        check({})
        try:
            answer = await owner.ask(method, params, tell)
        except RpcError as error:
            check({"error": error.message})
            raise
        # It may have read more before it answered.
        check(answer)
        return answer

    async def answer(self, method: str, params: JsonObject, sample: Sampler | None) -> JsonObject:
        """The result for one request; `sample` is the sampler of the current call.

        Raises:
            RpcError: the request is refused, or unknown.
        """
        match method:
            case "ping":
                return {}
            case _ if method == ROOTS:
                return {"roots": [{"uri": p.as_uri(), "name": p.name} for p in self.roots]}
            case _ if method == ELICITATION:
                return DECLINED if self.elicit is None else await self.elicit(self.alias, params)
            case _ if method == SAMPLING:
                return await self._sample(params, sample)
        raise RpcError(METHOD_NOT_FOUND, f"method not found: {method}")

    async def _sample(self, params: JsonObject, sample: Sampler | None) -> JsonObject:
        if not self.sampling:
            raise RpcError(REFUSED_BY_USER, "sampling is denied by the configuration")
        if sample is None:
            raise RpcError(REFUSED_BY_USER, "sampling is answered only while a step's call runs")
        if self.consent is None:
            # Which model is asked, and paid for, is the step's decision.
            params = {key: value for key, value in params.items() if key not in _OF_PACKS}
        elif not self.consent.permits(alias := model_hint(params)):
            asked = f"model `{alias}`" if alias else "the model of the step"
            raise RpcError(REFUSED_BY_USER, f"the packs of `{self.alias}` may not ask {asked}")
        try:
            result = await sample.sample(params)
        except AishError as error:
            # The server gets an answer; the call it was made for continues and fails on its own.
            data = None if self.consent is None else {SAMPLING_FAILURE: _failure_of(error)}
            raise RpcError(INTERNAL_ERROR, error.message, data) from error
        if self.consent is None:
            result = {key: value for key, value in result.items() if key != "_meta"}
        return result


_OF_PACKS = frozenset({MODEL_PREFERENCES, "_meta"})


def _failure_of(error: AishError) -> SamplingFailure | None:
    if isinstance(error, BudgetError):
        return "limit"
    return "unavailable" if isinstance(error, UnavailableError) else None


if TYPE_CHECKING:
    from aish.mcp.transports.adapter import CassetteAdapter


class Replay:
    """Replay of the messages of one server, held back until `hear` may receive them."""

    def __init__(
        self,
        adapter: "CassetteAdapter",
        origin: str,
        hear: Callable[[ServerRequest | Noted, int | None], None],
    ) -> None:
        self._adapter = adapter
        self._origin = origin
        self._hear = hear
        self._changes: list[Noted] = []
        self._has_list = False
        self._released = 0
        adapter.on_played(self._release)

    def holds_back(self, message: ServerRequest | Noted) -> bool:
        """Hold back a message that is not due yet; returns whether it is one."""
        if not isinstance(message, Noted) or message.method != LIST_CHANGES["tools"]:
            return False
        self._changes.append(message)
        self._release()
        return True

    def on_answer(self, method: str) -> None:
        if method == "tools/list":
            self._has_list = True
            self._release()

    def end(self) -> None:
        self._changes.clear()

    def _release(self) -> None:
        if not self._changes or not self._has_list:
            return
        number = self._adapter.next_list(self._origin)
        # One notification for each list, however often this is checked before it is requested.
        if number is not None and number != self._released:
            self._released = number
            self._hear(self._changes.pop(0), None)
