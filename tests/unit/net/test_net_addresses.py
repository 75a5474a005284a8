"""A host name without an address is told from a server that does not answer."""

import socket

import pytest

from aish.config.model import ModelEntry
from aish.models.retry import not_connected
from aish.net.http import unknown_host

ORIGIN = "http://nohost.localhost:1"


def looked_up() -> socket.gaierror:
    with pytest.raises(socket.gaierror) as failed:
        socket.getaddrinfo("nohost.localhost", 1, flags=socket.AI_NUMERICHOST)
    return failed.value


def wrapped(error: OSError) -> OSError:
    """As the HTTP client raises it, two layers above."""
    try:
        try:
            raise error
        except OSError as below:
            raise ConnectionError("no connection") from below
    except ConnectionError as above:
        return above


def test_a_name_that_dns_does_not_know_has_a_hint_of_its_own() -> None:
    entry = ModelEntry("m", base_url=f"{ORIGIN}/v1")

    unknown = not_connected("no connection", entry, wrapped(looked_up()))
    refused = not_connected("refused", entry, wrapped(ConnectionRefusedError("refused")))

    said = f"no connection to {ORIGIN}: "
    assert unknown.message == f"{said}DNS has no address for `nohost.localhost`"
    assert unknown.hint == "check the name in `models.m.base_url`, and the network"
    assert refused.message == f"{said}refused"
    assert refused.hint == f"is the server running at {ORIGIN}?"


def test_dns_that_cannot_be_asked_is_no_unknown_name() -> None:
    error = wrapped(socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"))

    assert unknown_host(error, ORIGIN) == "DNS gave no answer for `nohost.localhost`"
