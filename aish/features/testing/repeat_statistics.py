"""Statistics of repeated runs: tests on counts of passes, intervals, sessions that differ.

Pure and without random numbers. Rates and probabilities are between 0 and 1; a case has `Counts`
for each side, `before` and `now`. A *look* is a moment at which a test may end; *alpha* is how
often a test may say "worse" where nothing changed; *inflation* is by how much sessions that differ
widen the variance of a difference (a design effect, Kish 1965).
"""

from collections.abc import Sequence
from math import ceil, comb, fsum, prod, sqrt
from statistics import NormalDist, fmean, variance

from aish.core.frozen import frozen

_NORMAL = NormalDist()
Z_95 = _NORMAL.inv_cdf(0.975)
_MOST_EXACT = 1_000
_FEWEST_ROUNDS = 5
# Share of rounds, share of alpha, and the chance above which a test ends without a difference.
_LOOKS = ((3 / 8, 0.1, 0.5), (5 / 8, 0.2, 0.25), (1, 0.5, 0.0))
SUITE_SHARE, CASE_SHARE = 0.8, 0.2
# Standard normal quantiles of a test at 0.5 % and of a power of 90 %, added.
_DETECTED = 3.9


@frozen
class Counts:
    """The runs of a case on one side, and how many of them passed."""

    passed: int
    runs: int

    @property
    def rate(self) -> float:
        return self.passed / self.runs


Pair = tuple[Counts, Counts]
"""A case before and now."""


@frozen
class Look:
    """A test after a number of rounds: worse below `alpha`, no difference above `futile`."""

    after: int
    alpha: float
    futile: float


def looks(rounds: int, alpha: float) -> tuple[Look, ...]:
    """The looks at a suite, whose alphas add up to its share (alpha spending, Lan, DeMets 1983)."""
    if rounds < _FEWEST_ROUNDS:
        return (Look(rounds, alpha * SUITE_SHARE, 0.0),)
    return tuple(Look(ceil(part * rounds), alpha * spent, out) for part, spent, out in _LOOKS)


def lower_tail(pairs: Sequence[Pair]) -> float:
    """Probability that chance alone gives as few passes now, or fewer.

    The runs of each case are mixed and dealt again: its passes now are hypergeometric (Fisher
    1935). The distributions of the cases are convolved, which is exact; for more than 1,000 cases
    that vary a normal distribution with the same mean and variance takes their place.
    """
    dealt, excess, means, variances = [], 0, [], []
    for before, now in pairs:
        passed, runs = before.passed + now.passed, before.runs + now.runs
        least, most = max(0, passed - before.runs), min(passed, now.runs)
        if least == most:
            continue
        excess += now.passed - least
        share = passed / runs
        means.append(now.runs * share - least)
        variances.append(now.runs * share * (1 - share) * before.runs / (runs - 1))
        ways = (comb(now.runs, x) * comb(before.runs, passed - x) for x in range(least, most + 1))
        dealt.append([one / comb(runs, passed) for one in ways])
    if len(dealt) > _MOST_EXACT:
        return _NORMAL.cdf((excess + 0.5 - fsum(means)) / sqrt(fsum(variances)))
    sums = [1.0]
    for chances in sorted(dealt, key=len):
        wider = [0.0] * (len(sums) + len(chances) - 1)
        for shift, chance in enumerate(chances):
            for place, other in enumerate(sums, shift):
                wider[place] += chance * other
        sums = wider[: excess + 1]
    return min(fsum(sums[: excess + 1]), 1.0)


def tarone(
    pairs: Sequence[Pair], others: Sequence[Pair], alpha: float, inflation: float = 1.0
) -> list[int]:
    """Numbers of the single cases that are worse (Tarone 1990), at `alpha` for all together.

    Alpha is divided by k, the smallest number such that at most k cases could reach alpha/k at all,
    given how many runs passed. `others` are counted among those and not tested.
    """
    bounds = [deflate(_smallest_tail(pair), inflation) for pair in (*pairs, *others)]
    k = next(k for k in range(1, len(bounds) + 2) if sum(p <= alpha / k for p in bounds) <= k)
    return [n for n, one in enumerate(pairs) if deflate(lower_tail([one]), inflation) <= alpha / k]


def _smallest_tail(pair: Pair) -> float:
    """The smallest tail that the case could have with as many passes on both sides together."""
    before, now = pair
    passed = before.passed + now.passed
    least = max(0, passed - before.runs)
    return lower_tail([(Counts(passed - least, before.runs), Counts(least, now.runs))])


def wilson(rate: float, runs: float, z: float = Z_95) -> tuple[float, float]:
    """The interval of a rate (Wilson 1927); `runs` may be a fraction."""
    middle, scale = rate + z * z / (2 * runs), 1 + z * z / runs
    half = z * sqrt(rate * (1 - rate) / runs + z * z / (4 * runs * runs))
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def mean_rate(cases: Sequence[Counts]) -> tuple[float, tuple[float, float]]:
    """The mean rate over cases with its 95 % interval.

    Cases differ, so their runs are worth fewer: as many as would give a mean rate with the variance
    that it has. `z` is a little larger where few cases have to tell that variance.
    """
    rates, runs = [case.rate for case in cases], sum(case.runs for case in cases)
    rate, z = fmean(rates), Z_95
    worth = float(runs)
    if len(cases) > 1:
        z *= 1 + 1.2 / (len(cases) - 1)
        spread = variance(rates) / len(cases)
        if spread and rate * (1 - rate):
            worth = min(worth, rate * (1 - rate) / spread)
    return rate, wilson(rate, worth, z)


def pass_power(cases: Sequence[Counts], k: int) -> float | None:
    """Probability that `k` runs of a case all pass, without bias (mean over the cases)."""
    if not cases or any(case.runs < k for case in cases):
        return None
    return fmean(comb(case.passed, k) / comb(case.runs, k) for case in cases)


def variance_parts(cases: Sequence[Counts]) -> tuple[float, float] | None:
    """Variances of the outcome of a run: between cases, and from run to run of a case."""
    if len(cases) < 2 or any(case.runs < 2 for case in cases):  # ruff: ignore[magic-value-comparison] - a variance needs two
        return None
    within = [case.rate * (1 - case.rate) * case.runs / (case.runs - 1) for case in cases]
    noise = fmean(one / case.runs for one, case in zip(within, cases, strict=True))
    return max(0.0, variance(case.rate for case in cases) - noise), fmean(within)


def smallest_fall(
    rate: float, before: float, now: float, cases: int, inflation: float = 1.0
) -> float | None:
    """The fall of `rate` that is detected 9 times in 10; `None` if even a fall to 0 is not."""
    fall = rate
    for _ in range(100):
        later = max(rate - fall, 0.0)
        noise = rate * (1 - rate) / before + later * (1 - later) / now
        fall = _DETECTED * sqrt(inflation * noise / cases) or fall / 2
    return fall if 0 < fall <= rate else None


def session_correlation(cases: Sequence[Sequence[Counts]]) -> float | None:
    """Intra-session correlation of the runs of a case (analysis of variance, Donner 1979).

    Each case has counts by session. `None` if it cannot be measured: one session, or one run each.
    """
    between = within = 0.0
    sessions = runs = rest = 0
    for case in cases:
        total = sum(one.runs for one in case)
        mean = sum(one.passed for one in case) / total
        between += sum(one.runs * (one.rate - mean) ** 2 for one in case)
        within += sum(one.runs * one.rate * (1 - one.rate) for one in case)
        sessions, rest, runs = sessions + len(case) - 1, rest + total - len(case), runs + total
    if not sessions or not rest:
        return None
    size = runs / sum(map(len, cases))
    between, within = between / sessions, within / rest
    scale = between + (size - 1) * within
    return min(max((between - within) / scale, 0.0), 1.0) if scale else 0.0


def session_inflation(correlation: float, now: float, before: float, session: float) -> float:
    """Inflation of a comparison: runs a case now and before, and runs a session before."""
    own, other = 1 + (now - 1) * correlation, 1 + (session - 1) * correlation
    return (own / now + other / before) / (1 / now + 1 / before)


def deflate(tail: float, inflation: float) -> float:
    """The tail probability where the variance is larger by `inflation`."""
    if inflation <= 1.0 or not 0.0 < tail < 1.0:
        return tail
    return _NORMAL.cdf(_NORMAL.inv_cdf(tail) / sqrt(inflation))


def difference(
    pairs: Sequence[Pair], alpha: float = 0.025, inflation: float = 1.0
) -> tuple[float, float, float]:
    """The mean change of the rate, with an interval that leaves out `alpha` on each side."""
    noise = 0.0
    for before, now in pairs:
        pooled = (before.passed + now.passed) / (before.runs + now.runs)
        for side in (before, now):
            rate = side.rate if side.runs > 1 else pooled
            noise += rate * (1 - rate) / max(side.runs - 1, 1)
    change = fmean(now.rate - before.rate for before, now in pairs)
    half = -_NORMAL.inv_cdf(alpha) * sqrt(inflation * noise) / len(pairs)
    return change, max(change - half, -1.0), min(change + half, 1.0)


def flip_chance(cases: Sequence[Counts]) -> float:
    """Probability that one run a case fails against one run a case, where nothing changed."""
    return 1 - prod(1 - case.rate * (1 - case.rate) for case in cases)
