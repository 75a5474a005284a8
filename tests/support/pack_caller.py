"""A process that calls one tool of a pack many times, beside others that do the same.

    python pack_caller.py SCENE

SCENE is JSON: `packs`, `root` (or null), `options` (of one pack, as arguments of its class),
`tool`, `arguments` (where `{n}` is the number of the call), `count`, `quota` (bytes that a file may
have, or null). It prints `ready`, waits for a line, and prints the code of each call, as JSON.
"""

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any, cast

import anyio
from pack_scenes import started_packs

from aish.system.pack_index import options_class


async def called(scene: dict[str, Any]) -> list[str]:
    options = {
        name: cast("Any", options_class(name))(
            **{key: Path(value) if key == "folder" else value for key, value in given.items()}
        )
        for name, given in scene["options"].items()
    }
    root = None if scene["root"] is None else Path(scene["root"])
    codes: list[str] = []
    async with started_packs(scene["packs"], root, options, environ=dict(os.environ)) as packs:
        print("ready", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.readline)
        for number in range(scene["count"]):
            arguments = {
                key: value.replace("{n}", str(number)) if isinstance(value, str) else value
                for key, value in scene["arguments"].items()
            }
            result: Any = await packs.call(scene["tool"], arguments)
            content = result["structuredContent"]
            codes.append(content["error"]["code"] if result["isError"] else "ok")
    return codes


def main() -> None:
    scene = json.loads(sys.argv[1])
    if scene["quota"] is not None:
        sys.dont_write_bytecode = True  # it would be cut short, and stay
        resource.setrlimit(resource.RLIMIT_FSIZE, (scene["quota"], scene["quota"]))
    print(json.dumps(anyio.run(called, scene)))


if __name__ == "__main__":
    main()
