"""Pictures and sounds in a recording are no secrets, and hide none (C8)."""

import base64
import json
import random
from collections.abc import Callable

import pytest
from work import work_of

from aish.cassettes.format.interaction import Interaction, Request, Response
from aish.cassettes.record.redact import redact
from aish.cassettes.record.secret_scan import scan
from aish.system.secrets.secrets import Secrets

RANDOM = random.Random(7).randbytes(3000)
CODED = base64.b64encode(RANDOM).decode()
URL_SAFE = base64.urlsafe_b64encode(RANDOM).decode()
WITHOUT_SLASH = base64.b64encode(RANDOM).decode().replace("/", "A").replace("+", "B")
KEY = "Zx8Kq2Lm9Rt4Vw7Yb3Nc6Hd1Jf5Gs0Pa"

Item = dict[str, object]


def found(*content: object, **more: object) -> list[str]:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"content": content, **more}})
    return looked_through(body)


def looked_through(body: str) -> list[str]:
    one = Interaction(Request("POST", "mcp+stdio://s", body=b"{}"), Response(body=body.encode()))
    return [finding.kind for finding in scan([one])]


def picture(data: str = WITHOUT_SLASH, **more: object) -> Item:
    return {"type": "image", "data": data, "mimeType": "image/png", **more}


@pytest.mark.parametrize("data", [CODED, URL_SAFE, WITHOUT_SLASH])
@pytest.mark.parametrize(
    "made",
    [
        picture,
        lambda data: {"mimeType": "audio/wav", "data": data, "type": "audio", "_meta": {}},
        lambda data: {"type": "resource", "resource": {"mimeType": "image/x-odd", "blob": data}},
        lambda data: {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
        lambda data: {"type": "input_audio", "input_audio": {"data": data, "format": "mp3"}},
        lambda data: {"type": "text", "text": f"![](data:image/svg+xml;q=1;base64,{data}) shown"},
        lambda data: {"type": "text", "text": json.dumps(picture(data))},
        lambda data: {"source": {"type": "base64", "media_type": "image/jpeg", "data": data}},
    ],
)
def test_a_picture_or_a_sound_is_no_secret(made: Callable[[str], Item], data: str) -> None:
    assert found(made(data)) == []
    assert looked_through(json.dumps({"messages": [made(data)]}).replace("/", "\\/")) == []


def test_what_stands_beside_a_picture_is_looked_at() -> None:
    assert found(picture(), {"type": "text", "text": KEY}) == ["text as random as a key"]
    assert found(picture(), {"type": "text", "data": KEY}) == ["text as random as a key"]
    assert found({"data": CODED.replace("/", "A")}) != [], "nobody said that it is a picture"
    assert found(picture(f"{KEY}!")) == ["text as random as a key"], "this is no base64"


def test_a_key_of_a_known_shape_is_found_in_a_picture_too() -> None:
    key = "ghp_" + "a1B2c3D4" * 5
    text = base64.b64encode(f"<svg>{key}</svg>".encode()).decode()

    assert found(picture(text)) == ["a GitHub token"]
    assert found(picture(f"{WITHOUT_SLASH[:400]}-{key}")) == ["a GitHub token"]


def test_a_declared_secret_is_taken_out_of_a_picture() -> None:
    secrets = Secrets()
    secrets.add("KEY", KEY)
    data = base64.b64encode(RANDOM[:100] + KEY.encode() + RANDOM).decode()
    asked = Request("POST", "mcp+stdio://s")
    body = json.dumps({"content": [picture(data)]}).encode()

    clean = redact(Interaction(asked, Response(body=body)), secrets)

    (item,) = json.loads(clean.response.body)["content"]
    before, tag, after = item["data"].partition("<secret:KEY>")
    assert tag
    assert KEY not in base64.b64decode(before + "A" * (-len(before) % 4)).decode("latin-1")
    assert data.startswith(before)
    assert data.endswith(after)


def test_a_key_that_a_server_spells_over_several_lines_is_found() -> None:
    said = [
        {"jsonrpc": "2.0", "method": "m", "params": {"data": one}} for one in (KEY[:9], KEY[9:])
    ]
    assert looked_through("\n".join(map(json.dumps, said))) == ["text as random as a key"]


def test_a_large_picture_costs_little() -> None:
    """In 5 MB, no shape and no entropy has to be looked for letter by letter."""
    body = json.dumps(picture(base64.b64encode(random.Random(1).randbytes(4_000_000)).decode()))
    found: list[str] = []
    work = work_of(lambda: found.extend(looked_through(body)))
    assert found == []
    assert work.steps < len(body) // 20


@pytest.mark.parametrize("before", ["", " ", "_", "-", "A", "\u0130"])
def test_shapes_are_found_where_a_word_begins_and_only_there(before: str) -> None:
    for shape in ("sk-" + "a1" * 12, "AKIA" + "A1" * 8, "Bearer " + "a1" * 12, "hf_" + "a1" * 16):
        found_kinds = looked_through(json.dumps([f"{before}{shape}"]))
        is_inside = before in {"A", "\u0130"} or (before == "_" and shape.startswith("Bearer"))
        assert bool(found_kinds) is not is_inside, (shape, found_kinds)
