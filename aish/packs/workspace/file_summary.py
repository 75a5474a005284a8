"""What is in a file, in a few lines (K25): the part of `file_summary` that depends on its language.

The file is parsed in the child process, by `content_summary`, or by the pack `c` where its parser
is installed; this module chooses.
"""

from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec

from aish.packs.parse_worker import LARGEST_SOURCE, ParseWorker

_MODULE = "aish.packs.workspace.content_summary"
_C = "aish.packs.c.c_symbols:summary"
_CALLS: Mapping[str, str] = {
    "python": f"{_MODULE}:python_summary",
    "toml": f"{_MODULE}:toml_summary",
    "yaml": f"{_MODULE}:yaml_summary",
    "json": f"{_MODULE}:json_summary",
    "jsonc": f"{_MODULE}:jsonc_summary",
    "markdown": f"{_MODULE}:markdown_summary",
}
_GRAMMARS = {"c": "either", "cpp": "cpp"}


async def summary_of(worker: ParseWorker, language: str, source: bytes) -> str:
    """The summary of a text in UTF-8, as lines; empty if there is none for its language.

    Python: imports, classes, functions, constants. TOML, YAML, JSON: keys of two levels. Markdown:
    headings. C and C++: types and functions, if their parser is installed. A text that does not
    parse, or is too long for it, has a summary that says so.

    Raises:
        PackError: parsing it took too much time or memory (`too_slow`).
    """
    if language not in _CALLS and not (language in _GRAMMARS and _has_c()):
        return ""
    if len(source) > LARGEST_SOURCE:
        return f"more than {LARGEST_SOURCE:,} bytes, which is too long to be parsed"
    if language in _GRAMMARS:
        found = await worker.run(_C, source, language=_GRAMMARS[language])
    else:
        found = await worker.run(_CALLS[language], source)
    return str(found)


@cache
def _has_c() -> bool:
    return all(find_spec(name) for name in ("tree_sitter", "tree_sitter_c", "tree_sitter_cpp"))
