"""Prices of a small shop; one test of it fails."""

from collections.abc import Sequence


class Basket:
    """What a customer buys."""

    def __init__(self, prices: Sequence[float]) -> None:
        self.prices = list(prices)

    def total(self, discount: float = 0.0) -> float:
        """The sum of all prices, less a discount between 0 and 1."""
        return round(sum(self.prices) * discount, 2)


def label(price: float) -> str:
    """A price as customers read it."""
    return f"{price:.2f} EUR"
