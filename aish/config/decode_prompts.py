"""`prompts:` and the `prompt` of a step: a text, a file, or what a server keeps (F1, M12)."""

from aish.config.documents import Documents
from aish.config.nodes import ScalarNode
from aish.config.reading import Table
from aish.config.steps import Prompt, ServerPrompt

_OWN = ("user", "file", "system")
_OF_SERVER = ("name", "arguments")


def decode_prompts(prompts: Table, documents: Documents) -> dict[str, Prompt | ServerPrompt]:
    """Every prompt by its name."""
    return {name: read_prompt(prompts, name, documents) for name in prompts.names()}


def read_prompt(table: Table, key: str, documents: Documents) -> Prompt | ServerPrompt:
    """A prompt: a text, or a mapping with `user` or `file`, and `system`; or with `server`."""
    node = table.raw(key)
    if isinstance(node, ScalarNode):
        return Prompt(user=str(node.value))
    parts = table.part(key)
    if parts.has("server"):
        return _of_server(parts)
    for stray in () if parts.is_broken("server") else filter(parts.has, _OF_SERVER):
        parts.problem(stray, f"`{stray}` is for a prompt of a server", "add its `server`")
    if parts.has("user") and parts.has("file"):
        parts.problem("file", "a prompt has `user` or `file`, not both")
    if parts.has("file"):
        user, file = documents.text(parts, "file"), parts.absolute("file")
        return Prompt(user=user, system=parts.text("system"), file=file)
    if not parts.has("user") and not any(map(parts.is_broken, ("user", "file", "server"))):
        table.problem(key, "a prompt needs `user` or `file`")
    return Prompt(user=parts.text("user") or "", system=parts.text("system"))


def _of_server(parts: Table) -> ServerPrompt:
    for stray in filter(parts.has, _OWN):
        hint = "a step has its own `system`" if stray == "system" else None
        parts.problem(stray, f"a prompt of a server has no `{stray}`", hint)
    if not parts.has("name") and not parts.is_broken("name"):
        parts.problem("server", "a prompt of a server needs its `name`")
    return ServerPrompt(
        server=parts.text("server") or "",
        name=parts.text("name") or "",
        arguments=parts.pairs("arguments"),
    )
