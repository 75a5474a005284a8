"""What a model is shown of files, through a cassette (K86): a replay reads no file.

Imported only by runs that have a cassette.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping

from aish.cassettes.format.edits import json_bytes
from aish.cassettes.format.interaction import Interaction, Request, Response
from aish.cassettes.record.recorder import CassetteRecorder, kind_of
from aish.core.errors import StepFailedError
from aish.core.json import JsonObject, strict_json

_VERB = "CONTEXT"
_PROMPT = "prompt"


async def record_or_replay_files(
    recorder: CassetteRecorder,
    step: str,
    asked: JsonObject,
    read: Callable[[], Awaitable[JsonObject | None]],
) -> JsonObject | None:
    """What was found, recorded or replayed; `read` looks at the files.

    Rounds after which nothing had changed are not recorded.

    Raises:
        CassetteMissError: the cassette does not hold the files of this prompt.
    """
    request = Request(_VERB, f"context://{step}", body=json_bytes(asked))
    if recorder.way("context") == "replay":
        if asked.get("at") != _PROMPT and not recorder.holds(request):
            return None
        held = recorder.recorded("context", request)
        assert held is not None, "what is replayed is recorded, or missed"
        return _found_in(held)
    found = await read()
    if found is None:
        return None
    if recorder.way("context") == "extend":
        # Recorded anew in its place: what is on disk counts.
        recorder.recorded("context", request, fresh=True)
    take = recorder.begin("context", request)
    if take is not None:
        take.chunk(json_bytes(found))
        take.end()
    return found


def recorded_tag(interactions: Iterable[Interaction]) -> str | None:
    """The tag of a recorded run, if it has shown any files."""
    for one in interactions:
        if kind_of(one.request) == "context":
            tag = _found_in(one.response).get("tag")
            return tag if isinstance(tag, str) else None
    return None


def _found_in(held: Response) -> JsonObject:
    try:
        found = strict_json(held.body.decode())
    except ValueError as error:
        raise _broken() from error
    if not isinstance(found, Mapping):
        raise _broken()
    return found


def _broken() -> StepFailedError:
    said = "the cassette does not say what was found in the files of `context.files`"
    return StepFailedError(said, hint="record it again")
