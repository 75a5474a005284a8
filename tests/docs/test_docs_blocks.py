"""Every block of the documentation is tried as a reader would (conventions: CONTRIBUTING.md)."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from docs_pages import PAGES, ROOT, Reader, blocks
from fork_server import ForkServer


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_shows_is_true(
    page: Path, tmp_path: Path, empty_home: Path, warm: ForkServer | None
) -> None:
    with ExitStack() as stack:
        reader = Reader(tmp_path, empty_home, stack, warm)
        for block in blocks(page):
            reader.follow(block)
    if reader.left_out:
        pytest.skip("; ".join(reader.left_out))
