"""Which models the packs of a server may ask (K13)."""

from pathlib import Path

import anyio
import pytest

from aish.config.model import ServerEntry
from aish.core.errors import AishError, BudgetError, StepFailedError, UnavailableError
from aish.core.json import JsonObject
from aish.mcp.client.server_requests import Answers
from aish.mcp.protocol.messages import RpcError
from aish.packs.command_options import ShellOptions

EXPLAINING = {"shell": ShellOptions(explain="fast")}


class Sampler:
    """Answers with what it was asked, or fails."""

    def __init__(self, error: AishError | None = None) -> None:
        self._error = error

    async def sample(self, params: JsonObject) -> JsonObject:
        if self._error is not None:
            raise self._error
        return {"asked": params, "_meta": {"aish/usage": {"input": 1}}}


def request(alias: str) -> JsonObject:
    return {"modelPreferences": {"hints": [{"name": alias}]}} if alias else {}


def answered(
    entry: ServerEntry,
    alias: str,
    sampler: Sampler | None = None,
    meta: JsonObject | None = None,
) -> JsonObject:
    consent = entry.model_consent
    answers = Answers(
        entry.alias,
        sampling=entry.sampling == "allow" or consent.given,
        consent=consent if entry.pack else None,
    )
    method = "sampling/createMessage"
    params = request(alias) if meta is None else {**request(alias), "_meta": meta}
    return anyio.run(answers.answer, method, params, sampler or Sampler())


@pytest.mark.parametrize(
    ("entry", "asked", "is_permitted"),
    [
        (ServerEntry("s", pack=("shell",), options=EXPLAINING), "fast", True),
        (ServerEntry("s", pack=("shell",), options=EXPLAINING), "slow", False),
        (ServerEntry("s", pack=("shell",), options=EXPLAINING), "", False),
        (ServerEntry("s", pack=("shell",)), "fast", False),
        (ServerEntry("s", pack=("shell",), sampling="allow"), "", True),
        (ServerEntry("s", pack=("ml",)), "slow", True),
        (ServerEntry("s", pack=("ml",)), "", True),
        (ServerEntry("s", pack=("ide",)), "", True),
        (ServerEntry("s", pack=("ide",)), "slow", False),
    ],
    ids=str,
)
def test_packs_ask_only_what_the_file_agreed_to(
    entry: ServerEntry, asked: str, *, is_permitted: bool
) -> None:
    if is_permitted:
        assert answered(entry, asked)["asked"] == request(asked)
        return
    with pytest.raises(RpcError, match=r"may not ask|denied"):
        answered(entry, asked)


def test_another_server_names_no_model_and_sees_no_tokens() -> None:
    entry = ServerEntry("s", command=("server",), cwd=Path("/"), sampling="allow")
    assert answered(entry, "slow", meta={"aish/schema": {"type": "object"}}) == {"asked": {}}


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (BudgetError("too many"), "limit"),
        (UnavailableError("away"), "unavailable"),
        (StepFailedError("odd"), None),
    ],
    ids=["limit", "unavailable", "refused"],
)
def test_a_pack_is_told_why_a_model_did_not_answer(error: AishError, failure: str | None) -> None:
    entry = ServerEntry("s", pack=("ml",))
    with pytest.raises(RpcError) as raised:
        answered(entry, "", Sampler(error))
    assert raised.value.data == {"aish/failure": failure}
