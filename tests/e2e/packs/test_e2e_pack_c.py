"""The packs `c` and `lang` from a pipeline file: options, rules, recording and replay."""

from pathlib import Path

import pytest
from e2e_project import Project, without_source

SOURCES = Path(__file__).parents[2] / "data" / "c_sources"
PIPELINE = """
mcp:
  servers:
    code: {pack: [c, lang], root: src, options: {c: {macros: [slots, "signals:", OLD()]}}}
  auto_approve: ["code__c_get_*", code__lang_detect, code__c_update_definition]
steps:
  - {id: outline, call: code__c_get_code_outline, with: {path: qt_widget.h}}
  - {id: skeleton, call: code__ts_cpp_get_skeleton, with: {path: templates.hpp}}
  - {id: signature, call: code__c_get_signature, with: {path: old_style.c, name: copy}}
  - {id: twins, call: code__c_get_definition, with: {path: twins.c, name: open_port}}
  - {id: language, call: code__lang_detect, with: {path: qt_widget.h}}
  - id: update
    needs: [twins]
    call: code__ts_c_update_definition
    with: {path: twins.c, name: main, new_content: "int main(void) { return 0; }"}
"""


@pytest.mark.requirement("K40")
def test_code_is_read_and_changed_by_name_and_replayed_without_it(project: Project) -> None:
    pytest.importorskip("tree_sitter_c", reason="the extra `c` is not installed")
    for path in SOURCES.iterdir():
        project.write(f"src/{path.name}", path.read_bytes())
    project.pipeline(PIPELINE)

    found = project.result("--record", "p.cassette.yaml")

    assert found["exit"]["code"] == 0
    outputs = {name: step["output"] for name, step in found["steps"].items()}
    names = [item["name"] for item in outputs["outline"]["items"]]
    assert names[-2:] == ["ui::Panel::refresh", "ui::Panel::refreshed"]
    assert outputs["outline"]["broken"] == []
    assert "bool push(U &&value)\n    { /* ... */ }" in outputs["skeleton"]["skeleton"]
    (signature,) = outputs["signature"]["signatures"]
    assert signature["signature"].startswith("char *copy(from, size)\n")
    assert [row["start_line"] for row in outputs["twins"]["definitions"]] == [4, 9]
    assert outputs["language"]["by"] == "extension"
    changed = (project.folder / "src" / "twins.c").read_text()
    assert changed.endswith("\n\nint main(void) { return 0; }\n")

    for path in (project.folder / "src").iterdir():
        path.unlink()
    again = project.result("--replay", "p.cassette.yaml")
    assert {name: step["output"] for name, step in again["steps"].items()} == outputs


def test_a_macro_that_is_none_is_an_error(project: Project) -> None:
    project.pipeline(PIPELINE.replace("OLD()", '"a b"'))

    done = project.aish("validate", "p.yaml")

    assert done.code == 2
    assert "`a b` is not a macro such as `SLOTS`, `DEPRECATED()` or `signals:`" in (
        without_source(done.stderr)
    )
