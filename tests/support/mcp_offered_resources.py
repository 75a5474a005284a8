"""Resources and prompts of our small MCP servers, and how they answer for them.

Standard library only: `mcp_tools.py` uses it in server processes.
"""

from __future__ import annotations

import binascii

TYPE_CHECKING = False  # as in `typing`, which is slow to import
if TYPE_CHECKING:
    from typing import Any

CAPABILITIES: dict[str, Any] = {"resources": {}, "prompts": {}}
LIVE_CAPABILITIES: dict[str, Any] = {
    "resources": {"subscribe": True, "listChanged": True},
    "prompts": {"listChanged": True},
    "completions": {},
    "logging": {},
}
"""Of a server that tells of changes too."""
PICTURE = binascii.a2b_base64(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
LIST_PAGES: list[list[dict[str, Any]]] = [
    [
        {
            "uri": "docs://guide",
            "name": "guide.md",
            "title": "The guide",
            "description": "How to use it",
            "mimeType": "text/markdown",
        }
    ],
    [
        {"uri": "docs://logo", "name": "logo", "mimeType": "image/png"},
        {"uri": "docs://archive", "name": "archive", "mimeType": "application/zip"},
    ],
]
TEMPLATES = [{"uriTemplate": "docs://page/{number}", "name": "A page"}]
PROMPTS = [
    {
        "name": "review",
        "description": "Review some code",
        "arguments": [
            {"name": "code", "description": "What to review", "required": True},
            {"name": "tone"},
        ],
    },
    {"name": "plain", "title": "Without arguments"},
]


def blob(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()


def contents(uri: str) -> list[dict[str, Any]]:
    """What is in a resource."""
    match uri:
        case "docs://guide":
            text = "# Guide\nSnow \u2028 é"
            return [{"uri": uri, "mimeType": "text/markdown", "text": text}]
        case "docs://logo":
            return [{"uri": uri, "mimeType": "image/png", "blob": blob(PICTURE)}]
        case "docs://archive":
            return [{"uri": uri, "mimeType": "application/zip", "blob": blob(b"PK\x03\x04\xff")}]
    if uri.startswith("docs://page/"):
        return [{"uri": uri, "text": f"page {uri.rpartition('/')[2]}"}]
    raise LookupError(f"Resource not found: {uri}")


def messages(name: str, arguments: dict[str, str]) -> list[dict[str, Any]]:
    """The messages of a prompt."""
    if name == "plain":
        return [{"role": "user", "content": {"type": "text", "text": "Say hello"}}]
    if name != "review":
        raise LookupError(f"Unknown prompt: {name}")
    if "code" not in arguments:
        raise LookupError("Missing required argument: code")
    asked = f"Review {arguments['code']}, {arguments.get('tone', 'kindly')}"
    picture = {"type": "image", "data": blob(PICTURE), "mimeType": "image/png"}
    guide = {"type": "resource", "resource": contents("docs://guide")[0]}
    link = {"type": "resource_link", "uri": "docs://logo", "name": "logo"}
    return [
        {"role": "user", "content": {"type": "text", "text": asked}},
        {"role": "assistant", "content": guide},
        {"role": "user", "content": [picture, link]},
    ]


def result_of(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """The result of a request, `None` where it is about something else.

    Raises:
        LookupError: there is no such thing; its text is for a JSON-RPC error.
    """
    match method:
        case "resources/list":
            page = int(params.get("cursor") or 0)
            more = {"nextCursor": str(page + 1)} if page + 1 < len(LIST_PAGES) else {}
            return {"resources": LIST_PAGES[page], **more}
        case "resources/templates/list":
            return {"resourceTemplates": TEMPLATES}
        case "resources/read":
            return {"contents": contents(str(params["uri"]))}
        case "prompts/list":
            return {"prompts": PROMPTS}
        case "prompts/get":
            found = messages(str(params["name"]), dict(params.get("arguments") or {}))
            return {"description": "A prompt", "messages": found}
        case "completion/complete":
            ref, argument = params["ref"], params["argument"]
            about = ref.get("name") or ref.get("uri")
            return {"completion": {"values": [f"{about} {argument['value']}"], "hasMore": False}}
    return None
