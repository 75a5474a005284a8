"""The child that reads a repository with libgit2: one question, one answer, as JSON.

Run as a script by `git`, without imports of `aish`. libgit2 runs no hook, external filter or
external diff; any other damage by a hostile repository ends with this process. Only the
repository's own settings are read, and only a `.git` folder that does not refer elsewhere.
"""

import json
import os
import resource
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

# `-I` leaves out the user's packages: the parent says where all are, in its order.
sys.path[:] = [*(folder for folder in sys.path if folder not in sys.argv[1:]), *sys.argv[1:]]

import pygit2  # ruff: ignore[module-import-not-at-top-of-file] - it is in one of those folders
from pygit2.enums import ConfigLevel, DiffOption, ObjectType, SortMode  # ruff: ignore[module-import-not-at-top-of-file] - as above

MOST_MEMORY = 2 << 30
LARGEST_BLOB = 2 << 20
MOST_TEXT = 200_000
MOST_NAMES = 100_000
MOST_FILES = 2000
MOST_WALKED = 20_000
Answer = dict[str, Any]
_FLAGS = DiffOption.IGNORE_SUBMODULES
_LEADS_AWAY = ("commondir", "objects/info/alternates", "gitdir")


class GitRefusedError(Exception):
    """The request is refused, with a sentence for the model."""


def open_repository() -> pygit2.Repository:
    """Open the repository of this folder, with its own settings only."""
    for level in (ConfigLevel.PROGRAMDATA, ConfigLevel.SYSTEM, ConfigLevel.XDG, ConfigLevel.GLOBAL):
        pygit2.settings.search_path[level] = "/nowhere"
    # The owner matters to programs that run code of the repository; nothing is run here.
    pygit2.settings.owner_validation = False
    git = Path(".git")
    if git.is_symlink() or not git.is_dir():
        raise GitRefusedError("there is no git repository in the root folder, or it lies outside")
    if any(os.path.lexists(git / name) for name in _LEADS_AWAY) or _has_links(git):
        raise GitRefusedError("the repository uses files outside its own folder")
    repository = pygit2.Repository(".git", pygit2.enums.RepositoryOpenFlag.NO_SEARCH)
    # A bare repository has none.
    if Path(repository.workdir or ".").resolve() != Path.cwd():
        raise GitRefusedError("the repository has its working files in another folder")
    return repository


def _has_links(git: Path) -> bool:
    left = MOST_NAMES
    for folder, folders, files in os.walk(git):
        if folder == str(git) and "hooks" in folders:
            folders.remove("hooks")
        left -= len(folders) + len(files)
        if left < 0:
            raise GitRefusedError("the repository has too many files to be looked at")
        if any(Path(folder, name).is_symlink() for name in (*folders, *files)):
            return True
    return False


def commit_of(repository: pygit2.Repository, revision: str) -> pygit2.Commit:
    """Return the commit that a name refers to; never a file."""
    if ":" in revision or ".." in revision:
        raise GitRefusedError("the revision has to be one commit, such as `HEAD~1` or a branch")
    try:
        return repository.revparse_single(revision).peel(pygit2.Commit)
    except (KeyError, ValueError, pygit2.GitError):
        raise GitRefusedError("there is no such commit") from None


def name_of(file: pygit2.DiffFile) -> str:
    """Return a path as text, keeping invalid bytes."""
    return os.fsdecode(file.raw_path)


def patches(repository: pygit2.Repository, diff: pygit2.Diff, skip: str) -> Iterator[list[str]]:
    """Yield the old and new path of each file, and its patch."""
    for index, delta in islice(enumerate(diff.deltas), MOST_FILES):
        names = [name_of(delta.old_file), name_of(delta.new_file)]
        if skip and not any(name == skip or name.startswith(skip + "/") for name in names):
            continue
        sizes = [_size(repository, file) for file in (delta.old_file, delta.new_file)]
        if max(sizes) > LARGEST_BLOB:
            yield [*names, f"[{delta.status_char()}, too large to be compared]\n"]
            continue
        patch = diff[index]
        yield [*names, (patch.data.decode("utf-8", "replace") if patch else "")[:MOST_TEXT]]


def _size(repository: pygit2.Repository, file: pygit2.DiffFile) -> int:
    try:
        _, size = repository.odb.read_header(file.id)
    except (KeyError, ValueError, pygit2.GitError):
        # Not in the repository: a working file, whose size is known.
        return int(file.size)
    return int(size)


def diff(repository: pygit2.Repository, question: Answer) -> Answer:
    """Run `git diff` without submodules."""
    lines = question["context"]
    revision, to = question["revision"], question["to"]
    if to:
        base = commit_of(repository, revision or "HEAD")
        changes = base.tree.diff_to_tree(commit_of(repository, to).tree, _FLAGS, lines)
    elif question["staged"]:
        changes = head_diff(repository, revision or "HEAD", lines)
    elif revision:
        base = commit_of(repository, revision)
        changes = base.tree.diff_to_workdir(_FLAGS, lines)
    else:
        changes = repository.index.diff_to_workdir(_FLAGS, lines)
    return {"files": limit_rows(patches(repository, changes, question["path"]))}


def head_diff(repository: pygit2.Repository, revision: str = "HEAD", lines: int = 3) -> pygit2.Diff:
    if revision == "HEAD" and repository.head_is_unborn:
        empty = repository[repository.TreeBuilder().write()].peel(pygit2.Tree)
        return empty.diff_to_index(repository.index, _FLAGS, lines)
    return commit_of(repository, revision).tree.diff_to_index(repository.index, _FLAGS, lines)


def limit_rows(rows: Iterator[list[str]]) -> list[list[str]]:
    result: list[list[str]] = []
    size = 0
    for row in rows:
        result.append(row)
        size += sum(map(len, row))
        if size > MOST_TEXT:
            break
    return result


def status(repository: pygit2.Repository, _: Answer) -> Answer:
    """Run `git status`: the branch, staged and unstaged changes."""
    unstaged = repository.diff(flags=DiffOption.IGNORE_SUBMODULES | DiffOption.INCLUDE_UNTRACKED)
    answer: Answer = {"branch": "", "staged": [], "unstaged": []}
    if not repository.head_is_detached:
        target = repository.lookup_reference("HEAD").raw_target
        name = target.decode(errors="replace") if isinstance(target, bytes) else ""
        answer["branch"] = name.removeprefix("refs/heads/")
    for kind, delta_list in (("staged", head_diff(repository)), ("unstaged", unstaged)):
        for delta in islice(delta_list.deltas, MOST_FILES):
            file = delta.old_file if delta.status_char() == "D" else delta.new_file
            answer[kind].append([delta.status_char(), name_of(file)])
    return answer


def commit_to_json(commit: pygit2.Commit) -> Answer:
    author = commit.author
    return {
        "id": str(commit.id),
        "author": author.raw_name.decode("utf-8", "replace")[:200],
        "time": int(commit.commit_time),
        "message": commit.raw_message[:20_000].decode("utf-8", "replace"),
    }


def log(repository: pygit2.Repository, question: Answer) -> Answer:
    """Run `git log`, of one path if given."""
    start = commit_of(repository, question["revision"])
    walked = islice(repository.walk(start.id, SortMode.TIME), MOST_WALKED)
    path = question["path"]
    wanted = (each for each in walked if not path or _touches(each, path))
    return {"commits": [commit_to_json(each) for each in islice(wanted, question["count"] + 1)]}


def _touches(commit: pygit2.Commit, path: str) -> bool:
    here = _entry(commit, path)
    parents = commit.parents
    return here != _entry(parents[0], path) if parents else here is not None


def _entry(commit: pygit2.Commit, path: str) -> str | None:
    try:
        return str(commit.tree[path].id)
    except KeyError:
        return None


def show(repository: pygit2.Repository, question: Answer) -> Answer:
    commit = commit_of(repository, question["revision"])
    if question["path"]:
        return {"content": _content(repository, commit, question["path"])}
    if commit.parents:
        changes = commit.parents[0].tree.diff_to_tree(commit.tree, _FLAGS)
    else:
        changes = commit.tree.diff_to_tree(flags=_FLAGS, swap=True)
    return {"commit": commit_to_json(commit), "files": limit_rows(patches(repository, changes, ""))}


def _content(repository: pygit2.Repository, commit: pygit2.Commit, path: str) -> str:
    try:
        entry = commit.tree[path]
    except KeyError:
        raise GitRefusedError("there is no such file in that commit") from None
    if entry.type != ObjectType.BLOB:
        raise GitRefusedError("that is not a file in that commit")
    if repository.odb.read_header(entry.id)[1] > LARGEST_BLOB:
        raise GitRefusedError("the file is too large to be shown")
    data = repository[entry.id].peel(pygit2.Blob).data
    if b"\0" in data:
        raise GitRefusedError("the file is not text")
    return data.decode("utf-8", "replace")[:MOST_TEXT]


QUESTIONS = {"diff": diff, "log": log, "show": show, "status": status}


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    question = json.load(sys.stdin)
    answer: Answer
    try:
        answer = QUESTIONS[question["ask"]](open_repository(), question)
    except GitRefusedError as error:
        answer = {"refused": str(error)}
    except (pygit2.GitError, OSError, KeyError, ValueError, MemoryError):
        answer = {"refused": "the repository is damaged, or cannot be read"}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
