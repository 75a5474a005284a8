"""Which server has a URI."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from work import work_of

from aish.engine.plan.uris import is_uri, matches

NAMES = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("template", "uri", "fits"),
    [
        ("docs://page/{number}", "docs://page/7", True),
        ("docs://page/{number}", "docs://page/", False),
        ("docs://page/{number}", "docs://page/7/8", False),
        ("docs://page/{number}", "docs://pages/7", False),
        ("docs://{book}/{page}.md", "docs://a/b.md.md", True),
        ("docs://{book}/{page}.md", "docs://a/b/c.md", False),
        ("docs://{book}/{page}.md", "docs://a/.md", False),
        ("{a}x{b}y", "1x/2x3y", False),
        ("{a}{b}", "one", True),
        ("{a}-{b}", "-x", False),
        ("{a}-{b}", "--x", True),
        ("file:///{+path}", "file:///a/b/c", True),
        ("file:///{path*}", "file:///a/b", True),
        ("docs://plain", "docs://plain", True),
        ("docs://plain", "docs://plain/", False),
        ("docs://{never", "docs://{never", True),
        ("docs://{never", "docs://x", False),
        ("", "", True),
        ("", "docs://x", False),
    ],
)
def test_a_uri_is_told_from_those_that_a_template_cannot_give(
    template: str, uri: str, *, fits: bool
) -> None:
    assert matches(template, uri) is fits


@given(st.lists(NAMES, min_size=1, max_size=5), st.sampled_from(["/", "-", "://", ".md?"]))
def test_what_a_template_gives_fits_it(values: list[str], between: str) -> None:
    template = between.join(f"{{v{index}}}" for index in range(len(values)))
    assert matches(f"docs://{template}", f"docs://{between.join(values)}")
    assert matches(f"docs://{template}.md", f"docs://{between.join(values)}.md")


@given(st.text("{}/ab*+", max_size=20), st.text("/ab{}", max_size=20))
def test_any_template_and_any_uri_can_be_compared(template: str, uri: str) -> None:
    assert matches(template, uri) in {True, False}


def test_a_hostile_template_takes_no_time() -> None:
    def ask() -> None:
        assert not matches("{a}" * 5000 + "a{b}" * 5000 + "!", "a" * 20000)
        assert not matches("{a}a" * 3000 + "{b}/", "a" * 6000 + "b")

    work_of(ask, most=1_000_000)


@pytest.mark.parametrize(
    ("ref", "uri"),
    [
        ("docs://a", True),
        ("urn:x", True),
        ("demo+v1.x:y", True),
        ("notes.md", False),
        ("a/b:c", False),
        ("C:\\notes.md", False),
        (":x", False),
        ("", False),
    ],
)
def test_a_scheme_makes_a_uri_of_it(ref: str, *, uri: bool) -> None:
    assert is_uri(ref) is uri
