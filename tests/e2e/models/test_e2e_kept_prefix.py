"""What a request has sent begins the next one, byte for byte, whatever happens in between.

Conversations of random events, by seeds: an answer that thinks, calls that change current files,
answers that break off or do not fit the schema, an endpoint that is busy, kills and resumptions,
and conversations that are shortened.
"""

import json
import os
import random
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import pairwise, starmap
from typing import Any, Final

import messages_streams as m
import pytest
import responses_streams as r
from e2e_project import ModelEndpoints, Project, of_type
from model_endpoint import CUT, PATIENCE, Reply, delta, json_reply, sse, stream_reply, usage

from aish.journal.reader import read_journal

Call = tuple[str, str, str]

APIS: Final = ("chat", "messages", "responses")
SCHEMA: Final = "{type: object, properties: {word: {type: string}}, required: [word]}"
# A conversation moves its marks on; a mark is no part of what is cached.
MARKS: Final = re.compile(rb',"(?:cache_control|prompt_cache_breakpoint)":\{[^{}]*\}')
BEGINS: Final = re.compile(rb'"(?:messages|input)":\[')
EVENTS: Final = ("read", "read", "write", "write", "two", "wrong", "cut", "busy", "kill")
PIPELINE: Final = """
    models:
      m:
        {{api: {api}, base_url: "${{MODEL_URL}}", model: any, fallback: [other], {more}
         retry: {{attempts: 2, max_delay: 10ms}}}}
      other:
        {{api: {other}, base_url: "${{OTHER_URL}}", model: any, retry: {{max_delay: 10ms}}}}
    model: m
    mcp:
      servers:
        repo: {{pack: [fs], root: work}}
      auto_approve: [repo__file_read, repo__file_write]
    context: {{files: work/current.txt, keep: 1{bound}}}
    limits: {{turns: 99}}
    steps:
      - id: ask
        system: Be kind.
        prompt: Go on.
        max_tool_depth: 40
        output: {{schema: {schema}, attempts: 9}}
    """
MORE: Final = {
    "chat": ("", "cache: auto,", "tool_role: false,"),
    "messages": ("", "cache: off,", "cache: 1h,"),
    "responses": ("", "cache: 30m,"),
}


def answer(api: str, text: str, thought: str, *calls: Call) -> list[bytes]:
    """The pieces of an answer that thinks, speaks and calls."""
    if api == "messages":
        blocks = [m.thinking(thought, f"signed-{thought}"), m.text(text, 1)]
        blocks += [m.call(*call, index=at) for at, call in enumerate(calls, 2)]
        return [m.start(), *blocks, m.ends("tool_use" if calls else "end_turn")]
    if api == "responses":
        said = [r.reasoning(thought, id=f"rs_{thought}"), r.message(text, f"msg_{thought}")]
        return r.events(*said, *starmap(r.call, calls))
    asked = [
        {"index": at, "id": id, "type": "function", "function": {"name": name, "arguments": given}}
        for at, (id, name, given) in enumerate(calls)
    ]
    told = [delta(reasoning_content=thought), delta(content=text)]
    told += [delta(tool_calls=asked)] if asked else []
    end = delta("tool_calls" if asked else "stop")
    return [sse([one], done=False) for one in told] + [sse([end, usage()])]


@dataclass
class Conversation:
    """Both endpoints: what happens next is drawn, and then there is an answer that ends it."""

    chance: random.Random
    left: int = 12
    number: int = 0
    process: Future[int] = field(default_factory=Future)
    is_killed: bool = False

    def endpoint(self, api: str, *, is_first: bool) -> Callable[[Any], Reply]:
        return lambda _: self._reply(api, is_first=is_first)

    def _reply(self, api: str, *, is_first: bool) -> Reply:
        self.number += 1
        thought = f"thought-{self.number}"
        self.left -= 1
        if self.left <= 0:
            return stream_reply(*answer(api, '{"word": "done"}', thought))
        event = self.chance.choice(EVENTS)
        match event:
            case "wrong":
                return stream_reply(*answer(api, f"no JSON {self.number}", thought))
            case "cut":
                return stream_reply(*answer(api, "half of it", thought)[:-1], CUT)
            case "busy" if is_first:
                return json_reply(503, {"error": {"message": "busy"}}, {"x-should-retry": "false"})
            case "kill" if not self.is_killed:
                self.is_killed = True
                return stream_reply().but(parts=self._kill(answer(api, "never whole", thought)))
            case "two":
                calls = [self._call("read"), self._call("write")]
            case _:
                calls = [self._call("write" if event == "write" else "read")]
        return stream_reply(*answer(api, f"I look, {self.number}.", thought, *calls))

    def _kill(self, pieces: list[bytes]) -> Iterator[bytes]:
        """The beginning of an answer, whose end nobody is there to read."""
        yield pieces[0]
        os.killpg(self.process.result(PATIENCE), signal.SIGKILL)

    def _call(self, kind: str) -> Call:
        id = f"call_{self.number}_{kind}"
        if kind == "read":
            return id, "repo__file_read", '{"path": "notes.txt"}'
        lines = "".join(f"line {self.chance.randrange(99)}\n" for _ in range(3))
        return id, "repo__file_write", json.dumps({"path": "current.txt", "content": lines})


def differences(requests: list[bytes]) -> list[tuple[int, int]]:
    """The requests that do not begin with the one before, and how far they do."""
    plain = [MARKS.sub(b"", body) for body in requests]
    return [
        (number, next(at for at, byte in enumerate(one) if other[at : at + 1] != bytes([byte])))
        for number, (one, other) in enumerate(pairwise(plain), 1)
        if not other.startswith(one.removesuffix(b"]}"))
    ]


@pytest.mark.requirement("W10")
@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("api", APIS)
def test_a_prefix_that_was_sent_is_sent_again_and_changes_only_by_shortening(
    project: Project, model_endpoint: ModelEndpoints, api: str, seed: int
) -> None:
    chance = random.Random(f"{api} {seed}")
    other = chance.choice(APIS)
    talk = Conversation(chance)
    first = model_endpoint(talk.endpoint(api, is_first=True))
    second = model_endpoint(talk.endpoint(other, is_first=False))
    bound = ", max_tokens: 3500" if seed % 3 == 2 else ""
    project.write("work/notes.txt", "from the file\n" * (200 if bound else 2))
    project.write("work/current.txt", "as it was\n")
    more = chance.choice(MORE[api])
    project.pipeline(PIPELINE.format(api=api, other=other, more=more, bound=bound, schema=SCHEMA))
    env = {"MODEL_URL": first.base_url, "OTHER_URL": second.base_url}

    with project.aish.start("run", "p.yaml", env=env) as running:
        talk.process.set_result(running.pid)
        done = running.finish()
    if talk.is_killed:
        assert done.code == -signal.SIGKILL
        done = project.run("--resume", env=env)

    assert done.code == 0, done.stderr
    with read_journal(project.run_folders[0] / "events.jsonl") as reading:
        codes = [one["code"] for one in of_type(list(reading), "notice")]
    trims = codes.count("context_trimmed")
    assert not trims or bound
    for endpoint in (first, second):
        bodies = [one.body for one in endpoint.requests if one.method == "POST"]
        differing = differences(bodies)
        assert len(differing) <= trims, [
            (bodies[number][at - 200 :][:400], bodies[number - 1][at - 200 :][:400])
            for number, at in differing
        ]
        for number, at in differing:
            begins = BEGINS.search(MARKS.sub(b"", bodies[number]))
            assert begins is not None
            assert at > begins.end()


def test_plain_thoughts_that_an_endpoint_refuses_are_left_out_from_then_on(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    said = "'messages.1': property 'reasoning_content' is unsupported"
    refused = json_reply(400, {"error": {"message": said}})
    calls = [(f"call_{at}", "repo__file_read", '{"path": "notes.txt"}') for at in range(2)]
    looks = [stream_reply(*answer("chat", "I look.", "privately", call)) for call in calls]
    done = stream_reply(*answer("chat", "Done.", "finally"))
    endpoint = model_endpoint([looks[0], refused, looks[1], done])
    project.uses(endpoint)
    project.write("notes.txt", "from the file")
    project.pipeline(
        """
        mcp:
          servers:
            repo: {pack: [fs], root: .}
          auto_approve: [repo__file_read]
        prompt: Read it twice.
        """
    )

    ran = project.run()

    assert (ran.code, ran.stdout) == (0, "Done.\n"), ran.stderr
    assert ran.stderr.count("does not take back what it thought") == 1
    thoughts = [asked.body.count(b"privately") for asked in endpoint.requests]
    assert thoughts == [0, 1, 0, 0]
