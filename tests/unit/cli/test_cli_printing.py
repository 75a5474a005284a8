import json

import pytest

from aish.cli.printing import print_json

HOSTILE = "\x1b]0;x\x07\x9b31m\u202egnp.exe\u200b##[group]z \ud800 Grüße"


@pytest.mark.requirement("X2", "X3")
def test_json_into_a_pipe_steers_nothing_and_says_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_json({"text": HOSTILE, "also": (1, {"nan": float("nan")})})

    printed = capsys.readouterr().out
    assert json.loads(printed) == {
        "text": HOSTILE.replace("\ud800", "\ufffd"),
        "also": [1, {"nan": None}],
    }
    assert "Grüße" in printed
    assert not set("\x1b\x07\x9b\u202e\u200b") & set(printed)
    assert "##[" not in printed
