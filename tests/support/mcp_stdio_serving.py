"""The server of `mcp_stdio_server.py`.

The tools are those of `mcp_tools.py`. A thousand tests start it, so it imports what a call needs
and nothing else: neither `argparse` nor `typing`, and `pathlib` only for options with a path.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import allocate_lock, start_new_thread

import mcp_offered_resources
import mcp_tools
import quick_json as json

TYPE_CHECKING = False  # as in `typing`, which is slow to import
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

LOCK = allocate_lock()


def write(raw: bytes) -> None:
    with LOCK:
        sys.stdout.buffer.write(raw)
        sys.stdout.buffer.flush()


def send(*messages: mcp_tools.Message) -> None:
    write(b"".join(json.dumps(one).encode() + b"\n" for one in messages))


def wait_for(path: str | Path) -> None:
    """Wait until there is a file: so a test decides when something goes on, and no time does."""
    while not os.path.exists(path):  # ruff: ignore[os-path-exists] - `pathlib` is slow to import
        time.sleep(0.01)


def start_grandchild(note: Path | None, *, apart: bool) -> None:
    import subprocess

    argv = [sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"]
    away = subprocess.DEVNULL if apart else None
    child = subprocess.Popen(argv, start_new_session=apart, stdin=away, stdout=away, stderr=away)
    if note is not None:
        unfinished = note.with_suffix(".part")
        unfinished.write_text(f"{child.pid}\n")
        unfinished.rename(note)


def pause() -> None:
    import signal

    signal.pause()


def until_of(message: mcp_tools.Message) -> str | None:
    """The file that the answer to a call of `sleep` waits for."""
    params = message.get("params") or {}
    if message.get("method") != "tools/call" or params.get("name") != "sleep":
        return None
    return (params.get("arguments") or {}).get("until")


def send_later(reply: mcp_tools.Message, delay: float, until: str | None) -> None:
    time.sleep(delay)
    if until is not None:
        wait_for(until)
    send(reply)


def change_tools() -> mcp_tools.Message:
    """Offer another tool from now on; the message that says so."""
    if all(tool["name"] != "added" for tool in mcp_tools.TOOLS):
        mcp_tools.TOOLS.append(
            {
                "name": "added",
                "description": "Was not there before",
                "inputSchema": {"type": "object"},
            }
        )
        mcp_tools.TOOLS[0]["description"] = "Say the text back, differently"
    return {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}


ASKING_TOOLS: list[mcp_tools.Message] = [
    {
        "name": "ask_client",
        "description": "Send a request to the client and say what it answered",
        "inputSchema": {
            "type": "object",
            "properties": {"method": {}, "params": {}, "after_ms": {"type": "integer"}},
        },
    },
    {
        "name": "tell_client",
        "description": "Send a notification to the client",
        "inputSchema": {"type": "object", "properties": {"method": {}, "params": {}}},
    },
    {
        "name": "take_back",
        "description": "End the call that asked the client with `take_back: later`",
        "inputSchema": {"type": "object"},
    },
    {
        "name": "refuse",
        "description": "Answer with this error",
        "inputSchema": {"type": "object", "properties": {"error": {}}},
    },
    {
        "name": "count",
        "description": "Report progress so many times",
        "inputSchema": {"type": "object", "properties": {"steps": {"type": "integer"}}},
    },
]


class Serving:
    """Reads messages and answers them, as well or as badly as the flags say."""

    def __init__(self, arguments: Any) -> None:
        self.arguments = arguments
        self.calls = 0
        self.lists = 0
        self.asked: dict[str, Any] = {}
        self.subscribed: set[str] = set()
        self.listening: dict[Any, Any] = {}
        self.progress: list[Any] = []
        self.later = ""
        self.rounds = 0

    def line(self, raw: bytes) -> None:
        message = json.loads(raw)
        if "method" not in message:
            self.answered(message)
            return
        if message["method"] == "notifications/progress":
            self.progress.append(message["params"])
            return
        if self.arguments.asks and message["method"] == "tools/call" and self.asks(message):
            return
        if self.arguments.live and self.lives(message):
            return
        if mcp_tools.is_crash(message):
            print("crashing on purpose", file=sys.stderr, flush=True)
            os._exit(3)
        if message.get("method") == "tools/call":
            self.calls += 1
            if self.arguments.die_after is not None and self.calls > self.arguments.die_after:
                print("dying on purpose", file=sys.stderr, flush=True)
                os._exit(4)
            if self.arguments.huge_line:
                result = mcp_tools.text_result("x" * self.arguments.huge_line)
                send({"jsonrpc": "2.0", "id": message["id"], "result": result})
                return
        self.reply(message)

    def asks(self, message: mcp_tools.Message) -> bool:
        """Play the tools that need the client; whether this was one of them."""
        params, number = message["params"], message["id"]
        arguments = params.get("arguments") or {}
        if params["name"] == "count":
            token = params["_meta"]["progressToken"]
            for step in range(arguments["steps"]):
                told = {"progressToken": token, "progress": step + 1, "message": f"step {step + 1}"}
                told |= {"total": arguments["steps"]}
                send({"jsonrpc": "2.0", "method": "notifications/progress", "params": told})
            result = mcp_tools.text_result("counted")
            answer = {"jsonrpc": "2.0", "id": number, "result": result}
            start_new_thread(send_later, (answer, arguments.get("ms", 0) / 1000, None))
            return True
        if params["name"] == "tell_client":
            send({"jsonrpc": "2.0", "method": arguments["method"], "params": arguments["params"]})
            send({"jsonrpc": "2.0", "id": number, "result": mcp_tools.text_result("told")})
            return True
        if params["name"] == "take_back":
            self.take_back(self.later)
            send({"jsonrpc": "2.0", "id": number, "result": mcp_tools.text_result("done")})
            return True
        if params["name"] == "refuse":
            send({"jsonrpc": "2.0", "id": number, "error": arguments["error"]})
            return True
        if params["name"] != "ask_client":
            return False
        if "inputResponses" not in params:
            time.sleep(arguments.get("after_ms", 0) / 1000)
        question = {"method": arguments["method"], "params": arguments.get("params") or {}}
        if mcp_tools.version_of(message) is None:
            key = f"question-{number}"
            self.asked[key] = number
            send({"jsonrpc": "2.0", "id": key, **question})
            if arguments.get("take_back") == "later":
                self.later = key
            elif arguments.get("take_back"):
                self.take_back(key)
        elif "inputResponses" in params:
            assert params["requestState"] == "state"
            text = json.dumps(params["inputResponses"]["q"])
            result = {"resultType": "complete", **mcp_tools.text_result(text)}
            send({"jsonrpc": "2.0", "id": number, "result": result})
        else:
            result = {"resultType": "input_required", "inputRequests": {"q": question}}
            send({"jsonrpc": "2.0", "id": number, "result": {**result, "requestState": "state"}})
        return True

    def lives(self, message: mcp_tools.Message) -> bool:
        """Take up who wants to hear of what, and tell it; whether this was the answer."""
        params = message.get("params") or {}
        if self.arguments.notes is not None:
            with self.arguments.notes.open("a") as file:
                file.write(json.dumps([message["method"], params]) + "\n")
        match message["method"]:
            case "resources/subscribe":
                self.subscribed.add(params["uri"])
            case "resources/unsubscribe":
                self.subscribed.discard(params["uri"])
            case "logging/setLevel":
                pass
            case "subscriptions/listen":
                self.listening[message["id"]] = params["notifications"]
                self.tell("subscriptions/acknowledged", message["id"], params)
                return True
            case "notifications/cancelled":
                self.listening.pop(params["requestId"], None)
                return False
            case "tools/call" if params["name"] == "echo":
                for words in params["arguments"]["text"].split(", "):
                    self.lives_on(*words.partition(" ")[::2])
                return False
            case _:
                return False
        send({"jsonrpc": "2.0", "id": message["id"], "result": {}})
        return True

    def lives_on(self, verb: str, words: str) -> None:
        """Do what the text of a call says, and tell those who want to hear of it."""
        if verb == "log":
            told = {"level": words, "logger": "test", "data": {"said": words}}
            send({"jsonrpc": "2.0", "method": "notifications/message", "params": told})
        elif verb == "update":
            if words in self.subscribed:
                self.tell("resources/updated", None, {"uri": words})
            for id, wanted in self.listening.items():
                if words in wanted.get("resourceSubscriptions", ()):
                    self.tell("resources/updated", id, {"uri": words})
        elif verb == "offer":
            mcp_offered_resources.LIST_PAGES[0].append({"uri": words, "name": "new"})
            mcp_offered_resources.PROMPTS.append({"name": "new"})
            for kind in ("resources", "prompts"):
                if not self.listening:
                    self.tell(f"{kind}/list_changed", None, {})
                for id, wanted in self.listening.items():
                    if wanted.get(f"{kind}ListChanged"):
                        self.tell(f"{kind}/list_changed", id, {})

    @staticmethod
    def tell(method: str, subscription: Any, params: mcp_tools.Message) -> None:
        about = {key: value for key, value in params.items() if key != "_meta"}
        if subscription is not None:
            about["_meta"] = {"io.modelcontextprotocol/subscriptionId": subscription}
        send({"jsonrpc": "2.0", "method": f"notifications/{method}", "params": about})

    def take_back(self, key: str) -> None:
        """End the call that led to a question: its answer is not wanted any more."""
        taken_back = {"requestId": key, "reason": "not needed"}
        send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": taken_back})
        number = self.asked.pop(key)  # an answer to it would be a mistake, and ends the server
        result = mcp_tools.text_result("taken back")
        send({"jsonrpc": "2.0", "id": number, "result": result})

    def answered(self, message: mcp_tools.Message) -> None:
        """The client's answer to a question becomes the result of the call that led to it."""
        number = self.asked.pop(message["id"])
        if self.arguments.asks_on and message.get("result", {}).get("action") == "accept":
            self.rounds += 1
            key = f"round-{self.rounds}"
            self.asked[key] = number
            form = {"message": key, "requestedSchema": {"type": "object", "properties": {}}}
            send({"jsonrpc": "2.0", "id": key, "method": "elicitation/create", "params": form})
            return
        text = json.dumps(message.get("result", message.get("error")))
        if self.progress:
            text = json.dumps(self.progress)
        send({"jsonrpc": "2.0", "id": number, "result": mcp_tools.text_result(text)})

    def reply(self, message: mcp_tools.Message) -> None:
        self.lists += message["method"] == "tools/list"
        if message["method"] == "tools/list" and self.lists == self.arguments.lists + 1:
            return
        reply = mcp_tools.answer(message, self.arguments.era)
        if reply is None:
            if self.arguments.note_cancelled and message["method"] == "notifications/cancelled":
                with self.arguments.note_cancelled.open("a") as file:
                    file.write(f"{message['params']['requestId']}\n")
            return
        if self.arguments.note_called and message["method"] == "tools/call":
            self.arguments.note_called.touch()
        if self.arguments.noise:
            write(b"a banner on stdout, not JSON\n\n{broken\n")
        delay, until = mcp_tools.delay_of(message), until_of(message)
        if delay or until:
            start_new_thread(send_later, (reply, delay, until))
            return
        changes = self.arguments.change_tools and message.get("method") == "tools/call"
        # In one write: how late a second one came would decide which step has the new tools.
        send(reply, *([change_tools()] if changes else []))


class Options:
    """What `--die-after 2` and the like say; those without a word of their own are `False`."""

    era = "both"
    hang_at_start = False
    """Never answer anything."""
    noise = False
    """Print noise on stdout."""
    die_after: int | None = None
    """Die at the call after so many."""
    die_at_start = False
    """Complain and exit with 1."""
    die_at_starts = ""
    """The same at these lines of `note_pid`."""
    grandchild = False
    """Leave a child of its own."""
    grandchild_note: Path | None = None
    """The file for its process id."""
    apart = False
    """It has a session of its own."""
    note_pid: Path | None = None
    """The file for the process id of each start, a line."""
    ignore_sigterm = False
    huge_line = 0
    """Answer calls with a line of so many bytes."""
    change_tools = False
    """After the first call."""
    lists = -1
    """Leave the list after so many unanswered."""
    many = 0
    """Offer so many more tools."""
    asks = False
    """Offer tools that need the client."""
    asks_on = False
    """Ask again after each yes."""
    offers = False
    """Offer resources and prompts too."""
    live = False
    """Offer these, and tell of their changes."""
    notes: Path | None = None
    """The file for what a live server is sent."""
    stderr = 0
    """Print so many lines on stderr."""
    note_called: Path | None = None
    """The file that is there after a call."""
    note_cancelled: Path | None = None
    """The file for cancelled request ids."""
    again: Path | None = None
    """What a start after the noted first waits for."""
    print_environment: Path | None = None
    """The file for the environment."""

    def __init__(self, words: list[str]) -> None:
        words = list(words)
        while words:
            name = words.pop(0).removeprefix("--").replace("-", "_")
            kind = Options.__annotations__.get(name, type(getattr(Options, name)).__name__)
            value: Any = True
            if name == "huge_line" and not (words and words[0].isdigit()):
                value = 64 * 1024 * 1024
            elif kind != "bool":
                value = words.pop(0)
            if "int" in kind:
                value = int(value)
            elif "Path" in kind:
                from pathlib import Path

                value = Path(value)
            setattr(self, name, value)


def main() -> None:
    arguments: Any = Options(sys.argv[1:])
    if arguments.ignore_sigterm:
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if arguments.note_pid:
        with arguments.note_pid.open("a") as file:
            file.write(f"{os.getpid()}\n")
    if arguments.again and len(arguments.note_pid.read_text().splitlines()) > 1:
        wait_for(arguments.again)
    if arguments.print_environment:
        arguments.print_environment.write_text(json.dumps(dict(os.environ)))
    if arguments.grandchild or arguments.grandchild_note:
        start_grandchild(arguments.grandchild_note, apart=arguments.apart)
    for number in range(arguments.stderr):
        print(f"stderr line {number}", file=sys.stderr)
    starts = len(arguments.note_pid.read_text().splitlines()) if arguments.note_pid else 0
    if arguments.die_at_start or str(starts) in arguments.die_at_starts:
        print("cannot find my configuration", file=sys.stderr, flush=True)
        sys.exit(1)
    if arguments.hang_at_start:
        if arguments.notes is not None:
            arguments.notes.write_text("hanging\n")
        while True:
            pause()
    mcp_tools.TOOLS.extend(
        {"name": f"more{number}", "description": "One of many", "inputSchema": {"type": "object"}}
        for number in range(arguments.many)
    )
    if arguments.asks:
        mcp_tools.TOOLS.extend(ASKING_TOOLS)
    if arguments.offers:
        mcp_tools.CAPABILITIES.update(mcp_offered_resources.CAPABILITIES)
    if arguments.live:
        mcp_tools.CAPABILITIES.update(mcp_offered_resources.LIVE_CAPABILITIES)
    serving = Serving(arguments)
    for raw in sys.stdin.buffer:
        if raw.strip():
            serving.line(raw)
    while arguments.ignore_sigterm:
        pause()
