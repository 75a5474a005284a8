"""The cost of a turn in US dollars: by the file's own price, or by a price list.

The price list is the data that `genai-prices` (extra `prices`) contains; nothing is ever fetched.
An unknown cost is `None`, never zero.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from ipaddress import ip_address
from itertools import starmap
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

from aish.config.model import (
    BATCH,
    ModelEntry,
)
from aish.core.frozen import frozen
from aish.core.messages import Usage
from aish.core.wires import LONG_CACHES

MILLION = 1_000_000
_HERE = ("localhost", ".localhost", ".local", ".lan", ".internal", ".home.arpa")
_LIST: Final = "genai-prices"
# Parameters with which a file has more written to a cache than `cache` says, perhaps for long.
_CACHE_PARAMS: Final = ("cache_control", "prompt_cache_options")


class Pricing(Protocol):
    def cost(self, usage: Usage, long_written: int = 0) -> float | None:
        """US dollars for a turn; `None` if its tokens or their price are unknown.

        `long_written` of `usage.cache_written` are kept longer than usual.
        """

    def most(self, read: int, written: int) -> float | None:
        """US dollars at most for a turn that reads and writes so many tokens."""


@frozen
class CacheRates:
    """Prices of input that is read from a cache or written to it, as parts of that of input."""

    read: float = 0.1
    write: float = 1.25
    long_write: float = 2.0


@frozen
class CacheWrites:
    """The most that requests of a model write to the endpoint's cache: at all, and for long."""

    any: bool = False
    long: bool = False


@frozen
class Rates:
    """A price from the file, in US dollars per million tokens.

    Prices for a cache that are `None` are in proportion to `input`, as in the price list for the
    model `listed`, else as of `CacheRates`.
    """

    input: float
    output: float
    cached_input: float | None = None
    cache_write: float | None = None
    listed: "Listed | None" = None
    writes: CacheWrites = CacheWrites()

    @property
    def is_free(self) -> bool:
        return not any((self.input, self.output, self.cached_input, self.cache_write))

    def cost(self, usage: Usage, long_written: int = 0) -> float | None:
        """US dollars; a free model costs nothing even if tokens are unknown."""
        if self.is_free:
            return 0.0
        if usage.input is None or usage.output is None:
            return None
        cost = usage.input * self.input + usage.output * self.output
        read, short, long = _cache_parts(usage, long_written)
        if read or short or long:
            rates = self.cache_rates
            cost += read * (rates.read - self.input)
            cost += short * (rates.write - self.input) + long * (rates.long_write - self.input)
        return cost / MILLION

    def most(self, read: int, written: int) -> float | None:
        """As if the whole request were written to the cache or read from it, or neither."""
        is_priced = self.cache_write is not None
        writes = CacheWrites(self.writes.any or is_priced, self.writes.long)
        usages = [*_worst_usages(read, written, writes), (Usage(read, written, read), 0)]
        return _highest(starmap(self.cost, usages))

    @property
    def cache_rates(self) -> CacheRates:
        """The prices for a cache, in US dollars."""
        parts = CacheRates()
        if self.listed is not None and None in {self.cached_input, self.cache_write}:
            parts = _listed_rates(self.listed.url, self.listed.model) or parts
        write = self.input * parts.write if self.cache_write is None else self.cache_write
        return CacheRates(
            self.input * parts.read if self.cached_input is None else self.cached_input,
            write,
            write * parts.long_write / parts.write,
        )


@frozen
class Listed:
    """The price list's entry for the endpoint's model name."""

    url: str
    model: str
    writes: CacheWrites = CacheWrites()

    def cost(self, usage: Usage, long_written: int = 0) -> float | None:
        """US dollars at the current list price."""
        if usage.input is None or usage.output is None:
            return None
        return _cost_by_list(self.url, self.model, usage, long_written)

    def most(self, read: int, written: int) -> float | None:
        return _highest(starmap(self.cost, _worst_usages(read, written, self.writes)))

    @property
    def is_listed(self) -> bool:
        return self.cost(Usage(1, 1)) is not None


BATCH_SHARE: Final = 0.5
"""The part of the price that vendors take for requests in batches."""


@frozen
class InBatches:
    """The pricing of a model that is asked by batches, at a share of the price of `single` ones."""

    single: Rates | Listed
    share: float

    def cost(self, usage: Usage, long_written: int = 0) -> float | None:
        return self._part(self.single.cost(usage, long_written))

    def most(self, read: int, written: int) -> float | None:
        return self._part(self.single.most(read, written))

    def _part(self, cost: float | None) -> float | None:
        return None if cost is None else cost * self.share


def as_charged(pricing: Pricing | None, *, in_batch: bool | None) -> Pricing | None:
    """The pricing by what an endpoint says that it has charged, if it says that."""
    single = pricing.single if isinstance(pricing, InBatches) else pricing
    if in_batch is None or (in_batch and single is not pricing):
        return pricing
    is_priced = in_batch and isinstance(single, Rates | Listed)
    return InBatches(single, BATCH_SHARE) if is_priced else single  # type: ignore[arg-type]  # it is one


def batch_share(entry: ModelEntry) -> float:
    share = None if entry.price is None else entry.price.batch
    return BATCH_SHARE if share is None else share


def pricing_of(entry: ModelEntry) -> Pricing | None:
    """The pricing of a model by its delivery, if possibly known."""
    single = single_pricing(entry)
    return (
        single
        if entry.delivery != BATCH or single is None
        else InBatches(single, batch_share(entry))
    )


def single_pricing(entry: ModelEntry) -> Rates | Listed | None:
    """The pricing of single requests, if possibly known; the list is loaded lazily."""
    writes = _writes_of(entry)
    url, model = entry.base_url, entry.model
    listed = Listed(url, model, writes) if url and model and _may_be_listed(url) else None
    if entry.price is not None:
        price = entry.price
        own = (price.input, price.output, price.cached_input, price.cache_write)
        return Rates(*own, listed, writes)
    return Rates(0.0, 0.0) if entry.embedded is not None else listed


def is_priced(entry: ModelEntry) -> bool:
    """Return true if the cost of a model's turns is known; loads the price list if necessary."""
    pricing = single_pricing(entry)
    return pricing.is_listed if isinstance(pricing, Listed) else pricing is not None


def is_free(entry: ModelEntry) -> bool:
    """Return true if it costs nothing, because the file says so or it is an embedded model."""
    pricing = single_pricing(entry)
    return isinstance(pricing, Rates) and pricing.is_free


def has_list() -> bool:
    from importlib.util import find_spec

    return find_spec("genai_prices") is not None


@frozen
class PriceList:
    """The installed price list, which says nowhere of which day it is."""

    name: str
    version: str
    installed: float
    """When it was installed, in seconds since 1970: it is at least that old."""


def installed_list() -> PriceList | None:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        found = distribution(_LIST)
        # Installers write this file; that of the prices may have the time of its archive.
        record = found.locate_file(f"genai_prices-{found.version}.dist-info/RECORD")
        return PriceList(_LIST, found.version, Path(str(record)).stat().st_mtime)
    except (PackageNotFoundError, OSError):
        return None


def _writes_of(entry: ModelEntry) -> CacheWrites:
    """The most that requests of an entry write."""
    own = any(name in entry.params for name in _CACHE_PARAMS)
    return CacheWrites(own or entry.cache != "off", own or entry.cache in LONG_CACHES)


def _worst_usages(read: int, written: int, writes: CacheWrites) -> Iterator[tuple[Usage, int]]:
    """Usages of one turn, one of them the dearest, and how much of each is kept for long."""
    yield Usage(read, written), 0
    if writes.any:
        yield Usage(read, written, cache_written=read), 0
    if writes.long:
        yield Usage(read, written, cache_written=read), read


def _highest(costs: Iterable[float | None]) -> float | None:
    return max((cost for cost in costs if cost is not None), default=None)


def _cache_parts(usage: Usage, long_written: int) -> tuple[int, int, int]:
    """Tokens of input that were read from a cache, written for the usual time, and for long."""
    total = usage.input or 0
    read = min(usage.cached or 0, total)
    # Some endpoints count only what was kept for long.
    written = min(max(usage.cache_written or 0, long_written), total - read)
    long = min(long_written, written)
    return read, written - long, long


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


@cache
def _listed_rates(url: str, model: str) -> CacheRates | None:
    """The list's prices for a cache, as parts of its price of input."""
    count = 1000  # below the tiers of long requests
    usages = (
        (Usage(count, 0), 0),
        (Usage(count, 0, count), 0),
        (Usage(count, 0, cache_written=count), 0),
        (Usage(count, 0, cache_written=count), count),
    )
    plain, *parts = (_cost_by_list(url, model, *use) for use in usages)
    known = [part / plain for part in parts if plain and part is not None]
    return CacheRates(*known) if len(known) == len(parts) else None


def _cost_by_list(url: str, model: str, usage: Usage, long_written: int) -> float | None:
    # Takes a fifth of a second the first time, only for models priced by the list.
    try:
        from genai_prices import Usage as Tokens
        from genai_prices import calc_price
    except ImportError:
        return None
    read, short, long = _cache_parts(usage, long_written)
    tokens = Tokens(
        input_tokens=usage.input,
        output_tokens=usage.output,
        cache_write_tokens=short + long or None,
        cache_write_1h_tokens=long or None,
        cache_read_tokens=read or None,
    )
    try:
        return float(calc_price(tokens, model, provider_api_url=url).total_price)
    except (LookupError, ValueError):
        return None
