"""The pack `fs`, the half that writes: files and folders beneath the root (K6, K8)."""

import os
import stat

from aish.core.text import for_line
from aish.packs.beneath import not_found
from aish.packs.encoding import plain_text
from aish.packs.renameat2 import rename_new
from aish.packs.replacing import check_unchanged, read_original, settle, told_of_write
from aish.packs.results import Answer, PackError
from aish.packs.rewriting import finish, in_thread, replaced
from aish.packs.root import Workplace
from aish.packs.workplace import Marks, tool_of

_REPLACES = Marks(read_only=False, destructive=True, idempotent=True, open_world=False)
_REMOVES = Marks(read_only=False, destructive=True, idempotent=False, open_world=False)
_ADDS = Marks(read_only=False, destructive=False, idempotent=True, open_world=False)


async def file_write(
    place: Workplace, path: str, content: str, expect_sha256: str | None = None
) -> Answer:
    """Writes a whole text file, a new one or in the place of the old one.

    The old one's encoding, line ends and mode are kept.

    Args:
        place: The root, which no caller names.
        path: The file, relative to the root folder; its folder has to be there.
        content: The new content of the file.
        expect_sha256: The SHA-256 that the file has to have now; with another one nothing is done.
    """
    plain_text(content, "content")
    draft = await in_thread(lambda: replaced(place, path, expect_sha256, content))
    return await finish(place, path, draft)


async def file_delete(place: Workplace, path: str, expect_sha256: str | None = None) -> Answer:
    """Deletes one file. Folders and links are left alone.

    Args:
        place: The root, which no caller names.
        path: The file, relative to the root folder.
        expect_sha256: The SHA-256 that the file has to have now; with another one nothing is done.
    """

    def work() -> None:
        with place.folder.place_of(path) as (folder, name):
            _check_file(folder, name, path, expect_sha256)
            try:
                os.unlink(name, dir_fd=folder)
            except FileNotFoundError:
                raise not_found(path) from None
            except OSError as error:
                raise told_of_write(error, path) from None
            settle(folder)

    await in_thread(work)
    return Answer(f"deleted `{for_line(path)}`", {"path": path, "deleted": True})


async def file_rename(
    place: Workplace,
    path: str,
    new_path: str,
    expect_sha256: str | None = None,
    *,
    overwrite: bool = False,
) -> Answer:
    """Renames or moves one file. Folders and links are left alone.

    Args:
        place: The root, which no caller names.
        path: The file, relative to the root folder.
        new_path: What it is to be, relative to the root folder; its folder has to be there.
        expect_sha256: The SHA-256 that the file has to have now; with another one nothing is done.
        overwrite: Whether a file that has the new name may be replaced.
    """

    def work() -> None:
        with (
            place.folder.place_of(path) as (folder, name),
            place.folder.place_of(new_path) as (target, new),
        ):
            _check_file(folder, name, path, expect_sha256)
            if overwrite and _kind(target, new, new_path) is not None:
                _check_file(target, new, new_path, None)
            _rename((folder, name, path), (target, new, new_path), overwrite=overwrite)

    await in_thread(work)
    text = f"renamed `{for_line(path)}` to `{for_line(new_path)}`"
    return Answer(text, {"path": new_path, "old_path": path})


async def dir_create(place: Workplace, path: str) -> Answer:
    """Makes a folder, and those above it that are missing.

    Args:
        place: The root, which no caller names.
        path: The folder, relative to the root folder.
    """
    made = await in_thread(lambda: place.folder.make_folders(path))
    shown = for_line(path)
    text = f"made the folder `{shown}`" if made else f"the folder `{shown}` was there already"
    return Answer(text, {"path": path, "created": list(made)})


def _check_file(folder: int, name: str, path: str, expected: str | None) -> None:
    """That a name is a regular file, and the one that is meant."""
    mode = _kind(folder, name, path)
    if mode is None:
        raise not_found(path)
    if not stat.S_ISREG(mode):
        raise PackError("not_a_file", f"`{path}` is a folder, a link or no file", path=path)
    if expected is not None:
        original = read_original(folder, name, path)
        if original is None:
            raise not_found(path)
        check_unchanged(original, expected, path)


def _kind(folder: int, name: str, path: str) -> int | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        raise told_of_write(error, path) from None


def _rename(old: tuple[int, str, str], new: tuple[int, str, str], *, overwrite: bool) -> None:
    (folder, name, path), (target, new_name, new_path) = old, new
    try:
        if overwrite:
            os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=target)
        else:
            rename_new(folder, name, target, new_name)
    except FileExistsError:
        message = f"there is a `{new_path}` already; overwrite=true replaces a file"
        raise PackError("exists", message, path=new_path) from None
    except FileNotFoundError:
        raise not_found(path) from None
    except OSError as error:
        raise told_of_write(error, new_path) from None
    settle(target)
    settle(folder)


WRITING_TOOLS = (
    tool_of(file_write, _REPLACES),
    tool_of(file_delete, _REMOVES),
    tool_of(file_rename, _REMOVES),
    tool_of(dir_create, _ADDS),
)
