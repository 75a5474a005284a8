"""The guards every other test relies on."""

import os
import socket

import pytest
from samples import spread


def test_a_connection_outside_loopback_is_refused() -> None:
    with socket.socket() as outside, pytest.raises(AssertionError, match=r"192\.0\.2\.1"):
        outside.connect(("192.0.2.1", 80))


def test_a_name_outside_loopback_is_not_looked_up() -> None:
    with pytest.raises(AssertionError, match=r"example\.org"):
        socket.create_connection(("example.org", 80))


def test_a_connection_to_loopback_works() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()


def test_no_switch_of_the_surroundings_reaches_a_test() -> None:
    assert not {"CI", "NO_COLOR", "FORCE_COLOR", "OPENAI_API_KEY"} & set(os.environ)


def test_a_sample_is_spread_over_its_table() -> None:
    assert spread(3, 31) == {0, 15, 30}
    assert spread(1, 5) == {0}
    assert spread(9, 4) == {0, 1, 2, 3}
