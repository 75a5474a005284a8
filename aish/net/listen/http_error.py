"""The error that a server answers a request with; known without the libraries of a server."""

from collections.abc import Mapping

from aish.core.errors import AishError
from aish.core.json import JsonValue


class HttpError(AishError):
    """An answer that is an error: `code` is a word for programs, `message` one for people."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        hint: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.code = code
        self.headers = dict(headers or {})


def error_document(error: HttpError) -> JsonValue:
    """An error as JSON, without its status: `{"error": {code, message, hint}}`."""
    return {"error": {"code": error.code, "message": error.message, "hint": error.hint}}


def body_error(message: str, hint: str | None = None) -> HttpError:
    """The error for a body that is not what its path takes."""
    return HttpError(422, "invalid_body", message, hint=hint)
