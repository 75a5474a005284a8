from pathlib import Path

import pytest
from pack_scenes import PackScene, opened_packs, pack_services

from aish.core.errors import UsageError
from aish.journal.writer import user_key
from aish.net.listen.tokens import ensure_token
from aish.packs.catalogue import PACKS
from aish.packs.framework.server import open_packs
from aish.system.files import private_folder, runtime_folder, secret_path, state_of_servers

_SECRETS = frozenset({"approvals.key", "control.token", "key", "token"})


def test_without_a_root_packs_that_need_one_have_no_tools() -> None:
    with opened_packs(["fs", "shell"], None) as scene:
        assert not scene.pack.tools
        with pytest.raises(KeyError):
            scene.call("file_read", path="x")


def test_everything_and_the_home_folder_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "link").symlink_to(tmp_path)
    with pack_services() as services:
        for root in (Path("/"), tmp_path, tmp_path / "link", tmp_path / "link" / ".."):
            if root.resolve() in {Path("/"), tmp_path}:
                with pytest.raises(UsageError) as caught:
                    open_packs(["fs"], root, services)
                assert "--allow-broad-root" in str(caught.value.hint)
    with opened_packs(["fs"], tmp_path) as scene:
        assert "file_read" in scene.pack.tools


def test_a_root_among_keys_and_logins_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = tmp_path / "aish" / ".aish" / "logins"
    folder.mkdir(parents=True)
    with pack_services() as services, pytest.raises(UsageError, match="has keys or logins of aish"):
        open_packs(["fs"], folder, services, allow_broad_root=True)


def test_keys_and_tokens_of_ours_are_shown_by_no_tool_whose_root_they_are_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, runtime = tmp_path / "state", tmp_path / "runtime"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    older = private_folder(state / "aish") / "approvals.key"
    older.write_text("k" * 40)
    older.chmod(0o600)
    assert user_key() == b"k" * 40  # what an older version has signed counts
    assert not older.exists()
    keys = [secret_path(runtime_folder(), "control.token")]
    keys += [secret_path(state_of_servers(tmp_path), name) for name in ("key", "token")]
    secrets = [ensure_token("test", key, ()).value for key in keys]

    def check(scene: PackScene, folder: Path) -> None:
        paths = [path for path in folder.rglob("*") if path.name in _SECRETS]
        assert len(paths) == len(_SECRETS)
        for path in paths:
            assert scene.code("file_read", path=str(path.relative_to(tmp_path))) == "not_found"
            assert path.name not in scene.text("file_find", glob=path.name, ignored=True)
        for secret in (*secrets, "k" * 40):
            assert secret not in scene.text("file_search", query=secret[1:], ignored=True)

    with opened_packs(["fs"], tmp_path) as scene:
        check(scene, tmp_path)
        state.rename(tmp_path / "moved")
        runtime.rename(tmp_path / "moved" / "runtime")
        check(scene, tmp_path)


def test_a_root_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pack_services() as services:
        with pytest.raises(UsageError, match="does not exist"):
            open_packs(["fs"], tmp_path / "none", services)
        with pytest.raises(UsageError, match="is not a folder"):
            open_packs(["fs"], tmp_path / "file", services)


def test_an_unknown_pack_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pack_services() as services, pytest.raises(UsageError, match="no tool pack") as caught:
        open_packs(["fs", "fz"], tmp_path, services)
    assert (caught.value.hint or "").startswith(f"there are: {', '.join(PACKS)}; `pip install` ")


def test_an_unknown_tool_is_no_result(tmp_path: Path) -> None:
    with opened_packs(["fs"], tmp_path) as scene:
        for name in ("nothing", "shell_run", "__class__"):
            with pytest.raises(KeyError):
                scene.call(name)


def test_after_the_end_calls_fail_and_say_nothing_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("content")
    with opened_packs(["fs"], tmp_path) as scene:
        scene.portal.call(scene.pack.shutdown)
        scene.portal.call(scene.pack.shutdown)
        assert scene.code("file_read", path="a") == "failed"


def test_reading_tools_may_run_side_by_side_and_no_others(tmp_path: Path) -> None:
    with opened_packs(["fs", "edit", "shell"], tmp_path) as scene:
        for tool in scene.pack.tools.values():
            assert tool.marks.parallel == tool.marks.read_only, tool.name
        assert scene.pack.tools["file_read"].marks.parallel
        assert not scene.pack.tools["shell_run"].marks.parallel
