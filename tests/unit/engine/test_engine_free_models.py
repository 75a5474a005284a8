"""How long an answer of a free model may be, where a limit has to know (B8)."""

import pytest

from aish.config.model import Limits, ModelEntry, Price
from aish.engine.plan.order import cap_tokens

FREE = ModelEntry("m", base_url="http://127.0.0.1:8080/v1", model="m", price=Price(0, 0))


@pytest.mark.parametrize(
    ("limits", "asked"),
    [
        ((), None),
        ((Limits(time=60, turns=3),), None),
        ((Limits(cost_usd=1.0),), 4096),
        ((Limits(tokens=200_000),), 4096),
        ((Limits(tokens=2000),), 500),
        ((Limits(tokens=200_000), Limits(tokens=2000)), 500),
        ((Limits(tokens=1),), 1),
    ],
)
def test_a_free_model_is_asked_for_as_much_as_a_limit_can_hold(
    limits: tuple[Limits, ...], asked: int | None
) -> None:
    assert cap_tokens(FREE, limits).params.get("max_tokens") == asked
