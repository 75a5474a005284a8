"""Pictures and sounds that tools give, through a recording and back (C8, M7)."""

import base64
import random
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project
from mcp_emulators import Legacy, McpEndpoint
from model_endpoint import text_reply, tool_reply

KEY = "Zx8Kq2Lm9Rt4Vw7Yb3Nc6Hd1Jf5Gs0Pa"


def media(*, secret: str = "", text: str = "two files") -> dict[str, Any]:
    """A picture and a sound, as random as they are, and what is said with them."""
    picture = random.Random(1).randbytes(3000) + secret.encode() + random.Random(2).randbytes(3000)
    sound = random.Random(3).randbytes(3000)
    return {
        "content": [
            {"type": "text", "text": text},
            {
                "type": "image",
                "data": base64.b64encode(b"\x89PNG" + picture).decode(),
                "mimeType": "image/png",
            },
            {"type": "audio", "data": base64.b64encode(sound).decode(), "mimeType": "audio/wav"},
        ]
    }


def recorded(
    project: Project, model_endpoint: ModelEndpoints, answer: dict[str, Any], *, vision: bool = True
) -> Any:
    endpoint = model_endpoint([tool_reply([("c1", "s__image", "{}")]), text_reply("A picture")])
    project.uses(endpoint)
    with McpEndpoint(Legacy(tools__call=lambda _: answer)) as server:
        project.pipeline(
            f"""
            models: {{m: {{base_url: "${{MODEL_URL}}", model: x, vision: {str(vision).lower()}}}}}
            secrets: [KEY]
            mcp:
              servers: {{s: {{url: "{server.url}"}}}}
              auto_approve: ["s__*"]
            prompt: Show me a picture
            """
        )
        done = project.aish("record", "p.yaml", "-o", "c.yaml")
    endpoint.close()
    return done


@pytest.mark.parametrize("vision", [False, True])
def test_a_run_with_pictures_is_recorded_and_replayed(
    project: Project, model_endpoint: ModelEndpoints, *, vision: bool
) -> None:
    done = recorded(project, model_endpoint, media(), vision=vision)
    assert done.code == 0, done.stderr
    kept = (project.folder / "c.yaml").read_text()
    assert ("data:image/png;base64," in kept) is vision

    replayed = project.run("--replay", "c.yaml")
    checked = project.aish("cassette", "check", "c.yaml")

    assert (replayed.code, replayed.stdout) == (0, "A picture\n"), replayed.stderr
    assert checked.code == 0, checked.stdout


def test_a_key_beside_a_picture_is_found_all_the_same(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    done = recorded(project, model_endpoint, media(text=f"the key is {KEY}"))

    assert done.code == 1
    assert "may contain an undeclared secret" in done.stderr
    assert not (project.folder / "c.yaml").exists()


def test_a_declared_secret_in_a_picture_is_in_no_cassette(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.aish.env["KEY"] = KEY

    done = recorded(project, model_endpoint, media(secret=KEY))

    assert done.code == 0, done.stderr
    kept = (project.folder / "c.yaml").read_text()
    assert "<secret:KEY>" in kept
    for shift in range(3):
        coded = base64.b64encode(bytes(shift) + KEY.encode()).decode()
        inner = coded[-(-shift * 8 // 6) : (shift + len(KEY)) * 8 // 6]
        assert inner not in kept
