"""One final state decides how a run ends."""

import itertools

import pytest
from samples import each_case

from aish.core.errors import (
    AishError,
    BudgetError,
    ExitCode,
    StepFailedError,
    UnavailableError,
    UsageError,
)
from aish.core.events import Failure
from aish.engine.final import NAMES, PRECEDENCE, FinalState, decide_exit, status_of, weightiest
from aish.engine.records import StepRecord

# As design 11 has them; usage errors stand where they can: nothing else happened then.
IN_ORDER = [130, 143, 70, 2, 6, 7, 3, 4, 5, 8, 1, 0]


def a_step(id: str, code: ExitCode, *, hint: str | None = None) -> StepRecord:
    status = {0: "ok", 3: "denied", 4: "budget"}.get(int(code), "failed")
    failure = None if code is ExitCode.OK else Failure("code", f"{id} went wrong", hint)
    return StepRecord(id=id, kind="call", status=status, failure=failure, exit_code=code)  # type: ignore[arg-type]  # a str of the table above


def test_the_precedence_holds_every_exit_code_once() -> None:
    assert [int(code) for code in PRECEDENCE] == IN_ORDER
    assert set(PRECEDENCE) == set(ExitCode) == set(NAMES)


@each_case(
    "stronger, weaker",
    list(itertools.combinations([c for c in PRECEDENCE if c not in {130, 143}], 2)),
)
def test_of_two_steps_the_stronger_code_decides_in_any_order(
    stronger: ExitCode, weaker: ExitCode
) -> None:
    steps = (a_step("weak", weaker), a_step("strong", stronger))

    for records in (steps, steps[::-1]):
        end = decide_exit(FinalState(records))
        assert end.code == stronger
        assert "step `strong`: strong went wrong" in end.reason


@pytest.mark.parametrize(
    "error",
    [UsageError("x"), BudgetError("x"), UnavailableError("x"), AishError("x")],
)
@pytest.mark.parametrize("signal", [ExitCode.INTERRUPTED, ExitCode.TERMINATED])
def test_a_signal_decides_whatever_else_happened(error: AishError, signal: ExitCode) -> None:
    end = decide_exit(FinalState((a_step("a", ExitCode.FAILED),), error, signal))

    assert (end.code, end.name, end.reason, end.retryable) == (
        int(signal),
        "interrupted",
        "interrupted",
        True,
    )
    assert status_of(end.code) == "interrupted"


def test_what_ended_the_run_is_weighed_with_its_steps() -> None:
    denied = a_step("a", ExitCode.DENIED)
    failed = a_step("a", ExitCode.FAILED)

    over = BudgetError("the time is over", hint="take more")
    assert decide_exit(FinalState((denied,), over)).code == 3
    end = decide_exit(FinalState((failed,), over))
    assert (end.code, end.reason, end.hint) == (4, "the time is over", "take more")


def test_the_first_of_two_equal_failures_is_the_reason() -> None:
    end = decide_exit(FinalState((a_step("a", ExitCode.FAILED), a_step("b", ExitCode.FAILED))))

    assert end.reason == "step `a`: a went wrong"


def test_a_run_where_all_went_well_is_ok() -> None:
    end = decide_exit(FinalState((a_step("a", ExitCode.OK),)))

    assert (end.code, end.name, end.reason, end.retryable) == (0, "ok", "", False)
    assert status_of(0) == "ok"


@pytest.mark.parametrize(
    ("code", "status"),
    [(0, "ok"), (1, "failed"), (2, "failed"), (3, "denied"), (4, "budget"), (5, "failed")],
)
def test_the_status_says_the_code_in_a_word(code: int, status: str) -> None:
    assert status_of(code) == status


def test_only_what_trying_again_could_mend_is_retryable() -> None:
    tried = {
        code: decide_exit(FinalState((a_step("a", code),))).retryable
        for code in (ExitCode.FAILED, ExitCode.DENIED, ExitCode.BUDGET, ExitCode.UNAVAILABLE)
    }

    assert [code for code, again in tried.items() if again] == [ExitCode.UNAVAILABLE]
    assert decide_exit(FinalState((), StepFailedError("x"))).retryable is False


def test_of_several_ends_the_one_that_weighs_most_decides() -> None:
    ends = [
        decide_exit(FinalState((a_step(id, code),)))
        for id, code in (
            ("a", ExitCode.OK),
            ("b", ExitCode.FAILED),
            ("c", ExitCode.DENIED),
            ("d", ExitCode.UNAVAILABLE),
            ("e", ExitCode.DENIED),
        )
    ]

    assert weightiest(ends) is ends[2]
    assert weightiest(ends[:1]) is ends[0]
