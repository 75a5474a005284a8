#!/usr/bin/env bash
# pathspec 1.1.1 (PyPI), class GitIgnoreSpec: two kinds of lines that git accepts in a .gitignore end
# in an exception, so all other lines of the file are lost with them.
#
# git (seen with 2.39.5) reads a class with a reversed range, `[c-a]`, and a lone backslash as
# patterns that match nothing, and goes on with the next line. pathspec raises `re.error` for the
# first, which is not documented, and GitIgnorePatternError for the second, when the specification is
# made. Whoever reads .gitignore files of others with it has to make one pattern at a time.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pathspec==1.1.1
mkdir "$folder/tree"
cd "$folder/tree"
git init --quiet .
for line in '[c-a]' '\'; do
  printf '%s\n*.log\n' "$line" > .gitignore
  git_says=$(git check-ignore x.log || true)
  pathspec_says=$("$folder/venv/bin/python" - <<'PY'
from pathlib import Path

from pathspec import GitIgnoreSpec

try:
    spec = GitIgnoreSpec.from_lines(Path(".gitignore").read_text().splitlines())
    print("matches" if spec.match_file("x.log") else "does not match")
except Exception as error:
    print(f"{type(error).__module__}.{type(error).__name__}")
PY
  )
  printf '%s  git check-ignore: %s  pathspec: %s\n' "$line" "$git_says" "$pathspec_says"
  test "$git_says" = x.log
  case $line in
    '[c-a]') test "$pathspec_says" = re.error ;;
    *) test "${pathspec_says##*.}" = GitIgnorePatternError ;;
  esac
done
