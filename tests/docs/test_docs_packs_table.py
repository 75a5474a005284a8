"""The table of packs in the guide: each pack, and what has to be installed for it."""

import re

from docs_pages import ROOT

from aish.packs.catalogue import PACKS

_ROW = re.compile(r"\| `([a-z]+)` \| [^|]+ \| ([^|]*)\|")


def test_the_guide_lists_each_pack_and_its_extra() -> None:
    page = (ROOT / "docs" / "reference" / "tool-packs.md").read_text("utf-8")
    needs = dict(_ROW.findall(page[: page.index("```sh")]))

    assert set(needs) == set(PACKS)
    for name, entry in PACKS.items():
        told = re.findall(r"extra `([a-z]+)`", needs[name])
        assert told == ([entry.extra] if entry.extra else []), name
