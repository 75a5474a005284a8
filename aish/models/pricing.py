"""The cost of a turn in US dollars: by the file's own price, or by a price list.

The price list is the data that `genai-prices` (extra `prices`) contains; nothing is ever fetched.
An unknown cost is `None`, never zero.
"""

from functools import cache
from ipaddress import ip_address
from typing import Protocol
from urllib.parse import urlsplit

from aish.config.model import ModelEntry
from aish.core.frozen import frozen
from aish.core.messages import Usage

MILLION = 1_000_000
_HERE = ("localhost", ".localhost", ".local", ".lan", ".internal", ".home.arpa")


class Pricing(Protocol):
    def cost(self, usage: Usage, written: int = 0) -> float | None:
        """US dollars for a turn; `None` if its tokens or their price are unknown.

        `written` of the input tokens went into the endpoint's cache.
        """


@frozen
class Rates:
    """A price from the file, in US dollars per million tokens; cached input counts as input."""

    input: float
    output: float

    def cost(self, usage: Usage, written: int = 0) -> float | None:  # ruff: ignore[unused-method-argument] - the file has one price for input
        """US dollars; a free model costs nothing even if tokens are unknown."""
        if self.input == 0 and self.output == 0:
            return 0.0
        if usage.input is None or usage.output is None:
            return None
        return (usage.input * self.input + usage.output * self.output) / MILLION


@frozen
class Listed:
    """The price list's entry for the endpoint's model name; includes cheaper cached input."""

    url: str
    model: str

    def cost(self, usage: Usage, written: int = 0) -> float | None:
        """US dollars at the current list price."""
        if usage.input is None or usage.output is None:
            return None
        return _cost_by_list(self.url, self.model, usage, written)

    @property
    def is_listed(self) -> bool:
        return self.cost(Usage(1, 1)) is not None


def pricing_of(entry: ModelEntry) -> Pricing | None:
    """The pricing of a model, if possibly known; the list is loaded lazily."""
    if entry.price is not None:
        return Rates(entry.price.input, entry.price.output)
    if entry.embedded is not None:
        return Rates(0.0, 0.0)
    if entry.base_url is None or entry.model is None or not _may_be_listed(entry.base_url):
        return None
    return Listed(entry.base_url, entry.model)


def is_priced(entry: ModelEntry) -> bool:
    """Return true if the cost of a model's turns is known; loads the price list if necessary."""
    pricing = pricing_of(entry)
    return pricing.is_listed if isinstance(pricing, Listed) else pricing is not None


def has_list() -> bool:
    from importlib.util import find_spec

    return find_spec("genai_prices") is not None


@cache
def _may_be_listed(url: str) -> bool:
    """Return true if an endpoint is on the internet: others are not worth loading the list."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    if "." not in host or host.endswith(_HERE):
        return False
    try:
        return ip_address(host).is_global
    except ValueError:
        return True


def _cost_by_list(url: str, model: str, usage: Usage, written: int) -> float | None:
    # Takes a fifth of a second the first time, only for models priced by the list.
    try:
        from genai_prices import Usage as Tokens
        from genai_prices import calc_price
    except ImportError:
        return None
    tokens = Tokens(
        input_tokens=usage.input,
        output_tokens=usage.output,
        cache_write_tokens=min(written, usage.input or 0) or None,
        cache_read_tokens=None if usage.cached is None else min(usage.cached, usage.input or 0),
    )
    try:
        return float(calc_price(tokens, model, provider_api_url=url).total_price)
    except (LookupError, ValueError):
        return None
