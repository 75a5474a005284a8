"""Headers and URLs that cannot be sent are refused before anything is (F15, X5)."""

import pytest
from samples import each_case

import aish
from aish.config.model import ModelEntry
from aish.core.errors import UsageError
from aish.models.headers import check_base_url, headers_of

ENTRY = ModelEntry(alias="cloud", base_url="https://api.example.com/v1", key_env="CLOUD_KEY")


def with_headers(**headers: str) -> ModelEntry:
    return ModelEntry(alias="cloud", base_url="https://api.example.com/v1", headers=headers)


def test_the_key_is_sent_as_a_bearer_token() -> None:
    assert headers_of(ENTRY, "sk-planted")["authorization"] == "Bearer sk-planted"


def test_without_a_key_nothing_is_sent_in_its_place() -> None:
    assert "authorization" not in headers_of(ENTRY, None)
    assert "authorization" not in headers_of(ENTRY, "")


def test_a_compressed_answer_is_never_asked_for() -> None:
    assert headers_of(ENTRY, None)["accept-encoding"] == "identity"
    assert headers_of(ENTRY, None)["user-agent"] == f"aish/{aish.__version__}"


def test_the_files_own_headers_stand_over_ours() -> None:
    headers = headers_of(
        with_headers(Authorization="Basic eDp5", **{"X-Title": "a b"}), "sk-planted"
    )
    assert headers["authorization"] == "Basic eDp5"
    assert headers["x-title"] == "a b"


@pytest.mark.parametrize("value", ["sk-planted\n", "sk\r\nx: y", "sk\x00", "schlüssel", " padded"])
def test_a_header_that_http_does_not_allow_is_refused_without_its_value(value: str) -> None:
    with pytest.raises(UsageError) as caught:
        headers_of(with_headers(**{"x-key": value}), None)
    assert "x-key" in str(caught.value)
    assert value.strip() not in f"{caught.value} {caught.value.hint}"


def test_a_key_with_a_line_end_is_refused_by_the_name_of_its_variable() -> None:
    with pytest.raises(UsageError, match="CLOUD_KEY"):
        headers_of(ENTRY, "sk-planted\n")


@pytest.mark.parametrize("name", ["host", "Content-Length", "transfer-encoding", "x y", "", "a:b"])
def test_headers_that_describe_the_bytes_are_ours(name: str) -> None:
    with pytest.raises(UsageError):
        headers_of(with_headers(**{name: "x"}), None)


@each_case(
    "url",
    [
        "",
        "example.com/v1",
        "ftp://example.com",
        "http://",
        "http://[::1",
        "http://host:99999",
        "http://user:pass@host/v1",
        "https://host/v1#top",
        "http://two words/v1",
        "http://host\n/v1",
        "http://xn--/v1",
        "http://xn--a/v1",
        "http://é..com/v1",
    ],
)
def test_a_url_that_is_no_endpoint_is_refused(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_base_url(ModelEntry(alias="cloud", base_url=url))
    assert "models.cloud.base_url" in str(caught.value)
    assert "pass@" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8080/v1",
        "https://h/v1/",
        "http://[::1]:80",
        "http://bücher.example/v1",
        "http://xn--bcher-kva.example/v1",
        "https://h/messages",
    ],
)
def test_any_other_is_not(url: str) -> None:
    check_base_url(ModelEntry(alias="cloud", base_url=url))
