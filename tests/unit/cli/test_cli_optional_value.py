"""Options that stand alone or with a value (B3, C7)."""

import pytest

from aish.cli.optional_value import completed


@pytest.mark.requirement("B3", "C7", "C12")
@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("run p.yaml --resume", "run p.yaml --resume latest"),
        ("run --resume p.yaml", "run --resume latest p.yaml"),
        ("run --resume ./p", "run --resume latest ./p"),
        ("run p.yaml --resume -q", "run p.yaml --resume latest -q"),
        ("run p.yaml --resume a1b2", "run p.yaml --resume a1b2"),
        (
            "run p.yaml --resume 20261121T120000Z-p-a1b2 -q",
            "run p.yaml --resume 20261121T120000Z-p-a1b2 -q",
        ),
        ("run p.yaml --resume=a1b2", "run p.yaml --resume=a1b2"),
        ("run -- p.yaml --resume", "run -- p.yaml --resume"),
        ("plan p.yaml --resume", "plan p.yaml --resume"),
        ("run p.yaml --record", "run p.yaml --record cassette:"),
        ("run p.yaml --replay -q", "run p.yaml --replay cassette: -q"),
        ("run p.yaml --replay c.yaml -q", "run p.yaml --replay c.yaml -q"),
        ("run p.yaml --replay=c.yaml", "run p.yaml --replay=c.yaml"),
        ("run p.yaml --cassette --pace fast", "run p.yaml --cassette cassette: --pace fast"),
        ("test --record pipelines", "test --record changed pipelines"),
        ("test --record=all pipelines", "test --record=all pipelines"),
        ("", ""),
    ],
)
def test_an_option_without_a_value_gets_what_it_means_then(given: str, read: str) -> None:
    assert completed(given.split()) == read.split()
