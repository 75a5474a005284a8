"""What a turn costs: by the file, by a price list, or unknown (B10)."""

import subprocess
import sys

import pytest
from model_turns import an_entry
from samples import each_case

from aish.config.model import ModelEntry, Price
from aish.core.messages import Usage
from aish.models.pricing import Listed, Rates, is_priced, pricing_of

OPENAI = "https://api.openai.com/v1"


def test_cached_input_counts_as_input_where_the_file_says_the_price() -> None:
    assert Rates(3.0, 15.0).cost(Usage(1_000_000, 100_000, cached=900_000)) == pytest.approx(4.5)


@pytest.mark.parametrize("usage", [Usage(), Usage(input=1), Usage(output=1)])
def test_unknown_tokens_have_an_unknown_cost_unless_all_are_free(usage: Usage) -> None:
    assert Rates(1.0, 0.0).cost(usage) is None
    assert Listed(OPENAI, "gpt-4o").cost(usage) is None
    assert Rates(0.0, 0.0).cost(usage) == 0


def test_the_price_in_the_file_beats_the_list_and_our_own_model_is_free() -> None:
    priced = an_entry(OPENAI, model="gpt-4o", price=Price(1.0, 2.0))
    assert pricing_of(priced) == Rates(1.0, 2.0)
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
