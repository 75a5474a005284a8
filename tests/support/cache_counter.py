"""An endpoint's cache as the vendors document it, and the counts that each of them sends.

A mark writes the prefix that ends there, and reads the longest one that earlier marks have written.
`/v1/messages` counts what is read and written beside the input, split by how long it is kept;
`/responses` and chat completions count it as a part of the input.
"""

import json
from collections.abc import Iterator
from typing import Any, Literal

Api = Literal["messages", "responses", "chat"]
_LOOKBACK = 20
_MOST_MARKS = 4
_MARKS = ("cache_control", "prompt_cache_breakpoint")


class CacheCounter:
    """Counts the requests of one conversation; a token is four characters."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._written: set[str] = set()
        self._before: list[str] = []
        self.again = 0
        """Tokens that were sent before."""
        self.read = 0
        """Tokens that were read from the cache."""

    def count(self, asked: Any) -> dict[str, Any]:
        """The `usage` of an answer to a request."""
        blocks: list[str] = []
        marks: list[tuple[int, bool]] = []
        for block in _blocks(self._api, asked):
            mark = next((block[name] for name in _MARKS if name in block), None)
            plain = {name: value for name, value in block.items() if name not in _MARKS}
            blocks.append(json.dumps(plain, sort_keys=True))
            if mark is not None:
                options = asked.get("prompt_cache_options", {})
                marks.append((len(blocks), mark.get("ttl", options.get("ttl")) in {"1h", "12h"}))
        assert len(marks) <= _MOST_MARKS
        assert blocks[: len(self._before)] == self._before, "a prefix has changed"
        looked = {at for mark, _ in marks for at in range(max(1, mark - _LOOKBACK), mark + 1)}
        hit = max((at for at in looked if _text(blocks, at) in self._written), default=0)
        end = max((mark for mark, _ in marks), default=0)
        total, read = _tokens(blocks, len(blocks)), _tokens(blocks, hit)
        written = _tokens(blocks, max(end, hit)) - read
        self.read += read
        self.again += _tokens(blocks, len(self._before))
        self._before = blocks
        self._written |= {_text(blocks, mark) for mark, _ in marks}
        return self._usage(total, read, written, long=any(kept for _, kept in marks))

    def _usage(self, total: int, read: int, written: int, *, long: bool) -> dict[str, Any]:
        short = 0 if long else written
        if self._api == "messages":
            return {
                "input_tokens": total - read - written,
                "cache_read_input_tokens": read,
                "cache_creation_input_tokens": written,
                "cache_creation": {
                    "ephemeral_5m_input_tokens": short,
                    "ephemeral_1h_input_tokens": written - short,
                },
                "output_tokens": 1,
            }
        details = {"cached_tokens": read, "cache_write_tokens": written}
        if self._api == "chat":
            counts = {"prompt_tokens": total, "completion_tokens": 1}
            return {**counts, "prompt_tokens_details": details}
        split = {"ttl_30m_tokens": short, "ttl_12h_tokens": written - short}
        return {
            "input_tokens": total,
            "input_tokens_details": {**details, "cache_write_tokens_details": split},
            "output_tokens": 1,
            "output_tokens_details": {"reasoning_tokens": 0},
        }


def _blocks(api: Api, asked: Any) -> Iterator[dict[str, Any]]:
    """The blocks of a request in the order in which they are cached."""
    yield from asked.get("tools", ())
    if api == "messages":
        yield from asked.get("system", ())
    yield {"instructions": asked.get("instructions")}
    for item in asked["input" if api == "responses" else "messages"]:
        content = item.get("content", item.get("output"))
        if isinstance(content, list):
            frame = {name: value for name, value in item.items() if value is not content}
            yield from ({**block, "of": frame} for block in content)
        else:
            yield item


def _text(blocks: list[str], count: int) -> str:
    return "\n".join(blocks[:count])


def _tokens(blocks: list[str], count: int) -> int:
    return len(_text(blocks, count)) // 4
