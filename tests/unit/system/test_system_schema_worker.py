import http.server
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest
from samples import sampled
from work import work_of

from aish.system.process.reaper import Reaper
from aish.system.schema.check import check_any
from aish.system.schema.client import SchemaWorker

NOT_TEXT: Any = {"not": {"type": "string"}}
RUNAWAY: Any = {"pattern": "^(a+)+$"}


class Fetched(http.server.BaseHTTPRequestHandler):
    paths: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.paths.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"true")

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def web() -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), Fetched) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def said(schema: Any, value: Any) -> list[str]:
    async def ask() -> list[str]:
        worker = SchemaWorker()
        try:
            return [str(problem) for problem in await check_any(schema, value, worker.check)]
        finally:
            await worker.close()

    return anyio.run(ask)


def children() -> set[int]:
    me = os.getpid()
    return {int(pid) for pid in Path(f"/proc/self/task/{me}/children").read_text("ascii").split()}


@pytest.fixture
def others() -> set[int]:
    """The children that were there before the test: other tests share a fork server."""
    return children()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        (NOT_TEXT, 1, []),
        (NOT_TEXT, "a", ["'a' should not be valid under {'type': 'string'}"]),
        ({"if": True, "then": {"required": ["a"]}}, {}, ["a: is required"]),
        ({"contains": {"type": "null"}}, [None], []),
        (
            {"properties": {"n": {"items": {"type": "integer"}}}, "not": False},
            {"n": [1, "x"]},
            ["n[1]: 'x' is not of type 'integer'"],
        ),
        (
            {"properties": {"next": {"$ref": "#"}}, "additionalProperties": False},
            {"next": {"next": {"prev": 1}}},
            ["next.next.prev: is not a known key; known here: next"],
        ),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer"}, 1, []),
        (
            {
                "$schema": "http://json-schema.org/draft-04/schema#",
                "minimum": 1,
                "exclusiveMinimum": True,
            },
            1,
            ["1 is not more than 1"],
        ),
        ({"not": {}, "type": "object"}, "\ud800", None),
    ],
)
def test_any_other_schema_is_evaluated_by_the_worker(
    schema: Any, value: Any, expected: list[str] | None
) -> None:
    problems = said(schema, value)
    if expected is None:
        assert problems
    else:
        assert problems == expected


@pytest.mark.requirement("X7")
@pytest.mark.parametrize("place", ["$ref", "$dynamicRef"])
def test_nothing_is_ever_fetched(web: str, place: str) -> None:
    (problem,) = said({"properties": {"a": {place: f"{web}/schema.json"}}}, {"a": 1})
    assert problem.startswith("the schema cannot be used: it refers to 'http://127.0.0.1")
    assert problem.endswith("and nothing is fetched")
    assert said({"$id": f"{web}/base.json", "$ref": "other.json"}, 1) != []
    assert Fetched.paths == []


def nested_any_of(depth: int) -> Any:
    definitions: Any = {
        f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(depth)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{depth}": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "value"),
    sampled(
        [
            (RUNAWAY, "a" * 40 + "!"),
            (nested_any_of(22), "x"),
            ({"uniqueItems": True, "not": {"pattern": "^(a|aa)+$"}}, "a" * 60 + "!"),
        ],
        often={0},
        reason="each takes a second",
    ),
    ids=["pattern", "branches", "pattern within not"],
)
def test_a_runaway_costs_a_second_and_never_blocks_the_loop(
    schema: Any, value: Any, others: set[int]
) -> None:
    async def ask() -> tuple[list[str], int]:
        worker = SchemaWorker()
        await check_any(NOT_TEXT, 1, worker.check)
        turns = 0

        async def watch() -> None:
            nonlocal turns
            while True:
                await anyio.sleep(0.001)
                turns += 1

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            problems = await check_any(schema, value, worker.check)
            tasks.cancel_scope.cancel()
        assert await check_any(NOT_TEXT, 1, worker.check) == ()
        await worker.close()
        return [str(problem) for problem in problems], turns

    found: list[tuple[list[str], int]] = []
    work_of(lambda: found.append(anyio.run(ask)), most=5_000_000)
    ((problems, turns),) = found
    assert problems == ["schema took too long"]
    assert turns > 5  # of others, while the answer was waited for
    assert children() <= others


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"$ref": "#"}, "the schema or the value is nested without end"),
        ({"$ref": "#/$defs/none"}, "the schema cannot be used: it refers to '/$defs/none', which"),
        ({"type": "strng"}, "the schema cannot be used: type: 'strng' is not valid"),
        ({"properties": []}, "the schema cannot be used: properties: [] is not of type 'object'"),
        ({"properties": 7}, "the schema cannot be used: properties"),
        ({"anyOf": {"a": 1}}, "the schema cannot be used: anyOf"),
        (7, "the schema cannot be used"),
    ],
)
def test_a_schema_that_cannot_be_used_is_a_problem_with_a_reason(schema: Any, reason: str) -> None:
    value: Any = {"a": 1} if "properties" in str(schema) else "text"
    (problem,) = said(schema, value)
    assert problem.startswith(reason)


def test_deep_nesting_ends_in_a_problem() -> None:
    schema: Any = {"type": "integer"}
    for _ in range(20_000):
        schema = {"items": schema}
    assert said({"not": {}, **schema}, [1]) == ["cannot be written as JSON"]
    value: Any = 1
    for _ in range(600):
        value = [value]
    deep: Any = {"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}
    assert said(deep, value) == ["the schema or the value is nested without end"]


def test_a_value_too_large_for_the_loop_goes_to_the_worker() -> None:
    assert said({"items": {"type": "integer"}}, [1] * 20_000) == []
    problems = said({"items": {"type": "integer"}}, ["x" * 1000] * 20_000)
    assert len(problems) == 20
    assert all(len(problem) < 200 for problem in problems)


def test_one_process_answers_many_questions_in_turn(others: set[int]) -> None:
    async def ask() -> None:
        worker = SchemaWorker()
        results: list[bool] = []

        async def one(value: Any) -> None:
            results.append(not await check_any(NOT_TEXT, value, worker.check))

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(one, number if number % 2 else str(number))
        assert sorted(results) == [False] * 10 + [True] * 10
        assert len(children() - others) == 1
        await worker.close()

    anyio.run(ask)
    assert children() <= others


def test_a_worker_that_was_killed_is_replaced(others: set[int]) -> None:
    async def ask() -> None:
        worker = SchemaWorker()
        assert await check_any(NOT_TEXT, 1, worker.check) == ()
        (pid,) = children() - others
        os.kill(pid, signal.SIGKILL)
        with anyio.fail_after(60):
            while await check_any(NOT_TEXT, 1, worker.check):
                pass
        assert children() - others != {pid}
        await worker.close()

    anyio.run(ask)


def test_a_cancelled_question_leaves_no_answer_for_the_next() -> None:
    async def ask() -> None:
        worker = SchemaWorker()
        await check_any(NOT_TEXT, 1, worker.check)
        with anyio.move_on_after(0.05):
            await check_any(RUNAWAY, "a" * 40 + "!", worker.check)
        assert await check_any(NOT_TEXT, 1, worker.check) == ()
        assert await check_any(NOT_TEXT, "a", worker.check) != ()
        await worker.close()

    anyio.run(ask)


def test_the_worker_is_known_to_the_reaper(others: set[int]) -> None:
    async def ask() -> None:
        reaper = Reaper()
        worker = SchemaWorker(reaper)
        await check_any(NOT_TEXT, 1, worker.check)
        before = children() - others
        assert len(before) == 2
        reaper.close()
        assert await check_any(NOT_TEXT, "a", worker.check) != ()
        assert children().isdisjoint(before)
        await worker.close()
        reaper.close()

    anyio.run(ask)
    assert children() <= others
