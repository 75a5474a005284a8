"""Statistics of repeated runs: tests on counts of passes, intervals, sessions that differ.

Pure, without random numbers. Rates and probabilities are between 0 and 1; *inflation* is by how
much sessions that differ widen the variance of a difference (a design effect, Kish 1965).
"""

from collections.abc import Sequence
from math import comb, fsum, sqrt
from statistics import NormalDist, fmean, variance

from aish.core.frozen import frozen

_NORMAL = NormalDist()
_MOST_EXACT = 1_000


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
Pairs = Sequence[Pair]


def pool(counts: Sequence[Counts]) -> Counts:
    return Counts(sum(one.passed for one in counts), sum(one.runs for one in counts))


def lower_tail(pairs: Pairs, inflation: float = 1.0, *, extreme: bool = False) -> float:
    """Probability that chance alone gives as few passes now, or fewer; `extreme`: the fewest.

    The runs of each case are mixed and dealt again: its passes now are hypergeometric (Fisher
    1935). To convolve these is exact; the sum of more than 1,000 that vary is taken as normal.
    """
    dealt, excess, means, variances = [], 0, [], []
    for before, now in pairs:
        passed, runs = before.passed + now.passed, before.runs + now.runs
        least, most = max(0, passed - before.runs), min(passed, now.runs)
        if least == most:
            continue
        excess += 0 if extreme else now.passed - least
        share = passed / runs
        means.append(now.runs * share - least)
        variances.append(now.runs * share * (1 - share) * before.runs / (runs - 1))
        ways = (comb(now.runs, x) * comb(before.runs, passed - x) for x in range(least, most + 1))
        dealt.append([one / comb(runs, passed) for one in ways])
    if len(dealt) > _MOST_EXACT:
        return _NORMAL.cdf((excess + 0.5 - fsum(means)) / sqrt(fsum(variances) * inflation))
    sums = [1.0]
    for chances in sorted(dealt, key=len):
        wider = [0.0] * (len(sums) + len(chances) - 1)
        for shift, chance in enumerate(chances):
            for place, other in enumerate(sums, shift):
                wider[place] += chance * other
        sums = wider[: excess + 1]
    tail = min(fsum(sums), 1.0)
    is_exact = inflation <= 1.0 or not 0.0 < tail < 1.0
    return tail if is_exact else _NORMAL.cdf(_NORMAL.inv_cdf(tail) / sqrt(inflation))


def tarone(pairs: Pairs, untested: Pairs, alpha: float, inflation: float) -> list[int]:
    """Numbers of the single cases that are worse (Tarone 1990), at `alpha` for all together.

    Alpha is divided by k, the smallest number such that at most k cases could reach alpha/k at all,
    given how many of their runs passed.
    """
    bounds = [lower_tail([one], inflation, extreme=True) for one in (*pairs, *untested)]
    k = next(k for k in range(1, len(bounds) + 2) if sum(p <= alpha / k for p in bounds) <= k)
    return [n for n, one in enumerate(pairs) if lower_tail([one], inflation) <= alpha / k]


def wilson(rate: float, runs: float, wider: float = 1.0) -> tuple[float, float]:
    """The 95 % interval of a rate (Wilson 1927); `runs` may be a fraction, `wider` scales z."""
    z = _NORMAL.inv_cdf(0.975) * wider
    middle, scale = rate + z * z / (2 * runs), 1 + z * z / runs
    half = z * sqrt(rate * (1 - rate) / runs + z * z / (4 * runs * runs))
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def mean_rate(cases: Sequence[Counts]) -> tuple[float, tuple[float, float]]:
    """The mean rate over cases with its 95 % interval, wider where few cases tell their variance.

    Cases differ, so their runs are worth as many as would give a mean the variance that it has.
    """
    rates, worth = [case.rate for case in cases], float(pool(cases).runs)
    rate = fmean(rates)
    if len(cases) == 1:
        return rate, wilson(rate, worth)
    if spread := variance(rates) / len(cases):
        worth = min(worth, rate * (1 - rate) / spread)
    return rate, wilson(rate, worth, 1 + 1.2 / (len(cases) - 1))


def pass_power(cases: Sequence[Counts], k: int) -> float:
    """Probability that `k` runs of a case all pass, without bias (mean over the cases)."""
    return fmean(comb(case.passed, k) / comb(case.runs, k) for case in cases)


def variance_parts(cases: Sequence[Counts]) -> tuple[float, float]:
    """Variances of the outcome of a run: between cases, and within one (two runs or more)."""
    noise = [case.rate * (1 - case.rate) / (case.runs - 1) for case in cases]
    between = variance(case.rate for case in cases) - fmean(noise)
    return max(between, 0.0), fmean(n * case.runs for n, case in zip(noise, cases, strict=True))


def smallest_fall(rate: float, before: float, now: float, cases: float) -> float | None:
    """The fall of `rate` that is detected 9 times in 10; `None` if even a fall to 0 is not.

    It is the root d of d² = 3.9² (p(1 - p)/before + (p - d)(1 - p + d)/now)/cases.
    """
    # The normal quantiles of a test at 0.5 % and of a power of 90 %, added.
    k = 3.9**2 / cases
    a, b, c = 1 + k / now, k * (2 * rate - 1) / now, k * rate * (1 - rate) * (1 / before + 1 / now)
    fall = (b + sqrt(b * b + 4 * a * c)) / (2 * a)
    return fall if 0 < fall <= rate else None


def session_correlation(cases: Sequence[Sequence[Counts]]) -> float | None:
    """Intra-session correlation of cases with counts by session (variances, Donner 1979).

    `None` if it cannot be measured: one session, or one run in each.
    """
    parts = [(one, pool(case).rate) for case in cases for one in case]
    runs, size = sum(one.runs for one, _ in parts), len(parts)
    if size in {len(cases), runs}:
        return None
    between = sum(one.runs * (one.rate - mean) ** 2 for one, mean in parts) / (size - len(cases))
    within = sum(one.runs * one.rate * (1 - one.rate) for one, _ in parts) / (runs - size)
    scale = between + (runs / size - 1) * within
    return min(max((between - within) / scale, 0.0), 1.0) if scale else 0.0


def half_width(pairs: Pairs, alpha: float, inflation: float) -> float:
    """Half of the interval of the mean change of a rate, which leaves out `alpha` on each side."""
    noise = 0.0
    for pair in pairs:
        for side in pair:
            rate = side.rate if side.runs > 1 else pool(pair).rate
            noise += rate * (1 - rate) / max(side.runs - 1, 1)
    return -_NORMAL.inv_cdf(alpha) * sqrt(inflation * noise) / len(pairs)
