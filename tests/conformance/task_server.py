"""The server behind the hub of which the `tasks-*` scenarios of the conformance suite ask.

    python tests/conformance/task_server.py

It has their tools, over stdio in the handshake era; it knows nothing of tasks, which the hub makes.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

Message = dict[str, Any]
BEGINNING = 0.6
"""Seconds that a slow tool takes before it does what it does: longer than the hub holds calls."""
LONGEST = 100.0
_lock = threading.Lock()
_answers: dict[str, tuple[threading.Event, list[Any]]] = {}


class Failed(Exception):  # ruff: ignore[error-suffix-on-exception-name] - what it is is all it says
    """The tool fails with a JSON-RPC error."""


def send(message: Message) -> None:
    with _lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def ask(message: str, name: str) -> Callable[[], Any]:
    """Ask the client for a text; waits for what it answers."""
    id = f"question-{len(_answers)}"
    answered, answer = _answers[id] = threading.Event(), []
    schema = {"type": "object", "properties": {name: {"type": "string"}}}
    params = {"message": message, "requestedSchema": schema}
    send({"id": id, "method": "elicitation/create", "params": params})

    def wait() -> Any:
        answered.wait()
        return answer[0]

    return wait


def greet(arguments: Message) -> str:
    return f"Hello, {arguments.get('name')}!"


def slow_compute(arguments: Message) -> str:
    time.sleep(min(float(arguments.get("seconds", 1)), LONGEST))
    return f"done: {arguments.get('label')}"


def failing_job(arguments: Message) -> Message:
    del arguments
    time.sleep(BEGINNING)
    return {"content": [{"type": "text", "text": "the job has failed"}], "isError": True}


def protocol_error_job(arguments: Message) -> str:
    del arguments
    time.sleep(BEGINNING)
    raise Failed


def confirm_delete(arguments: Message) -> str:
    time.sleep(BEGINNING)
    return json.dumps(ask(f"Delete {arguments.get('filename')}?", "confirm")())


def multi_input(arguments: Message) -> str:
    del arguments
    time.sleep(BEGINNING)
    waits = [ask("The first?", "first"), ask("The second?", "second")]
    return json.dumps([wait() for wait in waits])


def test_tool_with_task(arguments: Message) -> str:
    del arguments
    answer = ask("Your name?", "user_name")()
    time.sleep(BEGINNING)
    return json.dumps(answer)


TOOLS: dict[str, Callable[[Message], str | Message]] = {
    one.__name__: one
    for one in (
        *(greet, slow_compute, failing_job, protocol_error_job, confirm_delete, multi_input),
        test_tool_with_task,
    )
}


def call(id: Any, params: Message) -> None:
    try:
        found = TOOLS[params["name"]](params.get("arguments") or {})
    except Failed:
        send({"id": id, "error": {"code": -32603, "message": "the job has failed"}})
        return
    if isinstance(found, str):
        found = {"content": [{"type": "text", "text": found}], "isError": False}
    send({"id": id, "result": found})


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        id = message.get("id")
        match message.get("method"):
            case None:
                answered, answer = _answers[id]
                answer.append(message.get("result", message.get("error")))
                answered.set()
            case "initialize":
                result: Message = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
                send({"id": id, "result": {**result, "serverInfo": {"name": "t", "version": "1"}}})
            case "tools/list":
                rows = [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]
                send({"id": id, "result": {"tools": rows}})
            case "tools/call":
                # Several at a time, as clients of a hub call it.
                threading.Thread(target=call, args=(id, message["params"]), daemon=True).start()
            case _ if id is not None:
                send({"id": id, "error": {"code": -32601, "message": "method not found"}})
            case _:
                pass


if __name__ == "__main__":
    main()
