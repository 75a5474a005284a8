"""Compares repeated runs with others of the same cases: when that may end, and what it proves.

The other side are the sessions of a baseline, another column, or every other round of the same
column. Pure: counts in, a decision and its words out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, prod, sqrt
from statistics import fmean

from aish.core.frozen import frozen
from aish.core.phrases import counted
from aish.features.testing.repeat_statistics import (
    Counts,
    Pair,
    half_width,
    lower_tail,
    pool,
    session_correlation,
    smallest_fall,
    tarone,
)
from aish.reports.live_results import LiveComparison, Outcome

ALPHA = 0.01
"""How often "worse" may be said where nothing changed, over all columns of a session together."""

ITSELF = "itself"
_FEWEST_ROUNDS = 5
# Share of rounds, share of alpha, and the chance above which a test ends without a difference.
_LOOKS = ((3 / 8, 0.1, 0.5), (5 / 8, 0.2, 0.25), (1, 0.5, 0.0))
_SUITE_SHARE, _CASE_SHARE = 0.8, 0.2
# Standard errors that are added to the correlation where single cases are judged.
_MARGIN = 1.5
# A correlation above which a session says no more than its majority.
_ALIKE = 0.5
_ONE_SESSION = "one session: what a day changes is not measured"
_COUNTABLE = 10


@frozen
class InterimTest:
    """A test after a number of rounds: worse below `alpha`, no difference above `futile`.

    Alpha is how often it may say "worse" where nothing has changed.
    """

    after: int
    alpha: float
    futile: float


def looks(rounds: int, alpha: float) -> tuple[InterimTest, ...]:
    """The looks at a suite, whose alphas add up to its share (alpha spending, Lan, DeMets 1983)."""
    if rounds < _FEWEST_ROUNDS:
        return (InterimTest(rounds, alpha * _SUITE_SHARE, 0.0),)
    return tuple(
        InterimTest(ceil(part * rounds), alpha * spent, out) for part, spent, out in _LOOKS
    )


@frozen
class Sides:
    """The runs of a case before, by session, and now; `planned` are those of now at the end."""

    before: tuple[Counts, ...]
    now: Counts
    planned: int

    @property
    def pair(self) -> Pair:
        return pool(self.before), self.now

    @property
    def projected(self) -> Pair:
        """The pair with all runs that are planned, at the rate so far."""
        return self.pair[0], Counts(round(self.now.rate * self.planned), self.planned)

    @property
    def is_broken(self) -> bool:
        """True if all its runs failed now, and at most one before."""
        before, now = self.pair
        return not now.passed and before.passed >= max(before.runs - 1, 1)


@frozen
class Spread:
    """The difference between the sessions of a baseline, as far as there are several.

    `correlation` is that of the runs of a case within a session, measured on `varying` cases;
    `runs` is the mean number of runs of a case in a session.
    """

    sessions: int = 1
    correlation: float | None = None
    varying: int = 0
    runs: float = 1.0


def spread_of(cases: Sequence[Sequence[Counts]]) -> Spread:
    """The spread of a baseline; each of its cases has counts by session."""
    sessions = max(map(len, cases), default=1)
    varying = [case for case in cases if 0 < pool(case).rate < 1]
    runs = fmean(one.runs for case in cases for one in case) if cases else 1.0
    # Cases that always or never pass tell nothing of days, and a suite of them needs no correction.
    correlation = session_correlation(varying) if varying else None if sessions == 1 else 0.0
    return Spread(sessions, correlation, len(varying), runs)


@frozen
class ComparisonPlan:
    """A comparison that is made over `rounds`, at `alpha`; `stops` if it may end before them.

    `spread` is that of a baseline; `None` where both sides are of this session.
    """

    against: str
    rounds: int
    alpha: float = ALPHA
    stops: bool = True
    spread: Spread | None = None

    @property
    def is_alike(self) -> bool:
        """True if a session of a case counts as one run, its majority."""
        correlation = None if self.spread is None else self.spread.correlation
        return correlation is not None and correlation > _ALIKE

    def inflation(self, pairs: Sequence[Pair], *, single: bool = False) -> float:
        """The inflation of a comparison of the suite; of `single` cases it has a margin."""
        spread = self.spread
        if spread is None or spread.correlation is None or not pairs:
            return 1.0
        correlation = spread.correlation
        if single and spread.varying and spread.runs > 1:
            correlation += _MARGIN * sqrt(2 / spread.varying) / (spread.runs - 1)
        before, now = (fmean(pair[side].runs for pair in pairs) for side in (0, 1))
        return max(1.0, session_inflation(min(correlation, 1.0), now, before, spread.runs))

    @property
    def looks(self) -> tuple[InterimTest, ...]:
        if self.stops and self.against != ITSELF:
            return looks(self.rounds, self.alpha)
        return (InterimTest(self.rounds, self.alpha * _SUITE_SHARE, 0.0),)


def session_inflation(correlation: float, now: float, before: float, session: float) -> float:
    """Inflation of a comparison: runs a case now and before, and runs a session before."""
    own, other = 1 + (now - 1) * correlation, 1 + (session - 1) * correlation
    return (own / now + other / before) / (1 / now + 1 / before)


@frozen
class ComparisonDecision:
    """The outcome so far, the look that brought it, and its tail probability.

    `open` are the cases that are run further; `None` is all. `falls` are worse by themselves.
    """

    outcome: Outcome = "undecided"
    look: InterimTest | None = None
    chance: float | None = None
    open: frozenset[str] | None = None
    falls: tuple[str, ...] = ()


UNDECIDED = ComparisonDecision()


def judge(
    plan: ComparisonPlan, cases: Mapping[str, Sides], done: int, earlier: ComparisonDecision
) -> ComparisonDecision:
    """The decision after `done` rounds."""
    if not cases or earlier.outcome == "worse":
        return earlier
    if plan.against == ITSELF:
        return _judge_itself(plan, cases) if done == plan.rounds else earlier
    decision = earlier
    look = next((one for one in plan.looks if one.after == done), None)
    if earlier.outcome == "undecided" and look is not None:
        decision = _judge_suite(plan, cases, look)
    if done < plan.rounds or plan.is_alike:
        return decision
    finished = [id for id in cases if decision.open is None or id in decision.open]
    pairs = [cases[id].pair for id in finished]
    others = [one.projected for id, one in cases.items() if id not in finished]
    inflation = plan.inflation(pairs, single=True)
    falls = tarone(pairs, others, plan.alpha * _CASE_SHARE, inflation)
    if not falls:
        return decision
    named = tuple(finished[number] for number in falls)
    return ComparisonDecision("worse", decision.look, decision.chance, frozenset(), named)


def _judge_suite(
    plan: ComparisonPlan, cases: Mapping[str, Sides], look: InterimTest
) -> ComparisonDecision:
    pairs, inflation = _pairs(plan, cases)
    fall = lower_tail(pairs, inflation)
    if fall <= look.alpha:
        is_last = look.after == plan.rounds
        return ComparisonDecision("worse", look, fall, None if is_last else frozenset())
    if look.after < plan.rounds and fall <= look.futile:
        return ComparisonDecision()
    rise = lower_tail([(now, before) for before, now in pairs], inflation)
    open_cases = None
    if look.after < plan.rounds:
        open_cases = frozenset(id for id, one in cases.items() if one.is_broken)
    if rise <= look.alpha:
        return ComparisonDecision("better", look, rise, open_cases)
    return ComparisonDecision("no_difference", look, fall, open_cases)


def _judge_itself(plan: ComparisonPlan, cases: Mapping[str, Sides]) -> ComparisonDecision:
    pairs = [one.pair for one in cases.values()]
    tails = lower_tail(pairs), lower_tail([(now, before) for before, now in pairs])
    chance = min(1.0, 2 * min(tails))
    return ComparisonDecision(
        "different" if chance <= plan.alpha else "same", plan.looks[-1], chance
    )


def _pairs(plan: ComparisonPlan, cases: Mapping[str, Sides]) -> tuple[list[Pair], float]:
    """The pairs of a suite and their inflation: of runs, or of sessions that are much alike."""
    pairs = [one.pair for one in cases.values()]
    if not plan.is_alike:
        return pairs, plan.inflation(pairs)
    sessions = [
        (Counts(sum(map(_majority, one.before)), len(one.before)), Counts(_majority(one.now), 1))
        for one in cases.values()
    ]
    return sessions, 1.0


def _majority(counts: Counts) -> int:
    return int(2 * counts.passed > counts.runs)


def conclude(
    plan: ComparisonPlan, cases: Mapping[str, Sides], decision: ComparisonDecision
) -> LiveComparison:
    """The result of a comparison, in figures and in words."""
    if not cases:
        said = "nothing to compare: no case was run on both sides"
        return LiveComparison(plan.against, "undecided", said)
    pairs = [one.pair for one in cases.values()]
    before, now = (fmean(pair[side].rate for pair in pairs) for side in (0, 1))
    low, high = _interval_around(now - before, plan, cases, decision.look)
    spread = plan.spread
    comparison = LiveComparison(
        against=plan.against,
        outcome=decision.outcome,
        sentence="",
        before=before,
        now=now,
        change=now - before,
        interval=(low, high),
        chance=decision.chance,
        fall=fall_found(plan, cases, before),
        falls=decision.falls,
        sessions=1 if spread is None else spread.sessions,
        correlation=None if spread is None else spread.correlation,
        inflation=plan.inflation(pairs),
        notes=() if spread is None else (_note_of(spread, plan),),
    )
    flips = flip_chance([pool(pair) for pair in pairs])
    return replace(comparison, sentence=_sentence(comparison, flips))


def flip_chance(cases: Sequence[Counts]) -> float:
    """Probability that one run a case fails against one run a case, where nothing changed."""
    return 1 - prod(1 - case.rate * (1 - case.rate) for case in cases)


def _interval_around(
    change: float, plan: ComparisonPlan, cases: Mapping[str, Sides], look: InterimTest | None
) -> tuple[float, float]:
    """The 95 % interval of a change; after an early end it is as wide as that look was strict."""
    pairs, inflation = _pairs(plan, cases)
    alpha = look.alpha if look is not None and look.after < plan.rounds else 0.025
    # Where sessions are compared, it is their interval, around the change of the rate of runs.
    half = half_width(pairs, alpha, inflation)
    return max(change - half, -1.0), min(change + half, 1.0)


def fall_found(plan: ComparisonPlan, cases: Mapping[str, Sides], rate: float) -> float | None:
    """The fall of a rate that such a comparison finds 9 times in 10; `None` if it finds none."""
    pairs, inflation = _pairs(plan, cases)
    before, now = (fmean(pair[side].runs for pair in pairs) for side in (0, 1))
    return smallest_fall(rate, before, now, len(pairs) / inflation)


def _note_of(spread: Spread, plan: ComparisonPlan) -> str:
    if spread.sessions == 1:
        return _ONE_SESSION
    if spread.correlation is None:
        return f"{spread.sessions} sessions of one run: what a day changes is not measured"
    alike = ": each counts as one run of a case" if plan.is_alike else ""
    correlation = f"correlation of the runs of one {spread.correlation:.2f}"
    return f"{spread.sessions} sessions, {correlation}{alike}"


def _sentence(comparison: LiveComparison, flips: float) -> str:
    """`worse: 89% → 78%, -11 points (-16 to -6); chance alone would do this 3 times in 10,000`."""
    assert comparison.interval is not None
    points, low, high = (
        f"{100 * change:+.0f}" for change in (comparison.change or 0.0, *comparison.interval)
    )
    points = f"{points} points ({low} to {high})"
    chance = f"chance alone would do this {chance_text(comparison.chance or 0.0)}"
    match comparison.outcome:
        case "worse" | "better" as word:
            rates = f"{percent(comparison.before or 0.0)} → {percent(comparison.now or 0.0)}"
            if comparison.falls:
                alone = "itself" if len(comparison.falls) == 1 else "themselves"
                chance = f"{counted(len(comparison.falls), 'case')} worse by {alone}"
            return f"{word}: {rates}, {points}; {chance}"
        case "no_difference" if comparison.fall is None:
            return f"no difference shown: {points}; so few runs find no fall 9 times in 10"
        case "no_difference":
            fall = f"{100 * (comparison.fall or 0.0):.0f}"
            found = f"a fall of {fall} would have been found 9 times in 10"
            return f"no difference shown: {points}; {found}"
        case "different" | "same":
            gate = f"a gate of one run a case would have failed {percent(flips)} of the time"
            verdict = "the same" if comparison.outcome == "same" else "different from itself"
            return f"{verdict}: {points}; {chance}; {gate}"
        case _:
            return "no verdict: it ended before the comparison did"


def percent(rate: float) -> str:
    return f"{100 * rate:.0f}%"


def chance_text(chance: float) -> str:
    """`3 times in 10,000`, `40 times in 100`."""
    for of in (100, 1_000, 10_000):
        count = round(chance * of)
        if count >= _COUNTABLE:
            break
    if not count:
        return "less than once in 10,000 times"
    return f"{'once' if count == 1 else f'{count} times'} in {of:,}"
