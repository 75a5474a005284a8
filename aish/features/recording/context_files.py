"""Record and replay the files shown to a model: a replay reads no file.

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
    """Return the files found, recorded or replayed; `read` looks at them.

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
        return _files_of(held)
    files = await read()
    if files is None:
        return None
    if recorder.way("context") == "extend":
        # Recorded anew in its place: what is on disk counts.
        recorder.recorded("context", request, fresh=True)
    take = recorder.begin("context", request)
    if take is not None:
        take.chunk(json_bytes(files))
        take.end()
    return files


def tag_of_recording(interactions: Iterable[Interaction]) -> str | None:
    """The tag of a recorded run, if it has shown any files."""
    for interaction in interactions:
        if kind_of(interaction.request) == "context":
            tag = _files_of(interaction.response).get("tag")
            if isinstance(tag, str):
                return tag
    return None


def _files_of(held: Response) -> JsonObject:
    try:
        body = strict_json(held.body.decode())
    except ValueError as error:
        raise _files_error() from error
    if not isinstance(body, Mapping):
        raise _files_error()
    return body


def _files_error() -> StepFailedError:
    message = "the cassette does not say what was found in the files of `context.files`"
    return StepFailedError(message, hint="record it again")
