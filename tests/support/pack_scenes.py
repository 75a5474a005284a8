"""A root folder and packs on it, called one by one and looked at from outside."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from aish.packs.framework.server import Pack

LIMIT = 50_000


@dataclass
class PackScene:
    """A root and its packs."""

    root: Path
    pack: Pack

    def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        result: dict[str, Any] = dict(anyio.run(self.pack.call, name, arguments))
        # Whatever comes out can be sent, and is never too long (K7).
        json.dumps(result).encode()
        (block,) = result["content"]
        assert len(block["text"]) <= LIMIT
        return result

    def text(self, name: str, **arguments: Any) -> str:
        result = self.call(name, **arguments)
        assert result["isError"] is False, result
        return str(result["content"][0]["text"])

    def data(self, name: str, **arguments: Any) -> dict[str, Any]:
        result = self.call(name, **arguments)
        assert result["isError"] is False, result
        data: dict[str, Any] = result["structuredContent"]
        return data

    def error(self, name: str, **arguments: Any) -> dict[str, Any]:
        result = self.call(name, **arguments)
        assert result["isError"] is True, result
        error: dict[str, Any] = result["structuredContent"]["error"]
        assert result["content"][0]["text"] == f"ERROR: {error['message']}"
        assert set(error) == {"code", "message", "details"}
        return error

    def code(self, name: str, **arguments: Any) -> str:
        return str(self.error(name, **arguments)["code"])

    def put(self, path: str, content: str | bytes) -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
        return target

    def get(self, path: str) -> bytes:
        return (self.root / path).read_bytes()

    def names(self, path: str = ".") -> list[str]:
        return sorted(each.name for each in (self.root / path).iterdir())


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
