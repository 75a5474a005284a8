"""Guards that a request passes before it is answered, in one order for all.

Framing comes before (`connection`). Then: `Host` (421), a token in the URL (400), `Origin` (403),
method (405), type (415), token (401), scope (403), and the size of the body (413).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from starlette.routing import compile_path
from starlette.types import Scope

from aish.core.frozen import slotted
from aish.net.listen.access import Access, Peer
from aish.net.listen.http_error import HttpError
from aish.net.listen.request_checks import (
    URL_HAS_TOKEN,
    bearer_token,
    check_host,
    check_origin,
    check_url,
)
from aish.net.listen.routes import JSON_TYPE, WITH_BODY, ConnectionState, Route, connection_of

Headers = Mapping[bytes, Sequence[str]]
_TYPES = frozenset({JSON_TYPE, f"{JSON_TYPE};charset=utf-8"})


@slotted
class Checked:
    """Request as far as it was checked; `path` is one that a log may have."""

    peer: Peer
    path: str
    scope: str = ""
    route: Route | None = None
    parameters: Mapping[str, object] = field(default_factory=dict)


class Guards:
    """Checks the heads of requests, and finds their routes."""

    def __init__(self, routes: Iterable[Route], access: Access, most_body: int) -> None:
        self._routes = [(compile_path(route.path), route) for route in routes]
        self._access = access
        self._most_body = most_body

    def check(self, scope: Scope, checked: Checked) -> None:
        """Check the head of a request, and note what is known of it.

        Raises:
            HttpError: it is refused.
        """
        routes, connection = self._find_routes(scope), connection_of(scope)
        headers = header_texts(scope)
        if not any(route.any_host for _, route in routes):
            check_host(headers.get(b"host", ()), connection.listener, self._access)
        try:
            check_url(scope["path"], scope["query_string"].decode("latin-1"), self._access)
        except HttpError as error:
            if error.code == URL_HAS_TOKEN:
                checked.path = ""
            raise
        if b"origin" in headers:
            check_origin(headers[b"origin"], connection.listener, self._access)
        if not scope["path"].startswith("/"):
            raise HttpError(400, "bad_request", "the target of the request is not a path")
        found = [pair for pair in routes if scope["method"] in pair[1].methods]
        if routes and not found:
            allowed = ", ".join(sorted({name for _, route in routes for name in route.methods}))
            message = f"`{scope['method']}` is not allowed here"
            allow = {"allow": allowed}
            raise HttpError(405, "method_not_allowed", message, headers=allow)
        _check_type(scope, headers)
        route = found[0][1] if found else None
        is_public = route is not None and route.public
        self._identify(connection, headers, checked, is_public=is_public)
        if route is None:
            raise HttpError(404, "not_found", "there is nothing at this path")
        checked.scope = route.scope
        if not route.public and route.scope not in checked.peer.scopes:
            message = f"this needs the scope `{route.scope}`"
            raise HttpError(403, "forbidden", message, hint="use a token that has it")
        length = headers.get(b"content-length")
        # The parser bounds the value, and not the zeros before it.
        self.check_size(int(length[0].lstrip("0") or "0") if length else 0)
        checked.route, checked.parameters = route, found[0][0]

    def check_size(self, size: int) -> None:
        """Check the size of a body, or of the part received so far.

        Raises:
            HttpError: it is too long.
        """
        if size > self._most_body:
            message = f"the body is longer than {self._most_body} bytes"
            raise HttpError(413, "body_too_large", message)

    def _find_routes(self, scope: Scope) -> list[tuple[dict[str, object], Route]]:
        found = []
        for (pattern, _, convertors), route in self._routes:
            if match := pattern.fullmatch(scope["path"]):  # `$` alone allows a line break
                values = {
                    name: convertors[name].convert(text) for name, text in match.groupdict().items()
                }
                found.append((values, route))
        return found

    def _identify(
        self, connection: ConnectionState, headers: Headers, checked: Checked, *, is_public: bool
    ) -> None:
        """Note who sent it: by the user of a socket file, or by its token."""
        peer, key = checked.peer, ""
        if peer.transport == "unix":
            name = f"uid:{peer.uid}"
            scopes = self._access.socket_scopes
        else:
            values = headers.get(b"authorization", ())
            if not values and is_public:
                return
            token = bearer_token(values, self._access)
            name, scopes, key = token.name, token.scopes, token.key
        checked.peer = Peer(peer.transport, peer.address, name, scopes, peer.uid, peer.pid, key)
        connection.trusted = True


def header_texts(scope: Scope) -> Headers:
    """The values of each header, one for each time that it was sent."""
    texts: dict[bytes, list[str]] = {}
    for name, value in scope["headers"]:
        texts.setdefault(name, []).append(value.decode("latin-1"))
    return texts


def _check_type(scope: Scope, headers: Headers) -> None:
    if scope["method"] not in WITH_BODY:
        lengths = headers.get(b"content-length", ())
        if b"transfer-encoding" in headers or any(value.strip("0") for value in lengths):
            message = f"a `{scope['method']}` request has no body here"
            raise HttpError(400, "unexpected_body", message)
        return
    values = headers.get(b"content-type", ())
    spelled = values[0].lower().replace(" ", "").replace('"', "") if len(values) == 1 else ""
    if spelled not in _TYPES:
        hint = f"send `Content-Type: {JSON_TYPE}`"
        raise HttpError(415, "wrong_type", "the body has to be JSON", hint=hint)
