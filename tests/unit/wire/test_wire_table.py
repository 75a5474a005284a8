"""The table of wires: addresses, limits of answers, and what a run loads."""

import subprocess
import sys

import pytest

from aish.config.model import ModelEntry
from aish.core.wires import CHAT, WIRES, Wire, wire_at
from aish.models.dialect_choice import answer_limit, dialect_of
from aish.wire.dialect import load_decoder, load_encoder

VERSIONED = Wire("x", "/things", "", "", bounds=("most",), root="/v1")


@pytest.mark.parametrize(
    ("base", "path"),
    [
        ("", "/v1/things"),
        ("/", "/v1/things"),
        ("/v1", "/v1/things"),
        ("/v1/", "/v1/things"),
        ("/gateway", "/gateway/v1/things"),
        ("/gateway/v1", "/gateway/v1/things"),
    ],
)
def test_an_address_may_end_with_the_version_or_not(base: str, path: str) -> None:
    assert VERSIONED.path(base) == path


def test_chat_adds_its_place_to_any_address() -> None:
    assert WIRES[CHAT].path("/api/v1/") == "/api/v1/chat/completions"
    assert WIRES[CHAT].path("", "/models") == "/models"


@pytest.mark.parametrize("api", WIRES)
def test_each_wire_is_found_by_its_path_and_can_be_loaded(api: str) -> None:
    wire = WIRES[api]
    entry = ModelEntry("a", base_url="http://host", model="m", api=api)

    assert wire_at(wire.path("/proxy")) is wire
    assert load_encoder(wire)(dialect_of(entry)).dialect.api == api
    assert load_decoder(wire) is not None


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("claude-opus-4-20250514", 32_000),
        ("claude-opus-4@20250514", 32_000),
        ("anthropic/claude-opus-4", 32_000),
        ("anthropic/claude-opus-4.1", 32_000),
        ("anthropic/claude-opus-4.5", 64_000),
        ("anthropic/claude-3.5-sonnet", 8192),
        ("us.anthropic.claude-3-haiku-20240307-v1:0", 4096),
        ("local", 4096),
    ],
)
def test_the_longest_answer_is_that_of_the_model_as_gateways_spell_it(name: str, most: int) -> None:
    entry = ModelEntry("a", base_url="http://host", model=name, api="messages")

    assert answer_limit(entry) == most


def test_only_what_limits_an_answer_on_its_wire_counts() -> None:
    entry = ModelEntry("a", base_url="http://host", model="m", params={"max_tokens": 5})

    assert answer_limit(entry) == 5
    assert answer_limit(entry, {"max_tokens": 7}) == 7
    assert answer_limit(entry, {"max_tokens": True}) is None
    assert VERSIONED.answer_limit({"max_tokens": 5}) is None


def test_old_journals_know_the_origin_of_a_chat_turn() -> None:
    assert dialect_of(ModelEntry("a", base_url="http://host", model="m")).origin == "a"


@pytest.mark.real_process
def test_a_chat_run_loads_no_other_wire() -> None:
    program = """
import sys
import aish.models.client
from aish.core.wires import CHAT, WIRES
from aish.wire.dialect import load_decoder, load_encoder
load_encoder(WIRES[CHAT]), load_decoder(WIRES[CHAT])
others = [name for name in sys.modules if name.startswith("aish.wire.") and name.count(".") > 2]
print(*sorted(name for name in others if not name.startswith("aish.wire.chat.")))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert not done.stdout.strip()
