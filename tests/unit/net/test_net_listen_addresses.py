"""Where to listen: the forms of an address, and what other machines may reach (A1, H20)."""

from pathlib import Path

import pytest
from samples import each_case

from aish.core.errors import UsageError
from aish.net.listen.addresses import (
    Address,
    Exposure,
    check_exposure,
    parse_address,
    unix_address,
)

CERT, KEY = Path("cert.pem"), Path("key.pem")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("unix:/run/a.sock", Address(path=Path("/run/a.sock"))),
        ("127.0.0.1:8080", Address(host="127.0.0.1", port=8080)),
        ("localhost:0", Address(host="127.0.0.1", port=0)),
        ("[::1]:9100", Address(host="::1", port=9100)),
        ("0.0.0.0:1", Address(host="0.0.0.0", port=1)),
    ],
)
def test_an_address_is_a_socket_file_or_a_port(text: str, expected: Address) -> None:
    assert parse_address(text) == expected
    assert parse_address(str(expected)) == expected


def test_the_path_of_a_socket_is_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert parse_address("unix:a.sock") == Address(path=tmp_path / "a.sock")


@each_case(
    "text",
    [
        *("", ":80", "8080", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1"),
        *("127.0.0.1:80/mcp", "http://127.0.0.1:80", "::1:80", "[127.0.0.1]:80", "*:80"),
        *("example.com:80", "127.1:80", "[fe80::1%eth0]:80", "224.0.0.1:80", "127.0.0.1:8\n"),
        *("unix:", "unix:/", "unix:a/..", "unix:a\0b", "127.0.0.1:٨٠"),
    ],
)
def test_what_is_no_address_is_refused_with_its_forms(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_address(text, "--control")

    assert caught.value.where == "--control"
    assert "unix:PATH" in (caught.value.hint or "")


def test_a_path_that_no_client_could_connect_to_is_refused() -> None:
    assert unix_address(Path("/" + "a" * 106)).path is not None

    with pytest.raises(UsageError, match="at most 107 bytes"):
        unix_address(Path("/" + "ä" * 54))


@pytest.mark.requirement("H20")
@each_case(
    "text, exposure, problem",
    [
        ("0.0.0.0:80", Exposure(), "other machines"),
        ("[::]:80", Exposure(), "other machines"),
        ("192.168.1.5:80", Exposure(behind_proxy=True), "other machines"),
        ("10.0.0.1:80", Exposure(tls_cert=CERT, tls_key=KEY), "other machines"),
        ("0.0.0.0:80", Exposure(allow_remote=True), "unencrypted"),
        ("127.0.0.1:80", Exposure(tls_cert=CERT), "go together"),
        ("unix:/a/b", Exposure(tls_key=KEY), "go together"),
        ("unix:/a/b", Exposure(tls_cert=CERT, tls_key=KEY), "HOST:PORT"),
    ],
)
def test_other_machines_are_let_in_by_options_and_encrypted_only(
    text: str, exposure: Exposure, problem: str
) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        check_exposure([parse_address(text)], exposure)

    assert caught.value.exit_code == 2
    assert caught.value.hint


@pytest.mark.parametrize(
    ("texts", "exposure"),
    [
        (["127.0.0.1:80", "[::1]:80", "unix:/a/b"], Exposure()),
        (["127.9.9.9:80"], Exposure(allow_remote=True)),
        (["0.0.0.0:80"], Exposure(allow_remote=True, behind_proxy=True)),
        (["0.0.0.0:80", "unix:/a/b"], Exposure(True, tls_cert=CERT, tls_key=KEY)),
        (["127.0.0.1:80"], Exposure(tls_cert=CERT, tls_key=KEY)),
    ],
)
def test_loopback_needs_no_option(texts: list[str], exposure: Exposure) -> None:
    check_exposure([parse_address(text) for text in texts], exposure)
