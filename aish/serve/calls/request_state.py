"""`requestState`: sealed state that a stateless client sends back with its answers.

The seal is an HMAC over the client, its request and the expiry. Any process that shares
`serve.state` can open it. The content is not secret: the client can read it.
"""

import base64
import hmac
import json

from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue, canonical
from aish.core.protocols import Clock
from aish.mcp.protocol.messages import INVALID_PARAMS, RpcError
from aish.serve.state import ServeState

STATE_SECONDS = 600.0
"""How long a client may take to answer."""
_FOREIGN = "`requestState` does not belong to this request: call again without it"
_TOO_OLD = "`requestState` is too old: call again without it"


@frozen
class RequestSeal:
    """Seals state for one request of a client; `subject` identifies the request."""

    state: ServeState
    clock: Clock
    client: str
    subject: JsonValue

    def seal(self, content: JsonObject) -> str:
        """Return the content as sealed text for the client."""
        body: JsonObject = {"until": self.clock.now() + STATE_SECONDS, **content}
        data = base64.urlsafe_b64encode(json.dumps(body, separators=(",", ":")).encode("ascii"))
        return f"{data.decode('ascii')}.{self._digest(data)}"

    def open(self, text: JsonValue) -> JsonObject:
        """Return the content that was sealed for this client and request.

        Raises:
            RpcError: the seal is not valid, or has expired.
        """
        data, _, digest = text.partition(".") if isinstance(text, str) else ("", "", "")
        try:
            sealed, signature = data.encode("ascii"), digest.encode("ascii")
        except UnicodeEncodeError as error:
            raise RpcError(INVALID_PARAMS, _FOREIGN) from error
        if not hmac.compare_digest(signature, self._digest(sealed).encode("ascii")):
            raise RpcError(INVALID_PARAMS, _FOREIGN)
        body = json.loads(base64.urlsafe_b64decode(sealed))
        if self.clock.now() >= body["until"]:
            raise RpcError(INVALID_PARAMS, _TOO_OLD)
        return {key: value for key, value in body.items() if key != "until"}

    def _digest(self, data: bytes) -> str:
        about = canonical([self.client, self.subject]).encode("ascii")
        return self.state.digest(b"request state\0" + about + b"\0" + data)
