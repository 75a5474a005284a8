"""Has an interpreter that a test starts use the portable forms: `portable_forms.py`."""

import sys

sys.aish_portable = True  # type: ignore[attr-defined]  # an attribute of ours
