"""PDFs of files, resources and tools, on each `api` that takes them and on one that does not."""

import base64
import re
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project
from mcp_emulators import Legacy, McpEndpoint
from model_endpoint import Recorded
from wire_replies import answer, asking

PDF = b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n" + bytes(range(256)) + b"\n%%EOF\n"
CODED = base64.b64encode(PDF).decode()
URL = f"data:application/pdf;base64,{CODED}"
FILE = {"filename": "document.pdf", "file_data": URL}
PARTS: dict[str, Any] = {
    "messages": {
        "type": "document",
        "source": {"type": "base64", "media_type": "application/pdf", "data": CODED},
    },
    "responses": {"type": "input_file", **FILE},
    "chat": {"type": "file", "file": FILE},
}


def server() -> McpEndpoint:
    """A server with a PDF as a resource and one as the result of a tool."""
    blob = {"uri": "docs://paper", "mimeType": "application/pdf", "blob": CODED}
    offers: dict[str, Any] = {
        "resources__list": lambda _: {"resources": [{"uri": "docs://paper", "name": "paper"}]},
        "resources__read": lambda _: {"contents": [blob]},
        "tools__list": lambda _: {"tools": [{"name": "paper", "inputSchema": {"type": "object"}}]},
        "tools__call": lambda _: {"content": [{"type": "resource", "resource": blob}]},
    }
    return McpEndpoint(Legacy(capabilities={"tools": {}, "resources": {}}, **offers))


def parts(value: Any) -> list[Any]:
    """The documents anywhere in a request, without marks for a cache."""
    if isinstance(value, list):
        return [part for one in value for part in parts(one)]
    if not isinstance(value, dict):
        return []
    if value.get("type") in {"document", "input_file", "file"}:
        return [{key: part for key, part in value.items() if key != "cache_control"}]
    return [part for one in value.values() for part in parts(one)]


@pytest.mark.requirement("W2")
@pytest.mark.parametrize(
    ("api", "flags", "is_sent"),
    [
        ("messages", "vision: true", True),
        ("responses", "vision: true", True),
        ("chat", "pdf: true", True),
        ("chat", "vision: true", False),
        ("messages", "vision: true, pdf: false", False),
    ],
)
def test_a_pdf_goes_to_a_model_that_takes_it_and_a_note_to_any_other(
    project: Project, model_endpoint: ModelEndpoints, api: str, flags: str, *, is_sent: bool
) -> None:
    endpoint = model_endpoint([asking(api, ("c1", "docs__paper", "{}")), answer(api, "Read.")])
    project.uses(endpoint)
    project.write("notes/paper", PDF)
    with server() as docs:
        project.pipeline(
            f"""
            models: {{m: {{api: {api}, base_url: "${{MODEL_URL}}", model: x, {flags}}}}}
            mcp: {{servers: {{docs: {{url: "{docs.url}"}}}}, auto_approve: [docs__paper]}}
            prompt: What do they say?
            attach: [notes/paper, docs://paper]
            """
        )
        recorded = project.aish("record", "p.yaml", "-o", "c.yaml")
    endpoint.close()
    replayed = project.run("--replay", "c.yaml")
    shown = project.aish("cassette", "show", "c.yaml")

    assert recorded.code == 0, recorded.stderr
    assert (replayed.code, replayed.stdout) == (0, "Read.\n"), replayed.stderr
    asked: list[Recorded] = endpoint.requests[:2]
    expected = [PARTS[api]] if is_sent else []
    assert [parts(request.json) for request in asked] == [2 * expected, 3 * expected]
    note = f"[aish] {'attached' if is_sent else 'not shown to this model'}: application/pdf"
    assert asked[1].body.decode().count(f"{note}, {len(PDF)} bytes") == 3
    as_sizes = re.findall(r"\[(?:document|input_file|file), \d+ characters\]", shown.stdout)
    assert bool(as_sizes) is is_sent
