"""Makes the pictures of the docs, and says which are older than the code of what they show.

    python tests/support/pictures.py [NAME…]    # make them, or these
    python tests/support/pictures.py --check

`docs/pictures/made.json` has, for each picture, a digest of the files that it depends on.
"""

import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "pictures"
MEASURED = frozenset({PICTURES / "long-runs.svg"})
"""Drawn by a measurement of hours (`compat/long_runs.py`), and never renewed by itself."""
MADE = PICTURES / "made.json"
LARGEST = 150 * 1024
SCENES = "tests/support/picture_*.py"
REPORT = (
    "aish/reports/html/*",
    *(f"aish/reports/{name}.py" for name in ("distribution", "figures", "markup", "outcome")),
)
PAGE = ("aish/features/control/page/*",)
RUN = tuple(
    f"aish/output/{name}.py" for name in ("formats/text", "presenter", "screen", "status", "style")
)
QUESTION = (*RUN, "aish/terminal/approver.py")


@dataclass(frozen=True)
class Shot:
    """A part of a page: as wide as the window, from the top of an element on."""

    width: int
    height: int
    top: str = "body"
    scale: float = 1.5


@dataclass(frozen=True)
class Picture:
    """A file, the files whose change makes it old, and how it is made."""

    name: str
    depends: tuple[str, ...]
    make: Callable[[Path, Path], None]

    @property
    def digest(self) -> str:
        """Of the files that it depends on, without their comments and empty lines."""
        found = sorted({path for glob in (*self.depends, SCENES) for path in ROOT.glob(glob)})
        texts = (f"{path.relative_to(ROOT)}\n{_code(path)}" for path in found if path.is_file())
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()

    @property
    def file(self) -> Path:
        return PICTURES / self.name


def _code(path: Path) -> str:
    lines = (line.rstrip() for line in path.read_text("utf-8").splitlines())
    return "\n".join(line for line in lines if line and not re.match(r" *(#|//)", line))


# --- Pages -----------------------------------------------------------------------------------


def report_of(scene: str, shot: Shot) -> Callable[[Path, Path], None]:
    """The picture of a page that is a file."""

    def make(folder: Path, target: Path) -> None:
        import picture_scenes

        page: Path = getattr(picture_scenes, scene)(folder)
        with tab(shot) as opened:
            opened.goto(page.as_uri())
            opened.locator(shot.top).evaluate("(one) => scrollTo(0, one.getBoundingClientRect().y)")
            keep(opened, shot, target)

    return make


def approval_of(shot: Shot, question: int) -> Callable[[Path, Path], None]:
    """The picture of the page of a run, with this question in view."""

    def make(folder: Path, target: Path) -> None:
        import picture_scenes
        from browser_pages import Tab

        with picture_scenes.release_stage(folder) as (_, link), tab(shot) as opened:
            # The clock runs between these calls, and cannot be paused at a time that has passed.
            opened.clock.install(time=picture_scenes.MORNING)
            opened.clock.pause_at(picture_scenes.MORNING + 20)
            opened.goto(link)
            seen = Tab(opened)
            for _ in range(question):
                opened.locator("#next").click()
            seen.seen(question)
            opened.clock.run_for(600)
            seen.until_enabled("Approve", question)
            keep(opened, shot, target)

    return make


@contextmanager
def tab(shot: Shot) -> Generator[Any]:
    """A page in light colours, without animations."""
    from browser_pages import open_browser

    with open_browser() as browser:
        context = browser.new_context(
            viewport={"width": shot.width, "height": shot.height},
            device_scale_factor=shot.scale,
            color_scheme="light",
            reduced_motion="reduce",
            timezone_id="UTC",
            locale="en-GB",
        )
        yield context.new_page()


def keep(page: Any, shot: Shot, target: Path) -> None:
    """A picture of at most 256 colours, which text and flat areas do not miss."""
    from PIL import Image

    whole = page.screenshot()
    image = Image.open(BytesIO(whole)).convert("RGB")
    image.quantize(256, dither=Image.Dither.NONE).save(target, optimize=True)


# --- Terminals -------------------------------------------------------------------------------

SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {terminal_height}">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: 19px;
}}
{styles}
</style>
<defs>{lines}</defs>
<rect width="{width}" height="{terminal_height}" rx="8" fill="#fff"/>
<g transform="translate(9, 9)">{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""
COLUMNS = 80
# Red, green and yellow that can be read on white; the others are not used.
INK, PAPER = (31, 35, 40), (255, 255, 255)
COLOURS = [INK, (176, 36, 24), (26, 127, 55), (138, 90, 0), *[INK] * 4]


def screen_of(scene: str) -> Callable[[Path, Path], None]:
    """The picture of a terminal."""

    def make(folder: Path, target: Path) -> None:
        import picture_scenes
        from rich.console import Console
        from rich.terminal_theme import TerminalTheme
        from rich.text import Text

        shown: str = getattr(picture_scenes, scene)(folder)
        theme = TerminalTheme(PAPER, INK, COLOURS)
        console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
        console.print(Text.from_ansi(shown), soft_wrap=True)
        console.print(" ")  # the margin at the bottom
        text = console.export_svg(theme=theme, code_format=SVG, unique_id="t")
        target.write_text(text, "utf-8")

    return make


# --- All of them -----------------------------------------------------------------------------

ALL = (
    Picture("run.png", REPORT, report_of("review_report", Shot(1000, 892))),
    Picture("batch.png", REPORT, report_of("batch_report", Shot(1000, 930, top="details.step"))),
    Picture("live.png", REPORT, report_of("live_page", Shot(1000, 1060))),
    Picture("approval.png", PAGE, approval_of(Shot(1000, 900), 0)),
    Picture("phone.png", PAGE, approval_of(Shot(390, 760, scale=2), 1)),
    Picture("terminal.svg", RUN, screen_of("review_screen")),
    Picture("question.svg", QUESTION, screen_of("question_screen")),
)


def read_made() -> Mapping[str, str]:
    """The digest of each picture when it was made."""
    found: Mapping[str, str] = json.loads(MADE.read_text("utf-8")) if MADE.exists() else {}
    return found


def problems() -> list[str]:
    """A line for each picture that is missing, too large, or older than what it shows."""
    made, found = read_made(), []
    for picture in ALL:
        if not picture.file.exists():
            found.append(f"{picture.name} is missing")
        elif picture.file.stat().st_size > LARGEST:
            found.append(f"{picture.name} is larger than 150 KB")
        elif made.get(picture.name) != picture.digest:
            found.append(f"{picture.name} is older than the code that it shows")
    return found


def make(wanted: Iterable[str]) -> None:
    chosen = set(wanted) or {picture.name for picture in ALL}
    PICTURES.mkdir(exist_ok=True)
    for picture in ALL:
        if picture.name in chosen:
            with tempfile.TemporaryDirectory() as folder:
                picture.make(Path(folder), picture.file)
            made = {**read_made(), picture.name: picture.digest}
            kept = {one.name: made[one.name] for one in ALL if one.name in made}
            MADE.write_text(json.dumps(kept, indent=2) + "\n", "utf-8")
            print(f"{picture.name}: {picture.file.stat().st_size:,} bytes", flush=True)


def main() -> None:
    if sys.argv[1:] != ["--check"]:
        make(sys.argv[1:])
    if found := problems():
        sys.exit("\n".join([*found, "`make pictures` makes them again"]))


if __name__ == "__main__":
    main()
