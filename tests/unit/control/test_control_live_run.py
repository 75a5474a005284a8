from pathlib import Path
from typing import Any

import pytest
from control_peer import Asked, Peer

from aish.control.live_run import answer_live_run, link_to_page
from aish.control.run_endpoint import LiveAddress
from aish.features.approvals.answer import GivenAnswer, NotAnsweredError, RunIsLiveError
from aish.features.approvals.questions import ApprovalQuestion
from aish.features.history.run_store import RunStore, open_store
from aish.net.listen.addresses import parse_address

RUN = "20261121T190138Z-release-32be"
QUESTION = ApprovalQuestion(
    id="ab" * 16,
    run=RUN,
    step="one",
    item=None,
    server="fs",
    tool="rm",
    arguments={},
    digest="0" * 64,
    always=None,
    reason="no rule approves it",
    asked="2026-11-21T19:01:38.000Z",
    expires=None,
    state="open",
    caller_waiting=True,
    answer=None,
)
LIVE = RunIsLiveError("the run is live", where=RUN, hint="wait for it")
GIVEN = GivenAnswer("approve", "ann", "command")
# A run that ended may have left its port to anybody.
STRANGE = [
    (200, {}),
    (200, []),
    (200, "taken"),
    (404, {"detail": "not found"}),
    (500, {"error": "boom"}),
    (502, None),
]


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return open_store(tmp_path, tmp_path)


def listens_at(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    where = LiveAddress(parse_address(peer.address), token="t")
    name = "aish.control.live_run"
    monkeypatch.setattr(f"{name}._live_address", lambda *_, **__: where)
    monkeypatch.setattr(f"{name}.live_process", lambda *_: (True, 1))


@pytest.mark.parametrize(("status", "said"), STRANGE)
def test_an_answer_counts_only_if_a_run_says_so(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, status: int, said: Any
) -> None:
    with store, Peer(lambda asked: asked.say(said, status)) as peer:
        listens_at(peer, monkeypatch)
        with pytest.raises(RunIsLiveError, match="whoever listens there is no run"):
            answer_live_run(store, QUESTION, GIVEN, LIVE)
        with pytest.raises(NotAnsweredError, match="whoever listens there is no run"):
            link_to_page(store, RUN)


@pytest.mark.parametrize(("status", "said"), [*STRANGE, (200, {"pending": 3})])
def test_an_answer_that_was_taken_counts_even_if_a_stranger_has_the_port_then(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, status: int, said: Any
) -> None:
    def answer(asked: Asked) -> None:
        asked.say({"id": QUESTION.id}) if asked.method == "POST" else asked.say(said, status)

    with store, Peer(answer) as peer:
        listens_at(peer, monkeypatch)
        assert answer_live_run(store, QUESTION, GIVEN, LIVE) == ()
        assert peer.paths() == [f"/api/v1/approvals/{QUESTION.id}", "/api/v1/status"]
