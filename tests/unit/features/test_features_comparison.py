"""Comparisons of repeated runs: when they end, and which cases go on."""

from aish.features.testing.comparison import (
    ITSELF,
    UNDECIDED,
    ComparisonPlan,
    Sides,
    Spread,
    chance_text,
    conclude,
    judge,
    spread_of,
)
from aish.features.testing.repeat_statistics import Counts


def sides(before: int, now: int, runs: int, planned: int = 8) -> Sides:
    return Sides((Counts(before, 8),), Counts(now, runs), planned)


def test_a_case_that_broke_goes_on_where_the_suite_has_ended() -> None:
    plan = ComparisonPlan("b.json", 8)
    others = {f"c{n}": sides(6, 3, 3) for n in range(10)}
    broken = {"broken": sides(8, 0, 3), "weak": sides(3, 0, 3)}

    first = judge(plan, {**others, **broken}, 3, UNDECIDED)

    assert (first.outcome, first.open) == ("no_difference", frozenset({"broken"}))
    last = judge(plan, {**others, **broken, "broken": sides(8, 0, 8)}, 8, first)
    assert (last.outcome, last.falls) == ("worse", ("broken",))
    mended = judge(plan, {**others, **broken, "broken": sides(8, 4, 8)}, 8, first)
    assert (mended.outcome, mended.falls) == ("no_difference", ())


def test_nothing_is_decided_between_looks_or_without_cases() -> None:
    plan = ComparisonPlan("b.json", 8)
    worst = {f"c{n}": sides(8, 0, 4) for n in range(20)}

    assert judge(plan, worst, 4, UNDECIDED) == UNDECIDED
    assert judge(plan, worst, 5, UNDECIDED).outcome == "worse"
    assert judge(plan, {}, 8, UNDECIDED) == UNDECIDED
    assert conclude(plan, {}, UNDECIDED).outcome == "undecided"
    better = judge(plan, {f"c{n}": sides(2, 8, 8) for n in range(20)}, 8, UNDECIDED)
    assert better.outcome == "better"
    whole = ComparisonPlan("b.json", 8, stops=False)
    assert judge(whole, worst, 3, UNDECIDED) == UNDECIDED
    assert judge(ComparisonPlan(ITSELF, 8), worst, 8, UNDECIDED).outcome == "different"


def test_sessions_much_alike_count_as_one_run_each() -> None:
    half = [[Counts(8, 8), Counts(0, 8)]] * 20
    plan = ComparisonPlan("b.json", 8, spread=spread_of(half))
    now = {f"c{n}": Sides(tuple(half[n]), Counts(0, 8), 8) for n in range(20)}

    assert plan.is_alike
    decision = judge(plan, now, 8, UNDECIDED)
    # 20 cases that passed on one of two days, and on this one did not.
    assert (decision.outcome, decision.falls) == ("worse", ())
    few = {id: now[id] for id in list(now)[:5]}
    assert judge(plan, few, 8, UNDECIDED).outcome == "no_difference"
    assert spread_of([[Counts(8, 8), Counts(8, 8)]]) == Spread(2, 0.0, 0, 8.0)
    assert spread_of([[Counts(7, 8)]]).correlation is None


def test_a_chance_is_told_in_whole_times() -> None:
    texts = {0.613: "61 times in 100", 0.01: "10 times in 1,000", 0.0003: "3 times in 10,000"}
    assert {chance: chance_text(chance) for chance in texts} == texts
    assert chance_text(0.0001) == "once in 10,000"
    assert chance_text(0.00001) == "less than once in 10,000 times"
