"""Results of `aish test --live`: plain data for the table, the JSON object, JUnit and the page.

`features/testing/` makes them, with all figures; the modules beside this one only lay them out.
Texts are masked, and not sanitized yet: names, answers and messages come from files and models.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from hashlib import sha256
from typing import Literal

from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.core.messages import Usage, sum_costs

RunVerdict = Literal["passed", "failed", "error", "unreachable", "left", "not_run"]
"""`unreachable`: a model or server could not be asked, which says nothing of the case; `left`: it
called what is not recorded; `not_run`: the limit of all runs was reached, or it was interrupted
before the run had ended."""

CellVerdict = Literal["passed", "failed", "error", "unreachable", "not_run", "unmeasured"]
"""`unmeasured`: fewer than half of its runs were possible, or stayed with the recording."""

Change = Literal["worse", "better", "same", "new"]
"""Against the baseline; `new` where it knows nothing of the case, or the case has changed."""

Outcome = Literal["worse", "better", "no_difference", "different", "same", "undecided"]
"""`different` and `same` are of an endpoint that is compared with itself; `undecided`: it ended
before the comparison did."""

Interval = tuple[float, float]
"""The least and the greatest value, both included."""

TRIED = frozenset({"passed", "failed", "error"})


@frozen
class LiveCall:
    """A tool call of a run; `outcome` is `ok`, `exit 1`, `denied` or another kind of a result."""

    tool: str
    outcome: str
    seconds: float


@frozen
class LiveRun:
    """A run of a case on a model.

    `cost_usd` of `None` is unknown. `folder` is that of the run, `None` where there was none.
    `answer` is the text of the last step that ended, `served` what its endpoints called the models
    that answered. `reasons` say why it did not pass, a line each; `expectations` are those that
    were checked. `code` is the exit code of the run.
    """

    verdict: RunVerdict
    code: int = 0
    reason: str = ""
    hint: str | None = None
    reasons: tuple[str, ...] = ()
    seconds: float = 0.0
    cost_usd: float | None = 0.0
    usage: Usage = field(default_factory=Usage)
    folder: str | None = None
    answer: str | None = None
    served: tuple[str, ...] = ()
    calls: tuple[LiveCall, ...] = ()
    expectations: tuple[JsonObject, ...] = ()

    @property
    def digest(self) -> str | None:
        """SHA-256 of the answer: runs with the same one have answered the same bytes."""
        if self.answer is None:
            return None
        return sha256(self.answer.encode("utf-8", "surrogatepass")).hexdigest()


@frozen
class LiveCell:
    """A case on a model: its runs in the order of the rounds, at most as many as are `planned`.

    `needed` are the passes that its `pass` asks for, of the runs that were possible. `interval` is
    that of its rate (95 %), missing after one run and where it stopped early. `before` are the
    passes and the runs of the other side of a comparison. `is_compared`: that decides about it, and
    not `needed`. `fails` says that it makes the command
    fail. `stopped` says that more runs were planned and would not have changed a verdict.
    `fixed`: its models are asked at temperature 0 or with a seed, so that equal answers are copies.
    """

    model: str | None
    verdict: CellVerdict
    runs: tuple[LiveRun, ...]
    planned: int = 1
    needed: int = 1
    interval: Interval | None = None
    change: Change | None = None
    before: tuple[int, int] | None = None
    is_compared: bool = False
    fails: bool = False
    stopped: bool = False
    fixed: bool = False

    @property
    def is_repeated(self) -> bool:
        return self.planned > 1

    @property
    def tried(self) -> Sequence[LiveRun]:
        """The runs that say something of the case."""
        return [run for run in self.runs if run.verdict in TRIED]

    @property
    def left(self) -> Sequence[LiveRun]:
        """The runs that left the recording; the reason of each names the call."""
        return [run for run in self.runs if run.verdict == "left"]

    @property
    def passed(self) -> int:
        return sum(run.verdict == "passed" for run in self.runs)

    @property
    def is_flaky(self) -> bool:
        return 0 < self.passed < len(self.tried)

    @property
    def decisive(self) -> LiveRun:
        """The run that stands for all: the first that did not pass, else the first.

        Where too few say something of the case, the first of the others.
        """
        unmeasured = self.verdict == "unmeasured"
        bad = [run for run in self.tried if run.verdict != "passed"]
        others = [run for run in self.runs if run.verdict not in TRIED]
        return next(iter((*bad, *(others if unmeasured else ()), *self.tried)), self.runs[-1])

    @property
    def cost_usd(self) -> float | None:
        return sum_costs(run.cost_usd for run in self.runs)

    @property
    def seconds(self) -> float:
        return sum(run.seconds for run in self.runs)

    @property
    def answers(self) -> int:
        """The number of distinct answers."""
        return len({run.digest for run in self.tried})

    @property
    def same_calls(self) -> float | None:
        """The share of the pairs of its runs that called the same tools in the same order."""
        runs = len(self.tried)
        if runs < 2:  # ruff: ignore[magic-value-comparison] - a pair
            return None
        kinds = Counter(tuple(call.tool for call in run.calls) for run in self.tried)
        return sum(n * (n - 1) for n in kinds.values()) / (runs * (runs - 1))


@frozen
class LiveCase:
    """A case and its cells, one for each column in their order.

    `expected` says what is expected, a line each; `expected_text` is the text that the whole answer
    has to be, where there is one. The digests are of its inputs and of what it expects.
    """

    id: str
    file: str
    name: str
    cells: tuple[LiveCell, ...]
    inputs: JsonObject = field(default_factory=dict)
    stdin: str | None = None
    expected: tuple[str, ...] = ()
    expected_text: str | None = None
    inputs_digest: str = ""
    expected_digest: str = ""


@frozen
class LiveComparison:
    """A column against its baseline.

    `against` names the file, the model, or `itself`. Rates are means over the compared cases,
    `change` their difference with its 95 % interval, `chance` how often chance alone would do this;
    `fall` is the smallest one that would have been found 9 times in 10. `falls` are the single
    cases that are worse. `sentence` has it in words, `notes` what limits it. `inflation` is by how
    much the sessions of the baseline widen it, `correlation` that of the runs of one session.
    """

    against: str
    outcome: Outcome
    sentence: str
    before: float | None = None
    now: float | None = None
    change: float | None = None
    interval: Interval | None = None
    chance: float | None = None
    fall: float | None = None
    falls: tuple[str, ...] = ()
    sessions: int = 1
    correlation: float | None = None
    inflation: float = 1.0
    notes: tuple[str, ...] = ()

    @property
    def fails(self) -> bool:
        """True if it makes the command fail."""
        return self.outcome in {"worse", "different"}


@frozen
class LiveColumn:
    """A model and its figures over all cases; `model` of `None` is the one that each step names.

    `rate` is the mean over the cases that were measured. `pass_power` has for each k the
    probability that k runs of a case all pass. Variances are of the outcome of a run, between the
    cases and from run to run. `median_seconds` is of a run. `endpoints` has the
    name and the parameters of each model, by alias. `cost_before` is that of the last session of
    the baseline. `served` are the names of the models that answered, `served_before` those of the
    last session of the baseline.
    """

    model: str | None
    rate: float | None = None
    interval: Interval | None = None
    pass_power: tuple[tuple[int, float], ...] = ()
    variances: tuple[float, float] | None = None
    median_seconds: float | None = None
    endpoints: JsonObject = field(default_factory=dict)
    comparison: LiveComparison | None = None
    cost_before: float | None = None
    served: tuple[str, ...] = ()
    served_before: tuple[str, ...] = ()


@frozen
class LiveResults:
    """All cases on all models, in the order of the files.

    `repeat` is the number of runs that was asked for, `seed` that of their order. `recorded_tools`:
    the results of tools came from cassettes. `broken` are files that could not be loaded, with
    their problems. `gone` are cells of the baseline that exist no more: the id of a case, and a
    model. `limit` says which limit ended it.
    """

    columns: tuple[LiveColumn, ...]
    cases: tuple[LiveCase, ...]
    exit: int = 0
    seconds: float = 0.0
    interrupted: bool = False
    limit: str = ""
    repeat: int = 1
    seed: int | None = None
    recorded_tools: bool = False
    broken: tuple[tuple[str, tuple[str, ...]], ...] = ()
    baseline: str | None = None
    gone: tuple[tuple[str, str | None], ...] = ()
    pipelines: Mapping[str, str] = field(default_factory=dict)

    @property
    def cells(self) -> Sequence[LiveCell]:
        return [cell for case in self.cases for cell in case.cells]

    @property
    def cost_usd(self) -> float | None:
        return sum_costs(cell.cost_usd for cell in self.cells)

    def of_column(self, number: int) -> Sequence[LiveCell]:
        return [case.cells[number] for case in self.cases]
