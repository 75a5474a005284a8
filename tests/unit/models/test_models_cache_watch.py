"""A conversation that nothing is read of from the cache: told once, with where requests differ."""

import json
from collections.abc import Sequence

from samples import each_case

from aish.core.messages import History, Usage
from aish.models.cache_watch import CacheWatch

LONG = Usage(5000, 1, 0)
MARK = {"type": "ephemeral"}


def body(said: Sequence[str], *, head: str = "m") -> bytes:
    """A request whose last message is marked."""
    messages = [{"role": "user", "content": text} for text in said]
    last = {**messages[-1], "cache_control": MARK}
    asked = {"model": head, "messages": [*messages[:-1], last]}
    return json.dumps(asked, separators=(",", ":")).encode()


def told(bodies: Sequence[bytes], usages: Sequence[Usage]) -> list[str | None]:
    watch, history = CacheWatch(), History()
    notices = [watch.note(history, *pair) for pair in zip(bodies, usages, strict=True)]
    return [None if notice is None else notice.text for notice in notices]


SAME = [body("abcdef"[: count + 1]) for count in range(6)]
NEVER = "turns of a conversation, and nothing read from the endpoint's cache: "


@each_case(
    "bodies, usages, expected",
    [
        (SAME, [LONG] * 6, {3: "4 turns", 4: None}),
        (SAME, [Usage(5000, 1)] * 6, {3: "each request begins with the whole one before it"}),
        (SAME, [LONG, LONG, Usage(5000, 1, 9), *[LONG] * 3], {}),
        (SAME, [Usage(900, 1, 0)] * 6, {}),
        ([*SAME[:2], body("abX"), body("abXY")], [LONG] * 4, {3: "the whole one before it"}),
        (
            [*SAME[:2], body("Xbc"), body("Xbcd")], [LONG] * 4,
            {3: "request 3 differs from the one before from byte 51 on"},
        ),
        (
            [*SAME[:3], body("abcd", head="other")], [LONG] * 4,
            {3: "request 4 differs from the one before from byte 10 on"},
        ),
    ],
)  # fmt: skip
def test_where_two_requests_differ_is_told_once_of_one_that_is_never_read(
    bodies: list[bytes], usages: list[Usage], expected: dict[int, str | None]
) -> None:
    texts = told(bodies, usages)
    if not expected:
        assert texts == [None] * len(bodies)
    for at, text in expected.items():
        found = texts[at]
        assert (found is None) == (text is None)
        assert text is None or (text in str(found) and str(found).startswith(f"4 {NEVER}"))
