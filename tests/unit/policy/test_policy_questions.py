"""The questions of a run: those that are open, and the latest that have ended (A6)."""

from work import work_of

from aish.core.events import ApprovalAnswered, Event, Place
from aish.core.protocols import Question
from aish.core.tools import Tool, ToolName
from aish.policy.questions import MOST_ENDED, WITHDRAWN, QuestionEnd, Questions

TOOL = Tool(ToolName("box", "write"), "box__write", "", {})
YES = QuestionEnd("approve", "me", "api")


def question(number: int) -> Question:
    return Question(
        TOOL, {"text": str(number)}, "no rule approves it", Place("s", item=str(number))
    )


def test_a_long_run_keeps_only_the_latest_of_its_ended_questions() -> None:
    emitted: list[Event] = []
    questions = Questions(emitted.append)
    waiting = questions.open(question(0), "d0", None)
    ids = []
    for number in range(1, MOST_ENDED + 11):
        ids.append(questions.open(question(number), f"d{number}", None).id)
        assert questions.settle(ids[-1], YES) is None

    assert [questions.get(id) is None for id in ids] == [True] * 10 + [False] * MOST_ENDED
    assert questions.settle(ids[-1], WITHDRAWN) == YES
    assert list(questions.still_open()) == [waiting]
    few = work_of(lambda: list(questions.still_open())).steps
    for number in range(5 * MOST_ENDED):
        questions.settle(questions.open(question(number + 1), f"e{number}", None).id, YES)
    assert work_of(lambda: list(questions.still_open())).steps < 2 * few
    assert questions.settle(waiting.id, YES) is None
    answered = [one for one in emitted if isinstance(one, ApprovalAnswered)]
    assert len(answered) == len({one.id for one in answered}) == 6 * MOST_ENDED + 11
