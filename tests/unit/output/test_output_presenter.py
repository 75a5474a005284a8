"""What a person sees of a session, on a terminal that is read back."""

import pytest
from presenter_scenes import LINE, RUN, Scene
from scripted_events import (
    HOSTILE,
    decided,
    ordinary_run,
    run_finished,
    run_started,
    step_finished,
    turn_finished,
)
from syrupy.assertion import SnapshotAssertion
from work import Work, work_of

from aish.core.events import (
    Asked,
    Event,
    Exit,
    ExpectChecked,
    Failure,
    Fallback,
    HistoryReplaced,
    Notice,
    Place,
    ReasoningDelta,
    Retry,
    ServerInfo,
    StepStarted,
    TextDelta,
    TextWithdrawn,
    ToolDecided,
    ToolFinished,
    ToolOutput,
    ToolProgress,
    ToolStarted,
    TurnAdded,
    TurnStarted,
)
from aish.core.json import JsonObject, JsonValue
from aish.core.messages import Usage
from aish.output.style import ASCII, Look, cells

CALL = Place("line-1", turn=1, call="c1")
OTHER = Place("line-1", turn=1, call="c2")
ANSWER = """\
# Approvals

A rule *approves* a call, or **denies** it; see [the guide](https://example.org/guide)
and `aish policy explain`.

1. The file's rules
2. Then a person
   - who is asked once
   - 日本語のとても長い説明が端末の幅を超えて折り返される場合

| verdict | meaning | count |
|:--|:-:|--:|
| `auto` | a rule said yes | 12 |
| `deny` | a rule said no | 3 |

```python
def decide(call):
    return "auto"
```

> A quote that is long enough to be folded at forty columns.

CMD: git log --oneline *.py *.md
"""


def command(code: int = 0, **changes: JsonValue) -> list[Event]:
    """How a command ends: as a call, and as the step that it is."""
    output = {"exit_code": code, "stdout": "one\ntwo\n", "stderr": "", **changes}
    error = Failure("handler_error", f"the command ended with exit code {code}") if code else None
    return [
        ToolFinished(RUN, "shell__run", "handler_error" if code else "ok", "one", None, 0.02),
        step_finished("run-1", status="failed" if code else "ok", output=output, error=error),
    ]


def given(arguments: JsonObject) -> ToolDecided:
    """The person gives a command."""
    return decided(RUN, "shell__run", arguments, verdict="ask-yes", rule="the user")


def session() -> list[Event]:
    """A bit of everything that goes well."""
    asked = Asked("c1", "repo__file_read", '{"path": "README.md"}')
    second = Place("line-1", turn=2)
    return [
        run_started(
            pipeline="task.yaml",
            servers=(
                ServerInfo("repo", "pack", "ready", 6),
                ServerInfo("docs", "http", "failed", 0, "refused"),
            ),
        ),
        StepStarted(Place("line-1"), "prompt"),
        TurnStarted(LINE, "local", 2),
        ReasoningDelta(LINE, "hm"),
        TextDelta(LINE, "I will read "),
        TextDelta(LINE, "it."),
        turn_finished(LINE, "I will read it.", finish="tool_calls", calls=(asked,)),
        decided(CALL, "repo__file_read", {"path": "README.md"}, verdict="ask-yes", rule="the user"),
        ToolStarted(CALL, "repo__file_read"),
        ToolFinished(
            CALL,
            "repo__file_read",
            "ok",
            "# aish\n" + "\n".join(f"Line {n}" for n in range(12)),
            None,
            0.012,
        ),
        TurnStarted(second, "local", 4),
        turn_finished(second, ANSWER),
        step_finished("line-1", text=ANSWER),
        StepStarted(Place("run-1"), "run"),
        given({"command": "printf 'one\\ntwo\\n'"}),
        ToolStarted(RUN, "shell__run"),
        ToolOutput(RUN, "shell__run", "one\ntw", "stdout"),
        ToolOutput(RUN, "shell__run", "o\n", "stdout"),
        ToolOutput(RUN, "shell__run", "careful\n", "stderr"),
        *command(),
        run_finished(cost_usd=0.0123, folder=".aish/sessions/20261118T120640Z-a1b2"),
    ]


def trouble() -> list[Event]:
    """Everything that goes wrong, told by strangers who mean harm."""
    return [
        run_started(pipeline=HOSTILE, models=(), servers=()),
        Notice(LINE, "warning", "odd", f"mcp evil: {HOSTILE}"),
        Notice(LINE, "info", "fyi", "mcp docs: ready, 3 tools"),
        TurnStarted(LINE, HOSTILE, 2),
        TextDelta(LINE, "half an ans"),
        TextWithdrawn(LINE, "half an ans"),
        Retry(LINE, "http://127.0.0.1:9", 2, 1.5, f"reset {HOSTILE}"),
        Fallback(LINE, "cloud", "local", "unavailable"),
        turn_finished(LINE, f"Well: {HOSTILE} &#x1b;[2J &#x202e;", finish="tool_calls"),
        decided(CALL, "repo__file_read", {"path": HOSTILE}),
        decided(OTHER, "evil__search", {"query": "x" * 900}),
        ToolProgress(OTHER, "evil__search", 3, 10, "looking\x1b[31m"),
        ToolFinished(OTHER, "evil__search", "transport_error", f"[aish] {HOSTILE}", None, 61.0),
        ToolFinished(CALL, "repo__file_read", "ok", HOSTILE, "files/0001-result.txt", 0.5),
        decided(Place("line-1", call="c3"), "evil__drop", {}, verdict="deny", rule="*__drop"),
        ToolFinished(
            Place("line-1", call="c3"),
            "evil__drop",
            "denied",
            "[aish] tool call denied by rule *__drop",
            None,
            0.0,
        ),
        ExpectChecked(LINE, "contains", ok=False, message=HOSTILE),
        step_finished(
            "line-1",
            status="failed",
            text=None,
            error=Failure("truncated", f"the answer was cut off {HOSTILE}", "raise `max_tokens`"),
        ),
        given({"argv": ["ls", HOSTILE]}),
        ToolOutput(RUN, "shell__run", HOSTILE, "stderr"),
        *command(2),
        run_finished(
            status="failed",
            exit=Exit(1, "failed", retryable=False, reason=f"line-1: {HOSTILE}"),
            usage=Usage(),
        ),
    ]


@pytest.mark.parametrize("width", [80, 40, 20])
@pytest.mark.parametrize("plain", [False, True], ids=["markdown", "plain"])
def test_a_session_as_a_person_sees_it(
    *, plain: bool, width: int, snapshot: SnapshotAssertion
) -> None:
    assert Scene(width, plain=plain).take(*session()).over().seen() == snapshot


@pytest.mark.parametrize("width", [80, 40])
def test_a_session_in_which_much_goes_wrong(width: int, snapshot: SnapshotAssertion) -> None:
    assert Scene(width).take(*trouble()).over().seen() == snapshot


@pytest.mark.parametrize("scene", [session, trouble])
def test_a_session_in_colour(scene: object, snapshot: SnapshotAssertion) -> None:
    look = Look(color=True, animate=True)

    shown = Scene(look=look).take(*(session() if scene is session else trouble())).over().written

    assert shown.replace("\x1b", "<ESC>") == snapshot


def test_a_session_on_a_dumb_terminal_moves_no_cursor_and_says_the_same() -> None:
    dumb = Scene(look=Look()).take(*session()).over()

    assert "\x1b" not in dumb.written
    assert "\r" not in dumb.written
    assert dumb.seen() == Scene().take(*session()).over().seen()


def test_a_session_on_a_terminal_that_knows_ascii_only() -> None:
    answer = "- one\n- two\n\n| a | b |\n|--|--|\n| 1 | 2 |\n\n> quote\n\n---\n\n```sh\nls\n```\n"

    shown = Scene(look=Look(glyphs=ASCII)).take(turn_finished(LINE, answer)).over().written

    assert shown.isascii()


def test_a_block_stands_raw_at_the_bottom_until_it_is_whole() -> None:
    scene = Scene().said(["First.\n\nThis is **bo"], ticks=True)
    assert scene.seen() == "First.\n\nThis is **bo"

    scene.said(["ld**.\n\n"], ticks=True).over()
    assert scene.seen() == "First.\n\nThis is bold."


def test_only_the_end_of_a_block_taller_than_a_third_of_the_screen_is_shown_meanwhile() -> None:
    lines = [f"line {n}" for n in range(60)]
    scene = Scene(height=12).said(["\n".join(lines)], ticks=True)

    assert scene.seen().split("\n") == lines[-1:]
    scene.take(turn_finished(LINE, "\n".join(lines))).over()
    assert scene.seen().split("\n") == lines


def test_code_comes_line_by_line_before_its_fence_is_closed() -> None:
    scene = Scene().said(["```sh\nls -l\ncd "])

    assert scene.seen() == "    ── sh\n    ls -l"
    scene.screen.tick()
    assert scene.seen() == "    ── sh\n    ls -l\n    cd"
    scene.over()


def test_a_terminal_made_narrower_gets_narrower_blocks() -> None:
    words = "word " * 30
    scene = Scene(80).said([f"{words}\n\n"])
    scene.size = (40, 24)
    scene.said([f"{words}\n\n- {words}"]).take(
        decided(CALL, "repo__read", {"path": "x" * 90}), *session()[-9:-1]
    )
    scene.over()

    rows = scene.written.split("\n")
    assert max(len(row) for row in rows[3:]) <= 40 + len("\r\x1b[2K")


@pytest.mark.parametrize("plain", [False, True], ids=["markdown", "plain"])
def test_five_megabytes_without_a_line_end_cost_no_more_than_their_length(*, plain: bool) -> None:
    piece = "Lorem ipsum dolor sit amet " * 40
    count = 5_000_000 // len(piece)

    def say(count: int) -> Work:
        scene = Scene(plain=plain)
        work = work_of(lambda: scene.said([piece] * count, ticks=True).over())
        assert scene.written.rstrip().endswith("amet")
        assert scene.written.count("Lorem") >= 40 * count
        return work

    few, many = say(count // 10), say(count)
    assert many.steps < 15 * few.steps
    assert many.text < 15 * few.text


def test_ten_thousand_lines_of_code_are_all_there() -> None:
    code = "".join(f"line {n}\n" for n in range(10_000))
    scene = Scene().said([f"```\n{code}```\nDone."]).take(turn_finished(LINE, "")).over()

    assert scene.written == "".join(f"    line {n}\n" for n in range(10_000)) + "Done.\n"


@pytest.mark.parametrize("color", [False, True])
@pytest.mark.parametrize(
    ("said", "seen"),
    [
        ("The key is <secret:API_KEY>.", "The key is <secret:API_KEY>."),
        (
            "*a* <secret:_KEY_> and <secret:m.auth_token>",
            "a <secret:_KEY_> and <secret:m.auth_token>",
        ),
        ("- **<secret:KEY>**", "• <secret:KEY>"),
        ("[<secret:KEY>](https://h/)", "<secret:KEY> (https://h/)"),
        ("[here](https://h/?k=<secret:KEY>)", "here (https://h/?k=<secret:KEY>)"),
        ("# <secret:KEY>", "<secret:KEY>"),
        ("<https://h/>", "https://h/"),
    ],
)
def test_the_name_of_a_secret_is_text_in_markdown(said: str, seen: str, *, color: bool) -> None:
    scene = (
        Scene(look=Look(animate=True, color=color, width=80))
        .said([said])
        .take(turn_finished(LINE, said))
        .over()
    )

    assert seen in scene.seen().replace("*", "")


def test_an_unclosed_fence_ends_with_its_answer() -> None:
    scene = Scene().said(["```\ncode"]).take(turn_finished(LINE, "```\ncode"))
    scene.take(turn_finished(Place("line-2", turn=1), "*not* code")).over()

    assert scene.seen() == "    code\nnot code"


def test_what_was_withdrawn_is_marked_and_what_comes_after_is_read_anew() -> None:
    scene = Scene().said(["Done.\n\n```\nhalf"], ticks=True).take(TextWithdrawn(LINE, "half"))
    scene.said(["It *is* so."]).take(turn_finished(LINE, "It *is* so.")).over()

    assert scene.seen() == ("Done.\n! the answer so far is withdrawn\nIt is so.")


def test_calls_at_the_same_time_stay_apart() -> None:
    scene = Scene().take(
        decided(CALL, "repo__first", {}),
        decided(OTHER, "repo__second", {}),
        ToolStarted(CALL, "repo__first"),
        ToolStarted(OTHER, "repo__second"),
        ToolFinished(CALL, "repo__first", "ok", "1", None, 0.1),
        ToolFinished(OTHER, "repo__second", "ok", "2", None, 0.1),
    )
    scene.over()

    marks = [line.strip() for line in scene.seen().split("\n") if "repo" in line]
    assert marks == ["▸ repo__first {}", "▸ repo__second {}", "◂ repo__first", "◂ repo__second"]


@pytest.mark.parametrize("width", [20, 40, 80])
def test_arguments_that_do_not_fit_are_counted(width: int) -> None:
    scene = Scene(width).take(decided(CALL, "repo__write", {"text": "x" * 500})).over()

    shown = scene.seen()
    kept, _, left = shown.partition("… +")
    assert len(shown) <= width
    assert len(kept) + int(left) == len('  ▸ repo__write {"text": ""}') + 500


def test_a_command_that_overwrites_its_line_shows_the_last_of_it() -> None:
    scene = Scene().take(given({"command": "curl"}))
    scene.printed("10 %\r", "20 %\r", ticks=True)
    assert scene.seen() == "$ curl\n  │ 20 %"

    scene.printed("30 %\r\nok\n").take(*command()).over()
    assert scene.seen() == "$ curl\n  │ 30 %\n  │ ok\n  ╰ exit 0 · 0.02 s"


def test_output_that_ends_without_a_line_end_is_shown_once() -> None:
    scene = Scene().take(given({"command": "printf one"})).printed("o", "ne")
    scene.take(*command(stdout="one"))

    assert scene.over().seen() == "$ printf one\n  │ one\n  ╰ exit 0 · 0.02 s"


def test_a_command_played_from_a_cassette_shows_what_it_printed() -> None:
    scene = Scene().take(given({"argv": ["ls", "a b"]}), *command(1)).over()

    assert scene.seen().split("\n")[:3] == ["$ ls 'a b'", "  │ one", "  │ two"]
    assert scene.seen().split("\n")[3].startswith("  ╰─ exit 1 · 0.02 s ───")


def test_a_command_without_an_exit_code_says_why() -> None:
    why = "cannot start `nope`: No such file or directory"
    error = Failure("handler_error", why)
    scene = Scene().take(
        given({"argv": ["nope"]}),
        ToolFinished(RUN, "shell__run", "handler_error", why, None, 0.5),
        step_finished("run-1", status="failed", output=None, error=error),
    )

    assert scene.over().seen().split("\n") == [
        "$ nope",
        "  ╰─ handler_error · 0.50 s ────────────",
        f"✗ {why}",
    ]


def test_a_command_that_is_cut_off_shows_what_there_was() -> None:
    scene = Scene().take(given({"command": "sleep 9"}))
    scene.printed("half a li", ticks=True)
    scene.take(
        step_finished("run-1", status="failed", error=Failure("interrupted", "interrupted"))
    ).over()

    assert scene.seen() == "$ sleep 9\n  │ half a li\n✗ interrupted"


def test_long_lines_of_a_command_are_folded_within_the_frame() -> None:
    scene = Scene(20).printed("x" * 40 + "日" * 10 + "\n")
    scene.talk.close()

    assert [cells(row) for row in scene.seen().split("\n")] == [20, 20, 20, 16]
    assert scene.seen().count("x") + scene.seen().count("日") == 50


def test_a_line_of_both_streams_is_not_mixed() -> None:
    scene = Scene().printed("out ").printed("err ", stream="stderr").printed("put\n")
    scene.printed("or\n", stream="stderr")
    scene.talk.close()

    assert scene.seen() == "  │ out put\n  │ err or"


@pytest.mark.parametrize(
    ("event", "label"),
    [
        (TurnStarted(LINE, "local", 1), "waiting for local"),
        (ReasoningDelta(LINE, "hm"), "thinking"),
        (ToolStarted(CALL, "repo__read"), "repo__read"),
        (ToolStarted(RUN, "shell__run"), "running"),
        (Retry(LINE, "127.0.0.1", 2, 3.0, "reset"), "waiting to ask 127.0.0.1 again"),
    ],
)
def test_a_spinner_says_what_is_waited_for(event: Event, label: str) -> None:
    scene = Scene().take(event)
    scene.screen.tick()

    assert scene.seen().split("\n")[-1] == f"⠋ {label}"
    scene.over()
    assert label not in scene.seen() or isinstance(event, Retry)


def test_nothing_is_drawn_while_somebody_else_has_the_terminal() -> None:
    scene = Scene().said(["One *of"], ticks=True)
    with scene.talk.hold():
        before = scene.written
        scene.said([" two*.\n\nNext"], ticks=True)
        assert scene.written == before
    scene.take(turn_finished(LINE, "One *of two*.\n\nNext")).over()

    assert scene.seen() == "One of two.\n\nNext"


def test_lines_of_the_shell_stand_apart_from_an_answer() -> None:
    scene = Scene().said(["An *answer"], ticks=True)
    scene.talk.line("server docs is \x1b[2Jready", "dim")
    scene.said(["*."]).take(turn_finished(LINE, "An *answer*.")).over()

    assert scene.seen() == "server docs is \\x1b[2Jready\nAn answer."


def test_thoughts_and_figures_are_shown_to_who_wants_them() -> None:
    scene = Scene(verbose=True).take(
        ReasoningDelta(LINE, "Let me "),
        ReasoningDelta(LINE, "see."),
        TextDelta(LINE, "*Yes*."),
        turn_finished(LINE, "*Yes*.", cost_usd=0.5),
    )
    scene.over()

    assert scene.seen() == (
        "thinking\nLet me see.\nYes.\n· local · 200 in / 48 out tokens · $0.50 · 0.70 s"
    )


def test_what_is_not_said_to_the_person_is_not_shown() -> None:
    scene = Scene().take(
        turn_finished(LINE, "in short", purpose="summary"),
        turn_finished(LINE, "in a sample", purpose="sampling"),
        TurnAdded(LINE, {"role": "user"}),
        HistoryReplaced(LINE, (), "cleared"),
        TextDelta(Place("s", item="a"), "of an item"),
    )

    assert not scene.over().written


def test_the_rest_of_an_answer_that_came_in_part_is_shown_too() -> None:
    assert Scene().said(["Hel"]).take(turn_finished(LINE, "Hello")).over().seen() == "Hello"


def test_a_frame_is_drawn_without_anything_else_happening() -> None:
    scene = Scene(period=0.01).said(["unfinished"])
    while "unfinished" not in scene.written:
        assert scene.out.wrote.wait(60)
        scene.out.wrote.clear()
    scene.over()

    assert scene.seen() == "unfinished"


def test_a_pipeline_run_within_the_session_is_drawn_as_any_run() -> None:
    scene = Scene().take(session()[0])
    visitor = scene.talk.guest()
    for stamped in ordinary_run():
        visitor(stamped)
    visitor.close()
    scene.said(["Back *again*."]).take(turn_finished(LINE, "Back *again*.")).over()

    assert "● read" in scene.seen()
    assert "ok · 2 steps · 1 tool call" in scene.seen()
    assert scene.seen().endswith("\nBack again.")


def test_the_shell_s_own_styles_pass_and_no_others() -> None:
    scene = Scene(look=Look(color=True))
    scene.talk.line(scene.look.paint("red", "no such tool") + "\x1b[5mx\x1b[2J")

    assert scene.written == "\x1b[31mno such tool\x1b[0m\\x1b[5mx\\x1b[2J\n"


def test_a_command_that_a_rule_let_pass_says_which() -> None:
    event = decided(RUN, "shell__run", {"command": "ls"}, rule="ls **")

    assert Scene().take(event).over().seen() == "$ ls\n    approved by ls **"


def test_a_command_that_was_declined_does_not_look_as_if_it_had_run() -> None:
    said = "[aish] not run: declined by the user"
    scene = Scene().take(
        decided(RUN, "shell__run", {"command": "ls"}, verdict="ask-no", rule="the user"),
        ToolFinished(RUN, "shell__run", "denied", said, None, 0.0),
        step_finished("run-1", status="denied", output=None),
    )

    assert scene.over().seen() == "  ls\n  ✗ not run: declined by the user"
