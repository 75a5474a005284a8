"""The batch servers of the tests, held against the vendors' SDKs: documents, and whole batches."""

import json
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from batch_servers import (
    Api,
    BatchServer,
    Outcome,
    Quirks,
    Refusal,
    answer_in_words,
    answer_with_call,
    request_in_batch,
    submission,
)

from aish.core.wires import WIRES
from aish.wire.batches.types import BatchMark, BatchRequest
from aish.wire.dialect import load_batches

FILES: tuple[Api, ...] = ("chat", "responses")
ANSWERS: dict[str, Any] = {
    "plain": lambda api: answer_in_words(api, "hello"),
    "call": lambda api: answer_with_call(api, "repo__read", {"path": "x"}),
    "refused": lambda _: Refusal(400, "invalid_request_error", "no"),
    "expired": lambda _: Outcome.EXPIRED,
    "canceled": lambda _: Outcome.CANCELED,
}
BODIES = {
    "chat": "openai.types.chat:ChatCompletion",
    "responses": "openai.types.responses:Response",
}
MARK = BatchMark("20261130T030000Z-names-ab12", 1)


def request_of(api: Api, word: str) -> dict[str, Any]:
    asked = [{"role": "user", "content": word}]
    if api == "responses":
        return {"model": "m", "input": asked}
    return {"model": "m", "messages": asked} | ({"max_tokens": 9} if api == "messages" else {})


def answer_by_word(api: Api) -> Any:
    def answer(body: dict[str, Any]) -> Any:
        return ANSWERS[(body.get("messages") or body["input"])[0]["content"]](api)

    return answer


def kind_of(place: str) -> Any:
    """A type of an SDK, by its place in it."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def check(place: str, document: Any) -> None:
    import_module("pydantic").TypeAdapter(kind_of(place)).validate_json(json.dumps(document))


def entries_of(api: Api) -> Iterator[BatchRequest]:
    for number, word in enumerate(ANSWERS):
        body = request_of(api, word) | {"stream": True, "stream_options": {"include_usage": True}}
        yield request_in_batch(MARK.custom_id(number), body)


def test_the_sdk_of_anthropic_runs_a_batch_through_its_server() -> None:
    anthropic: Any = pytest.importorskip("anthropic")
    interface = load_batches(WIRES["messages"])
    sent = json.loads(submission(interface, entries_of("messages")))
    check("anthropic.types.messages.batch_create_params:BatchCreateParams", sent)
    with (
        BatchServer(
            "messages", answer_by_word("messages"), polls=2, key="k", quirks=Quirks(reverses=True)
        ) as server,
        anthropic.Anthropic(api_key="k", base_url=server.base_url, max_retries=0) as client,
    ):
        batches = client.messages.batches
        made = batches.create(requests=sent["requests"])
        states = [made, batches.retrieve(made.id), batches.retrieve(made.id)]
        results = [*batches.results(made.id)]
        second = batches.create(requests=sent["requests"][:1])
        canceled = [batches.cancel(second.id), batches.retrieve(second.id)]
        listed = [batch.id for batch in batches.list(limit=1)]
        with pytest.raises(anthropic.BadRequestError):
            batches.create(requests=sent["requests"][:1] * 2)
        with pytest.raises(anthropic.NotFoundError):
            batches.retrieve("msgbatch_9")

    for batch in (*states, *canceled):
        check("anthropic.types.messages:MessageBatch", batch.to_dict(mode="json"))
    for row in results:
        check("anthropic.types.messages:MessageBatchIndividualResponse", row.to_dict(mode="json"))
    assert [state.processing_status for state in states] == ["in_progress", "in_progress", "ended"]
    assert [state.processing_status for state in canceled] == ["canceling", "ended"]
    counts = {"succeeded": 2, "errored": 1, "expired": 1, "canceled": 1, "processing": 0}
    assert states[-1].request_counts.to_dict() == counts
    assert [row.custom_id for row in results] == [MARK.custom_id(n) for n in (4, 3, 2, 1, 0)]
    kinds = ["canceled", "expired", "errored", "succeeded", "succeeded"]
    assert [row.result.type for row in results] == kinds
    assert listed == [second.id, made.id]
    decoded = [interface.decode_result(row.to_json(indent=None).encode()) for row in results]
    assert [one and (one.custom_id, one.kind) for one in decoded] == [
        (row.custom_id, row.result.type) for row in results
    ]
    state = interface.decode_state(states[-1].to_dict(mode="json"))
    assert (state.created_at, state.is_ended) == (made.created_at.timestamp(), True)
    assert state.ends_at == made.expires_at.timestamp()


@pytest.mark.parametrize("api", FILES)
def test_the_sdk_of_openai_runs_a_batch_through_its_server(api: Api) -> None:
    openai: Any = pytest.importorskip("openai")
    interface = load_batches(WIRES[api])
    upload = interface.upload
    assert upload is not None
    lines = submission(interface, entries_of(api))
    with (
        BatchServer(api, answer_by_word(api), polls=2, key="k") as server,
        openai.OpenAI(api_key="k", base_url=f"{server.origin}/v1", max_retries=0) as client,
    ):
        file = client.files.create(file=(upload.file_name(MARK), lines), **upload.form)
        creation: Any = upload.creation(upload.decode(file.to_dict()), MARK)
        check("openai.types.batch_create_params:BatchCreateParams", creation)
        made = client.batches.create(**creation)
        states = [made, client.batches.retrieve(made.id), client.batches.retrieve(made.id)]
        texts = [
            client.files.content(file_id).text
            for file_id in (states[-1].output_file_id, states[-1].error_file_id)
        ]
        second = client.batches.create(**creation)
        canceled = [client.batches.cancel(second.id), client.batches.retrieve(second.id)]
        listed = [batch.id for batch in client.batches.list(limit=1)]
        refused = client.batches.create(**{**creation, "endpoint": "/v1/embeddings"})
        refused = client.batches.retrieve(refused.id)

    check("openai.types:FileObject", file.to_dict())
    for batch in (*states, *canceled, refused):
        check("openai.types:Batch", batch.to_dict())
    output, errors = ([json.loads(line) for line in text.splitlines()] for text in texts)
    answer = (
        "openai.types.chat:ChatCompletion" if api == "chat" else "openai.types.responses:Response"
    )
    for row in output:
        check(answer, row["response"]["body"])
    assert [state.status for state in states] == ["validating", "in_progress", "expired"]
    assert [state.status for state in canceled] == ["cancelling", "cancelled"]
    assert refused.errors.data[0].code == "invalid_request"
    assert states[-1].request_counts.to_dict() == {"total": 5, "completed": 2, "failed": 3}
    assert [row["custom_id"] for row in output + errors] == [MARK.custom_id(n) for n in range(5)]
    assert listed == [second.id, made.id]
    state = interface.decode_state(states[-1].to_dict())
    assert state.results == tuple(
        f"/files/{name.replace(':', '%3A')}/content"
        for name in (states[-1].output_file_id, states[-1].error_file_id)
    )
    assert interface.match(state, MARK, 5, 0.0) == "yes"
    assert interface.match(state, BatchMark(MARK.run_id, 2), 5, 0.0) == "no"
