"""The tree of a whole file into a `Pipeline` (design 10.1: configuration ends at the loader)."""

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import cast

from aish.config.annotations import decode_annotations
from aish.config.decode_expect import decode_cassette, decode_tests
from aish.config.decode_flow import decode_context, decode_limits
from aish.config.decode_models import decode_models
from aish.config.decode_prompts import decode_prompts
from aish.config.decode_rules import decode_policy_tests, decode_rules
from aish.config.decode_servers import decode_servers
from aish.config.decode_shell import decode_shell
from aish.config.decode_steps import StepsReader, loop_limits, on_denied
from aish.config.documents import Documents
from aish.config.nodes import MappingNode, broken_paths, is_whole, positions_of, to_data
from aish.config.pipeline import LockIgnored, Pipeline
from aish.config.reading import Table
from aish.config.steps import Context, LoopLimits
from aish.core.errors import Problem
from aish.core.json import JsonValue


def decode(
    root: MappingNode, path: Path, overrides: Sequence[str], problems: list[Problem]
) -> Pipeline:
    """The pipeline of a tree that fits the schema; what else is wrong goes to `problems`."""
    top = Table(root, "", problems)
    mcp = top.part("mcp")
    documents = Documents()
    prompts = decode_prompts(top.part("prompts"), documents)
    denied = on_denied(top, None)
    bounds = loop_limits(top, loop_limits(mcp, LoopLimits()))
    context = decode_context(top, Context())
    named = is_whole(root) and not top.is_broken("prompts") and is_whole(top.part("prompts").node)
    steps = StepsReader(prompts, named, documents, bounds, denied or "fail", context).steps(top)
    tests = decode_tests(top, documents)
    data = to_data(root)
    assert isinstance(data, Mapping)
    return Pipeline(
        file=path,
        name=top.text("name") or path.stem,
        description=top.text("description") or "",
        inputs={
            name: inputs.mapping(name)
            for inputs in (top.part("inputs"),)
            for name in inputs.names()
        },
        stdin="optional" if top.text("stdin") == "optional" else "required",
        env=top.texts("env"),
        secrets=top.texts("secrets"),
        models=decode_models(top.part("models")),
        model=top.text("model"),
        servers=decode_servers(mcp.part("servers")),
        rules=decode_rules(mcp),
        prompts=prompts,
        steps=steps,
        outputs=top.mapping("outputs") if top.has("outputs") else None,
        annotations=decode_annotations(top),
        limits=decode_limits(top.part("limits")),
        on_denied=denied,
        loop=bounds,
        context=context,
        shell=decode_shell(top.part("shell")),
        policy_tests=decode_policy_tests(top),
        cassette=decode_cassette(top),
        tests=tests,
        lock=top.part("lock").absolute("path") or top.absolute("lock"),
        lock_ignore=cast("tuple[LockIgnored, ...]", top.part("lock").texts("ignore")),
        overrides=tuple(overrides),
        digest=_digest(data, documents.hashes),
        files=documents.hashes,
        data=data,
        positions=positions_of(root),
        broken=tuple(broken_paths(root)) if problems else (),
    )


def _digest(data: JsonValue, hashes: Mapping[str, str]) -> str:
    """SHA-256 of the canonical JSON of the data and of the files it names."""
    whole = {"pipeline": data, "files": dict(hashes)}
    canonical = json.dumps(whole, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()
