"""Whether tests use the portable forms of `aish/system/platform`: `AISH_TEST_PORTABLE=1` says so.

Importing this decides it for the process. Interpreters that tests start find `sitecustomize.py` in
the folder `FOLDER`, which does the same; nothing that ships reads the variable.
"""

import os
import sys
from pathlib import Path

PORTABLE = os.environ.get("AISH_TEST_PORTABLE") == "1"
FOLDER = Path(__file__).with_name("portable")
"""What `PYTHONPATH` of their processes begins with."""

if PORTABLE:
    sys.aish_portable = True  # type: ignore[attr-defined]  # `aish/system/platform/forms.py` says why
