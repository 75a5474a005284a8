"""Verdicts on repeated live tests: how often they are wrong, over seeded suites of cases.

    python benchmarks/verdicts.py [--suites 10000]

Four kinds of suites of 50 cases with a mean pass rate of 90 %, 8 runs a side: *same* (each case
at 0.9), *mixed* and *two-faced* (Beta with weight 4 and 1), *coins* (40 sure cases, 10 at one
half). *A/A* draws both sides from one suite: at most 1 % may be called worse. *All* lowers each
case on the logit scale to a mean of 80 %: at least 90 % have to be found. *Broken* lets one sure
case fail always: told, not judged.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from math import exp, log
from random import Random

from figures import Bench, Row, at_most

from aish.features.testing.comparison import UNDECIDED, ComparisonPlan, Sides, judge
from aish.features.testing.repeat_statistics import Counts

CASES, RUNS, RATE, LOWER = 50, 8, 0.9, 0.8
SUITES, SEED = 10_000, 20_261_130
_OUTCOMES = ("A/A", "all", "broken")


def beta(weight: float) -> Callable[[Random], list[float]]:
    return lambda random: [
        random.betavariate(RATE * weight, (1 - RATE) * weight) for _ in range(CASES)
    ]


KINDS: dict[str, Callable[[Random], list[float]]] = {
    "same": lambda _random: [RATE] * CASES,
    "mixed": beta(4),
    "two-faced": beta(1),
    "coins": lambda _random: [1.0] * 40 + [0.5] * 10,
}


def lower(rates: list[float], mean: float) -> list[float]:
    """The rates, all lowered by the same step on the logit scale, to a mean."""
    # A case that is sure stands for one that failed once in a thousand runs.
    logits = [log(p / (1 - p)) for p in (min(max(p, 0.001), 0.999) for p in rates)]
    low, high = 0.0, 20.0
    for _ in range(40):
        step = (low + high) / 2
        moved = [1 / (1 + exp(step - one)) for one in logits]
        low, high = (step, high) if sum(moved) > mean * len(moved) else (low, step)
    return moved


def passes(rates: list[float], random: Random) -> list[list[bool]]:
    return [[random.random() < rate for _ in range(RUNS)] for rate in rates]


def verdict(before: list[list[bool]], now: list[list[bool]]) -> tuple[bool, int]:
    """Tell whether the suite is called worse, and how many runs that took."""
    plan, decision, spent = ComparisonPlan("before", RUNS), UNDECIDED, 0
    done = dict.fromkeys(map(str, range(len(now))), 0)
    for number in range(1, RUNS + 1):
        for id in done:
            if decision.open is None or id in decision.open:
                done[id] = number
                spent += 1
        sides = {
            id: Sides(
                (Counts(sum(before[int(id)]), RUNS),), Counts(sum(now[int(id)][:runs]), runs), RUNS
            )
            for id, runs in done.items()
        }
        decision = judge(plan, sides, number, decision)
        if decision.open is not None and not decision.open:
            break
    return decision.outcome == "worse", spent


def shares(kind: str, suites: int) -> dict[str, tuple[float, float]]:
    """The share of suites that are called worse, and the runs of a case, by what changed."""
    random = Random(f"{SEED} {kind}")  # ruff: ignore[suspicious-non-cryptographic-random-usage] - draws that can be made again
    worse, spent = dict.fromkeys(_OUTCOMES, 0), dict.fromkeys(_OUTCOMES, 0)
    for _ in range(suites):
        rates = KINDS[kind](random)
        before = passes(rates, random)
        broken = list(rates)
        broken[max(range(CASES), key=lambda case: rates[case])] = 0.0
        for name, now in (("A/A", rates), ("all", lower(rates, LOWER)), ("broken", broken)):
            is_worse, runs = verdict(before, passes(now, random))
            worse[name] += is_worse
            spent[name] += runs
    return {name: (worse[name] / suites, spent[name] / suites / CASES) for name in _OUTCOMES}


def verdict_shares(_bench: Bench) -> Iterator[Row]:
    """The rows of `make bench`, over fewer suites."""
    for kind in KINDS:
        found = shares(kind, 500)
        yield at_most(f"{kind}: no change is called worse", found["A/A"][0], 0.01, _percent)
        missed = 1 - found["all"][0]
        yield at_most(f"{kind}: a fall from 90 % to 80 % is missed", missed, 0.1, _percent)


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def main() -> int:
    """Print the table; 1 if a share is beyond its bound."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--suites", type=int, default=SUITES)
    parser.add_argument("--kind", choices=KINDS, action="append")
    options = parser.parse_args()
    met = True
    for kind in options.kind or KINDS:
        found = shares(kind, options.suites)
        met &= found["A/A"][0] <= 0.01 and found["all"][0] >= 0.9
        told = "  ".join(
            f"{name} {_percent(share)} ({runs:.1f} runs)" for name, (share, runs) in found.items()
        )
        print(f"{kind:10} {told}", flush=True)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
