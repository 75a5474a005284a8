"""Puts the published JSON Schemas into their one form, or says which are not in it.

    python tests/support/schema_form.py [--check]

A schema is in form if it is a JSON Schema of draft 2020-12, names itself, and is spelled the way
`json.dumps(indent=2)` spells it.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

SCHEMAS = Path(__file__).parents[2] / "schemas"
DRAFT = "https://json-schema.org/draft/2020-12/schema"


def in_form(text: str) -> str:
    """The schema as it should be spelled.

    Raises:
        ValueError: it is no schema that could be published.
    """
    schema = json.loads(text, object_pairs_hook=_once)
    if schema.get("$schema") != DRAFT:
        raise ValueError(f"`$schema` is not {DRAFT}")
    if missing := {"$id", "title", "description"} - set(schema):
        raise ValueError(f"lacks {', '.join(sorted(missing))}")
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"{error.json_path}: {error.message}") from error
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if twice := {key for key in keys if keys.count(key) > 1}:
        raise ValueError(f"{', '.join(sorted(twice))} stands there twice")
    return dict(pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    bad = 0
    for path in sorted(SCHEMAS.glob("*.json")):
        text = path.read_text(encoding="utf-8")
        try:
            wanted = in_form(text)
        except ValueError as error:
            print(f"{path.name}: {error}", file=sys.stderr)
            bad += 1
            continue
        if wanted != text:
            if check:
                print(f"{path.name}: not in form; `make schemas` mends it", file=sys.stderr)
                bad += 1
            else:
                path.write_text(wanted, encoding="utf-8")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
