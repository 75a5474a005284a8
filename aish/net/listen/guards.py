"""Guards that a request passes before it is answered, in one order for all.

Framing comes before (`connection`). Then: `Host` (421), a token in the URL (400), `Origin` (403),
method (405), type (415), token (401), scope (403), and the size of the body (413).
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace

from starlette.routing import compile_path
from starlette.types import Scope

from aish.core.frozen import slotted
from aish.net.listen.access import Access, Bearer, Peer, Target
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
    look_up: Callable[[], Awaitable[Bearer]] | None = None
    """Finds whose token it is, where the issuer has to be asked first."""


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
        if route is None or not route.anonymous:
            is_public = route is not None and route.public
            target = Target(scope["path"], "".join(headers.get(b"host", ())), connection.is_tls)
            self._identify(connection, headers, checked, target, is_public=is_public)
        if route is None:
            raise HttpError(404, "not_found", "there is nothing at this path")
        checked.scope = route.scope
        if checked.look_up is None:
            _check_scope(route, checked.peer)
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
        self,
        connection: ConnectionState,
        headers: Headers,
        checked: Checked,
        target: Target,
        *,
        is_public: bool,
    ) -> None:
        """Note who sent it: by the user of a socket file, or by its token."""
        peer, access, values = checked.peer, self._access, headers.get(b"authorization", ())
        if access.authority is None and peer.transport == "unix":
            _note_bearer(connection, checked, Bearer(f"uid:{peer.uid}", access.socket_scopes, ""))
        elif not values and is_public:
            return
        elif access.authority is None:
            token = bearer_token(values, access)
            _note_bearer(connection, checked, Bearer(token.name, token.scopes, token.key))
        else:
            found = access.authority.judge(values, target)
            if isinstance(found, Bearer):
                _note_bearer(connection, checked, found)
            else:
                checked.look_up = found


async def look_up_bearer(scope: Scope, checked: Checked) -> None:
    """Find whose token it is, of a request whose issuer has to be asked for that.

    Raises:
        HttpError: it is refused.
    """
    if checked.look_up is None:
        return
    assert checked.route is not None, "the request was checked"
    _note_bearer(connection_of(scope), checked, await checked.look_up())
    _check_scope(checked.route, checked.peer)


def _note_bearer(connection: ConnectionState, checked: Checked, bearer: Bearer) -> None:
    checked.peer = replace(
        checked.peer,
        name=bearer.name,
        scopes=bearer.scopes,
        key=bearer.key,
        about=bearer.about,
        until=bearer.until,
    )
    connection.trusted = True


def _check_scope(route: Route, peer: Peer) -> None:
    if not route.public and route.scope not in peer.scopes:
        message = f"this needs the scope `{route.scope}`"
        raise HttpError(403, "forbidden", message, hint="use a token that has it")


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
