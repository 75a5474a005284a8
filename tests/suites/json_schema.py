"""Runs JSON-Schema-Test-Suite against the checks of schemas, in this process and in jsonschema.

    python tests/suites/json_schema.py [FOLDER]

The suite comes with the source distribution of jsonschema, which is fetched into FOLDER by pip and
kept there. Where the registry cannot be reached the run is skipped, and says so. The exit code is 1
if a result differs from the suite's, but for those that docs/decisions/0005 names.
"""

import json
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from aish.system.schema.check import check_here
from aish.system.schema.metaschema import check_schema
from aish.system.schema.worker_process import evaluate

DIALECTS = {
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    "draft7": "http://json-schema.org/draft-07/schema#",
}
OPTIONAL = (
    *("ecmascript-regex", "non-bmp-regex", "bignum", "float-overflow"),
    *("id", "anchor", "unknownKeyword", "refOfUnknownKeyword"),
)
OTHER_DOCUMENTS = "http://localhost:1234/"
"""Where the suite expects other documents, which are never fetched."""
EQUAL, NAMED = "as the suite says", "that need another document"


@dataclass(frozen=True)
class Case:
    """A value of the suite, its schema, and whether it fits."""

    name: str
    schema: Any
    value: Any
    fits: bool


def suite(folder: Path) -> Path | None:
    """The folder with the suite, which is fetched if it is not there; `None` if it cannot be."""
    name = f"jsonschema-{version('jsonschema')}"
    found = folder / name / "json" / "tests"
    if not found.exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary"]
        command += [":all:", "--dest", str(folder), name.replace("-", "==")]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            print(done.stderr.strip().rpartition("\n")[2], file=sys.stderr)
            return None
        with tarfile.open(folder / f"{name}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return found


def cases(folder: Path, dialect: str) -> Iterator[Case]:
    """The required cases of a dialect, and the optional ones that are about what is checked."""
    files = sorted(folder.glob("*.json"))
    files += [folder / "optional" / f"{name}.json" for name in OPTIONAL]
    for file in filter(Path.exists, files):
        for group in json.loads(file.read_text(encoding="utf-8")):
            schema = group["schema"]
            if isinstance(schema, dict):
                schema = {"$schema": DIALECTS[dialect], **schema}
            for test in group["tests"]:
                name = f"{file.relative_to(folder)}: {group['description']}: {test['description']}"
                yield Case(name, schema, test["data"], test["valid"])


def outcome(case: Case) -> str:
    """How the two checks agree with the suite."""
    problems = evaluate(case.schema, case.value)
    is_elsewhere = OTHER_DOCUMENTS in json.dumps(case.schema)
    if any(problem.keyword == "schema" for problem in problems):
        return NAMED if is_elsewhere and check_schema(case.schema) else "refused"
    if any(problem.keyword == "unchecked" for problem in problems):
        return "unchecked"
    here = check_here(case.schema, case.value)
    if here is not None and (not here) != case.fits:
        return "different in this process"
    if (not problems) == case.fits:
        return EQUAL
    return NAMED if OTHER_DOCUMENTS in str(case.schema["$schema"]) else "different"


def main() -> int:
    """The exit code."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".venv/suites")
    tests = suite(folder)
    if tests is None:
        print(
            "skipped: JSON-Schema-Test-Suite cannot be fetched from the registry", file=sys.stderr
        )
        return 0
    failed = 0
    for dialect in DIALECTS:
        counts: Counter[str] = Counter()
        for case in cases(tests / dialect, dialect):
            result = outcome(case)
            counts[result] += 1
            if result not in {EQUAL, NAMED}:
                print(f"{dialect}: {case.name}: {result}")
                failed += 1
        told = ", ".join(f"{count:,} {result}" for result, count in counts.most_common())
        print(f"{dialect}: {counts.total():,} cases: {told}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
