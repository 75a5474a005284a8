"""The static part of the system prompt."""

import pytest
from syrupy.assertion import SnapshotAssertion

from aish.shell.session import frame


@pytest.mark.requirement("S3")
def test_the_frame_explains_tools_and_the_local_shell(snapshot: SnapshotAssertion) -> None:
    assert frame(cmd_lines=True) == snapshot


def test_without_cmd_lines_nothing_is_said_of_the_local_shell(
    snapshot: SnapshotAssertion,
) -> None:
    text = frame(cmd_lines=False)
    assert "CMD" not in text
    assert "command" not in text
    assert text == snapshot
