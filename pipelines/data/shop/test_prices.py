import unittest

from prices import Basket, label


class PricesTest(unittest.TestCase):
    def test_total_without_discount(self) -> None:
        self.assertEqual(Basket([1.5, 2.5]).total(), 4.0)

    def test_total_with_discount(self) -> None:
        self.assertEqual(Basket([10.0]).total(discount=0.25), 7.5)

    def test_label(self) -> None:
        self.assertEqual(label(3), "3.00 EUR")


if __name__ == "__main__":
    unittest.main()
