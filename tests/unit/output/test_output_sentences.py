"""What we say ourselves is broken between words, at any width."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from presenter_scenes import LINE, Scene
from scripted_events import run_finished, stamped, step_finished

from aish.core.events import Event, Exit, Failure, Notice, Retry
from aish.output.presenter import RUN, Presenter
from aish.output.rows import hint_rows, parts_in_rows, sentence
from aish.output.screen import Screen
from aish.output.style import Look, cells

MISSING = "mcp server dead is missing: http://127.0.0.1:9/mcp: All connection attempts failed"
TOLD: list[Event] = [
    Notice(LINE, "warning", "mcp_missing", MISSING),
    Retry(LINE, "http://127.0.0.1:8080", 2, 1.5, "the connection was reset while it was read"),
    step_finished(
        "line-1",
        status="failed",
        error=Failure(
            "unavailable",
            "model m: http://127.0.0.1:9/v1: All connection attempts failed",
            "is it running? `aish doctor f.yaml` asks every endpoint and server of the file",
        ),
    ),
    run_finished(
        status="failed",
        exit=Exit(4, "unavailable", retryable=True, reason=f"step `line-1`: {MISSING}"),
        folder=".aish/runs/20261122T120640Z-quickstart-a1b2",
    ),
]


def in_console(width: int) -> str:
    out = io.StringIO()
    console = Presenter(Screen(out, Look(width=width)), RUN)
    for event in stamped(*TOLD):
        console(event)
    console.close()
    return out.getvalue()


def in_session(width: int) -> str:
    return Scene(width).take(*TOLD).over().written


@pytest.mark.parametrize("width", [80, 60, 45])
@pytest.mark.parametrize("shown", [in_console, in_session])
def test_no_word_of_ours_is_broken(shown: object, width: int) -> None:
    assert callable(shown)
    rows = str(shown(width)).split("\n")

    assert max(map(len, rows)) <= width
    assert f"! {MISSING}" in " ".join(" ".join(rows).split())


def test_a_path_that_fills_more_than_a_row_stays_whole() -> None:
    path = ".aish/runs/20261122T120640Z-quickstart-a1b2"

    assert [*sentence(f"! see {path} for more", 20)] == ["! see", f"  {path}", "  for more"]
    assert [*parts_in_rows(["ok", "1 step", path], "·", 20)] == ["ok · 1 step", f"  {path}"]


def test_a_sign_does_not_stand_alone() -> None:
    assert [*sentence(f"! {'x' * 30}", 20)] == [f"! {'x' * 30}"]


@given(
    words=st.lists(st.sampled_from(["a", "word", "日本語", "unforgettable"])),
    width=st.integers(20, 90),
)
def test_each_row_fits_and_no_word_is_lost(words: list[str], width: int) -> None:
    for rows in ([*sentence(" ".join(words), width)], [*hint_rows(" ".join(words), width)]):
        assert max(map(cells, rows)) <= max(width, 8 + cells("unforgettable"))
        assert [word for word in " ".join(rows).split() if word != "hint:"] == words
