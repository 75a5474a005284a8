"""A summary of a file, in a few lines: the part of `file_summary` that depends on languages.

The file is parsed in the child process, by `content_summary`, or by the pack `c` where its parser
is installed; this module chooses.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from aish.packs.catalogue import PACKS
from aish.packs.installed_libraries import is_installed
from aish.packs.pack_error import PackError
from aish.packs.parse_worker import LARGEST_SOURCE, ParseWorker
from aish.packs.workspace.file_text import decode_text

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


async def summary_of(
    worker: ParseWorker, path: str, language: str, content: bytes | None, macros: Sequence[str] = ()
) -> str:
    """The summary of a file as lines; empty if there is none for its language.

    Python: imports, classes, functions, constants. TOML, YAML, JSON: keys of two levels. Markdown:
    headings. C and C++: types and functions, if their parser is installed. A text that does not
    parse, or is too long for it, has a summary that says so.

    Args:
        worker: The child that parses.
        path: The file, for messages.
        language: Its identifier in the table of languages.
        content: The bytes of the file; `None` if it is too large to be read whole.
        macros: Words that the parser of C may ignore.
    """
    if language not in _CALLS and not (language in _GRAMMARS and is_installed(*PACKS["c"].needs)):
        return ""
    if content is None or len(content) > LARGEST_SOURCE:
        return f"none, because more than {LARGEST_SOURCE:,} bytes are not parsed"
    if language == "python":
        # Its encoding is a part of the language.
        return str(await worker.run(_CALLS[language], content))
    try:
        text, _ = decode_text(content, path)
    except PackError:
        return "none, because it is not text"
    # Text of other encodings may be longer in UTF-8.
    source = text.encode("utf-8", "surrogateescape")[:LARGEST_SOURCE]
    if language in _GRAMMARS:
        options: dict[str, Any] = {"language": _GRAMMARS[language], "macros": list(macros)}
        return str(await worker.run(_C, source, **options))
    return str(await worker.run(_CALLS[language], source))
