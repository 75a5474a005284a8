"""Runs by batches whose interfaces misbehave: each request is paid once, and none is lost."""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from batch_servers import Answer, Api, BatchServer, Outcome, Quirks, Refusal, answer_in_words
from e2e_project import Project, of_type
from model_endpoint import ModelEndpoint, Reply, json_reply

KEY = {"KEY": "sk-batch-0123456789abcdef"}
ROWS = 4
APIS: tuple[Api, ...] = ("messages", "chat", "responses")
SOON = {"retry-after": "0"}
BUSY = json_reply(429, {"error": {"type": "rate_limit_error", "message": "slow down"}}, SOON)
BROKEN = json_reply(503, {"error": {"type": "api_error", "message": "sorry"}}, SOON)
PAGE = Reply(parts=(b"<html>hello</html>",), headers={"content-type": "text/html"})
EMPTY = json_reply(200, {})


def bad_download() -> Quirks:
    """All that may happen once a batch is made; `results_origin` is set by the test."""
    return Quirks(
        newline="\r\n",
        blank_last_line=True,
        reverses=True,
        piece=7,
        cut=[0, 30, 500],
        short=[2],
        refused_polls=[BUSY, BROKEN, PAGE, EMPTY],
        refused_results=[BROKEN, BUSY],
        running_status="pondering",
        ended_status="done",
    )


def bad_submission() -> Quirks:
    """All that may happen until a batch is made, and other line ends."""
    return Quirks(
        newline="\r",
        no_last_newline=True,
        capitals=True,
        mixes=True,
        piece=1000,
        refused=[BUSY, BROKEN],
        lost=1,
        no_results_url=True,
        no_metadata=True,
        late_files=1,
        late_list=5,
        clock=-7200,
        odd_last_id=True,
        empty_pages=True,
    )


def model(name: str, api: Api, server: BatchServer) -> str:
    return f"""
          {name}:
            api: {api}
            base_url: {server.base_url}
            model: scripted
            delivery: batch
            key_env: KEY
            params: {{{"max_tokens: 100" if api == "messages" else ""}}}
            retry: {{attempts: 3, max_delay: 10ms}}"""


def step(name: str, rows: int, more: str = "") -> str:
    return f"""
          - {{id: {name}, model: {name}, foreach: "range({rows}) | list"{more},
             prompt: "{name} {{{{ item }}}} of {rows}"}}"""


def row_of(body: dict[str, Any]) -> str:
    content = (body.get("messages") or body["input"])[-1]["content"]
    text: str = content if isinstance(content, str) else content[0]["text"]
    return text


def echo(api: Api) -> Callable[[dict[str, Any]], Answer]:
    # Half of a character, as models send it.
    return lambda body: answer_in_words(api, f"{row_of(body)} Grüße \ud83d")


def test_whatever_an_interface_does_each_request_is_paid_once(project: Project) -> None:
    """Six models in one run: three interfaces, before and after their batch is made."""
    models, steps, servers = "", "", {}
    with ExitStack() as stack:
        foreign = stack.enter_context(ModelEndpoint())
        for api in APIS:
            for kind, quirks in (("before", bad_submission()), ("after", bad_download())):
                if kind == "after":
                    quirks.results_origin = foreign.origin
                name = f"{api}_{kind}"
                server = BatchServer(api, echo(api), polls=5, key=KEY["KEY"], quirks=quirks)
                servers[name] = stack.enter_context(server)
                models += model(name, api, server)
                steps += step(name, ROWS)
        project.shorten_pauses()
        project.pipeline(f"""
        models:{models}
        steps:{steps}
        """)
        done = project.run("--format", "json", env=KEY, timeout=180)

    assert done.code == 0, done.stderr
    counted = {
        name: (len(server.batches), server.most_often, len(server.bodies), len(server.singles))
        for name, server in servers.items()
    }
    assert counted == dict.fromkeys(servers, (1, 1, ROWS, 0))
    assert foreign.requests == []
    for name, server in servers.items():
        for row in range(ROWS):
            assert f"{name} {row} of {ROWS} Grüße" in done.stdout
        used = (server.quirks.refused, server.quirks.cut, server.quirks.short)
        assert (*used, server.quirks.lost, server.quirks.refused_polls) == ([], [], [], 0, [])


# Lines that are missing, the last two, are looked for again for some seconds, unless the batch has
# expired, as that of files has here.
OUTCOMES: dict[int, Answer] = {
    1: Refusal(400, "invalid_request_error", "not that"),
    2: Refusal(529, "overloaded_error", "busy"),
    3: Outcome.EXPIRED,
    4: Outcome.CANCELED,
    5: Outcome.NULL,
    6: Outcome.MISSING,
    7: Outcome.GARBAGE,
}
FINAL = {1, 4}


def answer_at_second(api: Api) -> Callable[[dict[str, Any]], Answer]:
    """Each row ends in its own way at first, and is answered if it comes again."""
    asked: Counter[str] = Counter()

    def answer(body: dict[str, Any]) -> Answer:
        row = row_of(body)
        asked[row] += 1
        number = int(row.split()[1])
        if asked[row] > 1 or number not in OUTCOMES:
            return answer_in_words(api, f"{row} answered")
        return OUTCOMES[number]

    return answer


def test_requests_that_were_not_answered_are_submitted_again_and_no_others(
    project: Project,
) -> None:
    models, steps, servers = "", "", {}
    rows = {api: 6 if api == "messages" else 8 for api in APIS}
    with ExitStack() as stack:
        for api in APIS:
            server = BatchServer(api, answer_at_second(api))
            servers[api] = stack.enter_context(server)
            models += model(api, api, server)
            steps += step(api, rows[api], ", on_error: continue")
        project.shorten_pauses()
        project.pipeline(f"""
        models:{models}
        steps:{steps}
        """)
        done = project.run("--format", "json", env=KEY, timeout=180)

    for api, server in servers.items():
        counted = Counter(int(row_of(body).split()[1]) for body in server.bodies)
        again = set(OUTCOMES) - FINAL
        assert counted == {row: 2 if row in again else 1 for row in range(rows[api])}, api
        for row in range(rows[api]):
            assert (f"{api} {row} of {rows[api]} answered" in done.stdout) == (row not in FINAL)
    assert done.code == 1
    failed = [one for one in of_type(project.journal, "item.finished") if one["status"] != "ok"]
    assert len(failed) == len(APIS) * len(FINAL)
