"""One page of 1 MB, fetched by the tool from a server of this machine, and by the library alone.

    python benchmarks/pages_load.py ROUNDS

Prints the seconds of each round as JSON: the whole call of `web_fetch` with a warm parser (request,
character set, conversion in its process, marks), and `html_to_markdown.convert` of the same page.
"""

import asyncio
import json
import sys
import time

import anyio
from html_to_markdown import convert

from aish.packs.parse_worker import ParseWorker
from aish.packs.web.tools import open_web, web_fetch
from aish.packs.web.web_options import WebOptions

SIZE = 1_000_000


def page() -> str:
    """Text, links, lists, tables and code, as in documentation."""
    parts = ["<!doctype html><html><head><title>Manual</title></head><body>"]
    size = 0
    while size < SIZE:
        number = len(parts)
        parts.append(
            f"<h2 id='s{number}'>Section {number}</h2><p>What <a href='/s/{number}'>this</a> does, "
            "and <b>why</b> it does so: a paragraph of some length, with <code>code</code> in it, "
            "&amp; more.</p><ul><li>one thing</li><li>another</li></ul><table><tr><th>name</th>"
            f"<th>value</th></tr><tr><td>n{number}</td><td>{number * 7}</td></tr></table>"
            "<pre><code class='language-python'>def f(x):\n    return x + 1\n</code></pre>\n"
        )
        size += len(parts[-1])
    return "".join([*parts, "</body></html>"])


async def measured(rounds: int) -> list[tuple[float, float]]:
    text = page()
    body = text.encode()
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: %d\r\n\r\n"
    )

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head % len(body) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    place = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    worker = ParseWorker(None)
    found: list[tuple[float, float]] = []
    async with server, open_web(WebOptions(allow=(place,)), worker, keys={}) as web:
        # The first round starts the parser and fills the caches.
        for number in range(rounds + 1):
            begun = time.perf_counter()
            answer = await web_fetch.function(web, f"http://{place}/")
            between = time.perf_counter()
            convert(text)
            ended = time.perf_counter()
            assert not answer.data.get("degraded")
            assert answer.data["truncated"]
            if number:
                found.append((between - begun, ended - between))
    await worker.close()
    return found


if __name__ == "__main__":
    print(json.dumps(anyio.run(measured, int(sys.argv[1]))))
