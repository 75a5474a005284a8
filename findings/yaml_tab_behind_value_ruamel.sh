#!/usr/bin/env bash
# ruamel.yaml 0.19.1 (PyPI), its YAML 1.2 reader in pure Python: a tab between a plain value and the
# comment behind it is an error.
#
# YAML 1.2.2, 6.6 and 6.7: white space in front of a comment is spaces or tabs. npm's `yaml` 2.9.1
# reads the same text as {"a":"x"}.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet ruamel.yaml==0.19.1
cd "$folder"
npm install --silent --no-audit --no-fund --prefix "$folder" yaml@2.9.1 > /dev/null
printf 'a: x\t# c\n' > text.yaml
ruamel_says=$("$folder/venv/bin/python" - <<'PY'
from pathlib import Path

from ruamel.yaml import YAML

try:
    print(dict(YAML(typ="safe", pure=True).load(Path("text.yaml"))))
except Exception as error:
    print(type(error).__name__)
PY
)
yaml_says=$(node -e '
const fs = require("fs");
console.log(JSON.stringify(require("yaml").parse(fs.readFileSync("text.yaml", "utf8"))));
')
printf 'ruamel.yaml: %s\nyaml: %s\n' "$ruamel_says" "$yaml_says"
test "$ruamel_says" = ScannerError
test "$yaml_says" = '{"a":"x"}'
