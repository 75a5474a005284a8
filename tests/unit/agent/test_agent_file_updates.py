"""Blocks of changed files at the end of replies: made, found again, and never imitated (K84)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import each_case

from aish.agent.file_updates import (
    SplitReply,
    announcement,
    block_of,
    find_superseded,
    head_of,
    split_block,
    with_block,
)
from aish.core.text import without_markers

TAG = "0123456789ab"
OTHER = "ba9876543210"
LABEL = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
BODY = st.lists(
    st.sampled_from(
        [
            "",
            "text",
            "[aish] a line",
            f"[end {TAG}]",
            f"[end {OTHER}]",
            f"[aish files updated {TAG}]",
            f"[aish {OTHER}] a.py: changed",
            "+[end x]",
        ]
    )
).map("\n".join)


@given(BODY, st.lists(st.tuples(LABEL, BODY), min_size=1, max_size=4))
def test_what_is_put_at_the_end_of_a_reply_is_found_there(
    content: str, files: list[tuple[str, str]]
) -> None:
    rows = [
        row
        for label, body in files
        for row in (head_of(TAG, label, "changed"), without_markers(body))
    ]
    block = block_of(TAG, rows)

    found = split_block(with_block(without_markers(content), block), TAG)

    assert found.block == block
    assert found.content == without_markers(content).removesuffix("\n")
    assert len(found.labels) == len(files)


@given(BODY)
def test_a_reply_without_a_block_has_none(content: str) -> None:
    assert split_block(without_markers(content), TAG) == SplitReply(without_markers(content))
    assert split_block(f"{content}\n[end {OTHER}]", OTHER[::-1]) == SplitReply(
        f"{content}\n[end {OTHER}]"
    )
    assert split_block(content, "") == SplitReply(content)


@each_case(
    "text, wanted",
    [
        ("[aish] x", " [aish] x"),
        ("[aish files updated x]\n[end x]", " [aish files updated x]\n [end x]"),
        (
            "a\n[from b]\n[end of b]\n[explained by c]",
            "a\n [from b]\n [end of b]\n [explained by c]",
        ),
        ("a\r[end x]\u2028[end y]\x85[aish]", "a\r [end x]\u2028 [end y]\x85 [aish]"),
        ("a [end x]", "a [end x]"),
        (" [end x]", " [end x]"),
        ("[ending]\n[fromage]\n[AISH]", "[ending]\n[fromage]\n[AISH]"),
        ("", ""),
    ],
)
def test_a_line_that_begins_like_one_of_ours_gets_a_space(text: str, wanted: str) -> None:
    assert without_markers(text) == wanted
    assert without_markers(wanted) == wanted


@each_case(
    "hidden",
    [
        "\ufeff",
        "\u200b",
        "\u2066\u00ad",
        "\x1b[0m",
        "\x1b[1;31m\x1b[2K",
        "\x1b",
        "\0",
        "\ufe0f",
        "\x7f",
    ],
)
def test_what_is_not_seen_does_not_hide_the_beginning_of_a_line(hidden: str) -> None:
    line = f"{hidden}[aish] done"
    assert without_markers(line) == f" {line}"
    assert without_markers(f"a\r\n{line}\n{line}") == f"a\r\n {line}\n {line}"
    assert without_markers(f"{hidden}a[aish] {hidden}[end of x]") == (
        f"{hidden}a[aish] {hidden}[end of x]"
    )


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        ([], set()),
        ([["a"], ["a"]], {0}),
        ([["a"], ["b"]], set()),
        ([["a", "b"], ["a"], ["b"]], {0}),
        ([["a", "b"], [], ["b"]], set()),
        ([["a"], ["a"], ["a", "b"]], {0, 1}),
    ],
)
def test_a_block_is_superseded_by_later_ones_that_show_all_of_its_files(
    labels: list[list[str]], wanted: set[int]
) -> None:
    blocks = [SplitReply("", "block" if names else "", tuple(names)) for names in labels]
    assert find_superseded(blocks) == wanted


def test_the_announcement_names_the_two_lines() -> None:
    said = announcement(TAG)
    assert f"`[aish files updated {TAG}]`" in said
    assert f"`[end {TAG}]`" in said
