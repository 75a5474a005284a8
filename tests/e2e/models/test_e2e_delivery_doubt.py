"""Batches that are not where they should be: nothing is paid twice unless somebody allows that."""

from collections.abc import Sequence

import pytest
from batch_servers import Answer, Api, Batch, BatchServer, Quirks, Refusal
from e2e_project import Project
from model_endpoint import ModelEndpoint, Recorded, Reply, json_reply

KEY = {"KEY": "sk-batch-0123456789abcdef"}
ROWS = 3
AGAIN = ("--resume", "--retry-failed")
PAGE = Reply(parts=(b"<html>hello</html>",), headers={"content-type": "text/html"})


def pipeline(project: Project, api: Api, delivery: str = "batch") -> None:
    fallback = "n" if api == "chat" else ""
    bound = "max_tokens: 100" if api == "messages" else ""
    project.shorten_pauses()
    project.pipeline(
        f"""
        models:
          n: {{base_url: "${{MODEL_URL}}", model: other}}
          m:
            api: {api}
            base_url: "${{MODEL_URL}}"
            model: scripted
            delivery: {delivery}
            key_env: KEY
            params: {{{bound}}}
            retry: {{attempts: 3, max_delay: 10ms}}
            fallback: [{fallback}]
        steps:
          - {{id: rows, model: m, foreach: "range({ROWS}) | list",
             prompt: "Row {{{{ item }}}} of all"}}
        """
    )


class ForgetfulServer(BatchServer):
    """Answers questions for its list, a state or results with these statuses first."""

    lists: Sequence[int] = ()
    states: Sequence[int] = ()
    results: Sequence[int] = ()
    pages: int = 0
    has_empty_output = False

    def _refuse(self, kind: str) -> Reply | None:
        status, *rest = getattr(self, kind) or [0]
        setattr(self, kind, rest)
        return self._error(status, "not_found_error", f"no {kind}") if status else None

    def _list(self, query: dict[str, str]) -> Reply:
        return self._refuse("lists") or super()._list(query)

    def _create(self, request: Recorded) -> Reply:
        reply = super()._create(request)
        self.pages -= 1
        return reply if self.pages < 0 else PAGE

    def _batch(self, batch: Batch, method: str, verb: str) -> Reply:
        refusal = self._refuse("results" if verb == "results" else "states")
        return refusal or super()._batch(batch, method, verb)

    def document(self, batch: Batch) -> dict[str, object]:
        document = super().document(batch)
        if self.has_empty_output and document.get("error_file_id"):
            document["output_file_id"] = f"output:{batch.id}"
        return document


def test_what_is_only_late_is_waited_for(project: Project) -> None:
    """A made batch answered by a page, not found at first, and whose results are not either."""
    pipeline(project, "messages")
    with ForgetfulServer("messages", key=KEY["KEY"]) as server:
        server.pages, server.states, server.results = 1, [404], [404]
        project.uses(server)
        done = project.run(env=KEY)

    assert done.code == 0, done.stderr
    assert done.stdout.splitlines() == ["hello"] * ROWS
    assert len(server.batches) == 1


@pytest.mark.requirement("W15")
def test_requests_of_a_batch_in_doubt_are_not_sent_again(project: Project) -> None:
    """Its creation is unknown, the list not to be had, and what it answered comes late."""
    pipeline(project, "chat")

    def refuse(_: object) -> Answer:
        return Refusal(400, "invalid_request_error", "not that")

    quirks = Quirks(lost=1, no_metadata=True, late_files=4)
    with ForgetfulServer("chat", refuse, quirks=quirks) as server:
        server.lists, server.has_empty_output = [404] * 2, True
        project.uses(server)
        first = project.run(env=KEY)
        second = project.run(*AGAIN, env=KEY)
        third = project.run(*AGAIN, env=KEY)
        made = len(server.batches)
        server.quirks.lost, server.lists = 1, [401, 501, 501]
        refused = project.run(*AGAIN, env=KEY)
        fourth = project.run(*AGAIN, env=KEY)
        forced = project.run(*AGAIN, "--force", env=KEY)

    for done in (first, second, fourth):
        assert done.code == 1
        assert (
            "unknown whether the batch was created: no batch can be looked up: HTTP" in done.stderr
        )
        assert "--force" in done.stderr
    assert refused.code == 1
    assert "so no other model is asked" in refused.stderr
    assert made == 1
    assert server.singles == []
    assert third.code == 1
    assert "not that" in third.stderr
    assert "not that" in forced.stderr
    assert "may be paid again, as `--force` allows" in forced.stderr
    assert "with `--force`" not in forced.stderr
    assert len(server.batches) == 3


def test_a_resumed_run_pays_again_only_what_somebody_allows(project: Project) -> None:
    pipeline(project, "messages", delivery="single")
    with ForgetfulServer("messages", holds=True) as server:
        project.uses(server)
        paused = project.run("--delivery", "batch", "--set", "on_wait=pause", env=KEY)
        alone = project.run("--resume", "--delivery", "single", env=KEY)
        # As with the key of another account.
        server.states = [404] * 5
        lost = project.run("--resume", env=KEY)
        server.states = [410]
        server.release()
        forced = project.run(*AGAIN, "--force", env=KEY)

    assert [paused.code, alone.code, lost.code] == [8, 2, 1], lost.stderr
    assert server.singles == []
    assert "3 requests would be paid again" in alone.stderr
    assert "`--delivery batch`" in alone.stderr
    assert "has no batch `msgbatch_0000`" in lost.stderr
    assert forced.code == 0, forced.stderr
    assert "3 requests may be paid again, as `--force` allows" in forced.stderr
    assert len(server.batches) == 2


def test_an_endpoint_without_batches_is_named_with_the_way_out(project: Project) -> None:
    pipeline(project, "messages")
    with ModelEndpoint() as endpoint:
        endpoint.queue(json_reply(404, {"error": {"message": "nothing here"}}))
        project.uses(endpoint)
        done = project.run(env=KEY)

    assert done.code == 1
    assert "/v1/messages/batches" in done.stderr
    assert "`--delivery single`" in done.stderr
    assert "nothing here" in done.stderr
