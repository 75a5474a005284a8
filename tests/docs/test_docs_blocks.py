"""Every block of the documentation is tried as a reader would (conventions: CONTRIBUTING.md)."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from docs_pages import PAGES, ROOT, Reader, blocks
from fork_server import ForkServer

SLOW_PAGES = {
    "docs/start/first-pipeline.md": "the embedded model writes for 10 s",
    "docs/jobs/continuous-integration.md": "its commands take 3 s",
    "docs/reference/control-api.md": "its commands take 4 s",
    "docs/jobs/from-python.md": "its programs take 5 s",
    "docs/jobs/from-shell-to-ci.md": "its commands take 2 s",
    "docs/jobs/interactive-shell.md": "its sessions take 3 s",
    "docs/jobs/mcp-servers.md": "its commands take 2 s",
    "docs/jobs/migrating.md": "its commands take 2 s",
    "docs/jobs/running-on-a-cluster.md": "its workers take 2 s",
    "docs/reference/serving.md": "its commands take 2 s",
    "docs/reference/tool-packs.md": "its commands take 4 s",
}


def cases() -> Iterator[Any]:
    """Each page by its path."""
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        reason = SLOW_PAGES.get(name)
        yield pytest.param(
            page, id=name, marks=[] if reason is None else pytest.mark.slow(reason=reason)
        )


@pytest.mark.parametrize("page", list(cases()))
def test_what_a_page_shows_is_true(
    page: Path, tmp_path: Path, empty_home: Path, warm: ForkServer | None
) -> None:
    with ExitStack() as stack:
        reader = Reader(tmp_path, empty_home, stack, warm)
        for block in blocks(page):
            reader.follow(block)
    if reader.left_out:
        pytest.skip("; ".join(reader.left_out))
