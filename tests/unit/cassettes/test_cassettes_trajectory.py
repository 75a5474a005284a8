from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion
from work import work_of

from aish.cassettes.inspect.trajectory import (
    RecordedModelRequest,
    Settings,
    Totals,
    Trajectory,
    TrajectoryCall,
    compare,
    comparison_lines,
)
from aish.core.json import JsonValue
from aish.core.messages import Usage
from aish.core.text_diff import line_changes


def call(tool: str, *arguments: object, result: str | None = None) -> TrajectoryCall:
    return TrajectoryCall(tool, [str(one) for one in arguments], result)


def kinds(before: list[TrajectoryCall], after: list[TrajectoryCall]) -> list[tuple[str, str]]:
    comparison = compare(Trajectory(tuple(before), ()), Trajectory(tuple(after), ()))
    return [(one.kind, (one.after or one.before or call("?")).tool) for one in comparison.calls]


def test_the_same_run_twice_is_the_same() -> None:
    run = Trajectory((call("read", 1, result="x"),), ("done",), (("user", "go"),))

    assert compare(run, run).same
    assert not compare(run, run).reordered


def test_calls_are_added_missing_or_changed() -> None:
    assert kinds([call("read", 1)], [call("read", 1), call("write", 2)]) == [("added", "write")]
    assert kinds([call("read", 1), call("write", 2)], [call("read", 1)]) == [("missing", "write")]
    assert kinds([call("read", 1)], [call("read", 2)]) == [("changed", "read")]
    assert kinds([call("read", 1)], [call("write", 1)]) == [
        ("missing", "read"),
        ("added", "write"),
    ]


def test_a_result_that_is_not_known_makes_no_difference() -> None:
    assert kinds([call("read", 1, result="a")], [call("read", 1)]) == []
    assert kinds([call("read", 1, result="a")], [call("read", 1, result="b")]) == [
        ("changed", "read")
    ]


def test_equal_calls_in_another_order_are_told_and_are_no_change() -> None:
    one, two = call("read", 1), call("read", 2)

    comparison = compare(Trajectory((one, two), ()), Trajectory((two, one), ()))

    assert comparison.same
    assert comparison.reordered
    assert "calls came in another order" in list(comparison_lines(comparison))


def test_as_many_calls_are_left_as_there_were_more() -> None:
    assert kinds([call("read", 1)] * 3, [call("read", 1)] * 2) == [("missing", "read")]


def test_prompts_are_compared_with_those_of_their_role() -> None:
    before = Trajectory((), (), (("system", "be brief"), ("user", "go")))
    after = Trajectory((), (), (("user", "stop"), ("system", "be brief"), ("user", "again")))

    changes = compare(before, after).prompts

    assert [(one.kind, one.what, one.after) for one in changes] == [
        ("changed", "user prompt", "stop"),
        ("added", "user prompt", "again"),
    ]


def test_prompts_that_are_not_known_are_not_compared() -> None:
    assert compare(Trajectory((), (), (("user", "go"),)), Trajectory((), ())).same


def test_a_comparison_reads_well(snapshot: SnapshotAssertion) -> None:
    before = Trajectory(
        (
            TrajectoryCall("files · read", {"path": "a"}, "one\ntwo\nthree"),
            TrajectoryCall("files · read", {"path": "b"}, "x"),
            TrajectoryCall("files · list", {}),
        ),
        ("It is fine",),
        (("system", "You are brief.\nYou are kind.\nYou are French."),),
        Totals(2, 3, Usage(input=100, output=20), 1.25),
    )
    after = Trajectory(
        (
            TrajectoryCall("files · read", {"path": "a"}, "one\n2\nthree"),
            TrajectoryCall("files · read", {"path": "c"}, "x"),
            TrajectoryCall("files · write", {"path": "c", "text": "hello"}),
        ),
        ("It is fine", "And more"),
        (("system", "You are brief.\nYou are stern.\nYou are French."),),
        Totals(3, 3, Usage(input=150), None),
    )

    assert "\n".join(comparison_lines(compare(before, after))) == snapshot


def test_hostile_texts_steer_no_terminal_and_stay_short() -> None:
    evil = "\x1b]0;own\x07\u202e\x9b2J\r" + "é" * 1_000_000
    before = Trajectory((TrajectoryCall(evil, evil, evil),), (evil,), ((evil, "a\n" * 50_000),))
    after = Trajectory(
        (TrajectoryCall(evil, evil + "!", evil + "!"),), (evil + "!",), ((evil, "b\n" * 50_000),)
    )

    lines: list[str] = []
    work = work_of(lambda: lines.extend(comparison_lines(compare(before, after))))
    text = "\n".join(lines)
    assert work.steps < 20_000
    assert work.text < 20 * len(evil)

    assert not {"\x1b", "\x07", "\u202e", "\x9b", "\r"} & set(text)


def test_of_a_long_line_the_place_of_the_change_is_shown() -> None:
    before, after = f"{'x' * 500_000}a{'y' * 9}", f"{'x' * 500_000}b{'y' * 9}"

    lines = line_changes(before, after)

    assert [line[0] for line in lines] == ["@", "-", "+"]
    assert [line[-10:] for line in lines[1:]] == ["ayyyyyyyyy", "byyyyyyyyy"]
    assert max(map(len, lines)) < 3_000


def test_a_long_line_is_cut_once_and_tells_how_much_is_left() -> None:
    old, new = line_changes("a" * 9_000, f"{'a' * 3_000}b{'a' * 6_000}")[1:]

    assert old == f"-…{'a' * 1_999}… (4201 more characters)"
    assert new == f"+…{'a' * 200}b{'a' * 1_798}… (4202 more characters)"


def test_lines_that_look_like_file_names_are_shown() -> None:
    assert line_changes("-- old", "++ new") == ("@@ line 1 @@", "--- old", "+++ new")


def test_the_line_is_counted_in_the_whole_text() -> None:
    before = [f"line {n}" for n in range(1, 101)]
    after = [*before[:49], "other", *before[50:]]

    lines = line_changes("\n".join(before), "\n".join(after))

    assert lines == (
        "@@ line 48 @@",
        " line 48",
        " line 49",
        "-line 50",
        "+other",
        " line 51",
        " line 52",
    )


@given(st.lists(st.text(max_size=5)), st.lists(st.text(max_size=5)))
def test_texts_differ_exactly_where_lines_are_shown(before: list[str], after: list[str]) -> None:
    old, new = "\n".join(before), "\n".join(after)

    assert bool(line_changes(old, new)) == (old != new)


def request(says: str, model: str = "small", **more: Any) -> RecordedModelRequest:
    tools = {name: {"function": {"name": name}} for name in more.pop("tools", ())}
    return RecordedModelRequest("http://a/v1", model, more, tools, [{"content": says}])


def settings(before: list[RecordedModelRequest], after: list[RecordedModelRequest]) -> Settings:
    found = compare(
        Trajectory((), (), requests=tuple(before)), Trajectory((), (), requests=tuple(after))
    ).settings
    assert found is not None
    return found


def test_models_are_compared_where_the_same_was_said() -> None:
    before = [request("one", "small"), request("two", "large")]
    swapped = settings(before, [request("two", "small"), request("one", "large")])

    assert settings(before, before[::-1]).models == ()
    assert {(one.before, one.after) for one in swapped.models} == {
        ("small", "large"),
        ("large", "small"),
    }
    assert {(one.requests, one.of) for one in swapped.models} == {(1, 2)}


def test_what_only_one_run_says_makes_no_model_of_another_request_look_changed() -> None:
    before = [request("one"), request("two", "large")]
    after = [request("one"), request("between"), request("two, again", "large")]

    assert settings(before, after).models == ()


def test_parameters_and_tools_are_added_missing_or_changed() -> None:
    found = settings(
        [request("one", temperature=0, seed=1, tools=["read", "write"])],
        [request("one", temperature=0.5, top_p=1, tools=["read", "list"])],
    )

    assert [(one.kind, one.name) for one in found.parameters] == [
        ("changed", "temperature"),
        ("missing", "seed"),
        ("added", "top_p"),
    ]
    assert [(one.kind, one.name) for one in found.tools] == [
        ("missing", "write"),
        ("added", "list"),
    ]


def test_what_changed_in_a_tool_is_shown_as_text_and_as_json() -> None:
    def tool(description: str, limit: int) -> RecordedModelRequest:
        function: JsonValue = {
            "name": "read",
            "description": description,
            "parameters": {"properties": {"limit": {"maximum": limit}}},
        }
        return replace(request("one"), tools={"read": {"type": "function", "function": function}})

    before, after = tool("Reads a file.", 10), tool("Reads one file.", 20)
    found = compare(
        Trajectory((), (), requests=(before, before)), Trajectory((), (), requests=(before, after))
    )

    assert not found.same
    lines = list(comparison_lines(found))
    assert lines[0] == "tool changed in 1 of 2 requests: read"
    assert [line for line in lines if line.startswith(("  - ", "  + "))] == [
        "  - Reads a file.",
        "  + Reads one file.",
        '  -         "maximum": 10',
        '  +         "maximum": 20',
    ]


def test_another_endpoint_is_told_and_makes_no_difference() -> None:
    moved = replace(request("one"), endpoint="http://b/v1")
    found = compare(
        Trajectory((), (), requests=(request("one"),)), Trajectory((), (), requests=(moved,))
    )

    assert found.same
    assert "endpoint        http://a/v1 → http://b/v1" in list(comparison_lines(found))
