"""JUnit XML that every reader takes, whatever the texts in it are."""

from xml.etree import ElementTree as ET  # ruff: ignore[suspicious-xml-etree-import] - reads what we wrote

from hypothesis import given
from hypothesis import strategies as st

from aish.output.formats.junit import CaseResult, CaseSuite, Trouble, junit_xml

HOSTILE = "]]><evil a='1' b=\"2\">&amp;\x00\x1b[31m\x85\ufffe\ud800\u202e é 🦀"


def parsed(*suites: CaseSuite) -> ET.Element:
    return ET.fromstring(junit_xml("aish test", suites))  # ruff: ignore[suspicious-xml-element-tree-usage] - the same


def failing(text: str) -> CaseResult:
    return CaseResult("b", "f.yaml", 0.25, "f.yaml", (Trouble("failure", "x", text, text),))


def test_suites_count_what_happened_in_them() -> None:
    good = CaseResult("a", "f.yaml", 1.5)
    error = CaseResult("c", "f.yaml", 0.0, troubles=(Trouble("error", "usage", "m"),))
    skipped = CaseResult("d", "g.yaml", 0.0, troubles=(Trouble("skipped", "denied", "m"),))

    root = parsed(
        CaseSuite("f.yaml", (good, failing("no"), error)), CaseSuite("g.yaml", (skipped,))
    )

    totals = {"name": "aish test", "tests": "4", "failures": "1", "errors": "1", "skipped": "1"}
    assert root.attrib == {**totals, "time": "1.750"}
    first, second = root
    assert (first.get("tests"), first.get("failures"), first.get("errors")) == ("3", "1", "1")
    assert (second.get("name"), second.get("skipped")) == ("g.yaml", "1")
    case = first[1]
    assert case.attrib == {
        "classname": "f.yaml",
        "name": "b",
        "file": "f.yaml",
        "time": "0.250",
    }
    assert [child.tag for child in case] == ["failure"]
    assert case[0].attrib == {"message": "no", "type": "x"}


def test_hostile_text_is_text() -> None:
    case = failing(HOSTILE)
    root = parsed(CaseSuite(HOSTILE, (CaseResult(HOSTILE, HOSTILE, 0.0), case)))

    assert [element.tag for element in root.iter()] == [
        "testsuites",
        "testsuite",
        "testcase",
        "testcase",
        "failure",
    ]
    shown = root[0][1][0].text or ""
    assert "]]><evil a='1' b=\"2\">&amp;\\x00\\x1b[31m\\x85" in shown
    assert root[0].get("name") == shown


def test_lines_survive_in_attributes() -> None:
    root = parsed(CaseSuite("f", (failing("one\ntwo\tthree"),)))

    assert root[0][0][0].get("message") == "one\ntwo\tthree"


def test_an_endless_message_is_cut() -> None:
    assert len(junit_xml("x", [CaseSuite("f", (failing("<" * 5_000_000),))])) < 1_000_000


@given(st.text())
def test_any_text_makes_a_file_that_can_be_read(text: str) -> None:
    root = parsed(CaseSuite(text, (CaseResult(text, text, 0.0), failing(text))))

    assert len(list(root.iter("testcase"))) == 2
