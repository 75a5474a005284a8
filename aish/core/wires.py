"""The wires, by the `api` of a model: what differs between vendors beside the spelling itself.

The spelling of each is a folder of `aish/wire/`, loaded by the runs that use it.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Final

from aish.core.frozen import frozen
from aish.core.json import JsonValue


@frozen
class Wire:
    """A spelling of conversations.

    Requests go to `root` and `leaf` below the address; an address may end with `root` already.
    `encoder`, `decoder` and `batches`, the interface for batches of requests, are `module:name`.
    `bounds` are the parameters that limit an answer. `base_url` is the vendor's own address,
    `key_header` the header of the key, `headers` what else is sent. `json_schema` says whether
    answer schemas are sent by default, `needs_bound` whether each request has a limit of the
    answer, `caches` the values of `cache`, the default first, `takes_pdf` whether who takes
    images takes PDFs, `pauses` whether endpoints may pause a turn.
    `answer_schema` brings an answer schema into the form of the vendor, or gives nothing;
    `nulls_for_absent` says that this form has null for a property that may be missing.

    Parameters: `own` are set by the wire alone, and in a file an error; `foreign` are those of
    another wire with their spelling here.
    """

    api: str
    leaf: str
    encoder: str
    decoder: str
    bounds: tuple[str, ...]
    root: str = ""
    batches: str = ""
    base_url: str | None = None
    key_header: str = "authorization"
    headers: Mapping[str, str] = field(default_factory=dict)
    json_schema: bool = False
    answer_schema: str | None = None
    nulls_for_absent: bool = False
    needs_bound: bool = False
    caches: tuple[str, ...] = ("off",)
    takes_pdf: bool = False
    pauses: bool = False
    own: frozenset[str] = frozenset()
    foreign: Mapping[str, str] = field(default_factory=dict)

    def path(self, below: str, leaf: str | None = None) -> str:
        """The path of requests to an address with the path `below`."""
        base = below.rstrip("/")
        root = "" if self.root and base.endswith(self.root) else self.root
        return f"{base}{root}{self.leaf if leaf is None else leaf}"

    def answer_limit(self, params: Mapping[str, JsonValue]) -> int | None:
        """The most tokens of an answer that these parameters of a request allow."""
        # If several are set, the endpoint decides which one applies.
        limit = 0
        for name in self.bounds:
            value = params.get(name)
            if type(value) is int and value > limit:
                limit = value
        return limit or None


CHAT: Final = "chat"
LONG_CACHES: Final = frozenset({"1h", "12h"})
"""Values of `cache` with which to write costs more than usual."""

_WIRES: Final = (
    Wire(
        api=CHAT,
        leaf="/chat/completions",
        encoder="aish.wire.chat.encode:Encoder",
        decoder="aish.wire.chat.decode:ChatDecoder",
        batches="aish.wire.batches.files:CHAT",
        bounds=("max_tokens", "max_completion_tokens"),
        # Only some gateways know such marks.
        caches=("off", "auto", "5m", "1h"),
    ),
    Wire(
        api="messages",
        leaf="/messages",
        encoder="aish.wire.messages.encode:Encoder",
        decoder="aish.wire.messages.decode:MessagesDecoder",
        batches="aish.wire.batches.messages:INTERFACE",
        answer_schema="aish.wire.messages.answer_schema:answer_format",
        bounds=("max_tokens",),
        root="/v1",
        base_url="https://api.anthropic.com",
        # Gateways of today know no other pair of headers than these two.
        key_header="x-api-key",
        headers={"anthropic-version": "2023-06-01"},
        json_schema=True,
        needs_bound=True,
        caches=("auto", "off", "5m", "1h"),
        pauses=True,
        takes_pdf=True,
        own=frozenset({"messages", "stream", "system", "tools"}),
        foreign={
            "max_completion_tokens": "max_tokens",
            "max_output_tokens": "max_tokens",
            "stop": "stop_sequences",
            "reasoning_effort": "output_config: {effort: …}",
            "response_format": "output_config: {format: …}",
            "parallel_tool_calls": "tool_choice: {type: auto, disable_parallel_tool_use: true}",
        },
    ),
    Wire(
        api="responses",
        leaf="/responses",
        encoder="aish.wire.responses.encode:Encoder",
        decoder="aish.wire.responses.decode:ResponsesDecoder",
        batches="aish.wire.batches.files:RESPONSES",
        answer_schema="aish.wire.responses.strict_schema:to_strict",
        nulls_for_absent=True,
        takes_pdf=True,
        bounds=("max_output_tokens",),
        # Only the newest models know such marks; without them the endpoint chooses.
        caches=("auto", "off", "30m", "12h"),
        root="/v1",
        base_url="https://api.openai.com",
        json_schema=True,
        # `tools` may name those of the vendor.
        own=frozenset({"input", "instructions", "store", "stream"}),
        foreign={
            "max_tokens": "max_output_tokens",
            "max_completion_tokens": "max_output_tokens",
            "reasoning_effort": "reasoning: {effort: …}",
            "response_format": "text: {format: …}",
            "verbosity": "text: {verbosity: …}",
        },
    ),
)

WIRES: Final[Mapping[str, Wire]] = {wire.api: wire for wire in _WIRES}


def wire_at(path: str) -> Wire | None:
    """The wire whose requests go to such a path."""
    return next((wire for wire in _WIRES if path.endswith(wire.root + wire.leaf)), None)
