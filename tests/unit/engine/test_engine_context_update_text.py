"""The block of a round's changes: within its limits, and it says what it leaves out (K84)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aish.agent.file_updates import split_block, with_block
from aish.config.model import Context, Refresh
from aish.engine.steps.context_files.update_text import AGAIN, PartChange, update_of

TAG = "0123456789ab"
TEXT = st.text(st.sampled_from("ab é\n[\r"), max_size=200)
CHANGE = st.builds(
    PartChange,
    label=st.from_regex(r"[a-z]{1,8}\.py", fullmatch=True),
    kind=st.sampled_from(["added", "changed", "deleted", "lost", "found"]),
    before=st.none() | TEXT,
    after=st.none() | TEXT,
    why=st.just("it is not text"),
)
REFRESH = st.sampled_from(["diff", "whole", "name"])


def plain(text: str) -> str:
    return text


@pytest.mark.requirement("K84")
@given(
    st.lists(CHANGE, max_size=12, unique_by=lambda one: one.label),
    REFRESH,
    st.integers(1, 400),
    st.integers(1, 800),
)
def test_a_block_stays_within_its_limits(
    changes: list[PartChange], refresh: Refresh, file_limit: int, round_limit: int
) -> None:
    settings = Context(refresh=refresh, file_limit=file_limit, round_limit=round_limit)
    update = update_of(changes, (), TAG, settings, plain)

    if not changes:
        assert not update.block
        return
    found = split_block(with_block("reply", update.block), TAG)
    assert found.block == update.block
    rows = update.block.split("\n")[1:-1]
    rest = [
        row for row in rows if row.startswith(f"[aish {TAG}] ") and row.endswith("read them again")
    ]
    size = len("".join(row for row in rows if row not in rest).encode())
    assert size <= round_limit
    told = len(found.labels) + sum(int(row.split("] ")[1].split(" ")[0]) for row in rest)
    assert told == len(changes)
    # What the model is taken to know, it was shown.
    assert update.known <= set(found.labels)
    if refresh == "name":
        assert {one.label for one in changes if one.kind == "found"} >= update.known


def test_a_text_is_measured_with_its_secrets_masked() -> None:
    change = PartChange("a.py", "added", None, "key = s3cr3t-value-s3cr3t-value\n")

    def mask(text: str) -> str:
        return text.replace("s3cr3t-value-s3cr3t-value", "<secret:KEY>")

    shown = update_of([change], (), TAG, Context(file_limit=20, round_limit=1000), mask)
    left_out = update_of([change], (), TAG, Context(file_limit=17, round_limit=1000), mask)

    assert "key = s3cr3t-value-s3cr3t-value" in shown.block
    assert AGAIN in left_out.block
    assert left_out.known == frozenset()


def test_globs_with_more_files_than_are_followed_are_named() -> None:
    update = update_of([], [("src/**/*.py", 12)], TAG, Context(file_limit=1, round_limit=1), plain)
    assert update.block.split("\n")[1] == (
        f"[aish {TAG}] src/**/*.py: matches 12 more files, which are not followed"
    )
