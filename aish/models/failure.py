"""One try at a model request that came to nothing: what `transport` raises and `client` weighs."""

from urllib.parse import urlsplit

from aish.config.model import ModelEntry
from aish.core.errors import AishError, StepFailedError, UnavailableError
from aish.models.retry import BROKEN, MALFORMED, Advice
from aish.net.http import unknown_host
from aish.system.files import MANY_FILES, MANY_FILES_HINT, lacks_descriptors

_CREDENTIALS = frozenset({401, 403})
_NOT_THERE = frozenset({404, 405})
_REDIRECTS = range(300, 400)
# As endpoints word it that they do not take a schema beside tools.
_TOOLS = ("tool", "function")
_SCHEMA = (
    *("response_format", "response format", "response_mime_type", "response mime type"),
    *("response_schema", "json_schema", "json mode", "json response", "structured output"),
    "grammar",
)


class EndpointError(StepFailedError):
    """A model's endpoint refused the request, or sent what is no answer."""

    code = "endpoint_error"


class AttemptError(Exception):
    """A failed try; `hint` is for the person, should no other try follow."""

    def __init__(self, message: str, advice: Advice, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice
        self.hint = hint

    def final(self, alias: str, afterthought: str = "") -> AishError:
        """The error that leaves the room (exit 5, or exit 1 for a request that is no good)."""
        kind = UnavailableError if self.advice.unavailable else EndpointError
        error = kind(self.message + afterthought, where=f"model `{alias}`", hint=self.hint)
        # Refused credentials and a used-up quota are as they are until somebody does something.
        error.retryable = self.advice.unavailable and self.advice.retry
        return error


def too_late(deadline: str, entry: ModelEntry) -> AttemptError:
    """The deadline of that name in `timeout` has passed."""
    seconds: float = getattr(entry.timeout, deadline)
    said = {
        "first_token": f"no answer within {seconds:g} s",
        "idle": f"the answer stopped: nothing new for {seconds:g} s",
        "turn": f"the turn took longer than {seconds:g} s",
    }[deadline]
    advice = Advice(retry=False) if deadline == "turn" else BROKEN
    return AttemptError(said, advice, f"`models.{entry.alias}.timeout.{deadline}` sets this limit")


def malformed(said: str) -> AttemptError:
    """A model's answer that its own server could not read."""
    hint = "a larger model, fewer `tools:` or a shorter prompt may help"
    return AttemptError(f"the model's answer is malformed: {said}", MALFORMED, hint)


def not_connected(why: str, entry: ModelEntry, error: BaseException | None = None) -> AttemptError:
    """No connection came about; `error` is what knows why."""
    origin = origin_of(entry.base_url)
    if error is not None and lacks_descriptors(error):
        said = f"no connection to {origin}: {MANY_FILES}"
        # As with an endpoint that has too much to do: less at a time will do.
        advice = Advice(retry=True, cools=True, overload=True)
        return AttemptError(said, advice, MANY_FILES_HINT)
    if "CERTIFICATE_VERIFY_FAILED" in why:
        hint = f"`models.{entry.alias}.verify_tls: false` switches the check off"
        return AttemptError(f"the certificate of {origin} is not trusted: {why}", BROKEN, hint)
    if error is not None and (unknown := unknown_host(error, origin)):
        hint = f"check the name in `models.{entry.alias}.base_url`, and the network"
        return AttemptError(f"no connection to {origin}: {unknown}", BROKEN, hint)
    hint = f"is the server running at {origin}?"
    return AttemptError(f"no connection to {origin}: {why}", BROKEN, hint)


def hint_for(status: int, entry: ModelEntry) -> str | None:
    """What to do about a status."""
    if status in _CREDENTIALS and entry.key_env:
        return f"is the key in `{entry.key_env}` one for {origin_of(entry.base_url)}?"
    if status in _CREDENTIALS:
        return f"`models.{entry.alias}.key_env` names the variable that holds the key"
    if status in _NOT_THERE:
        return "is `base_url` right (it often ends in `/v1`), and does the endpoint have the model?"
    if status in _REDIRECTS:
        return "redirects are not followed: set `base_url` to where the endpoint is"
    return None


def refuses_schema_beside_tools(failure: AttemptError) -> bool:
    """Whether a request was refused with words that name both; a wrong guess costs one more."""
    if failure.advice.retry or failure.advice.unavailable:
        return False
    words = failure.message.lower()
    return any(map(words.__contains__, _TOOLS)) and any(map(words.__contains__, _SCHEMA))


def origin_of(url: str | None) -> str:
    """Scheme, host and port of a URL: what may be shown of it."""
    parts = urlsplit(url or "")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
