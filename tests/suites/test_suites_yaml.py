"""Generated YAML, with another reader of YAML 1.2 as the judge: the npm package `yaml`.

A file has the meaning that the judge gives it, or is refused. What is refused here only, and what
is read here only, is named. `make test` reads a part of the files that `make suites` reads.
"""

import json
import os
import random
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from mcp_peers import MODULES, node

from aish.config.yaml_tree import parse_yaml, to_data
from aish.core.json import JsonValue

FILES = 20_000 if os.environ.get("AISH_TEST_ALL") == "1" else 1_500
KEYS = [
    *("a", "b-c", "?foo", "a b", '"q"', "'s'", "a?b", ":x", "-x", "a:b", "a#b", "k.1", "é"),
    *("a\u2028b", "a\tb", "? a", "@a", "`a", "&a b"),
]
VALUES = [
    *("x", "1", "true", "null", "~", "", "x y", "x\ty", "x # c", "x\t# c", "x#c", "x: y", "x:y"),
    *(
        "a::b",
        ":y",
        "?y",
        "-y",
        "- y",
        "--- y",
        "'s'",
        "'it''s'",
        '"d\\n"',
        '"a\\\tb"',
        "x ",
        "x\t",
    ),
    *('"a\tb"', "'a\tb'", '"x"#c', '"x"\t#c', "'x' y", "[a, b]", "[a,b]", "[a, b ]", "[a, ?b]"),
    *("[? a]", "[?]", "[a: b]", "[a:b]", '["a":b]', "[:a]", "[a,]", "[]", "[,]", "[a, , b]", "{a}"),
    *("{a: b}", "{a:b}", '{"a":b}', "{a, b: c}", "{?foo: bar}", "{? a : b}", "{?}", "{a: b, }"),
    *(
        "{}",
        "{a: ?b}",
        "{a: :b}",
        "{:a: b}",
        "{a::b}",
        "{a: -}",
        "[-]",
        "[- a]",
        "[-1]",
        "[a\t, b]",
    ),
    *("{a:\tb}", "[a]#c", "[#c\n  ]", "[a #c\n  , b]", "&n x", "!t x", "0o17", "0x1F", "1e3", "+1"),
    *("1_0", "012", ".5", "1.", "no", "x\u2028y", '"x\u2028 y"', "x\x85y", "a\u00a0b", "|", ">"),
    *("a\\b", "a%", "@x", "`x`", "x,y", "x]y", "[x}y]", "a'b", 'a"b', '"a" b', "'", '"', "{{x}}"),
    *(
        '["a" :b]',
        '{"a" :b}',
        "{[a]:b}",
        "[x, y]: z",
        "{a: b}: c",
        "{a: {b:c, 'd':e}}",
        "['a':, b]",
    ),
]
HEADS = [
    "|",
    ">",
    "|-",
    "|+",
    ">-",
    ">+",
    "|2",
    "|1",
    "|1-",
    ">2",
    "| # c",
    "|\t",
    "|#c",
    "| x",
    "|0",
]
LINES = ["x", "  x", "x  ", "", " ", "   ", "\t", "\tx", "x\ty", "# c", "- a", "a: b", "x\u2028y"]
WORDS = ["x", "y z", "", "\t", "# c", "x: y", "- q", "x # c"]
# Not decided alike by all readers: spaces alone below an indentation that is given.
UNDECIDED = re.compile(r"[|>][-+]?[1-9].*?\n +\r?(?:\n|\Z)", re.DOTALL)
LENIENT = {
    "BAD_INDENT": "a line with a tab below a block of text",
    "MISSING_CHAR": "the same, and a quoted text whose lines are indented too little",
    "TAB_AS_INDENT": "a tab before an anchor, and alone in a line",
}
STRICT = ("a tab", "unexpected content")


class Generator:
    """Writes files that are nearly YAML, the same ones each time."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def file(self) -> str:
        text = "\n".join([*self.collection(0), ""]) + self.chance.choice([*[""] * 8, "\n", "\t\n"])
        text = f"---\n{text}" if self.chance.random() < 0.05 else text
        return text.replace("\n", "\r\n") if self.chance.random() < 0.03 else text

    def collection(self, indent: int) -> list[str]:
        chance, rows = self.chance, []
        is_mapping = chance.random() < 0.7
        for _ in range(chance.randint(1, 3)):
            deeper = indent + chance.choice([1, 2, 2, 2, 4] if is_mapping else [2])
            first, others = self.value(deeper)
            if is_mapping:
                key = chance.choice(KEYS) if chance.random() < 0.35 else chance.choice("abcdefgh")
                mark = key + chance.choice([*[":"] * 12, " :", "\t:", ":\t"])
            else:
                mark = chance.choice([*["-"] * 10, "-\t"])
            rows += [" " * indent + mark + first, *others]
            if chance.random() < 0.1:
                rows.append(chance.choice(["", "  ", "\t", "# c", "  # c", "\t# c"]))
        return rows

    def value(self, indent: int) -> tuple[str, list[str]]:
        chance = self.chance
        kind = chance.random()
        if kind < 0.55:
            return f" {chance.choice(VALUES)}", []
        if kind < 0.8:
            lines = chance.choices(LINES, k=chance.randint(0, 5))
            pads = [indent, indent, indent, indent, chance.choice([0, 1, indent + 1, indent + 3])]
            return f" {chance.choice(HEADS)}", [" " * chance.choice(pads) + line for line in lines]
        if kind < 0.9:
            quote = chance.choice(["", "", '"', "'"])
            words = chance.choices(WORDS, k=chance.randint(1, 3))
            words[-1] += quote
            blank = " " * (indent if chance.random() < 0.9 else 0) + chance.choice(["", "", "\t"])
            return f" {quote}x", [blank + word for word in words]
        return "", self.collection(indent)


def read_by_judge(texts: list[str]) -> list[dict[str, Any]]:
    package = MODULES / "yaml"
    if not package.exists():
        pytest.skip("the npm package yaml is missing; `make node` brings it")
    script = Path(__file__).parents[1] / "support" / "yaml_values.mjs"
    done = subprocess.run(
        [node(), str(script), str(package)],
        input=json.dumps(texts),
        capture_output=True,
        check=True,
        text=True,
    )
    return list(json.loads(done.stdout))


def told(value: JsonValue) -> str:
    """A value as text; to the judge 1 and 1.0 are one number."""
    return json.dumps(json.loads(json.dumps(value), parse_int=float), sort_keys=True)


def test_generated_files_mean_what_they_mean_to_another_reader() -> None:
    """Tabs, `?` in braces, blocks that begin with empty lines (issue 27, C)."""
    generator = Generator(27)
    texts = [generator.file() for _ in range(FILES)]
    count: Counter[str] = Counter()
    wrong = []
    for text, said in zip(texts, read_by_judge(texts), strict=True):
        read = parse_yaml(text, "f")
        if read.problems:
            message = read.problems[0].message
            is_known = "error" in said or message.startswith(STRICT)
            count["both refuse" if "error" in said else "refused here only"] += 1
        elif "error" in said:
            is_known = said["error"] in LENIENT
            count["read here only"] += 1
        else:
            value = None if read.root is None else to_data(read.root)
            is_known = UNDECIDED.search(text) is not None or told(value) == told(said["value"])
            count["both read"] += 1
        if not is_known:
            wrong.append((text, said, read.problems or read.root))
    assert wrong == []
    # Most files are of use: they are read by both.
    assert count["both read"] > FILES / 4, count
