"""A short form of `make soak`: a hub under load beside reloads and a server that is killed."""

from pathlib import Path

import pytest
from hub_soak import soaked


@pytest.mark.slow(reason="forty seconds of load, in which there are reloads and kills")
def test_a_hub_under_load_fails_only_as_the_contract_says(tmp_path: Path) -> None:
    report = soaked(tmp_path, seconds=40, rate=60)

    assert report.problems == []
    assert report.reloads["failed"] >= 1
    assert report.kills >= 3
