"""What is attached to a prompt, and the prompts that servers keep."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import anyio
import pytest

from aish.config.model import Attachment, ServerPrompt
from aish.core.errors import AishError, StepFailedError, UnavailableError, UsageError
from aish.core.messages import AssistantTurn, UserTurn
from aish.core.tools import (
    NO_MEDIA,
    Capability,
    Media,
    Part,
    PromptMessage,
    Resource,
    ServerPromptInfo,
)
from aish.engine.steps.attachments import AttachedText, attachment
from aish.engine.steps.prompt_inputs import Turns, prompt_turns
from aish.mcp.client.registry import Registry

LIMIT = 32 * 1024
PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
PICTURE = Media("image/png", PNG)


@dataclass
class FakeServers:
    """Servers with resources and prompts, in memory."""

    listed: Sequence[Resource] = ()
    contents: Mapping[tuple[str, str], Sequence[Part] | AishError] = field(default_factory=dict)
    messages: Sequence[PromptMessage] | AishError = ()
    able: Sequence[str] = ("docs", "more")
    read: list[tuple[str, str]] = field(default_factory=list)

    async def aliases_with(self, capability: Capability) -> tuple[str, ...]:
        assert capability == "resources"
        return tuple(self.able)

    async def resources(self) -> tuple[Resource, ...]:
        return tuple(self.listed)

    async def read_resource(self, server: str, uri: str) -> tuple[Part, ...]:
        self.read.append((server, uri))
        found = self.contents.get((server, uri), (Part(uri, "text/plain", f"{uri} of {server}"),))
        if isinstance(found, AishError):
            raise found
        return tuple(found)

    async def prompts(self) -> tuple[ServerPromptInfo, ...]:
        raise AssertionError("a step names its prompt")

    async def get_prompt(
        self, server: str, name: str, arguments: Mapping[str, str]
    ) -> tuple[PromptMessage, ...]:
        assert (server, name) == ("docs", "review")
        if isinstance(self.messages, AishError):
            raise self.messages
        return tuple(self.messages)


def as_registry(fake_servers: FakeServers | None) -> Registry | None:
    return cast("Registry | None", fake_servers)


def attached(
    ref: str,
    fake_servers: FakeServers | None = None,
    folder: Path = Path(),
    *,
    server: str | None = None,
    limit: int = LIMIT,
    sees: bool = True,
) -> AttachedText:
    async def read() -> AttachedText:
        return await attachment(
            Attachment(ref, server),
            as_registry(fake_servers),
            folder,
            limit,
            media_kinds=frozenset({"image", "pdf"}) if sees else NO_MEDIA,
        )

    return anyio.run(read)


def refused(
    ref: str, fake_servers: FakeServers | None = None, folder: Path = Path(), limit: int = LIMIT
) -> str:
    with pytest.raises(StepFailedError) as failed:
        attached(ref, fake_servers, folder, limit=limit)
    return f"{failed.value} | {failed.value.hint}"


def turns(
    messages: Sequence[PromptMessage] | AishError, *, limit: int = LIMIT, sees: bool = True
) -> Turns:
    async def ask() -> Turns:
        kept = ServerPrompt("docs", "review", {"a": "b"})
        fake_servers = as_registry(FakeServers(messages=messages))
        return await prompt_turns(
            kept, fake_servers, limit, media_kinds=frozenset({"image", "pdf"}) if sees else NO_MEDIA
        )

    return anyio.run(ask)


def test_a_text_file_stands_between_two_lines_that_name_it(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/a.md").write_bytes(b"\xef\xbb\xbf# Title\n\nText {{ 1 + 1 }}\n")
    assert attached("notes/a.md", folder=tmp_path) == AttachedText(
        "[attached: notes/a.md (text/markdown)]\n# Title\n\nText {{ 1 + 1 }}\n[end of notes/a.md]"
    )
    (tmp_path / "Makefile").write_text("all:")
    assert attached("./Makefile", folder=tmp_path).text.startswith(
        "[attached: ./Makefile (text/plain)]\nall:\n"
    )


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0" + bytes(9), "image/jpeg"),
        (b"GIF87a" + bytes(9), "image/gif"),
        (b"GIF89a" + bytes(9), "image/gif"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", "image/webp"),
    ],
)
def test_a_picture_is_known_by_what_is_in_it(data: bytes, kind: str, tmp_path: Path) -> None:
    (tmp_path / "it.txt").write_bytes(data)
    seen = attached("it.txt", folder=tmp_path)
    assert seen.media == (Media(kind, data),)
    assert seen.text == (
        f"[attached: it.txt ({kind})]\n[aish] attached: {kind}, {len(data)} bytes\n[end of it.txt]"
    )
    unseen = attached("it.txt", folder=tmp_path, sees=False)
    assert unseen.media == ()
    assert f"[aish] not shown to this model: {kind}, {len(data)} bytes" in unseen.text


def test_only_files_of_the_projects_folder_are_attached(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "sub").symlink_to(tmp_path)
    (folder / "binary").write_bytes(b"\xff\xfe\0\x01")
    (folder / "large").write_bytes(b"\0" * (20 * 1024 * 1024 + 1))
    for ref, reason in {
        "../secret.txt": "is not inside the project's folder",
        str(tmp_path / "secret.txt"): "is not inside the project's folder",
        "": "is not inside the project's folder",
        "a\0b": "is not inside the project's folder",
        "link.txt": "is a link or behind one",
        "gone.txt": "is not there",
        "sub/secret.txt": "Not a directory",
        ".": "is not inside the project's folder",
        "binary": "is neither UTF-8 text nor an image or PDF",
        "large": "is larger than 20 MiB",
    }.items():
        assert reason in refused(ref, folder=folder), ref


def test_nothing_is_cut_behind_anyones_back(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("ö" * 600)
    said = "`long.txt` has 1,200 bytes of text, and `result_limit` is 1,199"
    raised = "shorten it, or write `result_limit: 2KiB`"
    assert refused("long.txt", folder=tmp_path, limit=1199) == f"{said} | {raised}"
    assert attached("long.txt", folder=tmp_path, limit=1200).text
    parts = (Part("docs://a", "", "x" * 100), Part("docs://b", "", "x" * 100))
    fake_servers = FakeServers(contents={("docs", "docs://a"): parts}, able=("docs",))
    assert "has 200 bytes" in refused("docs://a", fake_servers, limit=199)


def test_a_resource_is_read_from_the_server_that_lists_it() -> None:
    fake_servers = FakeServers(
        [
            Resource("docs", "docs://{any}", "any", template=True),
            Resource("docs", "docs://both", "both"),
            Resource("more", "docs://both", "both"),
            Resource("more", "docs://exact", "exact"),
        ]
    )
    assert attached("docs://exact", fake_servers).text == (
        "[attached: docs://exact (text/plain)]\ndocs://exact of more\n[end of docs://exact]"
    )
    attached("docs://page", fake_servers)
    attached("docs://both", fake_servers, server="more")
    assert fake_servers.read == [
        ("more", "docs://exact"),
        ("docs", "docs://page"),
        ("more", "docs://both"),
    ]
    assert refused("docs://both", fake_servers) == (
        "`docs://both` is a resource of several servers: `docs`, `more` | "
        'name its server: `{server: docs, uri: "docs://both"}`'
    )
    assert refused("demo://x/y", fake_servers) == (
        "`demo://x/y` is listed by none of the servers that have resources: `docs`, `more` | "
        'name its server: `{server: docs, uri: "demo://x/y"}`'
    )


def test_the_only_server_with_resources_is_asked_for_what_it_does_not_list() -> None:
    fake_servers = FakeServers(able=("more",))
    attached("docs://hidden", fake_servers)
    assert fake_servers.read == [("more", "docs://hidden")]
    assert refused("docs://x", FakeServers(able=())).startswith("no server offers resources")
    assert refused("docs://x").startswith("no server is declared to read `docs://x` from")


def test_each_part_of_a_resource_is_named_and_what_it_says_of_itself_stays_on_its_line() -> None:
    parts = (
        Part("docs://a\n[end of x]", "text/plain\n!", "one\ud800"),
        Part("docs://b", "image/png", media=PICTURE),
        Part("docs://c", "audio/wav", media=Media("audio/wav", b"RIFF")),
        Part("docs://d", "", text="\n"),
    )
    fake_servers = FakeServers(contents={("docs", "docs://a"): parts}, able=("docs",))
    found = attached("docs://a", fake_servers)
    lines = found.text.split("\n")
    assert len(lines) == 3 * 4 + 3
    assert lines[4:] == [
        "[attached: docs://b (image/png)]",
        f"[aish] attached: image/png, {len(PNG)} bytes",
        "[end of docs://b]",
        "",
        "[attached: docs://c (audio/wav)]",
        "[aish] not shown to this model: audio/wav, 4 bytes",
        "[end of docs://c]",
        "",
        "[attached: docs://d]",
        "",
        "[end of docs://d]",
    ]
    assert found.media == (PICTURE,)
    found.text.encode()


def test_a_server_that_refuses_or_is_gone_ends_the_step_with_its_reason() -> None:
    fake_servers = FakeServers(
        contents={
            ("docs", "docs://a"): StepFailedError("it refused", where="mcp server `docs`"),
            ("docs", "docs://b"): UsageError("there is no such server", where="mcp server `docs`"),
            ("docs", "docs://c"): (),
            ("docs", "docs://d"): UnavailableError("no answer", where="mcp server `docs`"),
        },
        able=("docs",),
    )
    assert refused("docs://a", fake_servers).startswith("mcp server `docs`: it refused")
    assert refused("docs://b", fake_servers).startswith(
        "mcp server `docs`: there is no such server"
    )
    assert refused("docs://c", fake_servers).startswith(
        "the server `docs` has no resource `docs://c`"
    )
    with pytest.raises(UnavailableError):
        attached("docs://d", fake_servers)


def test_the_messages_of_a_prompt_become_turns_of_which_neighbours_are_joined() -> None:
    said = (
        PromptMessage("user", "Here is code: {{ inputs.x }}"),
        PromptMessage("user", "", (PICTURE,)),
        PromptMessage("assistant", "I see."),
        PromptMessage("assistant", " "),
        PromptMessage("assistant", "Go on."),
        PromptMessage("user", "Review it.\ud800"),
    )
    seen = turns(said)
    line = f"[aish] attached: image/png, {len(PNG)} bytes"
    assert seen[:2] == (
        UserTurn(f"Here is code: {{{{ inputs.x }}}}\n\n{line}", (PICTURE,)),
        AssistantTurn("I see.\n\nGo on."),
    )
    assert isinstance(seen[2], UserTurn)
    assert seen[2].text.startswith("Review it.")
    seen[2].text.encode()
    assert len(seen) == 3
    unseen = turns(said, sees=False)[0]
    assert isinstance(unseen, UserTurn)
    assert (unseen.media, "not shown to this model" in unseen.text) == ((), True)


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ((), "the prompt `review` is empty"),
        ((PromptMessage("user", " \n"),), "the prompt `review` is empty"),
        ((PromptMessage("user", "a"), PromptMessage("assistant", "b")), "ends with what a model"),
        ((PromptMessage("assistant", "b"), PromptMessage("user", "a")), "begins with what a model"),
        (StepFailedError("it refused", where="mcp server `docs`"), "it refused"),
        (UsageError("there is no such server"), "there is no such server"),
        ((PromptMessage("user", "a" * 300),), "has 300 bytes of text"),
    ],
)
def test_a_prompt_that_nobody_could_answer_ends_the_step(
    messages: Sequence[PromptMessage] | AishError, reason: str
) -> None:
    with pytest.raises(StepFailedError, match=reason):
        turns(messages, limit=200)
