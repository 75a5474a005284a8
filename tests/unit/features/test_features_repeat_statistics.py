"""Statistics of repeated runs, against enumeration and the figures of the design."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations, product
from math import isclose, prod
from random import Random

import pytest

from aish.features.testing import repeat_statistics as stats
from aish.features.testing.comparison import InterimTest, flip_chance, looks, session_inflation
from aish.features.testing.repeat_statistics import Counts, Pair


def pair(passed_before: int, before: int, passed_now: int, now: int) -> Pair:
    return Counts(passed_before, before), Counts(passed_now, now)


def dealt(one: Pair) -> dict[int, Fraction]:
    """The passes now in every way to deal the runs of a case, each as likely as another."""
    before, now = one
    runs = before.runs + now.runs
    passes = range(before.passed + now.passed)
    hands = [sum(run in passes for run in hand) for hand in combinations(range(runs), now.runs)]
    return {count: Fraction(hands.count(count), len(hands)) for count in set(hands)}


def enumerated_tail(pairs: Sequence[Pair]) -> float:
    observed = sum(now.passed for _, now in pairs)
    whole = product(*(dealt(one).items() for one in pairs))
    ways = ((sum(n for n, _ in way), prod(chance for _, chance in way)) for way in whole)
    return float(sum(chance for count, chance in ways if count <= observed))


@pytest.mark.requirement("V6")
def test_the_tail_is_that_of_every_way_to_deal_the_runs() -> None:
    # Fisher's exact test, one-sided: his lady, and 8 of 8 against 0 of 8.
    assert isclose(stats.lower_tail([pair(3, 4, 1, 4)]), 17 / 70, abs_tol=1e-9)
    assert isclose(stats.lower_tail([pair(8, 8, 0, 8)]), 1 / 12870, abs_tol=1e-9)
    # One run a side is the sign test: of 3 cases that changed, 3 fell.
    assert isclose(stats.lower_tail([pair(1, 1, 0, 1)] * 3 + [pair(1, 1, 1, 1)]), 1 / 8)
    random = Random(7)
    for cases in (1, 1, 2, 3, 4):
        pairs = []
        for _ in range(cases):
            before, now = random.randint(1, 5), random.randint(1, 4)
            pairs.append(pair(random.randint(0, before), before, random.randint(0, now), now))
        assert isclose(stats.lower_tail(pairs), enumerated_tail(pairs), abs_tol=1e-9), pairs


def test_many_cases_have_a_normal_tail_with_the_same_figures() -> None:
    random = Random(3)
    one = [pair(random.randint(5, 8), 8, random.randint(5, 8), 8) for _ in range(1_400)]
    varying = [some for some in one if 0 < some[0].passed + some[1].passed < 16]
    assert len(varying) > 1_000

    exact = stats.lower_tail(varying[:1_000])

    # A case more does not make another figure of it.
    assert isclose(exact, stats.lower_tail([*varying[:1_000], varying[0]]), abs_tol=0.02)


def test_the_looks_spend_eight_tenths_of_the_alpha() -> None:
    assert [(look.after, round(look.alpha, 6)) for look in looks(8, 0.01)] == [
        (3, 0.001),
        (5, 0.002),
        (8, 0.005),
    ]
    assert [look.futile for look in looks(8, 0.01)] == [0.5, 0.25, 0.0]
    assert looks(4, 0.01) == (InterimTest(4, 0.008, 0.0),)
    assert [look.after for look in looks(20, 0.01)] == [8, 13, 20]


def test_a_single_case_is_named_by_what_the_others_could_reach() -> None:
    broken, sure, one_off = pair(8, 8, 0, 8), pair(8, 8, 8, 8), pair(8, 8, 7, 8)
    # 40 cases that cannot reach anything do not divide the share; those that can do.
    assert stats.tarone([broken, *[sure] * 40, *[one_off] * 9], [], 0.002, 1.0) == [0]
    assert stats.tarone([pair(7, 8, 0, 8)], [], 0.002, 1.0) == [0]
    half = pair(4, 8, 4, 8)
    assert stats.tarone([pair(7, 8, 0, 8), half, half], [], 0.002, 1.0) == []
    assert stats.tarone([pair(7, 8, 0, 8)], [half, half], 0.002, 1.0) == []
    assert stats.tarone([broken, *[half] * 24], [], 0.002, 1.0) == [0]
    assert stats.tarone([broken, *[half] * 26], [], 0.002, 1.0) == []
    assert stats.tarone([broken], [], 0.002, inflation=2.0) == []
    assert stats.tarone([], [], 0.002, 1.0) == []


def test_intervals_and_rates_are_those_of_the_design() -> None:
    low, high = stats.wilson(7 / 8, 8)
    assert (round(low, 3), round(high, 3)) == (0.529, 0.978)
    # Cases that differ: ten sure ones and ten that never pass are worth 19 runs, not 160.
    rate, (low, high) = stats.mean_rate([Counts(8, 8)] * 10 + [Counts(0, 8)] * 10)
    assert isclose(rate, 0.5)
    assert (round(low, 2), round(high, 2)) == (0.28, 0.72)
    # Cases alike: all runs count.
    rate, (low, high) = stats.mean_rate([Counts(4, 8)] * 20)
    assert (round(low, 2), round(high, 2)) == (0.42, 0.58)
    assert stats.mean_rate([Counts(8, 8)])[1] == stats.wilson(1.0, 8)


def test_all_of_k_runs_pass_with_the_share_of_their_choices() -> None:
    cases = [Counts(6, 8), Counts(8, 8)]
    for k in (1, 3, 8):
        choices = list(combinations(range(8), k))
        first = sum(max(one) < 6 for one in choices) / len(choices)
        assert isclose(stats.pass_power(cases, k), (first + 1) / 2)
    between, within = stats.variance_parts([Counts(8, 8), Counts(0, 8)])
    assert (between, within) == (0.5, 0)


def test_the_smallest_fall_is_that_of_the_design() -> None:
    falls = {cases: stats.smallest_fall(0.9, 8, 8, cases) for cases in (5, 10, 20, 50, 100)}
    assert {cases: round(100 * (fall or 0), 1) for cases, fall in falls.items()} == {
        5: 35.9, 10: 24.5, 20: 16.4, 50: 9.7, 100: 6.6,
    }  # fmt: skip
    assert stats.smallest_fall(0.9, 1, 1, 1) is None
    assert stats.smallest_fall(0.0, 8, 8, 50) is None
    assert stats.smallest_fall(1.0, 8, 8, 50) == pytest.approx(0.0366, abs=0.001)


def test_sessions_that_differ_raise_the_bar() -> None:
    alike = [[Counts(4, 8), Counts(4, 8)]] * 10
    copies = [[Counts(8, 8), Counts(0, 8)]] * 10
    assert stats.session_correlation(alike) == pytest.approx(0)
    assert stats.session_correlation(copies) == pytest.approx(1)
    assert stats.session_correlation([[Counts(7, 8)]]) is None
    assert stats.session_correlation([[Counts(1, 1), Counts(0, 1)]]) is None
    # Copies: a session is worth one run, now and before.
    assert isclose(session_inflation(1.0, 8, 16, 8), 8.0)
    assert session_inflation(0.0, 8, 16, 8) == pytest.approx(1)
    assert isclose(stats.lower_tail([pair(8, 8, 0, 8)], 4.0), 0.0293, abs_tol=1e-3)
    many = [pair(8, 8, 7, 8)] * 600 + [pair(7, 8, 8, 8)] * 560
    assert isclose(stats.lower_tail(many), 0.126, abs_tol=1e-3)
    assert isclose(stats.lower_tail(many, 4.0), 0.283, abs_tol=1e-3)


def test_a_difference_has_an_interval_from_runs_within_cases() -> None:
    half = stats.half_width([pair(7, 8, 6, 8)] * 50, 0.025, 1.0)
    assert isclose(half, 0.057, abs_tol=5e-4)
    wider = stats.half_width([pair(7, 8, 6, 8)] * 50, 0.025, 4.0)
    assert isclose(wider, 2 * half, abs_tol=1e-9)
    assert stats.half_width([pair(1, 1, 1, 1)], 0.025, 1.0) == 0
    assert stats.half_width([pair(1, 1, 0, 1)], 0.025, 1.0) > 0


def test_a_gate_of_one_run_a_case_fails_by_chance() -> None:
    # 50 cases at 90 %: 99 of 100 times.
    assert flip_chance([Counts(9, 10)] * 50) == pytest.approx(0.991, abs=0.001)
    assert flip_chance([Counts(8, 8)] * 50) == pytest.approx(0)
