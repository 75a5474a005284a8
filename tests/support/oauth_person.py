"""An authorization server with a login page, and the browser of a person; real HTTP on both sides.

with LoginServer() as issuer, guarded(issuer) as server: ...
"""

import re
import threading
from base64 import urlsafe_b64encode
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from html import unescape
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, parse_qsl, urlencode, urljoin, urlsplit
from urllib.request import HTTPCookieProcessor, build_opener, urlopen

from cli_process import Running
from mcp_emulators import Legacy, McpEndpoint
from model_endpoint import Recorded, Reply, json_reply
from oauth_servers import AuthorizationServer, Form, Guard, refusal, token_answer, unauthorized

LIFE = 3600
_ACTION = re.compile(r'<form[^>]* action="([^"]*)"')
_FIELD = re.compile(r'<input[^>]* name="([^"]*)"(?: value="([^"]*)")?')


class LoginServer(AuthorizationServer):
    """Registers clients, sends each browser back with a code, and takes a refresh token once.

    `page` changes the fields of what a browser brings back, a field of `None` is left out;
    `registered` those of the answer to a registration. The paths in `elsewhere` lead to other
    addresses. `life` is that of its tokens, `renew` answers a request for a renewal in its place.
    """

    def __init__(
        self,
        *,
        page: Mapping[str, str | None] | None = None,
        registered: Mapping[str, Any] | None = None,
        elsewhere: Mapping[str, str] | None = None,
        life: float = LIFE,
        **metadata: Any,
    ) -> None:
        super().__init__(answer=self._issue)
        self._own = metadata
        self.page = page or {}
        self.registered = registered or {}
        self.elsewhere = elsewhere or {}
        self.life = life
        self.renew: Callable[[Form], Reply | None] = lambda _form: None
        self.codes: dict[str, Mapping[str, str]] = {}
        self.refreshing: set[str] = set()
        self.tokens: list[str] = []
        self.reused: list[str] = []
        self._lock = threading.Lock()

    @property
    def pages(self) -> list[Mapping[str, str]]:
        """The requests for the login page."""
        asked = (urlsplit(one.path) for one in self.requests if one.method == "GET")
        return [dict(parse_qsl(one.query)) for one in asked if one.path == "/authorize"]

    @property
    def registrations(self) -> list[Any]:
        """The bodies of the registrations."""
        return [one.json for one in self.posts if one.path == "/register"]

    @property
    def grants(self) -> list[str]:
        """The kinds of requests for tokens."""
        asked = (one for one in self.posts if one.path == "/token")
        return [dict(parse_qsl(one.body.decode()))["grant_type"] for one in asked]

    def document(self) -> dict[str, Any]:
        found = {
            **super().document(),
            "authorization_endpoint": f"{self.origin}/authorize",
            "registration_endpoint": f"{self.origin}/register",
            "grant_types_supported": ["authorization_code", "refresh_token"],
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
            **self._own,
        }
        return {name: value for name, value in found.items() if value is not None}

    def refuse(self, token: str, _request: Recorded) -> Reply | None:
        """What a server behind it says of a token."""
        return None if token in self.tokens else unauthorized()

    def _handle(self, request: Recorded) -> Reply:
        path, _, query = request.path.partition("?")
        if path in self.elsewhere:
            headers = {"location": self.elsewhere[path]}
            return Reply(status=307, headers=headers, framing="length")
        if path == "/authorize":
            return self._send_back(dict(parse_qsl(query)))
        if path == "/register":
            said = {"client_id": f"client-{len(self.registrations)}-by-itself", **request.json}
            return json_reply(201, {**said, "client_secret": None, **self.registered})
        return super()._handle(request)

    def _send_back(self, asked: Mapping[str, str]) -> Reply:
        code = f"the-code-number-{len(self.pages)}"
        self.codes[code] = asked
        fields = {"code": code, "state": asked["state"], "iss": self.issuer, **self.page}
        query = urlencode({name: value for name, value in fields.items() if value is not None})
        return Reply(
            status=302, headers={"location": f"{asked['redirect_uri']}?{query}"}, framing="length"
        )

    def _issue(self, form: Form) -> Reply:
        with self._lock:
            if form["grant_type"] == "refresh_token":
                return self.renew(form) or self.renew_once(form)
            asked = self.codes.pop(form.get("code", ""), {})
            proof = sha256(form.get("code_verifier", "").encode()).digest()
            is_bound = (
                asked.get("code_challenge") == urlsafe_b64encode(proof).decode().rstrip("=")
                and asked["redirect_uri"] == form.get("redirect_uri")
                and asked["client_id"] == form.get("client_id", asked["client_id"])
                and asked.get("resource") == form.get("resource")
            )
            return self.new_tokens() if is_bound else refusal("invalid_grant", "not bound")

    def renew_once(self, form: Form) -> Reply:
        """New tokens for a refresh token that was not used yet."""
        token = form["refresh_token"]
        if token not in self.refreshing:
            self.reused.append(token)
            return refusal("invalid_grant", "this refresh token was used")
        self.refreshing.remove(token)
        return self.new_tokens()

    def new_tokens(self, **fields: Any) -> Reply:
        """Tokens that are taken from now on."""
        number = len(self.tokens) + 1
        self.tokens.append(f"access-token-{number}")
        self.refreshing.add(f"refresh-token-{number}")
        named = {"refresh_token": f"refresh-token-{number}", "expires_in": self.life, **fields}
        return token_answer(self.tokens[-1], **named)


def guard_of(issuer: LoginServer, **fields: Any) -> Guard:
    """What guards a server behind an issuer: it takes the tokens that were issued."""
    return Guard([issuer.issuer], **{"inner": Legacy(), "refuse": issuer.refuse, **fields})


def address_printed(running: Running) -> str:
    """The address of the login page that a process prints."""
    running.wait_for_line("code_challenge=", where="stdout")
    running.wait_for_line("Ctrl-C gives up")
    return next(line.strip() for line in running.stdout.split("\n") if "code_challenge=" in line)


def redirect_of(address: str) -> tuple[str, str]:
    """Where a login page sends the browser back to, and the `state` that it has to bring."""
    fields = parse_qs(urlsplit(address).query)
    return fields["redirect_uri"][0], fields["state"][0]


def visit(address: str) -> int:
    """Open an address as a browser does; the status of the last page."""
    try:
        with urlopen(address, timeout=60) as page:  # ruff: ignore[suspicious-url-open-usage] - of the test
            page.read()
            status: int = page.status
            return status
    except HTTPError as error:
        return error.code


def fill_forms(address: str) -> int:
    """Open an address, and send each form that a page has, as a person does who says yes."""
    browser = build_opener(HTTPCookieProcessor())
    data = None
    while True:
        with browser.open(address, data, timeout=60) as page:
            html = page.read().decode()
            status: int = page.status
            action = _ACTION.search(html)
            if action is None:
                return status
            fields = {name: value or "ada" for name, value in _FIELD.findall(html)}
            address, data = urljoin(page.url, unescape(action[1])), urlencode(fields).encode()


@contextmanager
def server_with_logins() -> Generator[str]:
    """The URL of a server that wants a person to log in, both of this process."""
    with LoginServer() as issuer, McpEndpoint(guard_of(issuer)) as server:
        yield server.url
