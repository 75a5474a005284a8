import json
from typing import Any

import pytest

from aish.net.oauth.client_proof import pick_place, prove_by_secret, second_place
from aish.net.oauth.refusals import TokenQuestion, explain_refusal
from aish.net.oauth.settings import OAuthSettings
from aish.net.oauth.token_answer import IssuedToken, TokenRefusal, read_token_answer

JSON, FORM = "application/json; charset=utf-8", "application/x-www-form-urlencoded"


def read(status: int = 200, kind: str = JSON, **fields: Any) -> IssuedToken | TokenRefusal:
    return read_token_answer(status, kind, json.dumps(fields).encode())


@pytest.mark.parametrize(
    ("expires_in", "seconds"),
    [
        (3600, 3600.0), (59.5, 59.5), ("300", 300.0), (" 12.5 ", 12.5), (None, None), (0, None),
        (-1, None), ("", None), ("soon", None), (True, None), ([], None), ({}, None),
        (1e400, None), ("nan", None), ("inf", None), (10**400, None), (10**12, 315_360_000.0),
    ],
)  # fmt: skip
def test_a_lifetime_may_be_spelled_in_many_ways(expires_in: Any, seconds: float | None) -> None:
    found = read(access_token="t", expires_in=expires_in)
    assert isinstance(found, IssuedToken)
    assert found.seconds == seconds


@pytest.mark.parametrize(
    ("fields", "scopes"),
    [({"scope": "a  b"}, ("a", "b")), ({"scope": ["a", "b c", 1]}, ("a", "b", "c")),
     ({"scope": None}, None), ({"scope": ""}, None), ({"scope": 3}, None)],
)  # fmt: skip
def test_scopes_are_a_text_or_a_list(fields: dict[str, Any], scopes: Any) -> None:
    found = read(access_token="t", **fields)
    assert isinstance(found, IssuedToken)
    assert found.scopes == scopes


@pytest.mark.parametrize("kind", ["Bearer", "bearer", "BEARER ", None, ""])
def test_a_type_is_bearer_however_it_is_written(kind: Any) -> None:
    assert read(access_token="t", token_type=kind) == IssuedToken("t", None, None)


@pytest.mark.parametrize(
    ("status", "kind", "body", "refusal"),
    [
        (200, JSON, {"access_token": "t", "token_type": "DPoP"},
         ("", "its token is of the type `DPoP`, and not `Bearer`")),
        (200, JSON, {"access_token": "t", "token_type": ["Bearer"]},
         ("", "its token is of the type `['Bearer']`, and not `Bearer`")),
        (200, JSON, {"token_type": "Bearer"}, ("", "its answer has no `access_token`")),
        (200, JSON, {"access_token": None}, ("", "its answer has no `access_token`")),
        (200, JSON, {"access_token": "a b"}, ("", "its `access_token` cannot be sent in a header")),
        (200, JSON, {"access_token": "a\r\nb"},
         ("", "its `access_token` cannot be sent in a header")),
        (200, JSON, {"access_token": "t", "error": "access_denied"}, ("access_denied", "")),
        (200, JSON, {"error": "bad", "error_description": "so"}, ("bad", "so")),
        (400, JSON, {"error": "invalid_scope", "error_description": None}, ("invalid_scope", "")),
        (400, JSON, {"error": {"code": 1}}, ("", '{"error": {"code": 1}}')),
        (400, JSON, {"error_description": "what"}, ("", "what")),
        (500, JSON, {"access_token": "t"}, ("", '{"access_token": "t"}')),
        (503, "text/html", "<h1>later</h1>", ("", "<h1>later</h1>")),
        (200, JSON, [1], ("", "[1]")),
        (401, FORM, "error=invalid_client&error_description=no+way", ("invalid_client", "no way")),
    ],
)  # fmt: skip
def test_what_is_no_token_is_a_refusal(
    status: int, kind: str, body: Any, refusal: tuple[str, str]
) -> None:
    raw = body if isinstance(body, str) else json.dumps(body)
    found = read_token_answer(status, kind, raw.encode())
    assert found == TokenRefusal(status, *refusal)


def test_a_form_is_read_as_one() -> None:
    body = b"access_token=t&token_type=bearer&expires_in=60&scope=a+b"
    assert read_token_answer(200, FORM, body) == IssuedToken("t", 60.0, ("a", "b"))


def test_an_answer_without_end_is_a_refusal() -> None:
    assert isinstance(read_token_answer(200, JSON, b"[" * 100_000), TokenRefusal)


@pytest.mark.parametrize(
    ("named", "methods", "place"),
    [
        (None, [], "basic"), (None, ["none"], "basic"), (None, ["client_secret_post"], "post"),
        (None, ["client_secret_post", "client_secret_basic"], "basic"),
        (None, ["private_key_jwt"], "basic"), ("post", ["client_secret_basic"], "post"),
        ("basic-plain", ["client_secret_post"], "basic-plain"), ("basic", ["none"], "basic"),
    ],
)  # fmt: skip
def test_the_file_says_where_a_secret_goes_else_the_server(
    named: Any, methods: list[str], place: str
) -> None:
    assert pick_place(named, methods) == place


def test_only_a_secret_that_a_form_alters_is_tried_elsewhere() -> None:
    both = ["client_secret_basic", "client_secret_post"]
    assert second_place("basic", None, both, "id", "a+b") == "post"
    assert second_place("basic", None, both, "an id", "ab") == "post"
    assert second_place("basic", None, both, "id", "ab") is None
    assert second_place("basic", "basic", both, "id", "a+b") is None
    assert second_place("basic", None, ["client_secret_basic"], "id", "a+b") is None
    assert second_place("post", None, both, "id", "a+b") is None


def test_a_secret_is_encoded_for_a_form_before_it_is_encoded_for_a_header() -> None:
    # "i d:a+b" and "i+d:a%2Bb", in base64.
    assert prove_by_secret("basic", "i d", "a+b").headers == {"authorization": "Basic aStkOmElMkJi"}
    assert prove_by_secret("basic-plain", "i d", "a+b").headers == {
        "authorization": "Basic aSBkOmErYg=="
    }
    assert prove_by_secret("post", "i d", "a+b").fields == {
        "client_id": "i d",
        "client_secret": "a+b",
    }


@pytest.mark.parametrize(
    ("refusal", "parts"),
    [
        (TokenRefusal(400, "invalid_target", ""),
         ["`https://i/token`: `invalid_target`; it", "`https://s/mcp`", "`resource: false`"]),
        (TokenRefusal(400, "access_denied", ""), ["asked for the scopes `a`, `b`: see `scopes`"]),
        (TokenRefusal(401, "invalid_client", "no such"),
["`invalid_client` (no such); it", "the client `me` by this secret", "variable `KEY`"]),
        (TokenRefusal(400, "unauthorized_client", ""), ["the grant `client_credentials` there"]),
        (TokenRefusal(418, "teapot", "short"), ["`teapot` (short)"]),
        (TokenRefusal(503, "", "<h1>later</h1>"), [": HTTP 503 (<h1>later</h1>)"]),
        (TokenRefusal(200, "", "its answer has no `access_token`"),
         ["`https://i/token`: its answer has no `access_token`"]),
        (TokenRefusal(500, "", ""), ["`https://i/token`: HTTP 500"]),
    ],
)  # fmt: skip
def test_a_refusal_is_told_in_words_that_say_what_to_do(
    refusal: TokenRefusal, parts: list[str]
) -> None:
    settings = OAuthSettings("me", client_secret_env="KEY", scopes=("a", "b"))
    text = explain_refusal(
        TokenQuestion(settings, "https://i/token", "https://s/mcp", ("a", "b")), refusal
    )
    assert text.startswith("no token from `https://i/token`:")
    assert [part for part in parts if part not in text] == []


def test_a_long_answer_is_cut_and_made_one_line() -> None:
    refusal = TokenRefusal(500, "", "a\n\x1b[31m" + "b" * 10_000)
    settings = OAuthSettings("me", client_secret_env="KEY")
    text = explain_refusal(TokenQuestion(settings, "https://i/token", "https://s", ()), refusal)
    assert len(text) < 500
    assert text.isprintable()
