"""An answer to a question of a run that another process executes, given over its socket (A9)."""

import http.client
import json
import os
import socket
import ssl
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from aish.core.errors import AishError, UsageError
from aish.core.frozen import frozen
from aish.core.text import for_line
from aish.features.approvals.answer import GivenAnswer, NotAnsweredError, RunIsLiveError
from aish.features.approvals.questions import HUB_ID, ApprovalQuestion
from aish.features.control.server import control_entries
from aish.features.history.run_store import RunStore
from aish.net.listen.addresses import Address, parse_address
from aish.net.listen.tokens import token_from_env, token_from_file
from aish.system.file_lock import is_written, writer_pid

_SECONDS = 20.0
_TIMEOUT = struct.pack("ll", int(_SECONDS), 0)  # `struct timeval`
_LONGEST = 64 << 20
_OK = 200
_OPEN_A_PORT = "`aish run FILE --control 127.0.0.1:0` opens a port, which a browser can connect to"
_OPEN_ONE = "`--control` opens a socket to a run, and so do `on_ask: wait` and `on_ask: pause`"


@frozen
class LiveAddress:
    """Where a run listens, and the token that it takes; none for a socket file.

    `answer_token` says where a token that may answer is kept, if the file of the pipeline names it.
    """

    address: Address
    token: str | None = None
    is_tls: bool = False
    answer_token: Any = None

    @property
    def host(self) -> str:
        """The host to connect to; one that stands for all addresses is reached by loopback."""
        return self.address.reached.netloc or "localhost"


def answer_live_run(
    shown: ApprovalQuestion, given: GivenAnswer, live: RunIsLiveError
) -> Sequence[str]:
    """Answer the question that was `shown`; returns the ids of those that are still open.

    Raises:
        RunIsLiveError: the run takes no answers: it has no socket, or nobody listens there.
        NotAnsweredError: the run refused the answer.
    """
    try:
        where = _live_address(shown.run, live.pid)
    except FileNotFoundError:
        said, hint = f"{live.message}, and takes no answers", f"{live.hint}; {_OPEN_ONE}"
        raise RunIsLiveError(said, where=shown.run, hint=hint) from live
    except NotAnsweredError as error:
        raise RunIsLiveError(error.message, where=shown.run, hint=live.hint) from error
    body = {
        "answer": given.answer,
        "digest": shown.digest,
        "note": given.note,
        "way": "command",
    }
    path = f"/api/v1/approvals/{shown.id}"
    if where.address.path is None and where.token is None:
        where = replace(where, token=_answer_token(where, shown.run))
    try:
        _asked(where, "POST", path, shown.run, "id", body)
    except (OSError, http.client.HTTPException, ValueError) as error:
        said = f"the run does not answer at {where.address}: {_reason(error)}"
        raise RunIsLiveError(said, where=shown.run, hint=live.hint) from error
    return _still_open(where, shown.run)


def _still_open(where: LiveAddress, run: str) -> Sequence[str]:
    """The ids of the open questions, as far as the run tells: the answer was taken."""
    try:
        pending = _asked(where, "GET", "/api/v1/status", run, "pending")
        return [str(id) for id in pending] if isinstance(pending, list) else ()
    except (OSError, http.client.HTTPException, ValueError, NotAnsweredError):
        return ()  # it has ended meanwhile, or the token is good for answers alone


def link_to_page(store: RunStore, run: str, token: str | None = None) -> str:
    """A link to the page of a live run, good once; `token` is one that the file of the run names.

    Raises:
        NotAnsweredError: the run is not live, does not listen, or gives no link.
    """
    try:
        is_live, pid = live_process(store, run)
        where = _live_address(run, pid, port=token is not None) if is_live else None
    except FileNotFoundError:
        where = None
    if where is None:
        said = "the run has no page: it has ended, or listens nowhere"
        raise NotAnsweredError(said, where=run, hint=_OPEN_A_PORT)
    if where.address.path is None and token is not None:
        where = replace(where, token=token)
    elif where.address.path is None and where.token is None:
        said = "the run takes only the tokens that its file names"
        raise NotAnsweredError(said, where=run, hint="`--token-env NAME` gives one of them")
    try:
        return str(_asked(where, "POST", "/api/v1/code", run, "link", {}))
    except (OSError, http.client.HTTPException, ValueError) as error:
        said = f"the run does not answer at {where.address}: {_reason(error)}"
        raise NotAnsweredError(said, where=run) from error


def live_process(store: RunStore, run: str) -> tuple[bool, int | None]:
    """Whether a process executes the run or the server, and its number if the system reports it.

    Raises:
        FileNotFoundError: it has left nothing that says so.
    """
    if HUB_ID.match(run):
        return bool(control_entries(run)), None
    with os.fdopen(store.open_file(run, "events.jsonl"), "rb") as file:
        return is_written(file.fileno()), writer_pid(file.fileno())


def _live_address(run: str, pid: int | None, *, port: bool = False) -> LiveAddress:
    """Where a run listens that the process `pid` executes; a `port` rather than a socket file.

    Raises:
        FileNotFoundError: nowhere.
        NotAnsweredError: what is written of that cannot be used.
    """
    try:
        for entry in control_entries(run):
            if pid is None or entry["pid"] == pid:
                return live_address(entry, port=port)
    except (OSError, ValueError, KeyError, TypeError, AishError) as error:
        said = f"it cannot be found out where the run listens: {error}"
        raise NotAnsweredError(said, where=run) from error
    raise FileNotFoundError


def _answer_token(where: LiveAddress, run: str) -> str:
    """The value of the token that the file of the pipeline names for answers.

    Raises:
        NotAnsweredError: there is none, or none of ours.
    """
    kept, said = where.answer_token, "the run takes only the tokens that its file names"
    if not isinstance(kept, Mapping):
        raise NotAnsweredError(said, where=run, hint="a socket file as well takes answers from you")
    try:
        if "env" in kept:
            return token_from_env("control", str(kept["env"]), (), os.environ).value
        return token_from_file("control", Path(str(kept["file"])), ()).value
    except UsageError as error:
        hint = f"`{kept['env']}` holds one that may answer" if "env" in kept else error.hint
        raise NotAnsweredError(f"{said}: {error.message}", where=run, hint=hint) from error


def live_address(content: Any, *, port: bool = False) -> LiveAddress:
    """Where a run listens, as the entry of its process says.

    With `port` that is a port, if it has one.

    Raises:
        AishError: the address or the token in it cannot be used.
        KeyError, TypeError: it is not such a file.
    """
    known = [parse_address(one) for one in content.get("addresses") or [content["address"]]]
    # A socket file needs no token, which the file of the pipeline may have named.
    address = next((one for one in known if (one.path is None) is port), known[0])
    if address.path is not None:
        return LiveAddress(address)
    if "token_file" not in content:
        kept = content.get("answer_token")
        return LiveAddress(address, None, content["tls"] is True, kept)
    token = token_from_file("control", Path(content["token_file"]), ())
    return LiveAddress(address, token.value, content["tls"] is True)


def _asked(
    where: LiveAddress,
    method: str,
    path: str,
    run: str,
    key: str,
    body: Mapping[str, Any] | None = None,
) -> Any:
    """The value of a key in the JSON answer to a request.

    Raises:
        NotAnsweredError: it was refused.
        OSError: nobody is there.
        ValueError: whoever is there answers as no run does.
    """
    connection = _Connection(where)
    headers = {} if where.token is None else {"Authorization": f"Bearer {where.token}"}
    try:
        if body is None:
            connection.request(method, path, headers=headers)
        else:
            headers["Content-Type"] = "application/json"
            connection.request(method, path, json.dumps(body).encode(), headers)
        response = connection.getresponse()
        found = json.loads(response.read(_LONGEST))
    finally:
        connection.close()
    answer = found if isinstance(found, dict) else {}
    if response.status != _OK:
        error = answer.get("error")
        if not isinstance(error, dict):
            raise ValueError(f"status {response.status} without an error")
        hint = error.get("hint")
        said = for_line(str(error.get("message")))
        raise NotAnsweredError(said, where=run, hint=None if hint is None else for_line(str(hint)))
    if key not in answer:
        raise ValueError(f"an answer without `{key}`")
    return answer[key]


class _Connection(http.client.HTTPConnection):
    """A connection to the address of a run."""

    def __init__(self, where: LiveAddress) -> None:
        super().__init__(where.host, timeout=_SECONDS)
        self._where = where

    def connect(self) -> None:
        """Connect by the socket file, or to the port."""
        path = self._where.address.path
        if path is None:
            super().connect()
            if self._where.is_tls:
                # A certificate that this machine does not trust is an error, as for any client.
                context = ssl.create_default_context()
                self.sock = context.wrap_socket(self.sock, server_hostname=self.host)
            return
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # With a time-out of Python a full queue of the listener would be an error at once.
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEOUT)
            self.sock.connect(str(path))
            self.sock.settimeout(_SECONDS)
        except BaseException:
            self.sock.close()
            raise


def _reason(error: Exception) -> str:
    if isinstance(error, ValueError):
        return "whoever listens there is no run"
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
