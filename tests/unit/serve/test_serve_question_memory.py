"""What a hub keeps of questions: a client that asks and cancels, again and again, fills nothing."""

import gc
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from aish.core.events import Event, Place
from aish.core.protocols import Question
from aish.core.tools import Tool, ToolName
from aish.features.approvals.hub_questions import MOST_KEPT, QuestionFolder
from aish.policy.questions import WITHDRAWN, OpenQuestion
from aish.serve.calls.waiting_calls import AnswerEvent, HubQuestions
from aish.system.clock import SystemClock

PLACE = Place(step="bot", client="bot", session="s")
TOOL = Tool(ToolName("box", "write"), "box__write", "", MappingProxyType({"type": "object"}))


@pytest.mark.slow(reason="each of 2,050 questions is synced to the disk")
def test_questions_that_are_withdrawn_do_not_pile_up(tmp_path: Path) -> None:
    def unmasked(event: Event) -> Event:
        return event

    def record(event: AnswerEvent, place: Place, about: Mapping[str, str]) -> None:
        del event, place, about

    questions = HubQuestions(QuestionFolder(tmp_path), SystemClock(), unmasked, record)
    questions.begin()
    for number in range(2 * MOST_KEPT + 50):
        asked = Question(TOOL, {"number": number}, "no rule", PLACE)
        opened = questions.open(asked, f"{number:064x}", 900.0)
        questions.settle(opened.id, WITHDRAWN)
    del opened, asked
    gc.collect()
    live = sum(isinstance(one, OpenQuestion) for one in gc.get_objects())

    # The latest that have ended can still be shown.
    assert live <= MOST_KEPT + 50
    assert len(list(tmp_path.glob("*.jsonl"))) <= 2 * MOST_KEPT
