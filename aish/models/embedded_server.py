"""The child of `embedded`: llama.cpp's server in a process of its own.

Run by its path, without importing aish. It reads one line of JSON with its settings on stdin and
writes one with its address to stdout; output of llama.cpp goes to stderr. It ends when stdin is
closed.
"""

import json
import os
import sys
from typing import Any

_OUT_OF_WORK = 3


def main() -> None:
    settings = json.loads(sys.stdin.readline() or "null")
    if settings is None:
        return
    # The real stdout is kept for the one line; llama.cpp may write to stdout too.
    answers = os.dup(1)
    os.dup2(2, 1)
    try:
        server = serve(settings)
        answer = {"address": server.listening_address}
    except Exception as error:  # ruff: ignore[blind-except] - every error has to be reported to the parent
        answer = {"error": f"{type(error).__name__}: {error}"}
    os.write(answers, json.dumps(answer).encode() + b"\n")
    if "error" in answer:
        # Wait: a thread of llama.cpp is still writing the reason.
        sys.exit(_OUT_OF_WORK)
    while sys.stdin.read(4096):
        pass
    # The server's threads would keep the process alive, and its destructor waits for requests.
    os._exit(0)


def serve(told: dict[str, Any]) -> Any:
    """Start the server; it answers from threads of its own."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = told["path"]
    params.model_alias = {told["model"]}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [told["key"]]
    params.n_ctx = told["context"]
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.cache_ram_mib = 0
    params.use_jinja = True
    params.ui = False
    params.warmup = False
    params.sampling.seed = told["seed"]
    # Spinning threads make a busy machine ten times slower.
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    if told["template"] is not None:
        params.chat_template = told["template"]
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
