"""All packs, and the aliases of built-in tools (K1, K2).

A new pack is one module and one line here. A module is loaded when a server names its pack.
"""

from collections.abc import Mapping

PACKS: Mapping[str, str] = {
    "fs": "aish.packs.fs",
    "edit": "aish.packs.edit",
    "git": "aish.packs.git",
    "shell": "aish.packs.shell",
}

NEEDS: Mapping[str, tuple[str, str]] = {"git": ("pygit2", "git")}
"""The library that a pack needs and that is not always installed, and the extra that has it."""

DESTRUCTIVE: Mapping[str, tuple[str, ...]] = {
    "fs": ("file_write", "file_delete", "file_rename"),
    "edit": ("file_edit", "file_set_lines"),
    "git": (),
    "shell": ("shell_run",),
}
"""The tools that call themselves destructive (P5): rules are checked without loading a pack."""

OLDER_NAMES: Mapping[str, str] = {
    "read_file": "file_read",
    "read_text_file": "file_read",
    "list_directory": "dir_list",
    "directory_tree": "dir_tree",
    "search_files": "file_search",
    "get_file_info": "file_summary",
    "write_file": "file_write",
    "create_directory": "dir_create",
    "execute_command": "shell_run",
    "run_command": "shell_run",
}
"""Names that users of other servers know: they can be called and are not listed."""
