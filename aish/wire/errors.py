"""How an answer on the wire can be unusable, and whether asking again may help (L7, L8)."""


class StreamError(Exception):
    """An answer that is not one.

    `message` is one sentence without a full stop, fit to show on one line. `code` is the
    endpoint's own word or number where it gave one, else ours. `retryable` says whether the same
    request may succeed if it is sent again.
    """

    code: str | int | None = "stream_error"
    retryable: bool = True

    def __init__(
        self, message: str, *, code: str | int | None = None, retryable: bool | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code
        if retryable is not None:
            self.retryable = retryable


class IncompleteStreamError(StreamError):
    """The stream ended before the answer did: never a success (quirks 15, 16)."""

    code = "incomplete_stream"


class EmptyStreamError(StreamError):
    """Status 200 and no answer at all (quirk 20)."""

    code = "empty_stream"


class UnreadableStreamError(StreamError):
    """Bytes that are neither an event stream nor a completion (quirks 21, 22)."""

    code = "unreadable_stream"


class InBandError(StreamError):
    """The endpoint reports an error inside an answer with status 200 (quirks 23 to 26)."""

    code = "endpoint_error"


class MalformedToolCallError(StreamError):
    """A tool call that cannot be told from what was sent (quirks 47, 54)."""

    code = "malformed_tool_call"


class TruncatedToolCallError(StreamError):
    """The token limit was reached inside a call's arguments (quirk 55); never executed."""

    code = "truncated_tool_call"
    retryable = False


class LimitError(StreamError):
    """A line, an event or a response over its cap (L4)."""

    code = "stream_limit"
    retryable = False
