import errno
from pathlib import Path

import anyio
import pytest
from agent_fakes import Box, Kit, Person, gives, tool

from aish.agent.dispatch import Approved, call_tool, dispatch, propose
from aish.agent.runtime import UsedCall
from aish.config.model import LoopLimits
from aish.core.events import (
    Event,
    Notice,
    Place,
    ToolDecided,
    ToolFinished,
    ToolProgress,
    ToolStarted,
)
from aish.core.json import JsonObject
from aish.core.protocols import Progress
from aish.core.tools import Media, ResultKind, ToolResult, media_kind
from aish.policy.gate import ApprovalError, Proposal

PLACE = Place(step="one", turn=2, call="c1")
LOOK = tool(
    "look", {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
)
HERE: JsonObject = {"path": "a"}


def kit(result: ToolResult | None = None) -> Kit:
    handlers = {} if result is None else {"look": gives(result)}
    return Kit(Box((LOOK,), handlers))


def used(kit: Kit, arguments: JsonObject = HERE) -> UsedCall:
    return anyio.run(call_tool, LOOK, arguments, kit.runtime(), PLACE)


def kinds(kit: Kit) -> list[type[Event]]:
    return [type(event) for event in kit.events]


def test_a_call_is_decided_then_started_then_finished() -> None:
    subject = kit(ToolResult("ok", "seen", structured={"n": 1}))
    got = used(subject)
    decided, started, finished = subject.events
    assert isinstance(decided, ToolDecided)
    assert (decided.tool, decided.server, decided.name) == ("box__look", "box", "look")
    assert (decided.arguments, decided.verdict, decided.rule) == (HERE, "auto", "*__*")
    assert len(decided.digest) == 64
    assert started == ToolStarted(PLACE, "box__look")
    end = ToolFinished(PLACE, "box__look", "ok", 'seen\n{"n": 1}', None, 1.0, {"n": 1})
    assert finished == end
    assert got == UsedCall(
        "box__look",
        HERE,
        "auto",
        "*__*",
        "ok",
        'seen\n{"n": 1}',
        {"n": 1},
        1.0,
        whole="seen",
        repeatable=False,
        place=PLACE,
    )


@pytest.mark.requirement("P7")
def test_the_decision_is_told_before_the_tool_hears_anything() -> None:
    subject = kit()
    told_before: list[int] = []

    async def handler(arguments: JsonObject) -> ToolResult:
        await anyio.lowlevel.checkpoint()
        told_before.append(len(subject.events_of(ToolDecided)))
        return ToolResult("ok", "seen")

    subject.box.handlers["look"] = handler
    used(subject)
    assert told_before == [1]


@pytest.mark.requirement("P3")
def test_without_a_person_an_unapproved_call_is_denied_at_once() -> None:
    subject = kit()
    subject.auto = ()
    got = used(subject)
    assert (got.kind, got.verdict) == ("denied", "ask-no")
    assert got.content == "[aish] tool call denied: no rule approves box__look"
    assert kinds(subject) == [ToolDecided, ToolFinished]
    assert subject.box.called == []


def test_a_rule_that_denies_is_named_in_the_reply() -> None:
    subject = kit()
    subject.deny = ("box__l*",)
    got = used(subject)
    assert got.content == "[aish] tool call denied by rule box__l*"
    assert (got.verdict, got.rule) == ("deny", "box__l*")
    assert subject.box.called == []


def test_a_person_who_says_no_is_named_in_the_reply() -> None:
    subject = kit()
    subject.auto = ()
    subject.person = Person(answer=False, attended=True)
    assert used(subject).content == "[aish] tool call denied by the user"
    assert subject.box.called == []


def test_a_person_who_says_yes_is_asked_about_what_is_sent() -> None:
    subject = kit()
    subject.auto = ()
    subject.person = Person(answer=True, attended=True)
    assert used(subject).verdict == "ask-yes"
    assert subject.person.questions[0].arguments is subject.box.called[0][1]


@pytest.mark.requirement("L17")
def test_arguments_that_do_not_fit_reach_neither_the_gate_nor_the_tool() -> None:
    subject = kit()
    subject.auto = ()
    subject.person = Person(answer=True, attended=True)
    got = used(subject, {"path": 3})
    assert got.kind == "bad_arguments"
    assert got.verdict is None
    start, place, why = got.content.split(": ", 2)
    assert start == "[aish] tool arguments do not fit the schema"
    assert "path" in place
    assert why
    assert kinds(subject) == [ToolFinished]
    assert subject.person.questions == []
    assert subject.box.called == []


def test_an_approval_is_good_for_one_call() -> None:
    runtime = (subject := kit()).runtime()

    async def twice() -> None:
        approved = await propose(Proposal(LOOK, HERE, PLACE), runtime)
        assert isinstance(approved, Approved)
        await dispatch(approved, runtime)
        with pytest.raises(ApprovalError):
            await dispatch(approved, runtime)

    anyio.run(twice)
    assert len(subject.box.called) == 1


def test_arguments_changed_after_the_approval_are_not_sent() -> None:
    runtime = (subject := kit()).runtime()

    async def changed() -> None:
        arguments = {"path": "a"}
        approved = await propose(Proposal(LOOK, arguments, PLACE), runtime)
        assert isinstance(approved, Approved)
        arguments["path"] = "/etc/shadow"
        with pytest.raises(ApprovalError):
            await dispatch(approved, runtime)

    anyio.run(changed)
    assert subject.box.called == []
    assert kinds(subject) == [ToolDecided]


def test_tools_are_called_in_one_place_only() -> None:
    source = Path(__file__).parents[3] / "aish"
    calling = [
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if ".tools.call(" in path.read_text()
    ]
    assert calling == ["agent/dispatch.py"]


@pytest.mark.requirement("L18")
@pytest.mark.parametrize("content", ["", "\n", "  "])
def test_an_empty_result_says_so(content: str) -> None:
    assert used(kit(ToolResult("ok", content))).content == "[aish] (no output)"


def test_structured_content_stands_in_where_there_is_no_text() -> None:
    assert used(kit(ToolResult("ok", "", structured={"n": 1}))).content == '{"n": 1}'


def test_a_long_result_is_cut_and_kept_whole() -> None:
    text = "line\n" * 1000
    subject = kit(ToolResult("ok", text))
    subject.limits = LoopLimits(result_limit=500)
    got = used(subject)
    assert list(subject.kept.values()) == [text.encode()]
    assert got.whole == text
    assert got.full == f"files/{next(iter(subject.kept))}"
    assert "bytes left out here\n" in got.content
    assert len(got.content) <= 500
    finished = subject.events[-1]
    assert isinstance(finished, ToolFinished)
    assert (finished.content, finished.full) == (got.content, got.full)


def test_a_full_disk_costs_the_file_and_not_the_call() -> None:
    subject = kit(ToolResult("ok", "line\n" * 1000))
    subject.limits = LoopLimits(result_limit=500)
    subject.disk = OSError(errno.ENOSPC, "No space left on device")
    got = used(subject)
    assert (got.full, "left out here" in got.content) == (None, True)
    notice = subject.events_of(Notice)[0]
    assert isinstance(notice, Notice)
    assert "No space left on device" in notice.text


def test_half_of_a_surrogate_pair_in_a_result_can_be_sent_on() -> None:
    used(kit(ToolResult("ok", "a\ud800b"))).content.encode()


def test_an_image_goes_to_the_folder_and_a_line_stands_for_it() -> None:
    subject = kit(ToolResult("ok", "a cat", media=(Media("image/png", b"\x89PNG"),)))
    got = used(subject)
    assert list(subject.kept.values()) == [b"\x89PNG"]
    name = next(iter(subject.kept))
    assert name.endswith(".png")
    assert got.content == "a cat\n[aish] not shown to this model: image/png, 4 bytes"
    told = [event.text for event in subject.events if isinstance(event, Notice)]
    assert told == [f"image/png, 4 bytes, saved as files/{name}"]
    assert got.media == ()


def test_an_image_alone_is_not_an_empty_result() -> None:
    subject = kit(ToolResult("ok", "", media=(Media("audio/wav", b"RIFF"),)))
    subject.ephemeral = True
    assert used(subject).content == "[aish] not shown to this model: audio/wav, 4 bytes"


@pytest.mark.parametrize("kind", ["image/", "image/png;base64,AA", "image/\x1b[2J", "image/a b"])
def test_what_is_no_type_of_an_image_is_not_sent_to_any_model(kind: str) -> None:
    assert media_kind(Media(kind, b"\x89PNG")) is None
    assert media_kind(Media("image/svg+xml", b"<svg/>")) == "image"


def test_a_pdf_is_told_by_its_type_and_its_first_bytes() -> None:
    assert media_kind(Media("Application/PDF; x=y", b"\n%PDF-1.7")) == "pdf"
    for other in (Media("application/pdf", b"<html>"), Media("application/zip", b"%PDF-1.7")):
        assert media_kind(other) is None


def test_a_model_that_sees_gets_images_and_a_line_stands_for_sounds() -> None:
    media = (
        Media("image/png", b"\x89PNG"),
        Media("audio/wav", b"RIFF"),
        Media("image/png", b"\x89PNG2"),
    )
    runtime = (subject := kit(ToolResult("ok", "", media=media))).runtime()

    async def seen() -> UsedCall:
        approved = await propose(Proposal(LOOK, HERE, PLACE), runtime)
        assert isinstance(approved, Approved)
        return await dispatch(approved, runtime, media_kinds=frozenset({"image"}))

    got = anyio.run(seen)
    assert got.media == (media[0], media[2])
    first, second, third = got.content.splitlines()
    assert first == "[aish] attached: image/png, 4 bytes"
    assert second == "[aish] not shown to this model: audio/wav, 4 bytes"
    assert third == "[aish] attached: image/png, 5 bytes"
    assert len(subject.kept) == 3


def test_a_mime_type_names_no_path() -> None:
    media = (Media("image/../../etc/x", b"1"),)
    subject = kit(ToolResult("ok", "", media=media))
    anyio.run(call_tool, LOOK, HERE, subject.runtime(), Place("one", "../row", 1, call="../../c1"))
    (name,) = subject.kept
    assert "/" not in name
    assert ".." not in name


@pytest.mark.requirement("M8")
@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("handler_error", "ERROR: no such file"),
        ("rpc_error", "[aish] tool dispatch failed: Unknown tool"),
        ("transport_error", "[aish] tool transport error: timed out after 60 s"),
        ("ok", "Error: but the flag says it is none"),
    ],
)
def test_every_failure_is_a_reply_as_it_is(kind: ResultKind, content: str) -> None:
    subject = kit(ToolResult(kind, content))
    got = used(subject)
    assert (got.kind, got.content) == (kind, content)
    assert len(subject.box.called) == 1


def test_a_json_rpc_error_draws_a_status_line() -> None:
    subject = kit(ToolResult("rpc_error", "[aish] tool dispatch failed: Unknown tool"))
    used(subject)
    assert subject.events_of(Notice) == [
        Notice(
            PLACE,
            "warning",
            "tool_dispatch_failed",
            "box__look: tool dispatch failed: Unknown tool",
        )
    ]


def test_an_idempotent_call_is_made_again_once_after_a_transport_error() -> None:
    subject = kit(ToolResult("transport_error", "[aish] tool transport error: reset"))
    subject.idempotent = ("box__look",)
    assert used(subject).kind == "transport_error"
    assert len(subject.box.called) == 2
    assert kinds(subject) == [ToolDecided, ToolStarted, Notice, ToolFinished]


@pytest.mark.parametrize("kind", ["rpc_error", "handler_error"])
def test_only_a_transport_error_is_worth_another_try(kind: ResultKind) -> None:
    subject = kit(ToolResult(kind, "no"))
    subject.idempotent = ("box__look",)
    used(subject)
    assert len(subject.box.called) == 1


def test_progress_is_told_as_it_comes() -> None:
    subject = kit()
    subject.box.reports = (Progress(1, 2, "half"), Progress(2, 2))
    used(subject)
    assert subject.events_of(ToolProgress) == [
        ToolProgress(PLACE, "box__look", 1, 2, "half"),
        ToolProgress(PLACE, "box__look", 2, 2, None),
    ]


def test_endless_progress_is_not_told_without_end() -> None:
    subject = kit()
    subject.box.reports = (Progress(1),) * 5000
    used(subject)
    assert len(subject.events_of(ToolProgress)) == 1000


def test_what_a_server_reports_after_the_end_is_not_told() -> None:
    subject = kit()
    used(subject)
    subject.box.report_late(Progress(1))
    assert subject.events_of(ToolProgress) == []


def test_a_cancelled_call_is_not_told_as_finished() -> None:
    subject = kit()

    async def cancelled() -> bool:
        async def hangs(arguments: JsonObject) -> ToolResult:
            scope.cancel()
            await anyio.sleep_forever()
            raise AssertionError

        subject.box.handlers["look"] = hangs
        with anyio.CancelScope() as scope:
            await call_tool(LOOK, HERE, subject.runtime(), PLACE)
        return scope.cancelled_caught

    assert anyio.run(cancelled)
    assert kinds(subject) == [ToolDecided, ToolStarted]
