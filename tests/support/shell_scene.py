"""A project to type the commands of a session in, and a model that does what it is told.

A line of a question says what the model does: `CALL repo__file_read {"path": "a.txt"}` asks for a
tool, `SAY text` is its answer; anything else is answered with how many messages it was shown, and
the end of the last one.
"""

from pathlib import Path
from typing import Any

from cli_process import Done
from e2e_project import Project, stdio
from model_endpoint import Reply, text_reply, tool_reply

THREE_MODELS = """
models:
  m: {base_url: "${MODEL_URL}", model: first}
  other: {base_url: "${MODEL_URL}", model: second, price: {input: 1, output: 2}}
  locked: {base_url: "${MODEL_URL}", model: third, key_env: NO_SUCH_KEY}
model: m
"""


def obedient(body: Any) -> Reply:
    """Does what the last question says."""
    last = body["messages"][-1]
    text = _text(last)
    if last["role"] == "user":
        lines = text.split("\n")
        if wanted := [line.split(" ", 2)[1:] for line in lines if line.startswith("CALL ")]:
            return tool_reply(
                [(f"c{number}", name, given) for number, (name, given) in enumerate(wanted)]
            )
        if said := [line.removeprefix("SAY ") for line in lines if line.startswith("SAY ")]:
            return text_reply("\n".join(said))
    return text_reply(f"<{len(body['messages'])}: {text[-60:]}>")


def _text(message: Any) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content)


def sent_messages(body: Any) -> list[tuple[str, str]]:
    """What a model was told, as role and text, without the system prompt."""
    return [(one["role"], _text(one)) for one in body["messages"] if one["role"] != "system"]


def with_servers(project: Project, models: str = THREE_MODELS) -> None:
    """A file with a pack, a server that offers all there is, one that does not come up, rules."""
    project.pipeline(
        f"""{models}
mcp:
  servers:
    repo: {{pack: fs, root: data, trust: true}}
    kid: {{command: {stdio("--offers")}}}
    dead: {{command: ["false"]}}
  auto_approve: [repo__file_read, {{tool: kid__add, when: {{a: "1"}}}}]
  ask: [kid__big]
  deny: [kid__crash]
"""
    )
    project.write("data/note.txt", "hello\n")


def piped(project: Project, *lines: str, args: tuple[str | Path, ...] = (), **options: Any) -> Done:
    """A session whose lines come from a pipe."""
    text = "".join(f"{line}\n" for line in lines)
    return project.aish("shell", "p.yaml", *args, stdin=text, **options)
