"""Items at the end of a list of a file: every other byte stays."""

from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import each_case

from aish.config.documents import parse_mapping
from aish.config.inserting import with_items
from aish.config.yaml_tree import MappingNode, to_data
from aish.core.errors import UsageError

PLACE = ("mcp", "auto_approve")
BLOCK = ["- one", "- tool: two", "  schema: {maxProperties: 0}"]
FLOW = ["one", "{tool: two, schema: {maxProperties: 0}}"]
ITEMS = ["one", {"tool": "two", "schema": {"maxProperties": 0}}]


def inserted(text: str) -> str:
    made = with_items(text, PLACE, BLOCK, FLOW)
    before, after = (to_data(root) for root in map(parsed, (text, made)))
    assert isinstance(before, dict)
    mcp = before.get("mcp", {})
    assert isinstance(mcp, dict)
    old = mcp.get("auto_approve", [])
    assert isinstance(old, list)
    assert after == {**before, "mcp": {**mcp, "auto_approve": [*old, *ITEMS]}}
    return made


def parsed(text: str) -> MappingNode:
    root, problems = parse_mapping(text, "p.yaml")
    assert problems == []
    assert root is not None
    return root


def test_what_the_loader_reads_is_added_to_as_well() -> None:
    """Tabs, signs in braces, separators that end no line (issue 27, C)."""
    text = "name: x\u2028y\t# c\nmcp:\t# tools\n  auto_approve:\n    - a__b\t# why\nx: {?a: b}\n"
    assert inserted(text).startswith(text.partition("x: {")[0])


@each_case(
    "before, after",
    [
        (
            """\
            mcp: # tools
              auto_approve:
                - a__b   # why
                # and then

              # other
              deny: [x__y]
            """,
            """\
            mcp: # tools
              auto_approve:
                - a__b   # why
                - one
                - tool: two
                  schema: {maxProperties: 0}
                # and then

              # other
              deny: [x__y]
            """,
        ),
        (
            """\
            mcp:
              auto_approve:
              - tool: a__b
                when: {path: x}
              deny: [x__y]
            """,
            """\
            mcp:
              auto_approve:
              - tool: a__b
                when: {path: x}
              - one
              - tool: two
                schema: {maxProperties: 0}
              deny: [x__y]
            """,
        ),
        (
            """\
            mcp:
              auto_approve: [a__b, # first
                c__d,
              ]
            """,
            """\
            mcp:
              auto_approve: [a__b, # first
                c__d, one, {tool: two, schema: {maxProperties: 0}},
              ]
            """,
        ),
        ("mcp: {a: {}, auto_approve: [ ]} # c\n", "mcp: {a: {}, auto_approve: [@FLOW ]} # c\n"),
        ("mcp: {a: {}} # c\n", "mcp: {a: {}, auto_approve: [@FLOW]} # c\n"),
        (
            """\
            mcp:
              servers:
                repo: {pack: [fs], root: .} # ours

            # the steps
            prompt: |
              Hello

            """,
            """\
            mcp:
              servers:
                repo: {pack: [fs], root: .} # ours
              auto_approve:
                - one
                - tool: two
                  schema: {maxProperties: 0}

            # the steps
            prompt: |
              Hello

            """,
        ),
        (
            """\
            name: x
            prompt: |
              Hello

            # the end
            """,
            """\
            name: x
            prompt: |
              Hello
            mcp:
              auto_approve:
                - one
                - tool: two
                  schema: {maxProperties: 0}

            # the end
            """,
        ),
        ("name: x", "name: x\nmcp:\n  auto_approve:\n@BLOCK"),
        ('{"aish": 1}\n', '{"aish": 1, mcp: {auto_approve: [@FLOW]}}\n'),
        (
            "a: 1\nmcp:\n  auto_approve:\n    - x\nb: 2\n".replace("\n", "\r\n"),
            "a: 1\nmcp:\n  auto_approve:\n    - x\n@BLOCKb: 2\n".replace("\n", "\r\n"),
        ),
    ],
)
def test_items_go_to_the_end_and_nothing_else_changes(before: str, after: str) -> None:
    block = "".join(f"    {line}\n" for line in BLOCK)
    if "\r" in after:
        block = block.replace("\n", "\r\n")
    wanted = dedent(after).replace("@FLOW", ", ".join(FLOW)).replace("@BLOCK", block)
    assert inserted(dedent(before)) == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mcp:\n  auto_approve: {a__b: true}\n", "`mcp.auto_approve` is not a list"),
        ("mcp:\n  auto_approve:\n", "`mcp.auto_approve` is empty"),
        ("mcp:\nname: x\n", "`mcp` is empty"),
        ("mcp: [1]\n", "`mcp` is not a mapping"),
        ("x: &rules [a]\nmcp:\n  auto_approve: *rules\n", "is shared"),
        ("mcp:\n  auto_approve: &rules [a]\nx: *rules\n", "is shared"),
    ],
)
def test_what_has_no_place_for_items_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said.replace(".", r"\.")):
        with_items(text, PLACE, BLOCK, FLOW)


INDENTS = st.integers(1, 6)
COMMENTS = st.sampled_from(["", "  # why", "\n\n  # more\n"])
RULES = st.lists(
    st.sampled_from(["a__b", "{tool: c__d, when: {path: x}}", '"e__*"']), min_size=1, max_size=3
)


@given(
    outer=INDENTS,
    inner=INDENTS,
    comment=COMMENTS,
    rules=RULES,
    flow=st.booleans(),
    last=st.booleans(),
)
def test_any_layout_of_a_list_takes_them(
    outer: int, inner: int, comment: str, rules: list[str], *, flow: bool, last: bool
) -> None:
    margin = " " * outer
    listed = (
        f" [{', '.join(rules)}]{comment}\n"
        if flow
        else "\n" + "".join(f"{margin}{' ' * inner}-   {rule}{comment}\n" for rule in rules)
    )
    text = f"aish: 1\nmcp:\n{margin}auto_approve:{listed}"
    made = inserted(text if last else f"{text}\nprompt: Hello\n")
    assert all(comment in made for _ in rules)
