"""Token counts as gateways send them."""

from typing import Any

import responses_streams as r
from messages_streams import finish_of
from samples import each_case

from aish.core.messages import Usage
from aish.wire.chat.answer import read_usage

NAMES = ("prompt_tokens", "prompt_tokens_details", "completion_tokens")
OF_RESPONSES = ("input_tokens", "input_tokens_details", "output_tokens")
TOLD: dict[str, tuple[tuple[Any, Any, Any], Usage]] = {
    "what is cached is a part of the input": ((10, {"cached_tokens": 8}, 7), Usage(10, 7, 8)),
    "more cached than all input is beside it": ((10, {"cached_tokens": 80}, 7), Usage(90, 7, 80)),
    "read and written are more than all input": (
        (10, {"cached_tokens": 8, "cache_write_tokens": 5}, 7),
        Usage(23, 7, 8, cache_written=5),
    ),
    "no request has 0 tokens": ((0, None, 7), Usage(None, 7)),
    "counts are text": (("10", {"cached_tokens": "8"}, "7"), Usage(10, 7, 8)),
    "less than nothing": ((10, {"cached_tokens": -8}, 7), Usage(10, 7)),
    "words and long numbers": (("ten", {"cached_tokens": "1" * 5000}, 7), Usage(None, 7)),
}


@each_case("name", list(TOLD))
def test_counts_are_read_as_gateways_send_them(name: str) -> None:
    values, usage = TOLD[name]
    of_chat, told = (dict(zip(names, values, strict=True)) for names in (NAMES, OF_RESPONSES))

    assert read_usage(of_chat) == usage
    assert finish_of(r.decoded([r.stream(r.message("Hi."), usage=told)])).usage == usage
