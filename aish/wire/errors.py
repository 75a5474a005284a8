"""Errors of unusable answers, and whether a retry may help."""

from typing import ClassVar

from aish.net.rate_limits import RetryAdvice


class StreamError(Exception):
    """An unusable answer.

    `message` is one sentence without a full stop, fit to show on one line. `code` is the
    endpoint's own word or number where it gave one, else ours. `retryable` says whether the same
    request may succeed if it is sent again.
    """

    usual_code: ClassVar[str] = "stream_error"
    usually_retryable: ClassVar[bool] = True

    def __init__(
        self, message: str, *, code: str | int | None = None, retryable: bool | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = self.usual_code if code is None else code
        self.retryable = self.usually_retryable if retryable is None else retryable


class IncompleteStreamError(StreamError):
    """The stream ended before the answer did: never a success."""

    usual_code = "incomplete_stream"


class UnfinishedStreamError(IncompleteStreamError):
    """The stream ended in order, but its finish reason stayed null."""

    usual_code = "unfinished_stream"


class EmptyStreamError(StreamError):
    """Status 200 and no answer at all."""

    usual_code = "empty_stream"


class UnreadableStreamError(StreamError):
    """Bytes that are neither an event stream nor a completion."""

    usual_code = "unreadable_stream"


class InBandError(StreamError):
    """The endpoint reports an error inside an answer with status 200."""

    usual_code = "endpoint_error"

    def __init__(
        self,
        message: str,
        *,
        code: str | int | None = None,
        retryable: bool | None = None,
        advice: RetryAdvice | None = None,
    ) -> None:
        super().__init__(message, code=code, retryable=retryable)
        self.advice = advice or RetryAdvice()


class MalformedToolCallError(StreamError):
    """A tool call that cannot be reconstructed from the data."""

    usual_code = "malformed_tool_call"


class TruncatedToolCallError(StreamError):
    """The token limit was reached inside a call's arguments; never executed."""

    usual_code = "truncated_tool_call"
    usually_retryable = False


class LimitError(StreamError):
    """A line, an event or a response over its cap."""

    usual_code = "stream_limit"
    usually_retryable = False
