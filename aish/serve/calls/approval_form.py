"""Asks the client of a call to approve it, by a form (`elicit`).

The form shows what a person at a terminal would see. A client may fill it in without a person. So
it is asked only if the file says so, and the answer is recorded as the client's.
"""

from contextlib import suppress
from dataclasses import replace

import anyio

from aish.core.events import NOWHERE
from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.core.protocols import Question
from aish.mcp.client.server_requests import ELICITATION
from aish.mcp.protocol.messages import RpcError, json_object
from aish.policy.questions import OpenQuestion, QuestionEnd
from aish.serve.calls.client_requests import StreamOwner
from aish.serve.calls.pending_calls import PendingCall
from aish.serve.calls.request_state import STATE_SECONDS
from aish.system.secrets.secrets import Secrets
from aish.terminal.approver import visible_call
from aish.terminal.visible_text import BAR

LONGEST = 4000
"""Characters of a form; a longer one would not be read, so it is not used."""
_ANSWER_SECONDS = STATE_SECONDS - 10
"""Before a request to a client is given up: that nobody has answered is no answer."""
_FIELD = "approve"
_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        _FIELD: {
            "type": "boolean",
            "title": "Approve this call",
            "description": "Without a yes the call is denied",
        }
    },
    "required": [_FIELD],
}


@frozen
class ApprovalForm:
    """Asks the client of a call to approve it."""

    owner: StreamOwner | PendingCall
    secrets: Secrets

    @property
    def seconds(self) -> float | None:
        """The time that the call may be held, or `None` for the usual one.

        A stateless client is asked by a result, and its answer comes with a later request.
        """
        return STATE_SECONDS if isinstance(self.owner, PendingCall) else None

    def can_ask(self, question: Question) -> bool:
        """Return true if the client fills in forms and the whole call fits into one."""
        return self.owner.fills_forms and self._message(question) is not None

    async def ask(self, question: OpenQuestion) -> QuestionEnd | None:
        """Ask the client; `None` if it gives no answer, and the question stays open."""
        asked = question.question
        # The reason is known by now, and may be what makes it too long.
        message = self._message(asked) or self._message(replace(asked, reason=""))
        if message is None:
            return None
        params: JsonObject = {"message": message, "requestedSchema": _SCHEMA}
        answer: JsonObject | None = None
        with anyio.move_on_after(_ANSWER_SECONDS), suppress(RpcError):  # it refuses to be asked
            answer = await self.owner.ask(ELICITATION, params, lambda _: None)
        if answer is None:
            return None
        if answer["action"] == "cancel":
            # Clients without a person do that by themselves.
            note = "the client has cancelled the form, and nobody has answered"
            return QuestionEnd("withdrawn", self.owner.client, "elicit", note)
        content = json_object(answer.get("content"))
        is_yes = answer["action"] == "accept" and content.get(_FIELD) is True
        return QuestionEnd("approve" if is_yes else "deny", self.owner.client, "elicit")

    def _message(self, question: Question) -> str | None:
        """Return the whole call as text; `None` if it is too long."""
        try:
            call = visible_call(replace(question, place=NOWHERE), self.secrets)
        except (RecursionError, ValueError):
            return None
        facts = [f"{label}: {value}" for label, value in call.facts]
        lines = [f"{BAR}{line}" for line in call.lines]
        text = "\n".join(["[aish] a tool call needs an answer", *facts, f"{call.label}:", *lines])
        return text if len(text) <= LONGEST else None
