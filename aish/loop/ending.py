"""What an answer without tool calls means for its step."""

from aish.core.events import Failure
from aish.core.frozen import frozen
from aish.core.json import strict_json
from aish.core.text import for_line
from aish.loop.assemble import Assembled
from aish.loop.equipment import Mask

_SHOWN = 400


@frozen
class Ending:
    """`failure` is `None` for a good answer; `notice` (code, text) is worth telling then."""

    text: str
    failure: Failure | None = None
    notice: tuple[str, str] | None = None


def ending_of(answer: Assembled, mask: Mask, *, wants_schema: bool) -> Ending:
    """Whether `answer` is one: refused, cut off and empty answers are told apart.

    `mask` takes the secrets out of what is told of it, before that is cut.
    """
    match answer.finish.reason:
        case "refusal":
            return _refused(answer, mask)
        case "length" if wants_schema and _is_whole(answer.text):
            # What was cut off is space: small models write it until they are stopped.
            return Ending(answer.text, notice=("truncated", "the answer was cut off after its end"))
        case "length" if wants_schema or not answer.text.strip():
            return Ending(answer.text, _TRUNCATED)
        case "length":
            return Ending(answer.text, notice=("truncated", _TRUNCATED.message))
        case _:
            return _complete(answer, mask)


def _is_whole(text: str) -> bool:
    """Whether a text is a JSON value that could not have gone on."""
    try:
        value = strict_json(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, (dict, list, str))


def _refused(answer: Assembled, mask: Mask) -> Ending:
    text = answer.text or answer.finish.refusal or ""
    shown = for_line(mask(text))[:_SHOWN]
    reason = f"the model refused: {shown}" if shown else "the model refused to answer"
    return Ending(text, Failure("refusal", reason))


def _complete(answer: Assembled, mask: Mask) -> Ending:
    """An answer that ended by itself, or for a reason that only its content can judge."""
    said = f"`{for_line(mask(answer.finish.raw))[:_SHOWN] or answer.finish.reason}`"
    odd = answer.finish.reason == "other"
    if answer.text.strip():
        notice = ("odd_finish", f"the answer ended with {said}") if odd else None
        return Ending(answer.text, notice=notice)
    if odd:
        return Ending(answer.text, Failure("empty_answer", f"no answer came, only {said}"))
    return Ending(answer.text, notice=("empty_answer", "the model's answer is empty"))


_TRUNCATED = Failure(
    "truncated",
    "the answer was cut off at the token limit",
    hint="raise `params.max_tokens` of the step or its model",
)
