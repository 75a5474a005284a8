"""What a turn costs: by the file, by a price list, or unknown (B10)."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from model_turns import an_entry
from samples import each_case

from aish.config.model import ModelEntry, Price
from aish.core.messages import Usage
from aish.models.pricing import Listed, Rates, is_priced, pricing_of

OPENAI = "https://api.openai.com/v1"


MANY = 1_000_000
CACHE_COSTS: dict[str, tuple[Rates, Usage, int, float]] = {
    "what is read from a cache costs a tenth": (
        Rates(3, 15),
        Usage(MANY, 100_000, 900_000),
        0,
        2.07,
    ),
    "what is written to it a quarter more": (
        Rates(3, 15),
        Usage(MANY, 0, None, None, MANY),
        0,
        3.75,
    ),
    "for long twice as much": (Rates(3, 15), Usage(MANY, 0, None, None, MANY), MANY, 6.0),
    "each part has its price": (Rates(1, 0), Usage(MANY, 0, 500_000, None, 300_000), 100_000, 0.7),
    "the file has its own": (Rates(1, 0, 0.5, 3), Usage(MANY, 0, 200_000, None, 800_000), 0, 2.5),
    "for long in proportion": (Rates(1, 0, 0.5, 3), Usage(MANY, 0, None, None, MANY), MANY, 4.8),
    "no more than the input is cached": (Rates(3, 15), Usage(100, 0, 900, None, 900), 900, 0.00003),
    "free as input, and not in a cache": (
        Rates(0, 0, 0, 2),
        Usage(MANY, 0, None, None, MANY),
        0,
        2,
    ),
}


@each_case("name", list(CACHE_COSTS))
def test_input_of_a_cache_has_a_price_of_its_own(name: str) -> None:
    rates, usage, kept_long, cost = CACHE_COSTS[name]
    assert rates.cost(usage, kept_long) == pytest.approx(cost)


def test_the_list_knows_the_proportions_of_a_price_in_the_file() -> None:
    pytest.importorskip("genai_prices")
    entry = an_entry(OPENAI, model="gpt-4o", price=Price(1.0, 2.0))
    half, ours = pricing_of(entry), pricing_of(replace(entry, model="a-model-nobody-knows"))
    assert half is not None
    assert ours is not None
    assert half.cost(Usage(MANY, 0, MANY)) == pytest.approx(0.5)
    assert ours.cost(Usage(MANY, 0, MANY)) == pytest.approx(0.1)


@each_case(
    "case",
    [
        ({}, 1.0),
        ({"price": Price(1.0, 2.0, cache_write=1.5)}, 1.5),
        ({"price": Price(1.0, 2.0, cache_write=0.5)}, 1.0),
        ({"price": Price(1.0, 2.0, cached_input=3.0)}, 3.0),
        ({"api": "messages", "cache": "auto"}, 1.25),
        ({"api": "messages", "cache": "1h"}, 2.0),
        ({"api": "messages", "cache": "off", "params": {"cache_control": {}}}, 2.0),
        ({"api": "messages", "price": Price(0, 0), "cache": "1h"}, 0.0),
    ],
)
def test_the_most_that_a_request_may_cost_takes_the_dearest_way_through_the_cache(
    case: tuple[dict[str, Any], float],
) -> None:
    more, most = case
    entry = an_entry("http://127.0.0.1:1", **{"price": Price(1.0, 2.0), **more})
    pricing = pricing_of(entry)
    assert pricing is not None
    assert pricing.most(MANY, 0) == pytest.approx(most)


@pytest.mark.parametrize("usage", [Usage(), Usage(input=1), Usage(output=1)])
def test_unknown_tokens_have_an_unknown_cost_unless_all_are_free(usage: Usage) -> None:
    assert Rates(1.0, 0.0).cost(usage) is None
    assert Listed(OPENAI, "gpt-4o").cost(usage) is None
    assert Rates(0.0, 0.0).cost(usage) == 0


def test_the_price_in_the_file_beats_the_list_and_our_own_model_is_free() -> None:
    priced = an_entry(OPENAI, model="gpt-4o", price=Price(1.0, 2.0))
    pricing = pricing_of(priced)
    assert pricing is not None
    assert pricing.cost(Usage(MANY, MANY)) == pytest.approx(3.0)
    assert pricing_of(ModelEntry("local", embedded="smollm2")) == Rates(0.0, 0.0)


@each_case(
    "url",
    [
        *("http://127.0.0.1:8080/v1", "http://[::1]/v1", "http://10.1.2.3/v1", "http://box/v1"),
        *("http://localhost:1/v1", "http://gpu.lan/v1", "${BASE}/v1", "https://${HOST}/v1"),
    ],
)
def test_nothing_at_home_is_looked_up_in_a_price_list(url: str) -> None:
    entry = an_entry(url, model="gpt-4o")
    assert pricing_of(entry) is None
    assert not is_priced(entry)


def test_the_list_knows_models_by_their_endpoint_and_cheaper_cached_input() -> None:
    pytest.importorskip("genai_prices")
    entry = an_entry(OPENAI, model="gpt-4o")
    assert is_priced(entry)
    pricing = pricing_of(entry)
    assert pricing is not None
    dear, cheap = (pricing.cost(Usage(1_000_000, 0, cached=cached)) for cached in (0, 1_000_000))
    assert dear is not None
    assert cheap is not None
    assert 0 < cheap < dear
    claude = Listed("https://api.anthropic.com", "claude-sonnet-4-5")
    plain, *written = (
        claude.cost(Usage(1000, 0, cache_written=count), kept_long)
        for count, kept_long in ((0, 0), (1000, 0), (1000, 1000))
    )
    assert plain is not None
    assert written == [pytest.approx(plain * 1.25), pytest.approx(plain * 2)]


@pytest.mark.parametrize(
    ("url", "model"),
    [(OPENAI, "a-model-nobody-knows"), ("https://models.example.org/v1", "gpt-4o")],
)
def test_what_the_list_does_not_have_is_unknown(url: str, model: str) -> None:
    entry = an_entry(url, model=model)
    pricing = pricing_of(entry)
    assert pricing is not None
    assert pricing.cost(Usage(10, 10)) is None
    assert not is_priced(entry)


def test_without_the_list_its_prices_are_unknown_and_nothing_breaks() -> None:
    code = (
        "import sys; sys.modules['genai_prices'] = None\n"
        "from aish.models.pricing import Listed\n"
        "from aish.core.messages import Usage\n"
        f"assert Listed('{OPENAI}', 'gpt-4o').cost(Usage(1, 1)) is None\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_list_is_not_loaded_before_a_price_is_asked_for() -> None:
    code = (
        "import sys\n"
        "import aish.engine.execution.run\n"
        "from aish.models.pricing import pricing_of\n"
        "assert 'genai_prices' not in sys.modules and 'pydantic' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
