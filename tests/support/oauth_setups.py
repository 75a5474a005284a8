"""Set-ups of an authorization server as they occur, for `oauth_peer_server.py`.

Servers disagree on all of it: how an issuer is spelled, where its metadata is, how a secret is
read, what a registration takes and answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

OAUTH: Final = "/.well-known/oauth-authorization-server"
OPENID: Final = "/.well-known/openid-configuration"
BASIC, POST, KEY, NONE = "client_secret_basic", "client_secret_post", "private_key_jwt", "none"
PROGRAM: Final[Mapping[str, Any]] = {"client_id": "with-a-secret", "client_secret_env": "S"}
KEYED: Final[Mapping[str, Any]] = {"client_id": "with-a-key"}
PERSON: Final[Mapping[str, Any]] = {"login": True}
ROOT: Final = "{origin}"
PATH: Final = "{origin}/t"


@dataclass(frozen=True)
class SetUp:
    """An authorization server, and the settings of a client in the file.

    It spells itself `issuer`, the MCP server lists it as `listed` (`None`: as the official SDK
    does, empty: not at all), and its metadata is at the path `place`. It lists `methods` (`None`:
    nothing), and takes a secret by those in `takes`; it `decodes` that of a header. An assertion
    has to be meant for `audience`. A registration that `gives_secret` does not say how to send it.
    """

    name: str
    client: Mapping[str, Any] = field(default_factory=dict)
    issuer: str = ROOT
    listed: str | None = ROOT
    place: str = OAUTH
    methods: tuple[str, ...] | None = (BASIC, KEY, NONE)
    takes: tuple[str, ...] = (BASIC,)
    decodes: bool = True
    audience: str = ROOT
    gives_secret: bool = False
    refreshes: bool = True


def spell(text: str, origin: str) -> str:
    """A text of a set-up with the origin or the port in it."""
    return text.format(origin=origin, port=origin.rpartition(":")[2])


USUAL: Final = SetUp("authlib as it is", listed=None, decodes=False)

SET_UPS: Final = (
    SetUp("origin: a secret in the header, no methods listed", PROGRAM, methods=None),
    SetUp("origin: a slash that the server leaves out", PROGRAM, f"{ROOT}/"),
    SetUp("origin: no slash, and the server lists one", KEYED, listed=f"{ROOT}/"),
    SetUp("origin: OpenID, a form", PROGRAM, place=OPENID, methods=(POST,), takes=(POST,)),
    SetUp("path: metadata inserted", PROGRAM, PATH, PATH, f"{OAUTH}/t"),
    SetUp("path: OpenID inserted", PROGRAM, PATH, PATH, f"{OPENID}/t"),
    SetUp("path: OpenID appended, a key", KEYED, PATH, PATH, f"/t{OPENID}", audience=PATH),
    SetUp("path: metadata appended", PROGRAM, PATH, PATH, f"/t{OAUTH}"),
    SetUp("path: metadata at the bare root", PROGRAM, PATH, PATH),
    SetUp("path: a slash at its end", PROGRAM, f"{PATH}/", f"{PATH}/", f"{OAUTH}/t"),
    SetUp(
        "server: no document, it is its own issuer",
        {**PROGRAM, "scopes": ("notes:read",)},
        listed="",
    ),
    SetUp(
        "secret: a header that is not decoded, or a form",
        PROGRAM,
        methods=(BASIC, POST),
        takes=(BASIC, POST),
        decodes=False,
    ),
    SetUp("secret: only `none` listed", PROGRAM, methods=(NONE,)),
    SetUp(
        "key: assertions for the token endpoint",
        {**KEYED, "assertion_audience": "token_url"},
        audience=f"{ROOT}/token",
    ),
    SetUp("person: registers without scopes", PERSON, PATH, PATH, f"{OAUTH}/t"),
    SetUp(
        "person: a registration with a secret and no method, no refresh token",
        PERSON,
        methods=(BASIC, POST),
        takes=(POST,),
        gives_secret=True,
        refreshes=False,
    ),
)

OTHERS: Final = (
    SetUp("a slash at the end of a path", PROGRAM, f"{PATH}/", PATH, f"{OAUTH}/t"),
    SetUp("no slash at the end of a path", PROGRAM, PATH, f"{PATH}/", f"{OAUTH}/t"),
    SetUp("upper case in a path", PROGRAM, "{origin}/T", PATH, f"{OAUTH}/t"),
    SetUp("the bare root for a path", PROGRAM, ROOT, PATH),
    SetUp("a path for the bare root", PROGRAM, PATH),
    SetUp("https for http", PROGRAM, "https://127.0.0.1:{port}"),
    SetUp("another host", PROGRAM, "https://login.example"),
    SetUp("another name of the same host", PROGRAM, "http://localhost:{port}"),
)
"""Issuers that spell themselves otherwise than the server lists them."""
