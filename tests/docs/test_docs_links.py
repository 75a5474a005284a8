"""Links between pages lead somewhere, and the reference pages are up to date."""

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

from docs_pages import GENERATED, PAGES, ROOT
from samples import each_case

ALL_PAGES = (*dict.fromkeys((*PAGES, ROOT / "CHANGELOG.md", *GENERATED)),)
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)


@each_case("page", ALL_PAGES)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    text = _without_code(page.read_text("utf-8"))
    broken = [
        target
        for target in (unquote(found["target"]) for found in _LINK.finditer(text))
        if not target.startswith(("https://", "http://", "mailto:")) and not _is_there(page, target)
    ]

    assert broken == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page.is_dir():
            waiting += page.glob("*.md")
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        text = _without_code(page.read_text("utf-8"))
        targets = (found["target"].partition("#")[0] for found in _LINK.finditer(text))
        waiting += [(page.parent / t).resolve() for t in targets if t and "://" not in t]

    assert set((ROOT / "docs").rglob("*.md")) - seen == set()


def test_the_reference_pages_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_every_decision_that_is_cited_by_its_number_is_there_once() -> None:
    numbers = [path.name[:4] for path in sorted((ROOT / "docs" / "decisions").glob("*.md"))]
    listed = subprocess.run(
        ["git", "grep", "-hoE", r"decisions/[0-9]{4}", "--", "*.py", "*.md", "*.toml", "Makefile"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    cited = {line.removeprefix("decisions/") for line in listed.stdout.splitlines()}

    assert numbers == [f"{number:04}" for number in range(1, len(numbers) + 1)]
    assert cited
    assert cited <= set(numbers)


def _without_code(text: str) -> str:
    return _CODE.sub("", text)


def _is_there(page: Path, target: str) -> bool:
    name, _, anchor = target.partition("#")
    path = (page.parent / name).resolve() if name else page
    if not path.exists():
        return False
    return not anchor or anchor in _anchors(path.read_text("utf-8"))


def _anchors(text: str) -> set[str]:
    """What GitHub makes of the headings."""
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
