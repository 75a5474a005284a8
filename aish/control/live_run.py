"""Requests of commands to a run in another process, over its socket."""

import os
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path

from aish.control.client import BlockingExchange, run
from aish.control.errors import ApiError, ControlError
from aish.control.http_exchange import NO_DOCUMENT, PREFIX, OutgoingRequest, json_object
from aish.control.run_endpoint import LiveAddress, live_address
from aish.core.errors import AishError, UsageError
from aish.core.json import JsonObject, JsonValue
from aish.features.approvals.answer import GivenAnswer, NotAnsweredError, RunIsLiveError
from aish.features.approvals.questions import ApprovalQuestion
from aish.features.control.live_process import live_process
from aish.features.control.server import control_entries
from aish.features.history.run_store import RunStore
from aish.net.listen.tokens import token_from_env, token_from_file

_SECONDS = 20.0
_OPEN_A_PORT = "`aish run FILE --control 127.0.0.1:0` opens a port, which a browser can connect to"
_OPEN_ONE = "`--control` opens a socket to a run, and so do `on_ask: wait` and `on_ask: pause`"


def answer_live_run(
    store: RunStore, shown: ApprovalQuestion, given: GivenAnswer, live: RunIsLiveError
) -> Sequence[str]:
    """Answer the question that was `shown`; return the ids of the questions still open.

    Raises:
        RunIsLiveError: the run accepts no answers: it has no socket, or is not listening.
        NotAnsweredError: the run refused the answer.
    """
    try:
        where = _live_address(store, shown.run, live.pid)
    except FileNotFoundError:
        message, hint = f"{live.message}, and takes no answers", f"{live.hint}; {_OPEN_ONE}"
        raise RunIsLiveError(message, where=shown.run, hint=hint) from live
    except NotAnsweredError as error:
        raise RunIsLiveError(error.message, where=shown.run, hint=live.hint) from error
    body: JsonObject = {
        "answer": given.answer,
        "digest": shown.digest,
        "note": given.note,
        "way": "command",
    }
    token = None
    if where.address.path is None and where.token is None:
        token = _answer_token(where, shown.run)
    request = OutgoingRequest("POST", f"{PREFIX}/approvals/{shown.id}", body, None, _SECONDS)
    try:
        _value_in_answer(where, token, request, shown.run, "id")
    except _NoRunError as error:
        raise RunIsLiveError(error.message, where=shown.run, hint=live.hint) from error
    # The ids of the open questions, as far as the run tells: the answer was taken.
    request = OutgoingRequest("GET", f"{PREFIX}/status", seconds=_SECONDS)
    try:
        pending = _value_in_answer(where, token, request, shown.run, "pending")
    except NotAnsweredError:
        return ()  # it has ended meanwhile, or the token is good for answers alone
    return [str(id) for id in pending] if isinstance(pending, list) else ()


def link_to_page(store: RunStore, id: str, token: str | None = None) -> str:
    """Return a one-time link to the page of a live run; `token` is named by the run's file.

    Raises:
        NotAnsweredError: the run is not live, does not listen, or gives no link.
    """
    try:
        is_live, pid = live_process(store, id)
        where = _live_address(store, id, pid, port=token is not None) if is_live else None
    except FileNotFoundError:
        where = None
    if where is None:
        message = "the run has no page: it has ended, or listens nowhere"
        raise NotAnsweredError(message, where=id, hint=_OPEN_A_PORT)
    if where.address.path is None and (token or where.token) is None:
        message = "the run takes only the tokens that its file names"
        raise NotAnsweredError(message, where=id, hint="`--token-env NAME` gives one of them")
    request = OutgoingRequest("POST", f"{PREFIX}/code", {}, None, _SECONDS)
    return str(_value_in_answer(where, token, request, id, "link"))


def forget_client_sources(store: RunStore, id: str, client: str) -> Sequence[str]:
    """Forget the sources of what a client of a live server has read, and return them.

    Raises:
        NotAnsweredError: the server is not live, does not listen, or refuses.
    """
    try:
        is_live, pid = live_process(store, id)
        where = _live_address(store, id, pid) if is_live else None
    except FileNotFoundError:
        where = None
    if where is None:
        message = "the server has ended, or listens nowhere"
        hint = "what its clients have read ends with it; `aish serve FILE --control` listens"
        raise NotAnsweredError(message, where=id, hint=hint)
    no_token = where.address.path is None and where.token is None
    token = _answer_token(where, id) if no_token else None
    body: JsonObject = {"client": client}
    request = OutgoingRequest("POST", f"{PREFIX}/sources/forget", body, None, _SECONDS)
    sources = _value_in_answer(where, token, request, id, "sources")
    return [str(name) for name in sources] if isinstance(sources, list) else ()


class _NoRunError(NotAnsweredError):
    """No run listens there, or something else does."""


def _value_in_answer(
    where: LiveAddress, token: str | None, request: OutgoingRequest, run_id: str, key: str
) -> JsonValue:
    """Return the value of a key in the JSON answer to a request.

    Raises:
        _NoRunError: no run has answered.
        NotAnsweredError: it was refused.
    """
    exchange = BlockingExchange(lambda: where.endpoint(token))
    try:
        return json_object(run(exchange.send(request)))[key]
    except (ControlError, KeyError) as error:
        if isinstance(error, ApiError) and error.code != NO_DOCUMENT:
            raise NotAnsweredError(error.message, where=run_id, hint=error.hint) from error
        cause, reason = error.__cause__, "whoever listens there is no run"
        if isinstance(cause, OSError | HTTPException):
            strerror = cause.strerror if isinstance(cause, OSError) else None
            reason = strerror or type(cause).__name__
        message = f"the run does not answer at {where.address}: {reason}"
        raise _NoRunError(message, where=run_id) from error
    finally:
        run(exchange.close())


def _live_address(
    store: RunStore, run_id: str, pid: int | None, *, port: bool = False
) -> LiveAddress:
    """Return the address of the run of process `pid`; a `port` rather than a socket file.

    Raises:
        FileNotFoundError: it does not listen.
        NotAnsweredError: its entry cannot be used.
    """
    try:
        for entry in control_entries(run_id, store.path / run_id):
            if pid is None or entry["pid"] == pid:
                return live_address(entry, port=port)
    except (OSError, ValueError, KeyError, TypeError, AishError) as error:
        message = f"it cannot be found out where the run listens: {error}"
        raise NotAnsweredError(message, where=run_id) from error
    raise FileNotFoundError


def _answer_token(where: LiveAddress, run_id: str) -> str:
    """Return the token for answers that the pipeline file names.

    Raises:
        NotAnsweredError: there is none, or not in this environment.
    """
    token, message = where.answer_token, "the run takes only the tokens that its file names"
    if not isinstance(token, Mapping):
        way = "a socket file as well takes answers from you"
        raise NotAnsweredError(message, where=run_id, hint=way)
    try:
        if "env" in token:
            return token_from_env("control", str(token["env"]), (), os.environ).value
        return token_from_file("control", Path(str(token["file"])), ()).value
    except UsageError as error:
        hint = f"`{token['env']}` holds one that may answer" if "env" in token else error.hint
        raise NotAnsweredError(f"{message}: {error.message}", where=run_id, hint=hint) from error
