"""How often a question in other words finds its answer among docstrings (K89)."""

import ast
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from pack_scenes import PackScene, opened_packs

MODULES = """
argparse bisect calendar collections configparser contextlib copy csv dataclasses datetime difflib
email.message enum fileinput fnmatch functools getpass glob gzip heapq html http.client inspect
ipaddress json logging mimetypes os pathlib pickle platform posixpath pprint queue random re sched
secrets shelve shlex shutil smtplib socket statistics string subprocess tarfile tempfile textwrap
threading timeit traceback types typing urllib.parse urllib.robotparser uuid warnings weakref
zipfile
""".split()  # ruff: ignore[split-static-string] - a list of words is read as words
QUESTIONS = {
    "How do I wrap a paragraph so that no line exceeds a width?": (
        "textwrap.fill textwrap.wrap textwrap.TextWrapper textwrap.TextWrapper.wrap"
        " textwrap.TextWrapper.fill"
    ),
    "Remove common leading whitespace from a multi-line string": "textwrap.dedent",
    "Which function copies a whole directory tree?": "shutil.copytree",
    "delete a folder with everything in it": "shutil.rmtree",
    "Where is an executable found on the search path?": "shutil.which",
    "How much space is free and used on the disk?": "shutil.disk_usage",
    "a temporary folder that is cleaned up afterwards": "tempfile.TemporaryDirectory",
    "memorize the results of a function with a least recently used cache": (
        "functools.lru_cache functools.cache"
    ),
    "Find words that are similar to a misspelled one": "difflib.get_close_matches",
    "keep a list sorted while adding an element": "bisect.insort_right bisect.insort_left",
    "get the biggest items of an iterable": "heapq.nlargest",
    "Is this year a leap year?": "calendar.isleap",
    "middle value of a series of numbers": (
        "statistics.median statistics.median_low statistics.median_high"
    ),
    "standard deviation when I have data of the entire population": (
        "statistics.pstdev statistics.pvariance"
    ),
    "make a copy of an object that also copies everything nested inside": "copy.deepcopy copy",
    "split a command line the way a shell would": "shlex.split shlex.shlex",
    "ask the user for a password without echoing it": (
        "getpass getpass.getpass getpass.unix_getpass getpass.win_getpass"
    ),
    "guess the content type of a file from its name": (
        "mimetypes mimetypes.guess_type mimetypes.MimeTypes.guess_type"
    ),
    "random text token for password resets, hard to guess, usable in a link": (
        "secrets secrets.token_urlsafe secrets.token_hex"
    ),
    "break a web address into its components": "urllib.parse.urlparse urllib.parse.urlsplit",
    "escape special characters so that text is safe in a web page": "html.escape",
    "run a command with arguments and return its output": (
        "subprocess.check_output subprocess.run subprocess.getoutput subprocess.getstatusoutput"
    ),
    "suppress certain exceptions in a with block": "contextlib.suppress",
    "combine a base URL and a relative one": "urllib.parse.urljoin",
    "shuffle a list at random in place": "random.shuffle random.Random.shuffle",
}
"""What is asked, and the headings of the docstrings that answer it."""


def docstrings(node: ast.Module | ast.ClassDef, name: str) -> Iterator[str]:
    """A section for everything public that says what it is for."""
    if text := ast.get_docstring(node):
        yield f"{'##' if isinstance(node, ast.ClassDef) else '#'} {name}\n\n{text}\n"
    elif isinstance(node, ast.Module):
        yield f"# {name}\n"
    for one in node.body:
        if isinstance(one, ast.ClassDef) and not one.name.startswith("_"):
            yield from docstrings(one, f"{name}.{one.name}")
        elif isinstance(one, ast.FunctionDef) and not one.name.startswith("_"):
            text = ast.get_docstring(one)
            yield f"## {name}.{one.name}\n\n{text}\n" if text else ""


def recall(scene: PackScene, mode: str) -> float:
    found = 0
    for question, answers in QUESTIONS.items():
        rows = scene.data("rag_query", question=question, top_k=3, mode=mode)["results"]
        titles = {row["section"].rpartition(" > ")[2] for row in rows}
        found += bool(titles & set(answers.split()))
    return found / len(QUESTIONS)


@pytest.mark.slow(reason="embeds the docstrings of 60 modules")
def test_paraphrased_questions_find_their_docstrings(tmp_path: Path) -> None:
    library = Path(sysconfig.get_paths()["stdlib"])
    assert len(QUESTIONS) == 25
    with opened_packs(["rag"], tmp_path) as scene:
        for name in MODULES:
            path = library.joinpath(*name.split("."))
            file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            module = ast.parse(file.read_text("utf-8"))
            scene.put(f"docs/{name}.md", "\n".join(docstrings(module, name)))
        assert scene.data("rag_ingest", path="docs")["chunks"] > 1_500

        by_all, by_words = recall(scene, "auto"), recall(scene, "lexical")

    assert by_all >= 0.80
    assert by_words >= 0.65
    assert by_all > by_words
