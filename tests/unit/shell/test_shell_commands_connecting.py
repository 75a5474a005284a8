"""The entry of a server that a person names by its URL (S5)."""

from collections.abc import Container

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import each_case

from aish.core.errors import UsageError
from aish.shell.servers import server_of_url


@each_case(
    "url, alias",
    [
        ("https://docs.example.org/mcp", "docs"),
        ("http://localhost:8080/mcp", "localhost"),
        ("HTTPS://Docs.Example.Org/mcp", "docs"),
        ("http://my_server.example/mcp", "my-server"),
        ("http://a--b__c.example/", "a-b-c"),
        ("http://-odd-.example/", "odd"),
        ("http://127.0.0.1:9000/mcp", "127"),
        ("http://[::1]:9000/mcp", "server"),
        ("http://shell.example/mcp", "server"),
        ("http://___/mcp", "server"),
        ("http://bücher.example/mcp", "b-cher"),
    ],
)
def test_without_an_alias_a_server_has_the_first_label_of_its_host(url: str, alias: str) -> None:
    entry = server_of_url(url, None, ())

    assert (entry.alias, entry.url, entry.required) == (alias, url, False)


@pytest.mark.parametrize(
    ("taken", "alias"),
    [
        (("docs",), "docs2"),
        (("docs", "docs2", "docs3"), "docs4"),
        (("docs2",), "docs"),
    ],
)
def test_a_number_is_added_where_the_alias_is_taken(taken: Container[str], alias: str) -> None:
    assert server_of_url("https://docs.example/mcp", None, taken).alias == alias


def test_the_number_of_an_address_can_be_told_from_it() -> None:
    assert server_of_url("http://127.0.0.1/mcp", None, {"127", "127-2"}).alias == "127-3"


@each_case(
    "url",
    [
        "",
        "docs",
        "docs.example/mcp",
        "ftp://docs.example/",
        "http://",
        "http://[",
        "http://:80/",
        "http://h:port/mcp",
        "http://h:99999/mcp",
        "http://h:0/mcp",
        "file:///etc/passwd",
    ],
)
def test_what_is_no_url_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        server_of_url(url, None, ())

    assert "not the URL of a server" in str(caught.value)
    assert caught.value.hint


def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError) as caught:
        server_of_url("https://someone:s3cr3t-word@docs.example/mcp", None, ())

    assert "s3cr3t" not in f"{caught.value}{caught.value.hint}"
    assert "auth_env=NAME" in str(caught.value.hint)


@each_case("alias", ["a__b", "-a", "a-", "a b", "", "shell", "ü", "a" * 65, "a.b"])
def test_what_cannot_be_an_alias_is_refused(alias: str) -> None:
    with pytest.raises(UsageError, match="cannot be an alias"):
        server_of_url("https://docs.example/mcp", alias, ())


def test_an_alias_that_is_taken_is_refused_with_the_way_out() -> None:
    with pytest.raises(UsageError, match="`docs` is already used") as caught:
        server_of_url("https://docs.example/mcp", "docs", {"docs"})

    assert ":mcp disconnect docs" in str(caught.value.hint)


@given(st.text(max_size=40), st.sets(st.text("abc123-", max_size=6), max_size=5))
def test_no_text_breaks_it_and_every_alias_that_is_made_can_be_one(
    host: str, taken: set[str]
) -> None:
    try:
        entry = server_of_url(f"http://{host}/mcp", None, taken)
    except UsageError:
        return

    assert entry.alias not in taken
    # What it has made it also takes.
    assert server_of_url("http://h/mcp", entry.alias, ()).alias == entry.alias
