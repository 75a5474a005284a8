import importlib
import json
import os
import pkgutil
import sys
import threading
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from otel_collector import attributes, collector
from scripted_events import (
    HOSTILE,
    answered,
    any_event,
    ordinary_run,
    paused_run,
    run_finished,
    run_started,
    stamped,
    step_finished,
    troubled_run,
    turn_finished,
    unmet_run,
)
from syrupy.assertion import SnapshotAssertion

from aish.core.errors import UsageError
from aish.core.events import (
    Failure,
    ItemFinished,
    ItemStarted,
    ModelInfo,
    Place,
    Retry,
    RunFinished,
    Stamped,
    StepFinished,
    StepStarted,
    ToolStarted,
    TurnAdded,
    TurnStarted,
)
from aish.core.json import JsonObject, JsonValue
from aish.core.messages import Served, Usage
from aish.reports.otel import conventions
from aish.reports.otel.export import Converter, Traces, credentials, open_exporter
from aish.reports.otel.spans import Span, Spans

RUN = "20261118T120640Z-quickstart-a1b2"


def spans_of(run: Sequence[Stamped], *, content: bool = False) -> list[Span]:
    folded = Spans(RUN, content=content)
    ended = [span for one in run for span in folded.take(one)]
    return [*ended, *folded.end()]


def items_run() -> list[Stamped]:
    """Two items of a step, one of which a sub-pipeline's step is about."""
    step, one, two = Place("rows"), Place("rows", "a@example.com"), Place("rows", "b")
    inner = Place("rows/look", "b")
    ended: dict[str, Any] = {
        "text": None,
        "output": None,
        "usage": Usage(),
        "cost_usd": 0.5,
        "seconds": 0.1,
    }
    return stamped(
        run_started(),
        StepStarted(step, "pipeline", 2),
        ItemStarted(one, "a@example.com", 0, "0" * 16),
        ItemStarted(two, "b", 1, "1" * 16),
        TurnStarted(replace(one, turn=1), "local", 2),
        StepStarted(inner, "prompt"),
        TurnStarted(replace(inner, turn=1), "local", 2),
        turn_finished(replace(inner, turn=1)),
        replace(step_finished(), place=inner),
        turn_finished(replace(one, turn=1)),
        ItemFinished(one, "a@example.com", 0, "ok", **ended),
        ItemFinished(two, "b", 1, "denied", **ended),
        step_finished("rows", status="denied", cost_usd=1.0),
        step_finished("late", status="skipped"),
        run_finished(),
    )


def drawn(spans: Sequence[Span]) -> str:
    """The tree of spans, with everything in it."""
    children: dict[int | None, list[Span]] = {}
    for span in sorted(spans, key=lambda one: one.start):
        children.setdefault(span.parent, []).append(span)

    def lines(parent: int | None, margin: str) -> list[str]:
        found = []
        for span in children.get(parent, []):
            took = f"{span.end - span.start:.2f} s"
            error = "" if span.error is None else f" ERROR {span.error!r}"
            found.append(f"{margin}{span.name} ({span.kind}, {took}){error}")
            found += [f"{margin}  - {key}: {value!r}" for key, value in span.attributes.items()]
            for event in span.events:
                found.append(f"{margin}  * {event.name} {dict(event.attributes)}")
            found += lines(span.id, f"{margin}    ")
        return found

    shown = lines(None, "")
    assert sum(" - " not in line and " * " not in line for line in shown) == len(spans)
    return "\n".join(shown)


RUNS = {
    "ordinary": ordinary_run(),
    "troubled": troubled_run(),
    "unmet": unmet_run(),
    "items": items_run(),
    "cut off": ordinary_run()[:7],
}


@pytest.mark.parametrize("run", RUNS)
def test_the_spans_of_a_run(run: str, snapshot: SnapshotAssertion) -> None:
    assert drawn(spans_of(RUNS[run])) == snapshot


@pytest.mark.parametrize("run", RUNS)
def test_content_is_added_to_the_spans_of_a_run(run: str, snapshot: SnapshotAssertion) -> None:
    bare = drawn(spans_of(RUNS[run])).split("\n")
    with_content = drawn(spans_of(RUNS[run], content=True)).split("\n")

    assert "\n".join(line for line in with_content if line not in bare) == snapshot


def test_a_paused_run_is_no_error_and_an_answer_after_it_changes_no_span() -> None:
    events = stamped(*paused_run(), answered(Place("fix", turn=1, call="c2")))
    spans = spans_of(events)

    assert spans == spans_of(events[:-1])
    assert [span.error for span in spans if span.error is not None] == []
    calls = [span for span in spans if conventions.APPROVAL in span.attributes]
    assert [span.attributes[conventions.APPROVAL_ANSWER] for span in calls] == ["approve", "open"]
    assert HOSTILE not in str([span.attributes for span in calls])


@pytest.mark.parametrize("run", [troubled_run(), unmet_run(), items_run(), ordinary_run()])
def test_without_being_asked_no_content_is_sent(run: list[Stamped]) -> None:
    """What was said, asked, answered, quoted; and keys, which are taken from the rows."""
    everything = repr(spans_of(run))

    for said in (repr(HOSTILE)[1:20], "README.md", "It is about", "expected the", "example.com"):
        assert said not in everything


def test_a_step_that_ends_without_a_start_and_its_call_are_two_spans() -> None:
    here = Place("a")
    call = Stamped(1, 0.0, ToolStarted(here, "t"))
    end = Stamped(2, 0.0, StepFinished(here, "ok", "", None, Usage(), 0.0, 0.0))

    spans = spans_of([call, end])

    assert len({span.id for span in spans}) == len(spans) == 2


@given(st.lists(any_event(), max_size=15))
def test_every_span_that_began_ends_once_and_within_its_trace(run: list[Stamped]) -> None:
    numbered = [replace(one, seq=n) for n, one in enumerate(run)]

    spans = spans_of(numbered, content=True)

    assert len({span.id for span in spans}) == len(spans)
    assert len({span.trace for span in spans}) <= 1
    assert all(span.end >= span.start for span in spans)
    for span in spans:
        span.name.encode()
        repr(dict(span.attributes)).encode()


def test_a_run_that_was_resumed_is_one_trace() -> None:
    killed = items_run()[:7]
    later = [Stamped(one.seq + 100, one.time + 3600, one.event) for one in items_run()]

    spans = spans_of([*killed, *later])

    roots = [span for span in spans if span.parent is None]
    assert [span.error for span in roots] == ["it has no end", None]
    assert len({span.trace for span in spans}) == 1
    assert max(span.end - span.start for span in spans) < 60


def test_a_request_that_failed_before_the_next_attempt_has_its_span() -> None:
    ask, first = Place("ask"), Place("ask", turn=1)
    failed = Retry(first, "http://127.0.0.1:9", 1, 0.1, "no answer")
    run = stamped(
        run_started(),
        StepStarted(ask, "prompt"),
        TurnStarted(first, "local", 1),
        failed,
        Retry(ask, "step ask", 2, 0.1, "no answer"),
        TurnStarted(first, "local", 1),
        turn_finished(first),
        step_finished("ask"),
        run_finished(),
    )
    lost, answered = [one for one in spans_of(run) if one.name.startswith("chat ")]

    assert (lost.error, answered.error) == ("endpoint_error", None)
    assert (lost.start, lost.end) == (run[2].time, run[4].time)
    assert [event.name for event in lost.events] == ["aish.retry"]
    assert lost.id != answered.id
    assert lost.parent == answered.parent


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        (Failure("endpoint_error", "model `local`: HTTP 400: no HTTP 500"), "400", 400),
        (Failure("unavailable", "model `local`: HTTP 503: it is busy"), "503", 503),
        (Failure("unavailable", "model `local`: no connection: HTTP 400"), "unavailable", None),
        (Failure("timeout", "the step took longer than 1 s"), "timeout", None),
        (Failure("interrupted", "the run ended during this step"), "interrupted", None),
        (None, "endpoint_error", None),
    ],
)
def test_a_request_that_was_refused_has_what_the_endpoint_said(
    error: Failure | None, kind: str, status: int | None
) -> None:
    """Issue 27, B8: `interrupted` is only what was cut off."""
    ask = Place("ask")
    end = step_finished("ask", status="ok" if error is None else "failed", error=error)
    run = stamped(
        run_started(),
        StepStarted(ask, "prompt"),
        TurnStarted(Place("ask", turn=1), "local", 1),
        end,
        run_finished(),
    )

    (span,) = [one for one in spans_of(run) if one.name.startswith("chat ")]
    (told,) = [one for one in spans_of(run, content=True) if one.name.startswith("chat ")]

    assert span.attributes["error.type"] == kind
    assert span.attributes.get("http.response.status_code") == status
    assert "HTTP" not in str(span.error)
    if error is not None and error.code != "interrupted":
        assert told.error == error.message


def test_names_are_those_of_the_conventions() -> None:
    ours = {
        value
        for value in vars(conventions).values()
        if isinstance(value, str)
        and value.startswith(("gen_ai.", "mcp.", "network.", "server.", "error.", "http."))
    }

    parameters = {*conventions.NUMBERS.values(), *conventions.INTEGERS.values()}
    # It is new in the release after the one that the SDK has.
    assert (ours | parameters) - _conventions() == {conventions.REASONING_LEVEL}
    assert len(ours) > 15


def test_an_answer_of_a_fallback_has_nothing_of_the_endpoint_before() -> None:
    place = Place("ask", turn=1)
    models = (
        ModelInfo("local", "big", "https://api.openai.com"),
        ModelInfo("own", "small", "embedded"),
    )

    (turn, *_) = spans_of(
        stamped(
            run_started(models=models),
            StepStarted(Place("ask"), "prompt"),
            TurnStarted(place, "local", 1),
            turn_finished(place, model="own"),
        )
    )

    assert turn.attributes[conventions.REQUEST_MODEL] == "small"
    assert conventions.SERVER_ADDRESS not in turn.attributes


def test_a_request_has_its_parameters_its_messages_and_what_was_served() -> None:
    """Issue 27, C: the convention for a model call whole."""
    ask, place = Place("ask"), Place("ask", turn=1)
    model = ModelInfo("local", "big", "https://api.openai.com", {"temperature": 1, "seed": 7})
    params: dict[str, JsonValue] = {
        "temperature": 0.2,
        "top_p": 1,
        "max_tokens": 9,
        "stop": "END",
        "n": 1,
    }
    params |= {"reasoning_effort": "low", "top_k": 10**400, "logit_bias": {"1": 2}}
    call = {"id": "c1", "name": "t", "arguments": '{"a": 1}'}
    turns: list[JsonObject] = [
        {"role": "system", "text": "Be brief."},
        {"role": "user", "text": "Hi", "media": [{"mime_type": "image/png", "file": "a.png"}]},
        {"role": "assistant", "text": "", "calls": [call]},
        {"role": "tool", "call_id": "c1", "tool": "t", "content": "x" * 40_000},
    ]
    served = Served("big-2026-11-01", "fp_1", "chatcmpl-1")
    run = stamped(
        run_started(models=(model,)),
        StepStarted(ask, "prompt"),
        *(TurnAdded(place, turn, "conversation") for turn in turns),
        TurnStarted(place, "local", len(turns), params=params),
        turn_finished(place, "Bye", served=served),
        step_finished("ask"),
        run_finished(),
    )

    (span,) = [one for one in spans_of(run, content=True) if one.name == "chat big"]
    (bare,) = [one for one in spans_of(run) if one.name == "chat big"]

    told = {key: value for key, value in bare.attributes.items() if ".request." in key}
    assert told == {
        "aish.request.messages": 4,
        "gen_ai.request.model": "big",
        "gen_ai.request.stream": True,
        "gen_ai.request.temperature": 0.2,
        "gen_ai.request.seed": 7,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.stop_sequences": ("END",),
        "gen_ai.request.reasoning.level": "low",
    }
    assert bare.attributes["gen_ai.response.model"] == "big-2026-11-01"
    assert bare.attributes["gen_ai.response.id"] == "chatcmpl-1"
    assert json.loads(str(span.attributes["gen_ai.input.messages"])) == [
        {"role": "system", "parts": [{"type": "text", "content": "Be brief."}]},
        {
            "role": "user",
            "parts": [
                {"type": "text", "content": "Hi"},
                {
                    "type": "file",
                    "modality": "image",
                    "mime_type": "image/png",
                    "file_id": "a.png",
                },
            ],
        },
        {"role": "assistant", "parts": [{"type": "tool_call", **call, "arguments": {"a": 1}}]},
        {
            "role": "tool",
            "parts": [{"type": "tool_call_response", "id": "c1", "response": "x" * 30_000}],
        },
    ]
    assert json.loads(str(span.attributes["gen_ai.output.messages"])) == [
        {
            "role": "assistant",
            "parts": [{"type": "text", "content": "Bye"}],
            "finish_reason": "stop",
        }
    ]


def test_of_a_long_conversation_the_last_messages_that_fit_are_sent() -> None:
    ask, place = Place("ask"), Place("ask", turn=1)
    turns: list[JsonObject] = [{"role": "user", "text": f"{n} {'x' * 40_000}"} for n in range(9)]
    run = stamped(
        StepStarted(ask, "prompt"),
        *(TurnAdded(place, turn, "conversation") for turn in turns),
        TurnStarted(place, "local", len(turns)),
        turn_finished(place),
    )

    (span,) = [one for one in spans_of(run, content=True) if one.name.startswith("chat")]

    messages = json.loads(str(span.attributes["gen_ai.input.messages"]))
    assert [one["parts"][0]["content"][0] for one in messages] == ["6", "7", "8"]


def test_all_other_names_are_marked_as_ours() -> None:
    for span in spans_of([*troubled_run(), *items_run()], content=True):
        keys = {*span.attributes, *(key for one in span.events for key in one.attributes)}
        assert {key for key in keys if not key.startswith("aish.")} <= _conventions()


def _conventions() -> set[str]:
    found: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for room in (
            "opentelemetry.semconv._incubating.attributes",
            "opentelemetry.semconv.attributes",
        ):
            package = importlib.import_module(room)
            for one in pkgutil.iter_modules(package.__path__):
                module = importlib.import_module(f"{room}.{one.name}")
                found |= {value for value in vars(module).values() if isinstance(value, str)}
    return found


def sent(run: Sequence[Stamped], endpoint: str | None, patience: float = 60.0) -> list[str]:
    """What is said of it; a collector that answers may take long on a busy machine."""
    said: list[str] = []
    sink = Traces(RUN, endpoint, os.environ, said.append, patience=patience)
    for one in run:
        sink(one)
    sink.close()
    return said


def test_a_collector_gets_the_spans_of_a_run() -> None:
    with collector() as told:
        said = sent(ordinary_run(), told.url)

    assert said == []
    assert set(told.paths) == {"/v1/traces"}
    assert told.resources[0]["service.name"] == "aish"
    assert set(told.schemas) == {conventions.SCHEMA_URL}
    assert sorted(told.names) == [
        "chat smollm2",
        "chat smollm2",
        "chat smollm2",
        "execute_tool file_read",
        "invoke_workflow quickstart",
        "step read",
        "step sort",
    ]
    by_id = {span.span_id: span for span in told.spans}
    (tool,) = [span for span in told.spans if span.name.startswith("execute_tool")]
    assert by_id[tool.parent_span_id].name == "step read"
    assert attributes(tool)["gen_ai.tool.name"] == "file_read"
    assert len({span.trace_id for span in told.spans}) == 1
    chat = attributes(told.spans[0])
    assert chat["gen_ai.usage.input_tokens"] == 200
    assert chat["gen_ai.response.finish_reasons"] == ["tool_calls"]


def test_the_standard_variables_name_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as told:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", told.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=abc%20def")
        sent(ordinary_run(), None)

    assert set(told.paths) == {"/v1/traces"}
    assert {one["x-key"] for one in told.headers} == {"abc def"}
    assert credentials(os.environ) == {"OTEL_EXPORTER_OTLP_HEADERS.x-key": "abc def"}


def test_an_address_with_a_path_is_taken_as_it_is() -> None:
    with collector() as told:
        sent(ordinary_run(), f"{told.url}/otlp/traces")

    assert set(told.paths) == {"/otlp/traces"}


def test_many_spans_are_sent_in_batches() -> None:
    events: list[Any] = [run_started()]
    for n in range(1500):
        place = Place(f"s{n}")
        events += [StepStarted(place, "call"), step_finished(f"s{n}")]
    with collector() as told:
        said = sent(stamped(*events, run_finished()), told.url)

    assert said == []
    assert len(told.spans) == 1501
    assert len(told.paths) == 3


def test_the_standard_variables_set_size_and_delay_of_a_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Issue 27, C: `OTEL_BSP_*`; a batch that is not full is sent before the end."""
    first = threading.Event()
    with collector(wait=first.set) as told:
        monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "none")
        assert sent(ordinary_run(), told.url) == []
        assert len(told.paths) == 4
        monkeypatch.delenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
        first.clear()
        sink = Traces(RUN, told.url, os.environ, pytest.fail, patience=60.0)
        for one in ordinary_run()[:7]:
            sink(one)
        assert first.wait(60)
        sink.close()


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (400, "answered HTTP 400"),
        (401, "answered HTTP 401: check the key in `OTEL_EXPORTER_OTLP_HEADERS`"),
        (413, "answered HTTP 413: make the batches smaller with `OTEL_BSP_MAX_EXPORT_BATCH_SIZE`"),
        (500, "answered HTTP 500"),
    ],
)
def test_a_collector_that_refuses_is_said_once(status: int, why: str, capfd: Any) -> None:
    with collector(status) as told:
        said = sent(ordinary_run(), told.url)

    assert said == [f"`--otel`: 7 spans not sent: `{told.url.partition('//')[2]}` {why}"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("scheme", "why"), [("http", "no"), ("https", "no secure")])
def test_nobody_there_is_said_once(scheme: str, why: str) -> None:
    with collector() as told:
        place = told.url.partition("//")[2] if scheme == "https" else "127.0.0.1:9"
        said = sent(ordinary_run(), f"{scheme}://{place}", patience=1.0)
        # It tries again in its thread: a listener that closes just then resets the connection,
        # and Python 3.11 loses an encrypted socket that is reset before its handshake.
        for thread in threading.enumerate():
            if thread.name == "aish-otel":
                thread.join()

    assert said == [f"`--otel`: 7 spans not sent: {why} connection to `{place}`"]


def test_a_collector_that_never_answers_costs_a_bounded_time() -> None:
    never = threading.Event()
    with collector(wait=never.wait) as told:
        said = sent(ordinary_run(), told.url, patience=0.3)
        never.set()  # it has not waited for this

    assert said == ["`--otel`: 7 spans not sent: the collector did not answer in time"]


def test_a_redirect_is_not_followed() -> None:
    with collector() as other, collector(307, location=other.url) as told:
        said = sent(ordinary_run(), told.url)

    assert other.paths == []
    assert "redirects to another address, which is not followed" in said[0]


def test_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as proxy, collector() as told:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("ALL_PROXY", proxy.url)
        said = sent(ordinary_run(), told.url)

    assert (said, proxy.paths) == ([], [])
    assert told.spans


@pytest.mark.parametrize(
    "url", ["localhost:4318", "ftp://x", "http://", "http://[", "http://a:b@c"]
)
def test_what_is_no_address_is_said_before_the_run(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_exporter(url, {})
    assert str(caught.value).startswith("--otel-endpoint: ")

    with pytest.raises(UsageError) as caught:
        open_exporter(None, {"OTEL_EXPORTER_OTLP_ENDPOINT": url})
    assert str(caught.value).startswith("OTEL_EXPORTER_OTLP_ENDPOINT: ")


def test_without_the_extra_it_is_said_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [one for one in sys.modules if one.startswith("opentelemetry.exporter")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)

    with pytest.raises(UsageError) as caught:
        open_exporter(None, {})

    assert caught.value.hint == "pip install 'aish-pipelines[otel]'"


def test_what_the_sdk_makes_is_what_we_meant(snapshot: SnapshotAssertion) -> None:
    converter = Converter()
    made = [
        {
            "name": span.name,
            "ids": (
                span.context.trace_id,
                span.context.span_id,
                span.parent and span.parent.span_id,
            ),
            "kind": span.kind.name,
            "times": (span.start_time, span.end_time),
            "status": (span.status.status_code.name, span.status.description),
            "attributes": dict(span.attributes or {}),
        }
        for span in map(converter.convert, spans_of(items_run()))
    ]
    assert "\n".join(json.dumps(span, sort_keys=True) for span in made) == snapshot
    assert isinstance(items_run()[-1].event, RunFinished)
