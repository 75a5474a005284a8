"""Where clients connect, as options and the file say it (H14)."""

import pytest

from aish.core.errors import UsageError
from aish.serve.listeners.endpoint import http_endpoint, parse_endpoint


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("127.0.0.1:8080", "http://127.0.0.1:8080/mcp"),
        ("localhost:8080/", "http://127.0.0.1:8080/mcp"),
        ("[::1]:8080/tools/v1", "http://[::1]:8080/tools/v1"),
    ],
)
def test_an_address_over_http_has_a_path(text: str, shown: str) -> None:
    found = http_endpoint(text, "--http")

    assert found.to_text() == shown
    assert parse_endpoint(shown, "serve.listen") == found
    assert found.needs_token


def test_an_address_with_https_is_refused_with_the_options_that_encrypt() -> None:
    with pytest.raises(UsageError, match="is not `HOST:PORT`") as found:
        http_endpoint("https://127.0.0.1:8080/mcp", "--http")

    assert found.value.hint == "leave `https://` out: `--tls-cert` and `--tls-key` encrypt"


def test_a_socket_file_over_http_needs_no_token() -> None:
    found = parse_endpoint("http+unix:/run/user/1/hub.sock", "serve.listen")

    assert (found.to_text(), found.path) == ("http+unix:/run/user/1/hub.sock", "/mcp")
    assert not found.needs_token


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/a//b", "/ä", "/a?b", "//"])
def test_a_path_that_means_something_else_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="is not a path that HTTP can be served under"):
        http_endpoint(f"127.0.0.1:8080{path}", "--http")
