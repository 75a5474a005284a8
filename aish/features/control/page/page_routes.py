"""The paths of the page: its files, the call of a question as a person reads it, and its links.

A link to the page has a code in its fragment, which no server gets to see. The page exchanges it
for a token that it keeps in memory; both are made here, and neither is written anywhere.
"""

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from aish.core.events import rfc3339
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.engine.environment import RunHandle
from aish.features.approvals.questions import ApprovalQuestion, as_asked, tags_of_secrets
from aish.features.control.routes import name_of
from aish.features.control.run_state import ControlledRun
from aish.net.listen.access import Peer
from aish.net.listen.http_error import HttpError, body_error
from aish.net.listen.routes import Route, json_body, json_response
from aish.net.listen.tokens import CODE_SECONDS, Tokens
from aish.terminal.approver import MOST_ROWS, UNSHOWN, visible_call
from aish.terminal.visible_text import fold

LINK_SCOPE = "link"
"""What is needed to ask for a link; what a link gives has it not."""
TOKEN_SECONDS = 12 * 3600.0
"""How long the token of a link is good."""
_FILES: Final[Mapping[str, tuple[str, str]]] = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.svg": ("page.svg", "image/svg+xml"),
}
_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
_COLUMNS = range(20, 241)
_USUAL_COLUMNS = 80
_LONGEST_CODE = 200
_NO_PORT = "`aish run FILE --control 127.0.0.1:0` opens a port, which a browser can connect to"
_NEW_LINK = "`aish control open RUN` prints a new link"


@frozen
class PageLinks:
    """The address of the page, and the tokens of the browsers that open it.

    `address` is missing where no browser can connect.
    """

    tokens: Tokens
    address: str | None


def page_routes(run: ControlledRun, handle: RunHandle, links: PageLinks) -> Sequence[Route]:
    page = _Page(run, handle, links)
    files = [Route(path, ("GET",), "", _file, public=True) for path in _FILES]
    return [
        *files,
        Route("/api/v1/approvals/{id}/call", ("GET",), "read", page.call),
        Route("/api/v1/code", ("POST",), LINK_SCOPE, page.code),
        Route("/api/v1/link", ("POST",), LINK_SCOPE, page.link, public=True),
    ]


class _Page:
    """The handlers of the page."""

    def __init__(self, run: ControlledRun, handle: RunHandle, links: PageLinks) -> None:
        self._run = run
        self._handle = handle
        self._links = links

    async def call(self, request: Request, _peer: Peer) -> Response:
        """`GET /approvals/ID/call?columns=N`: the call of a question, as a terminal shows it."""
        id = request.path_params["id"]
        columns = _columns(request.query_params.get("columns"))
        question = self._run.state.question(id)
        if question is None:
            raise HttpError(404, "unknown_question", "this run has no question with this id")
        return json_response(_call_rows(question, columns))

    async def code(self, request: Request, peer: Peer) -> Response:
        """`POST /code`: a link with a code, for whoever may do all that the link allows."""
        if await json_body(request) != {}:
            raise body_error("the body is not an empty object")
        links = self._links
        if links.address is None:
            message = "the run listens on a socket file only, and no browser can connect to that"
            raise HttpError(409, "no_port", message, hint=_NO_PORT)
        scopes = peer.scopes - {LINK_SCOPE}
        code = links.tokens.issue_code(name_of(peer), scopes)
        body: JsonObject = {
            "code": code,
            "link": f"{links.address}#code={code}",
            "scopes": sorted(scopes),
            "expires": rfc3339(self._run.clock.now() + CODE_SECONDS),
        }
        return json_response(body)

    async def link(self, request: Request, _peer: Peer) -> Response:
        """`POST /link`: the token that a code is good for, once."""
        body = await json_body(request)
        if not isinstance(body, Mapping) or set(body) != {"code"}:
            raise body_error("the body is not an object with `code` alone")
        code = body["code"]
        if not isinstance(code, str):
            raise body_error("`code` is not a text")
        token = None
        if len(code) <= _LONGEST_CODE:
            token = self._links.tokens.redeem(code, TOKEN_SECONDS)
        if token is None:
            message = "the link is not valid any more: it can be used once, within a minute"
            headers = {"www-authenticate": "Bearer"}
            raise HttpError(401, "invalid_code", message, hint=_NEW_LINK, headers=headers)
        content: JsonObject = {
            "token": token.value,
            "scopes": sorted(token.scopes),
            "expires": rfc3339(self._run.clock.now() + TOKEN_SECONDS),
        }
        return json_response(content)


async def _file(request: Request, _peer: Peer) -> Response:  # ruff: ignore[unused-async] - awaited
    name, media_type = _FILES[request.url.path]
    content = resources.files(__package__).joinpath(name).read_bytes()
    return Response(content, headers={**_HEADERS, "content-type": media_type})


def _columns(text: str | None) -> int:
    if text is None:
        return _USUAL_COLUMNS
    # Digits alone: what else is a number to Python is none in a URL.
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_COLUMNS[-1]))):
        text = "0"
    if int(text) not in _COLUMNS:
        message = f"`columns` is a number from {_COLUMNS[0]} to {_COLUMNS[-1]}"
        raise HttpError(422, "invalid_value", message)
    return int(text)


def _call_rows(question: ApprovalQuestion, columns: int) -> JsonValue:
    """The call as rows of this width; `continued` lists the rows that continue the previous one.

    Without rows it cannot be shown, and `problem` says why.
    """
    body: JsonObject = {
        "id": question.id,
        "run": question.run,
        "tool": question.tool,
        "digest": question.digest,
        "state": question.state,
        "asked": question.asked,
        "expires": question.expires,
        "caller_waiting": question.caller_waiting,
    }
    try:
        call = visible_call(as_asked(question), masked=tags_of_secrets(question))
    except (RecursionError, ValueError):
        facts: list[JsonValue] = [["tool", question.tool]]
        return {**body, "facts": facts, "rows": None, "problem": UNSHOWN, "always": None}
    rows: list[JsonValue] = []
    continued: list[JsonValue] = []
    for line in call.lines:
        # One column more: a terminal leaves its last one free.
        for number, row in enumerate(fold(line, columns + 1)):
            if number:
                continued.append(len(rows))
            rows.append(row)
    return {
        **body,
        "facts": [[label, value] for label, value in call.facts],
        "label": call.label,
        "rows": rows,
        "continued": continued,
        "folded": len(rows) > MOST_ROWS,
        "problem": None,
        "always": call.always,
    }
