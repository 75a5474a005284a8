"""An answer to a question of a run that another process executes, given over its socket (A9)."""

import http.client
import json
import os
import socket
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aish.core.errors import AishError
from aish.core.frozen import frozen
from aish.core.text import for_line
from aish.features.approvals.answer import GivenAnswer, NotAnsweredError, RunIsLiveError
from aish.features.approvals.questions import ApprovalQuestion
from aish.features.control.server import CONTROL_FILE
from aish.features.history.run_store import RunStore
from aish.net.listen.addresses import Address, parse_address
from aish.net.listen.tokens import token_from_file

_SECONDS = 20.0
_LONGEST = 64 << 20
_OK = 200
_OPEN_ONE = "`--control` opens a socket to a run, and so do `on_ask: wait` and `on_ask: pause`"


@frozen
class LiveAddress:
    """Where a run listens, and the token that it takes; none for a socket file."""

    address: Address
    token: str | None = None
    is_tls: bool = False

    @property
    def host(self) -> str:
        """The host to connect to; one that stands for all addresses is reached by loopback."""
        everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # ruff: ignore[hardcoded-bind-all-interfaces] - replaced
        if self.address.path is not None:
            return "localhost"
        host = everywhere.get(self.address.host, self.address.host)
        return Address(host=host, port=self.address.port).netloc


def answer_live_run(
    store: RunStore, shown: ApprovalQuestion, given: GivenAnswer, live: RunIsLiveError
) -> Sequence[str]:
    """Answer the question that was `shown`; returns the ids of those that are still open.

    Raises:
        RunIsLiveError: the run takes no answers: it has no socket, or nobody listens there.
        NotAnsweredError: the run refused the answer.
    """
    where = _live_address(store, shown.run, live)
    body = {
        "answer": given.answer,
        "digest": shown.digest,
        "note": given.note,
        "way": "command",
    }
    path = f"/api/v1/approvals/{shown.id}"
    try:
        _asked(where, "POST", path, shown.run, body)
        rest = _asked(where, "GET", "/api/v1/status", shown.run)
    except (OSError, http.client.HTTPException, ValueError) as error:
        said = f"the run does not answer at {where.address}: {_reason(error)}"
        raise RunIsLiveError(said, where=shown.run, hint=live.hint) from error
    return [str(id) for id in rest["pending"]]


def _live_address(store: RunStore, run: str, live: RunIsLiveError) -> LiveAddress:
    try:
        with os.fdopen(store.open_file(run, CONTROL_FILE), "rb") as file:
            content = json.loads(file.read())
        # Whoever listens there now is a stranger if an earlier process left the file.
        if live.pid is None or content["pid"] == live.pid:
            return live_address(content)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError, AishError) as error:
        said = f"`{CONTROL_FILE}` of the run cannot be used: {error}"
        raise RunIsLiveError(said, where=run, hint=live.hint) from error
    hint = f"{live.hint}; {_OPEN_ONE}"
    raise RunIsLiveError(f"{live.message}, and takes no answers", where=run, hint=hint) from live


def live_address(content: Any) -> LiveAddress:
    """Where a run listens, as `control.json` in its folder says.

    Raises:
        AishError: the address or the token in it cannot be used.
        KeyError, TypeError: it is not such a file.
    """
    known = [parse_address(one) for one in content.get("addresses") or [content["address"]]]
    # A socket file needs no token, which the file of the pipeline may have named.
    address = next((one for one in known if one.path is not None), known[0])
    if address.path is not None:
        return LiveAddress(address)
    if "token_file" not in content:
        return LiveAddress(address, None, content["tls"] is True)
    token = token_from_file("control", Path(content["token_file"]), ())
    return LiveAddress(address, token.value, content["tls"] is True)


def _asked(
    where: LiveAddress, method: str, path: str, run: str, body: Mapping[str, Any] | None = None
) -> Any:
    """The JSON answer to a request.

    Raises:
        NotAnsweredError: it was refused.
        OSError: nobody is there.
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
    if response.status != _OK:
        error = found["error"]
        hint = error.get("hint")
        said = for_line(str(error["message"]))
        raise NotAnsweredError(said, where=run, hint=None if hint is None else for_line(str(hint)))
    return found


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
            self.sock.settimeout(_SECONDS)
            self.sock.connect(str(path))
        except BaseException:
            self.sock.close()
            raise


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
