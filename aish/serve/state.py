"""`serve.state`: the folder of everything that outlives the process, private to its user.

By default it is in the user's state folder: in a project, commands and tools could read its keys
and tokens, and answer questions.
"""

import hashlib
import hmac
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from aish.config.model import Pipeline
from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.core.json import JsonValue, canonical
from aish.net.listen.tokens import ensure_token
from aish.system.files import is_there, private_folder, secret_path, state_of_servers

_KEY_FILE = "key"
_ID_LENGTH = 16


@frozen
class ServeState:
    """The open folder; `id` identifies it in digests of calls, `key` is the key of its digests."""

    path: Path
    id: str
    key: bytes

    def digest(self, data: bytes) -> str:
        """Return a keyed digest, which reveals nothing about the data without the key."""
        return hmac.digest(self.key, data, "sha256").hex()

    def digest_of(self, value: JsonValue) -> str:
        """Return the digest of a JSON value, independent of the order of its keys."""
        return self.digest(canonical(value).encode("ascii"))


def state_folder(pipeline: Pipeline) -> Path:
    """Return the state folder of a file, which may not exist."""
    return pipeline.serve.state or state_of_servers(pipeline.file.parent)


def open_state(pipeline: Pipeline) -> ServeState:
    """Open the state folder of a file, with a key; both are created if missing.

    Raises:
        UsageError: it cannot be created, or is not private.
    """
    path = state_folder(pipeline)
    try:
        return _open(pipeline, private_folder(path))
    except OSError as error:
        message = f"the state folder cannot be used: {error.strerror or error}"
        hint = "`serve.state` names another folder"
        raise UsageError(message, where=str(error.filename or path), hint=hint) from error


def _open(pipeline: Pipeline, path: Path) -> ServeState:
    # Without a key no server of the project has run, and what is in there is not of one.
    key_file = secret_path(path, _KEY_FILE)
    may_move = pipeline.serve.state is None and key_file.exists()
    key = ensure_token("hub", key_file, ()).value.encode()
    state = ServeState(path, f"hub-{hashlib.sha256(key).hexdigest()[:_ID_LENGTH]}", key)
    project = pipeline.file.parent.resolve()
    older = project / ".aish" / "serve"
    if may_move and not (path / state.id).exists() and older.exists() and is_there(older, project):
        _move(older, path, (state.id, "tasks", "audit"))
    return state


def _move(older: Path, path: Path, names: Iterable[str]) -> None:
    """Move what an older version kept in the project; this happens once."""
    for name in names:
        with suppress(FileNotFoundError):
            if not (path / name).exists():
                shutil.move(older / name, path / name)
