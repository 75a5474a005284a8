"""Counts participles as function names, question words in docstrings, and classes of one name.

    python tests/support/name_check.py

Functions begin with a verb, or are the noun that they return; a participle before a noun
(`hidden_folder`) is part of one. A docstring or comment that has a name in backticks names what is
there, and no requirement by its number. A class that other modules may use has a name of its own.
Fails with each place where there are more than the bounds
below.
"""

import ast
import keyword
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_PARTICIPLES = 60
MOST_QUESTIONS = 0
# Each wire has its own, and is chosen by its module.
SHARED_CLASSES = frozenset({"Encoder", "Transcript"})
# Nouns that end as participles do, and the decorator beside `frozen`.
NOUNS = re.compile(
    r"binding|docstring|during|embed|feed|heading|mapping|meaning|need|opening|pricing"
    r"|recording|ring|ruling|sampling|slotted|spelling|string"
)
IRREGULAR = re.compile(
    r"begun|bound|broken|brought|built|caught|chosen|drawn|forgotten|found|given|gone|heard"
    r"|held|hidden|kept|known|left|lent|lost|made|meant|met|paid|said|seen|sent|shown|sought"
    r"|spent|spoken|stuck|taken|thought|told|thrown|understood|withdrawn|won|worn|written"
)
AFTER = re.compile(r"after|as|at|before|by|for|from|in|into|of|on|or|out|over|to|with|within")
QUESTION = re.compile(r"(?:Whether|What|One|How|Where|Those|Of|Whose?|When|That)\b")

# What is between backticks: a class (`CamelCase`), or a name of several words.
BACKTICKED = re.compile(r"`([^`\n]+)`")
NAME = re.compile(r"(?<![\w.-])(?:[a-z_]+\.)*([A-Z][a-z]+(?:[A-Z][a-z]*)+|_?[a-z]+(?:_[a-z]+)+)\b")
# Names of other programs, and examples.
FOREIGN = frozenset(
    """
    CallToolResult CreateMessageRequest CreateMessageResult ElicitResult InitVar RateLimit TestCase
    files_read fork_exec in_terminal inet_diag_msg inet_diag_req_v2 mcp__files__read open_how
    sun_path
    """.split()  # ruff: ignore[split-static-string] - a list of words is read as words
)
REQUIREMENT = re.compile(r"\((?:(?:design|quirks?) \d|[A-HK-PTX]\d{1,2}\b)[^()]*\)")


def is_participle(name: str) -> bool:
    """Tell whether a name is a participle alone, or with an adverb or a preposition."""
    first, *rest = name.strip("_").split("_")
    is_one = IRREGULAR.fullmatch(first) or (
        first.endswith(("ed", "ing")) and not NOUNS.fullmatch(first)
    )
    return bool(is_one) and (not rest or AFTER.fullmatch(rest[0]) is not None)


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions of a module that are no properties."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            marks = {ast.unparse(one).rpartition(".")[2] for one in node.decorator_list}
            if not marks & {"property", "cached_property", "override"}:
                yield node


def questions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and first words of each docstring that begins with a question word."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node) or ""
            if QUESTION.match(text):
                yield getattr(node, "lineno", 1), text[:40]


def classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    """The classes of a module that others may use."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node


def split_prose(source: str, tree: ast.Module) -> tuple[dict[int, str], str]:
    """The docstrings and comments of a module by their lines, and its text without them."""
    lines = source.splitlines()
    texts: dict[int, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            texts[node.lineno] = str(node.value.value)
            lines[node.lineno - 1 : node.end_lineno] = [""] * (
                (node.end_lineno or node.lineno) - node.lineno + 1
            )
    for number, line in enumerate(lines, start=1):
        code, mark, comment = line.partition("# ")
        if mark:
            lines[number - 1], texts[number] = code, comment
    return texts, "\n".join(lines)


def stale_names(text: str, words: set[str]) -> Iterator[str]:
    """Names in backticks that stand nowhere in the code, and numbers of requirements."""
    for quoted in BACKTICKED.findall(text):
        yield from (name for name in NAME.findall(quoted) if name not in words)
    yield from REQUIREMENT.findall(text)


def main() -> int:
    """Print what is over a bound; the exit code is 1 then."""
    participles: list[str] = []
    asked: list[str] = []
    defined: dict[str, list[str]] = {}
    texts: dict[str, str] = {}
    words = {*FOREIGN, *keyword.kwlist, *sys.stdlib_module_names}
    for path in ROOT.joinpath("schemas").glob("*.json"):
        words |= set(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    for path in sorted((ROOT / "aish").rglob("*.py")):
        source, place = path.read_text(encoding="utf-8"), path.relative_to(ROOT)
        tree = ast.parse(source)
        names = ((one.lineno, one.name) for one in functions(tree) if is_participle(one.name))
        participles += (f"{place}:{line}: function `{name}`" for line, name in names)
        asked += (f"{place}:{line}: docstring `{begin}`" for line, begin in questions(tree))
        for one in classes(tree):
            defined.setdefault(one.name, []).append(f"{place}:{one.lineno}: class `{one.name}`")
        own, code = split_prose(source, tree)
        texts |= {f"{place}:{line}": text for line, text in own.items()}
        words |= {*place.with_suffix("").parts, *re.findall(r"\w+", code)}
    stale = [
        f"{place}: `{name}` names nothing (if it is of another program, add it to FOREIGN)"
        for place, text in texts.items()
        for name in stale_names(text, words)
    ]
    same = [
        place
        for name, places in defined.items()
        if len(places) > 1 and name not in SHARED_CLASSES
        for place in places
    ]
    print(
        f"{len(participles)} functions named by a participle, {len(asked)} docstrings to reword, "
        f"{len(stale)} names of nothing, {len(same)} classes whose name another one has"
    )
    if len(participles) > MOST_PARTICIPLES or len(asked) > MOST_QUESTIONS or stale or same:
        print("\n".join((*participles, *asked, *stale, *same)), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
