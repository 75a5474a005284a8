"""Numbers that others write, however large: a value or an error of ours, in all that reads them."""

import io
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from work import work_of

from aish.cassettes.format.file_reader import read_cassette
from aish.cassettes.replay.matching import Ignored
from aish.cli.importing.pipeline import import_pipeline
from aish.config.documents import parse_document
from aish.config.fields import duration, size
from aish.config.loader import load_pipeline
from aish.config.model import Expectation
from aish.core.errors import AishError
from aish.core.json import parse_structured, strict_json
from aish.engine.expectations.rendering import UnusableError, render_expectation
from aish.items.csv_rows import csv_rows
from aish.items.json import json_array, json_lines
from aish.items.shards import parse_shard
from aish.mcp.protocol import messages, requests
from aish.net.http import Head
from aish.net.listen.addresses import parse_address
from aish.net.rate_limits import header_wait, retry_advice
from aish.output.style import look_of
from aish.packs.environment_file import read_environment
from aish.packs.pack_error import PackError
from aish.packs.time_span import seconds_of
from aish.packs.workspace.content_summary import json_summary, toml_summary
from aish.templates.limits import TemplateError
from aish.templates.render import evaluate, render
from aish.wire.chat.answer import read_usage
from aish.wire.counts import read_cost
from aish.wire.json_text import json_values, parse_object
from aish.wire.sse import SseReader

MOST_LINES = 3_000_000
"""PyYAML runs some for each character."""
NUMBERS = {
    "digits": "9" * 5_000,
    "many digits": "9" * 100_000,
    "zeros": "0" * 5_000,
    "exponent": "1e999",
    "negative": "-1e999",
    "fraction": "0." + "9" * 100_000,
    "hexadecimal": "0x" + "f" * 5_000,
    "short hexadecimal": "0x" + "f" * 290,
    "not one": "NaN",
    "infinite": "inf",
    "superscript": "²",
}
ERRORS = (AishError, PackError, TemplateError, httpx.RemoteProtocolError)


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, "utf-8")
    return path


def response(number: str) -> str:
    """An answer of a server with the number in all its places."""
    parts = (f'"result": {{"x": {number}}}', f'"error": {{"code": {number}, "message": "no"}}')
    return "\n".join(f'{{"jsonrpc": "2.0", "id": {number}, {part}}}' for part in parts)


CASSETTE = """\
version: 1
interactions:
- request:
    method: GET
    uri: http://h/
  response:
    status: {code: 200, message: OK}
    body: {string: Hi, chunks: CHUNKS}
"""
Read = Callable[[str, Path], object]
# Each raises nothing else than an error of ours, or `ValueError` where it says so.
READERS: dict[str, Read] = {
    "file": lambda n, at: load_pipeline(
        written(at, "p.yaml", f"aish: 1\nname: p\nrun: [x]\nlimits: {{cost_usd: {n}}}\n")
    ),
    "price": lambda n, at: load_pipeline(
        written(
            at,
            "p.yaml",
            "aish: 1\nname: p\nrun: [x]\nmodels: {m: {base_url: 'http://x/v1', model: y,"
            f" price: {{input: {n}, output: 1}}}}}}\n",
        )
    ),
    "share": lambda n, at: load_pipeline(
        written(at, "p.yaml", f"aish: 1\nname: p\nrun: [x]\nforeach: []\nmax_failures: '{n}%'\n")
    ),
    "document": lambda n, _: parse_document(f"a: {n}", "a.yaml"),
    "recipe": lambda n, at: import_pipeline(
        written(
            at,
            "recipe.json",
            '{"version": "1", "title": "t", "description": "d", "prompt": "p", "settings":'
            f' {{"temperature": {n}, "max_turns": {n}}}, "retry": {{"max_retries": {n}}},'
            ' "parameters": [{"key": "k", "input_type": "number", "requirement": "optional",'
            f' "description": "d", "default": "{n}"}}]}}',
        ),
        at / "to.yaml",
        "to",
        "",
    ),
    "settings": lambda n, at: import_pipeline(
        written(at, "config.toml", f"model = 'x'\n[mcp_servers.a]\ncommand = 'x'\nn = {n}\n"),
        at / "to.yaml",
        "to",
        "",
    ),
    "environment": lambda n, at: read_environment(written(at, "env.toml", f"[env]\nA = {n}\n"), {}),
    "summary of JSON": lambda n, _: json_summary(f'{{"a": {n}}}'.encode()),
    "summary of TOML": lambda n, _: toml_summary(f"a = {n}".encode()),
    "items of JSON": lambda n, _: list(json_array(io.BytesIO(f"[{n}]".encode()), "i.json")),
    "items of lines": lambda n, _: list(json_lines(io.BytesIO(f"{n}\n".encode()), "i.jsonl")),
    "items of CSV": lambda n, _: list(csv_rows(io.BytesIO(f"a\n{n}\n".encode()), "i.csv")),
    "shard": lambda n, _: parse_shard(f"1/{n}"),
    "address": lambda n, _: parse_address(f"127.0.0.1:{n}"),
    "duration": lambda n, _: duration(f"{n}s"),
    "size": lambda n, _: size(f"{n}MiB"),
    "time span": lambda n, _: seconds_of(f"{n}d"),
    "columns": lambda n, _: look_of(io.StringIO(), {"COLUMNS": n}).width < 100_000 or 1 / 0,
    "path to ignore": lambda n, _: Ignored([f"$.a[{n}]"]),
    "template": lambda n, _: render(f"{{{{ a[{n}] }}}} {{{{ {n} }}}}", {"a": [1]}),
    "attribute": lambda n, _: evaluate(f"rows | unique(attribute='{n}') | list", {"rows": [[1]]}),
    "filter": lambda n, _: render("{{ a | int }} {{ a | float }}", {"a": n}),
    "answer": lambda n, _: parse_structured(f'{{"a": {n}}}'),
    "strict": lambda n, _: strict_json(f'{{"a": {n}}}'),
    "arguments": lambda n, _: messages.encode(parse_object(f'{{"a": {n}}}') or {}),
    "stream": lambda n, _: list(json_values(f'{{"usage": {{"cost": {n}}}}}')),
    "retry-after": lambda n, _: header_wait(
        {"retry-after": n, "retry-after-ms": n, "x-ratelimit-reset": n}, 0.0, limited=True
    ),
    "date": lambda n, _: header_wait(
        {"retry-after": f"Fri, 31 Dec {n} 23:59:59 GMT"}, 0.0, limited=True
    ),
    "retryDelay": lambda n, _: retry_advice(
        {"details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{n}s"}]}
    ),
    "event": lambda n, _: SseReader().feed(f"id: {n}\nretry: {n}\ndata: x\n\n".encode()),
    "length": lambda n, _: Head(
        f"HTTP/1.1 200 OK\r\nContent-Length: {n}\r\n\r\n".encode()
    ).find_framing("GET"),
    "time of a chunk": lambda n, _: read_cassette(
        CASSETTE.replace("CHUNKS", f"2@{n}").encode(), "c.yaml", unfinished=False
    ),
    "size of a chunk": lambda n, _: read_cassette(
        CASSETTE.replace("CHUNKS", f"{n}@1").encode(), "c.yaml", unfinished=False
    ),
    "message": lambda n, _: [messages.decode(line) for line in response(n).splitlines()],
    "request": lambda n, _: requests.read(
        f'{{"jsonrpc": "2.0", "id": {n}, "method": "ping", "params": {{"a": {n}}}}}'.encode()
    ),
}
SAYS_VALUE_ERROR = {"document", "duration", "size", "strict", "stream", "message"}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("reader", READERS)
def test_a_number_of_others_is_a_value_or_an_error_of_ours(
    reader: str, number: str, tmp_path: Path
) -> None:
    allowed = (*ERRORS, ValueError) if reader in SAYS_VALUE_ERROR else ERRORS

    def read() -> None:
        with suppress(*allowed):
            READERS[reader](NUMBERS[number], tmp_path)

    assert work_of(read, MOST_LINES).lines < MOST_LINES


@pytest.mark.parametrize("number", ["9" * 5_000, "1e999", "-1e999", "NaN"])
def test_an_answer_with_a_number_that_is_none_is_an_answer(number: str) -> None:
    (found,) = messages.decode(f'{{"jsonrpc": "2.0", "id": 1, "result": {{"x": {number}}}}}')
    assert found == messages.RpcResponse("1", {"x": None})


@pytest.mark.parametrize("value", [10**4000, -1, 1e308, float("inf"), float("nan"), "9" * 5000])
def test_odd_counts_of_a_model_are_none(value: object) -> None:
    assert read_usage({"prompt_tokens": value}).input is None
    assert read_cost({"cost": value}) is None


@pytest.mark.parametrize("value", ["{{ n }}", "{{ n * 10 }}"])
def test_a_bound_beyond_every_float_is_no_bound(value: str) -> None:
    expectation = Expectation("max_seconds", value=value)
    with pytest.raises(UnusableError, match="does not give a number"):
        render_expectation(expectation, {"n": 10**400})
