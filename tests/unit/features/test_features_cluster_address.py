"""What `--cluster` may say (B7, X9)."""

import sys
from pathlib import Path

import pytest
from samples import each_case

from aish.core.errors import UsageError
from aish.features.cluster.address import Certificates, ClusterAddress, cluster_address
from aish.features.cluster.connection import require_dask


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    made = tmp_path / "ca.pem", tmp_path / "cert.pem", tmp_path / "key.pem"
    for path in made:
        path.touch()
    return made


def test_workers_of_our_own_are_a_number() -> None:
    assert cluster_address("local:4") == ClusterAddress(workers=4)
    assert cluster_address("local:4").is_local


@pytest.mark.parametrize("text", ["local:", "local:0", "local:-1", "local:257", "local:2x"])
def test_a_number_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="number of workers from 1 to 256"):
        cluster_address(text)


@each_case(
    "text",
    ["", "4", "host:8786", "tls://", "tls://host", "ftp://host:1", "tls://a@b:1", "tls://h:65536"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a cluster"):
        cluster_address(text)


@pytest.mark.parametrize(
    "host",
    ["10.0.0.7", "scheduler", "127.0.0.1.example.org", "0.0.0.0", "[::]", "localhost.example"],
)
def test_items_do_not_travel_to_another_host_in_the_clear(host: str) -> None:
    with pytest.raises(UsageError, match="sent unencrypted") as error:
        cluster_address(f"tcp://{host}:8786")
    assert f"tls://{host}:8786" in str(error.value.hint)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_they_may_within_one_machine(host: str) -> None:
    address = f"tcp://{host}:8786"
    assert cluster_address(address) == ClusterAddress(scheduler=address)


def test_both_ends_of_an_encrypted_way_have_certificates(files: tuple[Path, Path, Path]) -> None:
    found = cluster_address("tls://far.example:8786", *files)
    assert found == ClusterAddress(
        scheduler="tls://far.example:8786", certificates=Certificates(*files)
    )
    with pytest.raises(UsageError, match="needs `--cluster-cert` and `--cluster-key`"):
        cluster_address("tls://far.example:8786", files[0])


def test_a_certificate_that_is_not_there_is_named(files: tuple[Path, Path, Path]) -> None:
    files[2].unlink()
    with pytest.raises(UsageError, match="--cluster-key: no such file"):
        cluster_address("tls://far.example:8786", *files)


@pytest.mark.parametrize("text", ["local:2", "tcp://127.0.0.1:8786"])
def test_certificates_are_for_encrypted_ways(text: str, files: tuple[Path, Path, Path]) -> None:
    with pytest.raises(UsageError, match="`--cluster-ca` goes with"):
        cluster_address(text, files[0])


def test_without_dask_it_is_said_how_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match="needs `distributed`") as error:
        require_dask()
    assert error.value.hint == "pip install 'aish-pipelines[dask]'"
