"""Answers to the questions of a run, through a cassette: a replay asks nobody.

Imported only by runs that have a cassette.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from urllib.parse import quote

from aish.cassettes.format.edits import json_bytes
from aish.cassettes.format.interaction import Request, Response
from aish.cassettes.record.recorder import LEFT, CassetteRecorder
from aish.core.errors import StepFailedError
from aish.core.events import ApprovalAnswer, Place
from aish.core.json import JsonObject, canonical, strict_json
from aish.core.protocols import Question
from aish.core.tools import Tool, definition_of
from aish.policy.questions import QuestionEnd, RecordedAnswer

_VERB = "APPROVAL"
_SCHEME = "approval://"
_FIELDS = ("answer", "by", "way", "note")
_ENDS: Sequence[ApprovalAnswer] = ("approve", "deny", "always", "expired")


class RecordedApprovals:
    """The answers in a cassette, each to the question with the same digest and number.

    Recorded answers count only if all calls are recorded, that is in a replay of the tools.
    Otherwise somebody is asked, and the new answer is recorded.
    """

    def __init__(self, recorder: CassetteRecorder) -> None:
        self._recorder = recorder
        self._asked: Counter[str] = Counter()

    @property
    def replays(self) -> bool:
        return self._recorder.way("approval") == "replay"

    def recorded(self, place: Place, tool: Tool, arguments: JsonObject) -> RecordedAnswer | None:
        """See `AnswerRecording`.

        Raises:
            StepFailedError: the cassette does not say how the question ended.
            CassetteMissError: somebody was asked in the recording, and not about this.
        """
        # A secret may be an ordinary word in the recording, as in `CassetteRecorder.recorded`.
        for is_masked, again in product((True, False), (False, True)):
            digest, request = self._request(
                place, tool, arguments, is_masked=is_masked, again=again
            )
            if self._recorder.holds(request):
                self._asked[digest] += not again
                held = self._recorder.recorded("approval", request)
                assert held is not None, "what is replayed is recorded, or missed"
                return RecordedAnswer(None if held.broken == LEFT else _end_in(held))
        if self._recorder.rules.reuses and self._recorder.holds_any("approval"):
            self._recorder.recorded("approval", self._request(place, tool, arguments)[1])
        return None

    def begin(self, question: Question) -> Callable[[QuestionEnd], None]:
        way = self._recorder.way("approval")
        if way in {"live", "replay"}:
            return lambda _: None
        place, tool = question.place, question.tool
        digest, request = self._request(place, tool, question.arguments)
        self._asked[digest] += 1
        if way == "extend":
            # Recorded anew in its place: the call may be made, and nobody has approved that.
            self._recorder.recorded("approval", request, fresh=True)
        take = self._recorder.begin("approval", request)
        assert take is not None, "it is recorded"

        def end(answer: QuestionEnd) -> None:
            if answer.answer == "withdrawn":
                take.end(broken=LEFT)
                return
            fields = {name: getattr(answer, name) for name in _FIELDS}
            take.chunk(json_bytes(fields))
            take.end()

        return end

    def _request(
        self,
        place: Place,
        tool: Tool,
        arguments: JsonObject,
        *,
        is_masked: bool = True,
        again: bool = False,
    ) -> tuple[str, Request]:
        """The digest of the next question about a call, and what stands for it in the cassette.

        That of the last one with `again`, whose answer some replays use more than once.

        The digest is that of an approval without the run, which differs in a replay; the arguments
        are where `cassette.ignore` finds those of a call.
        """
        subject: JsonObject = {
            "step": place.step,
            "item": place.item,
            "server": tool.name.server,
            "definition": definition_of(tool),
            "params": {"name": tool.name.name, "arguments": arguments},
        }
        about = Request(_VERB, _SCHEME, body=canonical(subject).encode("ascii"))
        digest = self._recorder.digest_of(about, is_masked=is_masked)
        uri = f"{_SCHEME}{place.step or ''}"
        if place.item is not None:
            # Folders and secrets are not found in quoted text.
            name = self._recorder.cassette_uri(place.item, is_masked=is_masked)
            uri += "/" + quote(name, safe="/", errors="surrogatepass")
        body: JsonObject = {
            "tool": str(tool.name),
            "digest": digest,
            "number": self._asked[digest] + (not again),
        }
        return digest, Request(_VERB, uri, body=json_bytes(body))


def _end_in(held: Response) -> QuestionEnd:
    try:
        body = strict_json(held.body.decode())
    except ValueError as error:
        raise _approval_error() from error
    if not isinstance(body, Mapping):
        raise _approval_error()
    answer, by, way, note = (body.get(name) for name in _FIELDS)
    for one in _ENDS:
        if one == answer and isinstance(by, str) and isinstance(way, str) and isinstance(note, str):
            return QuestionEnd(one, by, way, note)
    raise _approval_error()


def _approval_error() -> StepFailedError:
    message = "the cassette does not say how a question about a tool call was answered"
    return StepFailedError(message, hint="record it again")
