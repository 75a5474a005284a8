"""The child that parses untrusted input: requests in, results out, one at a time.

Run as a script by `parse_worker`. A request is a line of JSON, `{"call": "module:function",
"options": {…}, "sizes": [n, …], "seconds": 10.0}`, and as many bytes as it says; the answer is a
line of JSON with `value` or `error`. It imports what the function needs and nothing else of aish.
The kernel ends it with SIGPROF where a request takes more CPU time than it says.
"""

import importlib
import json
import os
import resource
import signal
import sys

MEMORY = 1 << 30


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # What a library prints must not be taken for an answer.
    os.dup2(2, 1)
    # `-I` leaves out the user's packages, and maybe those of aish: the parent says where all are,
    # in its order. They come last, so that they hide no module of the standard library.
    sys.path[:] = [*(folder for folder in sys.path if folder not in sys.argv[1:]), *sys.argv[1:]]
    from aish.packs.pack_error import PackError

    while line := requests.readline():
        request = json.loads(line)
        sources = [requests.read(size) for size in request["sizes"]]
        answer: dict[str, object]
        # The default action ends the process, inside a regular expression too.
        signal.setitimer(signal.ITIMER_PROF, request["seconds"] or 0)
        try:
            module, _, name = request["call"].partition(":")
            function = getattr(importlib.import_module(module), name)
            answer = {"value": function(*sources, **request["options"])}
        except PackError as error:
            answer = {"error": [error.code, error.message, error.details]}
        except (MemoryError, RecursionError) as error:
            limit = "memory" if isinstance(error, MemoryError) else "nesting"
            answer = {"error": ["too_slow", f"the {limit} limit was reached", {}]}
        except Exception as error:  # ruff: ignore[blind-except] - see below
            # A defect of ours or of a library: reported as such, and the next request is served.
            answer = {"failed": f"{type(error).__name__}: {error}"[:500]}
        try:
            data = json.dumps(answer).encode()
        except (RecursionError, MemoryError, ValueError):
            data = b'{"error": ["too_slow", "the result is nested too deeply", {}]}'
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(data + b"\n")
        answers.flush()


if __name__ == "__main__":
    main()
