"""Registries of packages on 127.0.0.1, as `npm` and `uv` ask them, with small MCP servers in them.

with PackageRegistry() as registry:
    registry.add_npm("tiny-server", "1.0.0")
    registry.add_wheel("tiny-server", "1.0.0")
"""

import base64
import gzip
import hashlib
import io
import json
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import pytest
from web_server import Page, WebServer, answer

HAS_NPM = pytest.mark.skipif(shutil.which("npm") is None, reason="npm is missing")
UV = Path(sys.executable).parent / "uv"
HAS_UV = pytest.mark.skipif(not UV.exists(), reason="uv is missing; `make test` installs it")
LAUNCHERS = [pytest.param("npx", marks=HAS_NPM), pytest.param("uvx", marks=HAS_UV)]

_SCRIPT = """#!/usr/bin/env node
const words = require("tiny-words");
const lines = require("readline").createInterface({input: process.stdin});
const results = {
  initialize: () => ({protocolVersion: "2025-11-25", capabilities: {tools: {}},
                      serverInfo: {name: "tiny", version: "1"}}),
  "tools/list": () => ({tools: [{name: "version", inputSchema: {type: "object"}}]}),
  "tools/call": () => ({content: [{type: "text", text: "VERSION with " + words}]}),
};
lines.on("line", line => {
  const {id, method} = JSON.parse(line);
  if (id === undefined) return;
  const result = results[method];
  const error = {code: -32601, message: "no such method"};
  console.log(JSON.stringify({jsonrpc: "2.0", id, ...(result ? {result: result()} : {error})}));
});
"""
_MODULE = """
import json
import sys

import tiny_words


def main():
    results = {
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "tiny", "version": "1"},
        },
        "tools/list": {"tools": [{"name": "version", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": "VERSION with " + tiny_words.WORDS}]},
    }
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            reply = {"jsonrpc": "2.0", "id": message["id"]}
            result = results.get(message["method"])
            error = {"code": -32601, "message": "no such method"}
            reply |= {"error": error} if result is None else {"result": result}
            print(json.dumps(reply), flush=True)
"""


_ONCE = {"connection": "close"}
"""A server that closes each connection has to say so, or `npm` uses it again."""


def archive_page(data: bytes) -> bytes:
    """The answer that has an archive."""
    return answer(data, "application/octet-stream", **_ONCE)


class PackageRegistry:
    """Both registries; `tiny-server` needs `tiny-words`, and says its own version and its words."""

    def __init__(self) -> None:
        self.web = WebServer({})
        self._rows: dict[str, dict[str, Any]] = {}
        self._files: dict[str, dict[str, str]] = {}

    def __enter__(self) -> Self:
        self.web.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        self.web.__exit__(*details)

    @property
    def environment(self) -> Mapping[str, str]:
        """What has `npm` and `uv` ask here."""
        return {
            "npm_config_registry": f"{self.web.url}/npm/",
            "npm_config_fetch_retries": "0",
            "UV_DEFAULT_INDEX": f"{self.web.url}/simple",
        }

    def add(self, launcher: str, version: str, words: str = "words") -> None:
        """A version of the server, and version 1.0.0 of what it depends on."""
        if launcher == "npx":
            self.add_npm("tiny-words", "1.0.0", f"module.exports = {json.dumps(words)};\n")
            script = _SCRIPT.replace("VERSION", version)
            needs = {"tiny-words": "^1.0.0"}
            self.add_npm("tiny-server", version, script, dependencies=needs)
        else:
            self.add_wheel("tiny-words", "1.0.0", f"WORDS = {words!r}\n")
            module = _MODULE.replace("VERSION", version)
            self.add_wheel("tiny-server", version, module, requires="tiny-words>=1")

    def add_npm(self, name: str, version: str, script: str, **manifest: Any) -> None:
        about = {"name": name, "version": version, "main": "index.js", **manifest}
        about.setdefault("bin", {name: "index.js"} if script.startswith("#!") else {})
        content = {"package/package.json": json.dumps(about), "package/index.js": script}
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for path, text in content.items():
                info = tarfile.TarInfo(path)
                info.size, info.mode = len(text.encode()), 0o755
                tar.addfile(info, io.BytesIO(text.encode()))
        data = gzip.compress(archive.getvalue(), mtime=0)
        path = f"/npm/{name}/-/{name}-{version}.tgz"
        checksum = base64.b64encode(hashlib.sha512(data).digest()).decode()
        about["dist"] = {"tarball": self.web.url + path, "integrity": f"sha512-{checksum}"}
        if manifest.get("scripts"):
            about["hasInstallScript"] = True
        self.web.pages[path] = archive_page(data)
        row = self._rows.setdefault(name, {"name": name, "versions": {}})
        row["versions"][version] = about
        row["dist-tags"] = {"latest": version}
        self.web.pages[f"/npm/{name}"] = answer(json.dumps(row), "application/json", **_ONCE)

    def add_wheel(self, name: str, version: str, module: str, requires: str = "") -> None:
        own = name.replace("-", "_")
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        files = {
            f"{own}.py": module,
            f"{own}-{version}.dist-info/METADATA": metadata
            + (f"Requires-Dist: {requires}\n" if requires else ""),
            f"{own}-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\n"
            "Root-Is-Purelib: true\nTag: py3-none-any\n",
        }
        if "def main" in module:
            entry = f"[console_scripts]\n{name} = {own}:main\n"
            files[f"{own}-{version}.dist-info/entry_points.txt"] = entry
        record = "".join(f"{path},,\n" for path in files)
        files[f"{own}-{version}.dist-info/RECORD"] = record
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as wheel:
            for path, text in files.items():
                wheel.writestr(zipfile.ZipInfo(path), text)
        self.add_file(name, f"{own}-{version}-py3-none-any.whl", archive.getvalue())

    def add_file(self, name: str, file: str, data: bytes) -> None:
        """A file of the index of Python, with its checksum."""
        self.web.pages[f"/files/{file}"] = archive_page(data)
        digest = hashlib.sha256(data).hexdigest()
        self._files.setdefault(name, {})[file] = f"/files/{file}#sha256={digest}"
        links = (f'<a href="{href}">{text}</a>' for text, href in self._files[name].items())
        self.web.pages[f"/simple/{name}/"] = answer("".join(links), **_ONCE)

    def archive(self, launcher: str, version: str) -> str:
        """The path of the archive of the server."""
        if launcher == "npx":
            return f"/npm/tiny-server/-/tiny-server-{version}.tgz"
        return f"/files/tiny_server-{version}-py3-none-any.whl"

    def replace(self, path: str, page: Page) -> Page:
        """Answer otherwise at a path; what was there before."""
        before, self.web.pages[path] = self.web.pages[path], page
        return before
