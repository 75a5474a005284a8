from typing import Any

import pytest
from samples import each_case
from work import work_of

from aish.system.secrets.literal_keys import literal_keys, without_keys

KEY = "sk-proj-a1B2c3D4e5F6g7H8i9J0kLmN"


def found(value: Any) -> set[str]:
    return {key for _, key in literal_keys(value)}


@pytest.mark.parametrize(
    "words",
    [
        "srv --api-key hunter2-abc",
        "srv -v --token=hunter2-abc",
        "srv -H 'Authorization: Bearer hunter2-abc'",
        "env API_KEY=hunter2-abc srv",
        "srv --verbose --password 'hunter2-abc'",
        "srv https://user:hunter2-abc@host/x",
        "srv https://host/x?a=b&access_token=hunter2-abc",
    ],
)
def test_what_a_command_names_as_a_key_is_one(words: str) -> None:
    assert found({"command": words}) == {"hunter2-abc"}
    assert found({"command": words.replace("'", "").split()}) == {"hunter2-abc"}
    assert found({"description": f"Try {words}"}) == set()


@each_case(
    "value",
    [
        {"command": "srv --max-tokens 100000000 --token-file /run/token --tls-key server.pem"},
        {"command": "srv --key ./private/key --token ${TOKEN_OF_SRV} --api-key {{ inputs.key }}"},
        {"command": ["git", "show", "9f8e7d6c5b4a392817069f8e7d6c5b4a39281706"]},
        {
            "url": "https://host/mcp?collection=documents&ref=9f8e7d6c5b4a392817069f8e7d6c5b4a39281706"
        },
        {"headers": {"X-Team": "documents", "Authorization": "Bearer ${TOKEN}"}},
        {"env": {"LOG_LEVEL": "debugging", "KEY_FILE": "/etc/key"}},
        {"key": "item.identifier", "limits": {"tokens": 100000000}},
        {"prompt": "1BxiMVs0XRA5nFMdKvBdBZjgmUUqptlbs74OgvE2upms is a document"},
    ],
)
def test_ordinary_words_are_no_keys(value: Any) -> None:
    assert found(value) == set()


def test_a_key_has_the_path_of_its_field() -> None:
    value: Any = {
        "steps": [{"with": {"text": f"use {KEY}!"}}],
        KEY: {"env": {"API_KEY": "hunter2-abc"}},
    }
    assert list(literal_keys(value)) == [
        (("steps", 0, "with", "text"), KEY),
        ((KEY,), KEY),
        ((KEY, "env", "API_KEY"), "hunter2-abc"),
    ]


def test_a_private_key_is_found_whole() -> None:
    key = "-----BEGIN RSA PRIVATE KEY-----\nabc+/=\ndef\n-----END RSA PRIVATE KEY-----"
    assert found([f"use\n{key}\nhere"]) == {key}


def test_messages_lose_keys_alone() -> None:
    assert without_keys(f"unknown model `{KEY}`, not `b`") == "unknown model `<key>`, not `b`"
    assert without_keys("model `1BxiMVs0XRA5nFMdKvBdBZjgmUUqptlbs74OgvE2upms`") == "model `<key>`"
    names = (
        "run 20261129T014541Z-Quarterly-Report-Summary-x7k2: Quarterly_Report_2024_Q3_v2_Final.md"
    )
    assert without_keys(names) == names


@pytest.mark.parametrize("piece", ["token:", "token=a ", "a:b:", "--token ", "://", "?a=b", "sk-"])
def test_the_search_is_linear(piece: str) -> None:
    """A14: a file may hold anything."""

    def steps(count: int) -> int:
        text = f"https://h/{piece * count}"
        return work_of(lambda: list(literal_keys({"command": text}))).steps

    once, twice = steps(2_000), steps(4_000)
    assert twice < 2.5 * once + 1_000


def test_a_message_loses_a_short_key_too() -> None:
    assert without_keys("`sk-1234-planted` is not `auto`") == "`<key>` is not `auto`"
    assert without_keys("sk-learn, skeleton-2024-09") == "sk-learn, skeleton-2024-09"
    token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"
    assert without_keys(f"bad {token}!") == "bad <key>!"


def test_a_key_behind_underscores_is_one() -> None:
    # Not as random as a key: only its beginning tells.
    key = "sk-" + "word" * 8
    text = f"write `{key}__*` for every tool of a server, `*__{key}` for one on any server"

    assert without_keys(text).count("<key>") == 2
