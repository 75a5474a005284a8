"""A key is taken in either header, and is in no file, whichever it goes in."""

import pytest
from e2e_project import ModelEndpoints, Project
from model_endpoint import Recorded, Reply, json_reply
from wire_replies import answer, asking

from aish.core.wires import WIRES

KEY = "sk-planted-0123456789"
HEADERS = {"authorization": f"Bearer {KEY}", "x-api-key": KEY}


class Endpoint:
    """Takes the key in one of both headers, and refuses it in words that repeat it."""

    reads_head = True

    def __init__(self, api: str) -> None:
        self.api = api
        self.replies = [
            asking(api, ("call_1", "repo__file_read", '{"path": "notes.txt"}')),
            answer(api, f"It is {KEY}."),
        ]

    def __call__(self, request: Recorded) -> Reply:
        sent = {name: request.headers[name] for name in HEADERS if name in request.headers}
        if len(sent) != 1 or not sent.items() <= HEADERS.items():
            return json_reply(401, {"error": {"message": f"these are no keys: {sent}"}})
        return self.replies.pop(0)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("header", ["", "Authorization", "x-api-key"])
@pytest.mark.parametrize("api", list(WIRES))
def test_either_header_is_taken_and_its_key_is_in_no_log_and_no_cassette(
    project: Project, model_endpoint: ModelEndpoints, api: str, header: str
) -> None:
    project.write("notes.txt", "from the file")
    endpoint = model_endpoint(Endpoint(api))
    project.uses(endpoint)
    named = f"key_header: {header}," if header else ""
    project.pipeline(
        f"""
        models:
          m: {{api: {api}, base_url: "${{MODEL_URL}}", model: any, {named} key_env: KEY}}
        mcp:
          servers:
            repo: {{pack: [fs], root: .}}
          auto_approve: [repo__file_read]
        prompt: Read it.
        """
    )

    done = project.aish("record", "p.yaml", "-o", "c.yaml", env={"KEY": KEY})
    refused = project.run(env={"KEY": f"{KEY}-old"})

    assert done.code == 0, done.stderr
    used = header.lower() or WIRES[api].key_header
    assert [name in endpoint.requests[0].headers for name in HEADERS] == [
        name == used for name in HEADERS
    ]
    assert refused.code == 5
    cassette = (project.folder / "c.yaml").read_text()
    for text in (cassette, project.everything_written(), done.stderr, refused.stderr):
        assert KEY not in text
