"""The steps of a plan as a graph: a tree for a terminal, and Mermaid (F3)."""

from collections.abc import Iterator, Mapping, Sequence

from aish.core.json import JsonObject, JsonValue
from aish.core.phrases import shorten
from aish.core.text import for_line

_BRANCH, _LAST, _DOWN, _NOTHING = "├─▶ ", "└─▶ ", "│   ", "    "
# What Mermaid would read as its own inside quotes.
_MERMAID = str.maketrans({'"': "#quot;", "<": "#lt;", ">": "#gt;", "#": "#35;", "\n": " "})
_LONGEST = 60


def graph_lines(steps: Sequence[JsonObject]) -> Iterator[str]:
    """A tree: each step stands below the last of what it needs, and names the others."""
    parents = _parents(steps)
    beside = _beside(steps, parents)
    children: dict[str | None, list[JsonObject]] = {}
    for step in steps:
        children.setdefault(parents[str(step["id"])], []).append(step)
    for root in children.get(None, ()):
        yield _label(root)
        yield from _below(str(root["id"]), children, beside, "")


def mermaid_lines(view: JsonObject) -> Iterator[str]:
    """A flowchart that GitHub and others draw."""
    yield "flowchart TD"
    yield from _mermaid(_tables(view["steps"]), "", "  ")


def _parents(steps: Sequence[JsonObject]) -> dict[str, str | None]:
    """The need of each step that is reached last."""
    depth: dict[str, int] = {}
    parents: dict[str, str | None] = {}
    for step in steps:
        needs = [str(need) for need in _list(step["needs"])]
        deepest = max(needs, key=lambda need: depth[need], default=None)
        parents[str(step["id"])] = deepest
        depth[str(step["id"])] = 0 if deepest is None else depth[deepest] + 1
    return parents


def _beside(steps: Sequence[JsonObject], parents: Mapping[str, str | None]) -> dict[str, list[str]]:
    """What else each step waits for, without what another of its needs waits for anyway."""
    needs = {str(step["id"]): [str(need) for need in _list(step["needs"])] for step in steps}
    before: dict[str, set[str]] = {}
    for id, own in needs.items():
        before[id] = {*own, *(one for need in own for one in before[need])}
    return {
        id: [
            need
            for need in own
            if need != parents[id] and not any(need in before[other] for other in own)
        ]
        for id, own in needs.items()
    }


def _below(
    id: str,
    children: Mapping[str | None, list[JsonObject]],
    beside: Mapping[str, Sequence[str]],
    indent: str,
) -> Iterator[str]:
    own = children.get(id, [])
    for step in own:
        last = step is own[-1]
        name = str(step["id"])
        also = f"  (and after {', '.join(beside[name])})" if beside[name] else ""
        yield f"{indent}{_LAST if last else _BRANCH}{_label(step)}{also}"
        yield from _below(name, children, beside, indent + (_NOTHING if last else _DOWN))


def _label(step: JsonObject) -> str:
    marks = [str(step["id"])]
    foreach = step.get("foreach")
    if isinstance(foreach, Mapping):
        marks.append(f"for each of {_count(foreach)}")
    if step.get("when") is not None:
        marks.append(f"if {for_line(shorten(str(step['when']), _LONGEST))}")
    return "  ".join(marks)


def _count(foreach: JsonObject) -> str:
    return "items" if foreach["count"] is None else f"{foreach['count']:,} items"


def _mermaid(steps: Sequence[JsonObject], prefix: str, indent: str) -> Iterator[str]:
    for step in steps:
        node = f"{prefix}{step['id']}"
        words = [str(step["id"]), str(step["kind"])]
        foreach = step.get("foreach")
        if isinstance(foreach, Mapping):
            words.append(f"for each of {_count(foreach)}")
        if step.get("when") is not None:
            words.append(f"if {shorten(str(step['when']), _LONGEST)}")
        text = "<br/>".join(for_line(word).translate(_MERMAID) for word in words)
        inner = _tables(step.get("steps"))
        if inner:
            yield f'{indent}subgraph s_{node}["{text}"]'
            yield from _mermaid(inner, f"{node}_in_", f"{indent}  ")
            yield f"{indent}end"
        else:
            yield f'{indent}s_{node}["{text}"]'
    for step in steps:
        for need in _list(step["needs"]):
            yield f"{indent}s_{prefix}{need} --> s_{prefix}{step['id']}"


def _list(value: JsonValue) -> Sequence[JsonValue]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def _tables(value: JsonValue) -> list[JsonObject]:
    return [row for row in _list(value) if isinstance(row, Mapping)]
