"""`serve.state`: the folder for what outlives the process, private to its user (H21, H28).

Unless the file names it, its keys and tokens are in the user's state folder: below a project,
commands and tools could reach them.
"""

import hashlib
import hmac
import os
from pathlib import Path

from aish.config.model import Pipeline
from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.core.json import JsonValue, canonical
from aish.engine.run_folder import hidden_folder
from aish.net.listen.tokens import made_token
from aish.system import files
from aish.system.files import private_folder

_KEY_FILE = "key"
_ID_LENGTH = 16


@frozen
class ServeState:
    """The open folder; `id` names it in digests of calls, `key` is the secret of its digests.

    `secrets` is the folder of that key, and of the token that is made.
    """

    path: Path
    id: str
    key: bytes
    secrets: Path

    def digest(self, data: bytes) -> str:
        """A digest that says nothing about the data to those without the key."""
        return hmac.digest(self.key, data, "sha256").hex()

    def digest_of(self, value: JsonValue) -> str:
        """The same for a JSON value, whatever the order of its keys."""
        return self.digest(canonical(value).encode("ascii"))


def state_folder(pipeline: Pipeline) -> Path:
    """Where the state of a file is, whether it is there or not."""
    return pipeline.serve.state or pipeline.file.parent.resolve() / ".aish" / "serve"


def open_state(pipeline: Pipeline) -> ServeState:
    """The state folder of a file, with a key; both are made if they are missing.

    Raises:
        UsageError: it cannot be made, or is not private.
    """
    wanted = pipeline.serve.state
    try:
        path, secrets = _folders(pipeline)
        key = made_token("hub", secrets / _KEY_FILE, ()).value.encode()
    except OSError as error:
        where = str(error.filename or wanted or pipeline.file.parent / ".aish" / "serve")
        said = f"the state folder cannot be used: {error.strerror or error}"
        hint = "`serve.state` names another folder"
        raise UsageError(said, where=where, hint=hint) from error
    return ServeState(path, f"hub-{hashlib.sha256(key).hexdigest()[:_ID_LENGTH]}", key, secrets)


def _folders(pipeline: Pipeline) -> tuple[Path, Path]:
    """The state folder of a file, and that of its keys and tokens; they are made."""
    wanted = pipeline.serve.state
    if wanted is not None:
        path = private_folder(wanted)
        return path, path
    path = private_folder(hidden_folder(pipeline.file.parent) / "serve")
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:_ID_LENGTH]
    return path, private_folder(files.state_folder() / "serve" / name)
