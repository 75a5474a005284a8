"""Match requests by a canonical form and its hash.

Method, scheme, host, port, path, query and body count; headers do not. Values that naturally differ
between runs are left out: ids of JSON-RPC, of MCP sessions, of progress; our own version; and what
the pipeline ignores by a simple kind of JSONPath.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from urllib.parse import parse_qsl, urlsplit

from aish.cassettes.format.edits import bytes_of, text_of
from aish.cassettes.format.interaction import Request
from aish.cassettes.format.path_placeholders import NOWHERE, PathPlaceholders
from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue

_STEP = (
    r"""\.(?P<name>[\w-]+)|\[(?P<quote>['"])(?P<quoted>.+?)(?P=quote)\]|\[(?P<place>\d{1,9})\]"""
    r"""|(?P<any>\.\*|\[\*\])"""
)
_ANY = None

_Step = str | int | None


class Ignored:
    """A set of paths such as `$.a.b[*].c`: names, indexes from 0, and `*`."""

    def __init__(self, paths: Iterable[str] = ()) -> None:
        """Read the paths.

        Raises:
            UsageError: a path is of an unsupported kind.
        """
        self._paths = tuple(_steps(path) for path in paths)

    def __bool__(self) -> bool:
        return bool(self._paths)

    def without_ignored(self, value: JsonValue) -> JsonValue:
        """The value without what the paths select; in a list, `null` takes the place."""
        for steps in self._paths:
            value = _without(value, steps)
        return value


def _steps(path: str) -> tuple[_Step, ...]:
    steps: list[_Step] = []
    step = re.compile(_STEP)
    place = 1
    while path.startswith("$") and (match := step.match(path, place)):
        if match["any"]:
            steps.append(_ANY)
        else:
            steps.append(
                int(match["place"]) if match["place"] else match["name"] or match["quoted"]
            )
        place = match.end()
    if not steps or place != len(path):
        raise UsageError(
            f"`{path}` is not a path that can be ignored",
            hint="paths look like `$.metadata.date` or `$.messages[*].name`",
        )
    return tuple(steps)


def _without(value: JsonValue, steps: tuple[_Step, ...]) -> JsonValue:
    step, rest = steps[0], steps[1:]
    if isinstance(value, Mapping):
        return {
            key: _without(below, rest) if _is(key, step) else below
            for key, below in value.items()
            if rest or not _is(key, step)
        }
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [
            below if not _is(place, step) else _without(below, rest) if rest else None
            for place, below in enumerate(value)
        ]
    return value


def _is(key: str | int, step: _Step) -> bool:
    return step is _ANY or (key == step and type(key) is type(step))


_PORTS = {"http": 80, "https": 443}
_SESSION_NAMES = {"sessionId", "session_id"}
_DEEPEST = 200
_RESUMED = "last-event-id"
"""The one header that counts: it tells a stream that is taken up again from a new one."""

_OURS = frozenset(
    {
        *("progressToken", "io.modelcontextprotocol/clientInfo"),
        *("traceparent", "tracestate", "baggage"),
    }
)
"""What `_meta` says of us: another version of this program, or another trace, is no other request.
"""


@frozen
class Canonical:
    """A request in the form used for comparison.

    `body` is a JSON value, or text if the body is not JSON; `digest` is the hash of everything.
    """

    method: str
    place: str
    query: tuple[tuple[str, str], ...]
    body: JsonValue
    digest: bytes

    @property
    def target(self) -> str:
        """Method and address, in readable form."""
        query = "&".join(f"{name}={value}" for name, value in self.query)
        return f"{self.method} {self.place}{'?' if query else ''}{query}"


class Matching:
    """The rules of a pipeline for comparing requests."""

    def __init__(self, *, ignore: Sequence[str] = (), places: PathPlaceholders = NOWHERE) -> None:
        """Read the rules.

        Raises:
            UsageError: a path in `ignore` is of a kind that is not supported.
        """
        self._ignored = Ignored(ignore)
        self._places = places

    def text_hash(self, request: Request) -> bytes | None:
        """The hash of a model's request as text, which is faster.

        None if the texts of matching requests usually differ.
        """
        if self._ignored or b'"jsonrpc"' in request.body or not request.body:
            return None
        text = text_of(request.body)
        hidden = self._places.hide(text)
        whole = sha256(bytes_of(f"{request.method}\0{self._places.hide(request.uri)}\0"))
        whole.update(request.body if hidden is text else bytes_of(hidden))
        return whole.digest()

    def canonical(self, request: Request) -> Canonical:
        """The form of a request that is compared."""
        body = self._body(text_of(request.body))
        is_message = isinstance(body, Mapping) and "jsonrpc" in body
        place, query = _address(request.uri, sessions=not is_message)
        query += tuple((name, value) for name, value in request.headers if name == _RESUMED)
        place = self._places.hide(place)
        query = tuple((name, self._places.hide(value)) for name, value in query)
        method = request.method.upper()
        whole = json.dumps([method, place, query, body], sort_keys=True, separators=(",", ":"))
        return Canonical(method, place, query, body, sha256(whole.encode()).digest())

    def _body(self, text: str) -> JsonValue:
        try:
            value = json.loads(text)
            if not isinstance(value, (dict, list)):
                return self._places.hide(text)
            return self._hide_folders(self._ignored.without_ignored(_without_ids(value)), 0)
        except (ValueError, RecursionError):
            return self._places.hide(text)

    def _hide_folders(self, value: JsonValue, depth: int) -> JsonValue:
        """The value with placeholders for folders in its strings."""
        if isinstance(value, str):
            return self._places.hide(value)
        if depth > _DEEPEST:
            raise ValueError("nested too deeply")
        if isinstance(value, Mapping):
            return {
                self._places.hide(key): self._hide_folders(below, depth + 1)
                for key, below in value.items()
            }
        if isinstance(value, Sequence):
            return [self._hide_folders(below, depth + 1) for below in value]
        return value


def _address(uri: str, *, sessions: bool) -> tuple[str, tuple[tuple[str, str], ...]]:
    try:
        parts = urlsplit(uri)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return uri, ()
    host = (parts.hostname or "").lower() if port else parts.netloc
    port_text = f":{port}" if port and port != _PORTS.get(parts.scheme) else ""
    place = f"{parts.scheme}://{host}{port_text}{parts.path or '/'}"
    pairs = sorted(parse_qsl(parts.query, keep_blank_values=True))
    return place, tuple(pair for pair in pairs if sessions or pair[0] not in _SESSION_NAMES)


def _without_ids(value: JsonValue) -> JsonValue:
    """A JSON-RPC message, or a batch of them, without the ids that differ in each run."""
    if isinstance(value, list):
        return [_without_ids(item) if isinstance(item, Mapping) else item for item in value]
    if not isinstance(value, Mapping) or "jsonrpc" not in value:
        return value
    message = {key: below for key, below in value.items() if key != "id"}
    params = message.get("params")
    if isinstance(params, Mapping):
        message["params"] = _params_without_ids(message.get("method"), params)
    return message


def _params_without_ids(method: JsonValue, params: JsonObject) -> JsonObject:
    gone = {
        "initialize": "clientInfo",
        "notifications/cancelled": "requestId",
        "notifications/progress": "progressToken",
    }.get(str(method))
    rest_params = {key: below for key, below in params.items() if key != gone}
    meta = rest_params.get("_meta")
    if isinstance(meta, Mapping):
        rest = {key: below for key, below in meta.items() if key not in _OURS}
        if rest:
            rest_params["_meta"] = rest
        else:
            del rest_params["_meta"]
    return rest_params
