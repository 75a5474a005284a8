"""A question about a tool call, as commands and the control API show it."""

import re

from aish.core import protocols
from aish.core.events import Place, rfc3339
from aish.core.frozen import frozen
from aish.core.json import JsonValue, json_text
from aish.core.tools import Tool, ToolName
from aish.journal.questions import QuestionState, RecordedQuestion

LONGEST_NOTE = 2000
"""How many characters the note of an answer may have."""
HUB_ID = re.compile(r"hub-[0-9a-f]{16}\Z")
"""The name of a server in its digests, and of the folder of its questions in its state folder."""
_TAG = re.compile(r"<secret:[^>]*>")


@frozen
class QuestionAnswer:
    """The end of a question: by whom, from where (`terminal`, `command`, …), and their note."""

    by: str
    way: str
    note: str
    time: str


@frozen
class ApprovalQuestion:
    """A tool call that was asked about, as `aish runs pending` and the control API show it.

    `caller_waiting` says whether the process that asked still waits for the answer. `answer` is
    missing where nobody gave one: while it is open, and where it ended with its time or its run.
    `always` is the rule that this answer would add, where it is offered.
    """

    id: str
    run: str
    step: str | None
    item: str | None
    server: str
    tool: str
    arguments: JsonValue
    digest: str
    reason: str
    always: str | None
    asked: str
    expires: str | None
    state: QuestionState
    caller_waiting: bool
    answer: QuestionAnswer | None

    @property
    def is_open(self) -> bool:
        return self.state == "open"


def approval_question(run: str, question: RecordedQuestion) -> ApprovalQuestion:
    """A question of a run, as it is shown."""
    asked, end = question.asked, question.answer
    answer = None
    if end is not None:
        answer = QuestionAnswer(end.by, end.way, end.note, rfc3339(question.answered_at))
    return ApprovalQuestion(
        id=asked.id,
        run=run,
        step=asked.place.step,
        item=asked.place.item,
        server=asked.server,
        tool=asked.tool,
        asked=rfc3339(question.began),
        arguments=asked.arguments,
        digest=asked.digest,
        reason=asked.reason,
        always=asked.always,
        answer=answer,
        expires=asked.expires,
        state=question.state,
        caller_waiting=question.caller_waiting,
    )


def as_asked(question: ApprovalQuestion) -> protocols.Question:
    """Return the question as whoever decides is shown it."""
    server, tool = question.server, question.tool
    return protocols.Question(
        Tool(ToolName(server, tool.removeprefix(f"{server}__")), tool, "", {}),
        question.arguments,  # type: ignore[arg-type]  # shown as they are, an object or not
        question.reason,
        Place(
            step=question.step,
            item=question.item,
            # A server has no steps, and its clients stand for them.
            client=question.step if HUB_ID.match(question.run) else None,
        ),
        question.always,
    )


def tags_of_secrets(question: ApprovalQuestion) -> tuple[str, ...]:
    """The tags that stand for secrets in its arguments.

    Raises:
        RecursionError: the arguments are nested too deeply.
    """
    return tuple(dict.fromkeys(_TAG.findall(json_text(question.arguments))))
