import pytest

from aish.net.oauth.challenges import AuthChallenge, Challenge, read_challenges, read_refusal


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], []),
        (["Bearer"], [("bearer", {})]),
        (['bEARER realm="a, b"'], [("bearer", {"realm": "a, b"})]),
        (['Bearer a="1", b=2,c = "3"'], [("bearer", {"a": "1", "b": "2", "c": "3"})]),
        (['Bearer SCOPE="x y"'], [("bearer", {"scope": "x y"})]),
        ([r'Bearer a="say \"hi\"", b="\\"'], [("bearer", {"a": 'say "hi"', "b": "\\"})]),
        (["Negotiate, Basic realm=x, Bearer a=b"], [
            ("negotiate", {}), ("basic", {"realm": "x"}), ("bearer", {"a": "b"}),
        ]),
        (["Negotiate YII+/=", "Bearer a=b"], [("negotiate", {}), ("bearer", {"a": "b"})]),
        (["Bearer a=b, DPoP algs=ES256"], [("bearer", {"a": "b"}), ("dpop", {"algs": "ES256"})]),
        (["Bearer,Bearer a=b"], [("bearer", {}), ("bearer", {"a": "b"})]),
        ([",, ,Bearer ,, a=b,,"], [("bearer", {"a": "b"})]),
        (['Bearer a="open'], [("bearer", {})]),
        (['Bearer a="", b=c'], [("bearer", {"a": "", "b": "c"})]),
        (["Bearer resource_metadata=https://h/.well-known/x, scope=a"], [
            ("bearer", {"resource_metadata": "https://h/.well-known/x", "scope": "a"}),
        ]),
        (["Bearer a=1, a=2"], [("bearer", {"a": "1"})]),
        (["a=b"], []),
        (['= , " ;'], []),
    ],
)  # fmt: skip
def test_challenges_are_read_as_lists(headers: list[str], expected: object) -> None:
    assert [(one.scheme, one.parameters) for one in read_challenges(headers)] == expected


def test_a_header_of_no_sense_is_read_in_little_time() -> None:
    for text in (
        "a" * 100_000,
        '"' * 100_000,
        "a=" * 50_000,
        'Bearer a="\\' * 10_000,
        " , " * 9_000,
    ):
        assert len(read_challenges([text])) <= 20_000


def test_the_bearer_challenges_speak_together() -> None:
    said = read_refusal(
        ['Bearer error="invalid_token", error_description="old"', 'Basic scope="no"',
         'Bearer scope="b a b", resource_metadata="https://h/m"'],
    )  # fmt: skip
    assert said == AuthChallenge("invalid_token", "old", ("b", "a"), "https://h/m")
    assert isinstance(read_challenges(["Bearer"])[0], Challenge)


@pytest.mark.parametrize(
    ("headers", "body", "error", "scopes"),
    [
        ([], b'{"error": "insufficient_scope", "scope": "a b"}', "insufficient_scope", ("a", "b")),
        (["Bearer scope=x"], b'{"error": "insufficient_scope"}', "insufficient_scope", ("x",)),
        (["Bearer error=invalid_token"], b'{"error": "insufficient_scope"}', "invalid_token", ()),
        ([], b'{"error": "forbidden", "scope": "a"}', "", ()),
        ([], b'["insufficient_scope"]', "", ()),
        ([], b'{"error": "insufficient_scope", "scope": null}', "insufficient_scope", ()),
        ([], b"[" * 5000, "", ()),
        ([], b"\xff", "", ()),
    ],
)
def test_a_lack_of_scopes_may_be_told_in_the_body_alone(
    headers: list[str], body: bytes, error: str, scopes: tuple[str, ...]
) -> None:
    said = read_refusal(headers, body)
    assert (said.error, said.scopes) == (error, scopes)
