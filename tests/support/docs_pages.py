"""The pages of the documentation as blocks that can be tried, and the trying.

What each kind of block means stands in CONTRIBUTING.md under "Docs". A page is tried from top to
bottom in one folder, which has what its reader would have: the repository's `pipelines/` and
`README.md`, and every block above that has a `file=`.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import messages_streams
import responses_streams
from batch_servers import BatchServer, answer_in_words
from cli_process import clean_environment
from docs_terminal import Sitting
from e2e_project import http_server
from fork_server import ForkServer
from mcp_peers import free_port, listening, npm_server
from model_endpoint import (
    Answer,
    Gate,
    ModelEndpoint,
    Reply,
    json_reply,
    named,
    stream_reply,
    text_reply,
    tool_reply,
)
from oauth_person import server_with_logins
from oauth_servers import protected_server
from package_registry import PackageRegistry
from ruamel.yaml import YAML

from aish.cli.commands.validate import problems_of

ROOT = Path(__file__).resolve().parents[2]
_DOCS = sorted((ROOT / "docs").rglob("*.md"))
GENERATED = tuple(page for page in _DOCS if page.read_text("utf-8").startswith("<!-- Written by "))
# The generated pages whose blocks are tried too.
_TRIED = ("vendors.md",)
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(page for page in _DOCS if page not in GENERATED or page.name in _TRIED),
)
LANGUAGES = frozenset(
    {"yaml", "console", "sh", "json", "text", "diff", "jinja", "markdown", "csv", "python", "html"}
)
# What a `sh` block may say: it is shown and not run.
NOT_RUN = frozenset(
    {"pip", "uv", "pipx", "podman", "make", "git", "cd", "export", "npx", ".venv/bin/python"}
)
PATIENCE = 120.0

_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>.*)$")
_TEST = re.compile(r"^ *<!-- test: (?P<word>\w+) (?P<rest>.*?) *-->$")
# What a shell would do something about; a line without is split into words and started.
_OF_THE_SHELL = re.compile(r"[|&;<>$`\\\n*?~#(){}\[\]!]")
_VOLATILE = (
    (re.compile(r"\d{8}T\d{6}Z-([a-z0-9-]+)-[a-z0-9]{4}\b"), r"<run>-\1"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z"), "<time>"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "<time>"),
    (re.compile(r"\[ *\d+\.\d\ds\]"), "[<s>]"),
    (re.compile(r"\b\d+(?:\.\d+)? k?B\b"), "<size>"),
    (re.compile(r"\b\d+(?:\.\d+)? s\b"), "<s> s"),
    (re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d\b"), "<time>"),
    # The day of the week is in it, and no two days are as long.
    (re.compile(r"(_current_time: ok, <s> s): \d+ characters"), r"\1: <n> characters"),
    (re.compile(r"\b[\d,]+ in / [\d,]+ out tokens"), "<n> in / <n> out tokens"),
    (re.compile(r"\b[\d,]+ tokens in, [\d,]+ out"), "<n> tokens in, <n> out"),
    (re.compile(r"about [\d,]+ tokens"), "about <n> tokens"),
    (re.compile(r'"((?:first_token_)?seconds)": ?\d[\d.e-]*'), r'"\1": 0'),
    (re.compile(r"http://127\.0\.0\.1:\d+"), "http://127.0.0.1:<port>"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "<digest>"),
    (re.compile(r"(files updated |\[aish |\[end )[0-9a-f]{12}\b"), r"\1<tag>"),
    (re.compile(r"\b[0-9a-f]{8}\b(?=  (?:\w+  )?\w+__)"), "<id>"),
    (re.compile(r"(approve <run>-[\w-]+ |until <time> UTC \()[0-9a-f]{8}\b"), r"\1<id>"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "<id>"),
    (re.compile(r"\bhub-[0-9a-f]{16}\b"), "<hub>"),
)
_TEXT_REPLIES: Mapping[str, Callable[[str], Reply]] = {
    "chat": text_reply,
    "messages": lambda text: stream_reply(
        messages_streams.start(), messages_streams.text(text), messages_streams.ends()
    ),
    "responses": lambda text: responses_streams.reply(responses_streams.message(text)),
}
# Around a `yaml fragment`: what it does not say itself.
_FRAME: Mapping[str, Any] = {
    "aish": 1,
    "model": "local",
    "models": {"local": {"embedded": "smollm2"}},
    "mcp": {"servers": {"repo": {"pack": ["fs"], "root": "."}}},
    "prompt": "Hello",
}


@dataclass(frozen=True)
class Block:
    """A fenced block, or a `<!-- test: … -->` line (`language` is then `test`)."""

    page: Path
    line: int
    language: str
    options: Mapping[str, str]
    lines: Sequence[str]

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page, from top to bottom."""
    lines = page.read_text("utf-8").splitlines()
    number = 0
    while number < len(lines):
        begun, line = number, lines[number]
        number += 1
        if told := _TEST.match(line):
            yield Block(page, begun + 1, "test", {told["word"]: ""}, [told["rest"]])
        elif fence := _FENCE.match(line):
            language, *words = fence["info"].split()
            options = dict(word.partition("=")[::2] for word in words)
            margin = len(fence["indent"])
            while lines[number].strip() != "```":
                number += 1
            inside = [text[margin:] for text in lines[begun + 1 : number]]
            yield Block(page, begun + 1, language, options, inside)
            number += 1


@dataclass
class Reader:
    """Someone who does what a page says, in a folder of their own."""

    folder: Path
    home: Path
    stack: ExitStack
    warm: ForkServer | None = None
    env: dict[str, str] = field(default_factory=dict)
    endpoint: ModelEndpoint | None = None
    left_out: list[str] = field(default_factory=list)
    sitting: Sitting | None = None

    def __post_init__(self) -> None:
        shutil.copytree(
            ROOT / "pipelines",
            self.folder / "pipelines",
            ignore=shutil.ignore_patterns(".aish", "survey.md"),
        )
        shutil.copy(ROOT / "README.md", self.folder)
        self.env = clean_environment(self.home)
        self.env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), self.env["PATH"]])

    def follow(self, block: Block) -> None:
        """Do what a block is for; raises `AssertionError` where the page is wrong."""
        assert block.language in LANGUAGES | {"test"}, f"{block.where}: a `{block.language}` block"
        needed = block.options.get("needs")
        if needed is not None and find_spec(needed) is None:
            self.left_out.append(f"{block.where}: `{needed}` is not installed")
            return
        if name := block.options.get("file"):
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            before = path.read_text("utf-8") if "append" in block.options else ""
            path.write_text(before + block.text, "utf-8")
        match block.language:
            case "test":
                self._told(block)
            case "yaml":
                self._check_yaml(block)
            case "json":
                json.loads(block.text)
            case "sh":
                words = {shlex.split(line)[0] for line in block.lines if line.strip()}
                assert words <= NOT_RUN, f"{block.where}: {words - NOT_RUN} in a block not run"
            case "console":
                self._run(block)
            case "python" if "shown" not in block.options:
                self._execute(block)
            case "text" if "terminal" in block.options:
                self._sit(block)

    def _told(self, block: Block) -> None:
        """`env NAME=VALUE…`, `model JSON` or `folder empty`: what a page begins with."""
        (word,) = block.options
        (rest,) = block.lines
        assert word in {"env", "model"} or (word, rest) == ("folder", "empty"), block.where
        if word == "folder":
            shutil.rmtree(self.folder)
            self.folder.mkdir()
            return
        if word == "model":
            self._endpoint().queue(_answer(json.loads(rest)))
            return
        for assignment in shlex.split(rest):
            name, _, value = assignment.partition("=")
            if value == "@model":
                value = self._endpoint().base_url
            elif value == "@mcp":
                value = self.stack.enter_context(http_server())
            elif value == "@docs":
                value = self.stack.enter_context(http_server("--offers"))
            elif value == "@batches":
                value = self.stack.enter_context(BatchServer("messages", _answer_in_batch)).base_url
            elif value == "@oauth":
                value = self.stack.enter_context(protected_server())
            elif value == "@login":
                value = self.stack.enter_context(server_with_logins())
            elif value == "@issuer":
                # Needs the extra `oauth`, as the page does.
                from token_issuer import issuer_for_programs

                value = self.stack.enter_context(issuer_for_programs())
                self.stack.callback(self._end_server)
            elif value == "@port":
                value = str(free_port())
            elif value == "@npm":
                registry = self.stack.enter_context(PackageRegistry())
                registry.add("npx", "1.0.0")
                value = registry.environment["npm_config_registry"]
            elif value == "@everything":
                value = self.stack.enter_context(_everything())
            self.env[name] = value

    def _end_server(self) -> None:
        """End the server that a page has started, where the page did not come that far."""
        for path in self.folder.glob("*.pid"):
            with suppress(ProcessLookupError, ValueError):
                os.kill(int(path.read_text("ascii")), signal.SIGKILL)

    def _endpoint(self) -> ModelEndpoint:
        if self.endpoint is None:
            self.endpoint = self.stack.enter_context(ModelEndpoint([]))
        return self.endpoint

    def _check_yaml(self, block: Block) -> None:
        if "other" in block.options:
            YAML(typ="safe", pure=True).load(block.text)
            return
        path = self.folder / block.options.get("file", "block.yaml")
        fragment = "fragment" in block.options
        if fragment:
            loaded = YAML(typ="safe", pure=True).load(block.text)
            path = self.folder / "fragment.yaml"
            path.write_text(json.dumps(_framed(loaded)), "utf-8")
        elif "file" not in block.options:
            path.write_text(block.text, "utf-8")
        found = [p for p in problems_of(path, ()) if not (fragment and p.warning)]
        said = "\n".join(map(str, found))
        if "invalid" in block.options:
            assert found, f"{block.where}: nothing is wrong with it"
        else:
            assert not found, f"{block.where}:\n{said}"

    def _run(self, block: Block) -> None:
        commands = list(_commands(block))
        assert commands, f"{block.where}: no line begins with `$ `"
        for number, (command, expected) in enumerate(commands):
            code, printed = self._shell(command)
            last = number == len(commands) - 1
            wanted = int(block.options.get("exit", "0")) if last else 0
            story = f"{block.where}: $ {command}\n{printed}"
            assert code == wanted, f"{story}\nexit code {code}, not {wanted}"
            if expected:
                pattern = _pattern(self._plain("\n".join(expected)).splitlines())
                assert re.fullmatch(pattern, self._plain(printed).rstrip("\n") + "\n"), story

    def _execute(self, block: Block) -> None:
        """A program, in a process of its own; what it prints stands in it behind `# > `."""
        path = self.folder / block.options.get("file", "block.py")
        path.write_text(block.text, "utf-8")
        code, printed = self._shell(
            f"{shlex.quote(sys.executable)} {shlex.quote(str(path.relative_to(self.folder)))}"
        )
        wanted = [line.partition("# > ")[2] for line in block.lines if "# > " in line]
        story = f"{block.where}:\n{printed}"
        assert code == 0, f"{story}\nexit code {code}"
        assert self._plain(printed).splitlines() == wanted, story

    def _sit(self, block: Block) -> None:
        """A session at a terminal, in which the small model is stood in for."""
        instead = self._instead()  # before the session: its model is there until it has ended
        if self.sitting is None:
            self.sitting = Sitting(self.folder, self._plain)
            self.stack.callback(self.sitting.close)
        try:
            self.sitting.follow(block.lines, self.env, instead)
        except AssertionError as error:
            raise AssertionError(f"{block.where}: {error}") from error

    def _instead(self) -> tuple[str, str]:
        """What makes a session ask the page's endpoint, and not the small model."""
        url = self._endpoint().base_url
        model = f"{{base_url: {url}, model: smollm2, price: {{input: 0, output: 0}}}}"
        return "--set", f"models.local={model}"

    def _shell(self, command: str) -> tuple[int, str]:
        if self.sitting is not None:
            command = command.replace("aish shell ", f"aish shell {shlex.join(self._instead())} ")
        words = [] if _OF_THE_SHELL.search(command) else shlex.split(command)
        if words[:1] == ["aish"] and self.warm is not None:
            return self._forked(self.warm, words[1:])
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        return done.returncode, done.stdout

    def _forked(self, warm: ForkServer, arguments: Sequence[str]) -> tuple[int, str]:
        """What a shell would do with a line that says no more than what to start."""
        process = warm.start(
            arguments,
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert process.stdout is not None
        impatience = threading.Timer(PATIENCE, process.kill)
        impatience.start()
        with process.stdout as output:
            printed = output.read().decode()
        impatience.cancel()
        return process.wait(PATIENCE), printed

    def _plain(self, text: str) -> str:
        """`text` without what differs from run to run."""
        text = text.replace(str(self.folder), "<folder>").replace(str(self.home), "<home>")
        for pattern, replacement in _VOLATILE:
            text = pattern.sub(replacement, text)
        return "\n".join(line.rstrip() for line in text.splitlines())


def _answer_in_batch(_: Any) -> dict[str, Any]:
    return answer_in_words("messages", "a defect")


@contextmanager
def _everything() -> Generator[str]:
    """The url of the reference server that npm installed."""
    port, server = free_port(), npm_server("server-everything")
    with listening(*server, "streamableHttp", port=port, environment={"PORT": str(port)}) as origin:
        yield f"{origin}/mcp"


def _commands(block: Block) -> Iterator[tuple[str, list[str]]]:
    """Each command with the lines that it is said to print; `\\` at a line's end goes on."""
    command: str | None = None
    expected: list[str] = []
    more = False
    for line in block.lines:
        if more:
            assert command is not None
            command = f"{command}\n{line.removeprefix('> ')}"
            more = line.endswith("\\")
        elif line.startswith("$ "):
            if command is not None:
                yield command, expected
            command, expected, more = line[2:], [], line.endswith("\\")
        else:
            expected.append(line)
    if command is not None:
        yield command, expected


def _pattern(lines: Sequence[str]) -> str:
    """A line `...` stands for any lines, none included."""
    parts = (r"(?:.*\n)*?" if line.strip() == "..." else re.escape(line) + r"\n" for line in lines)
    return "".join(parts)


def _framed(fragment: Mapping[str, Any]) -> Mapping[str, Any]:
    frame = dict(_FRAME)
    if {"steps", "call", "run"} & fragment.keys():
        del frame["prompt"]
    return _merged(frame, fragment)


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = _merged(result[key], value) if both else value
    return result


def _answer(told: Mapping[str, Any]) -> Answer:
    """`{"text": …}`, `{"call": alias__tool, "arguments": {…}}` or `{"status": 503, "body": …}`.

    A text with `"endless": true` never comes to its end; `"api"` is its format, `"model"` the name
    of what has answered.
    """
    if "status" in told:
        headers = {"retry-after-ms": "10"}
        return json_reply(told["status"], told.get("body", {"error": "no"}), headers)
    if "call" in told:
        arguments = json.dumps(told.get("arguments", {}))
        return tool_reply([("call_1", told["call"], arguments)], told.get("text", ""))
    reply = _TEXT_REPLIES[told.get("api", "chat")](told["text"])
    if "model" in told:
        reply = named(reply, told["model"])
    if told.get("endless"):
        *said, end = reply.parts
        return reply.but(parts=(*said, Gate(), end))
    return reply
