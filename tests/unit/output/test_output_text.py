import io
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML
from samples import each_case
from scripted_events import (
    HOSTILE,
    ordinary_run,
    run_finished,
    stamped,
    step_finished,
    turn_finished,
)

from aish.core.events import Event, Place, TextDelta, TextWithdrawn
from aish.core.json import JsonValue
from aish.output.formats.text import CI_LOG, DATA, TERMINAL, FinalText, Manner, manner_of, yaml_text

TURN = Place("read", turn=1)


def printed(
    *events: Event, manner: Manner = DATA, stream: bool = False, outputs: bool = False
) -> str:
    out = io.BytesIO()
    sink = FinalText(out, "read", manner, stream=stream, outputs=outputs)
    for event in stamped(*events):
        if sink.deltas or not isinstance(event.event, TextDelta):
            sink(event)
    sink.close()
    return out.getvalue().decode()


def spoken(*pieces: str) -> list[Event]:
    text = "".join(pieces)
    said: list[Event] = [TextDelta(TURN, piece) for piece in pieces]
    return [*said, turn_finished(TURN, text), step_finished(text=text), run_finished()]


@pytest.mark.parametrize("stream", [False, True])
def test_the_answer_is_printed_once_with_a_line_end(*, stream: bool) -> None:
    assert printed(*spoken("Hello ", "wörld"), stream=stream) == "Hello wörld\n"


@pytest.mark.parametrize("stream", [False, True])
def test_a_line_end_of_the_answer_is_not_doubled(*, stream: bool) -> None:
    assert printed(*spoken("Hello\n"), stream=stream) == "Hello\n"


def test_only_the_last_step_is_printed() -> None:
    out = io.BytesIO()
    sink = FinalText(out, "sort")
    for event in ordinary_run():
        sink(event)

    assert out.getvalue() == b'{"kind": "docs"}\n'


def test_nothing_is_printed_before_the_run_has_ended() -> None:
    assert not printed(*spoken("Hello")[:-1])


def test_a_withdrawn_answer_never_reaches_a_pipe() -> None:
    said: list[Event] = [TextDelta(TURN, "wro"), TextWithdrawn(TURN, "wro"), *spoken("right")]

    assert printed(*said) == "right\n"
    assert printed(*said, stream=True) == "wro\nright\n"


def test_a_streamed_answer_comes_as_it_comes() -> None:
    out = io.BytesIO()
    sink = FinalText(out, "read", stream=True)
    seen = []
    for event in stamped(*spoken("Hel", "lo")):
        sink(event)
        seen.append(out.getvalue())

    assert seen[:3] == [b"Hel", b"Hello", b"Hello\n"]


def test_turns_before_tool_calls_are_streamed_on_lines_of_their_own() -> None:
    first: list[Event] = [TextDelta(TURN, "Let me see."), turn_finished(TURN, "Let me see.")]

    assert printed(*first, *spoken("It is so."), stream=True) == "Let me see.\nIt is so.\n"


def test_a_step_without_a_model_is_printed_at_the_end_of_a_stream_too() -> None:
    assert printed(step_finished(text="out"), run_finished(), stream=True) == "out\n"


def test_a_failed_step_without_text_prints_nothing() -> None:
    assert not printed(step_finished(status="failed", text=None), run_finished())


def test_an_interrupted_stream_ends_its_line() -> None:
    assert printed(TextDelta(TURN, "half"), stream=True) == "half\n"


def test_outputs_are_printed_as_yaml_and_no_text_is() -> None:
    end = run_finished(outputs={"kind": "docs", "notes": ["a", "b"]})

    for stream in (False, True):
        said = printed(TextDelta(TURN, "x"), step_finished(), end, stream=stream, outputs=True)
        assert said == "kind: docs\nnotes:\n  - a\n  - b\n"


def test_an_answer_on_a_terminal_cannot_steer_it() -> None:
    for stream in (False, True):
        said = printed(*spoken(*HOSTILE), manner=TERMINAL, stream=stream)
        assert r"a\x1b[2Jb\x1b]0;owned\x07c\rd\x08e\x9bmf\u202eg\u200bh" in said
        assert "\x1b" not in said


def test_an_answer_in_a_ci_log_is_no_command_however_it_is_cut() -> None:
    for stream in (False, True):
        lines = printed(*spoken(*HOSTILE), manner=CI_LOG, stream=stream).splitlines()
        assert not [line for line in lines if line.strip().startswith("::") or "##[" in line]
        assert len(lines) == 4


def test_a_file_gets_the_answer_as_it_is() -> None:
    assert printed(*spoken(HOSTILE)) == HOSTILE.replace("\ud800", "\ufffd") + "\n"


PIPE, FILE = stat.S_IFIFO, stat.S_IFREG


@pytest.mark.parametrize(
    ("mode", "environ", "is_terminal", "manner"),
    [
        (stat.S_IFCHR, {}, True, TERMINAL),
        (PIPE, {}, False, DATA),
        (PIPE, {"GITHUB_ACTIONS": "true"}, False, CI_LOG),
        (PIPE, {"TF_BUILD": "True"}, False, CI_LOG),
        (FILE, {"GITHUB_ACTIONS": "true"}, False, DATA),
    ],
)
def test_the_manner_goes_by_what_stdout_is(
    mode: int, environ: dict[str, str], *, is_terminal: bool, manner: Manner
) -> None:
    assert manner_of(mode, environ, is_terminal=is_terminal) is manner


def test_the_manner_of_a_real_pipe() -> None:
    read, write = os.pipe()
    mode = os.fstat(write).st_mode
    os.close(read)
    os.close(write)

    assert manner_of(mode, {"GITHUB_ACTIONS": "true"}, is_terminal=False) is CI_LOG


_KEYS = st.text(max_size=20)
VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(-1e6, 1e6)
    | st.text()
    | st.text("ab \n:-#|'\"\t", max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_yaml_says_what_the_value_says(value: JsonValue) -> None:
    assert YAML(typ="safe", pure=True).load(yaml_text(value)) == value


@each_case(
    "word",
    ["no", "true", "null", "22:22", "2026-01-01", "012", "1e3", "~", "", "- a", "a: b", "#x"],
)
def test_a_string_that_looks_like_something_else_stays_a_string(word: str) -> None:
    assert YAML(typ="safe", pure=True).load(yaml_text({"a": word})) == {"a": word}


def test_text_of_several_lines_is_readable() -> None:
    value: JsonValue = {
        "notes": {"markdown": "# Notes\n\n- one\n- two\n"},
        "empty": [],
        "size": 1.5,
    }

    assert yaml_text(value) == (
        "notes:\n  markdown: |\n    # Notes\n\n    - one\n    - two\nempty: []\nsize: 1.5\n"
    )
