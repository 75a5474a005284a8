"""The load of `flows.py`: how long a call is judged by what it may have read.

    python flows_load.py COUNT SOURCES

Prints the seconds of a decision by the rules of a file that holds nothing, the median of many: once
with the same sources for all, and once where each call has one more than the call before.
"""

import json
import sys
import time
from collections.abc import Callable
from statistics import median

from aish.core.rules import Exfiltration, FlowRule, FlowSettings
from aish.core.tools import Annotations, Tool, ToolName
from aish.policy.flow import FlowFile, FlowPolicy, ServerFacts

_ALIASES = 40


def _tool(alias: str) -> Tool:
    return Tool(
        name=ToolName(alias, "save"),
        wire=f"{alias}__save",
        description="",
        input_schema={"type": "object"},
        output_schema=None,
        annotations=Annotations(),
        trusted=True,
    )


def main() -> None:
    decisions, count = map(int, sys.argv[1:])
    aliases = [f"server_{number}" for number in range(_ALIASES)]
    facts = ServerFacts(trusted=True, has_credential=False, reads_files=False)
    settings = FlowSettings(
        Exfiltration("deny"),
        (FlowRule(("untrusted",), ("changes", "sends"), "deny", "mcp.flow[0]"),),
    )
    policy = FlowPolicy(FlowFile("bench", settings, dict.fromkeys(aliases, facts)))
    names = [f"{aliases[n % _ALIASES]}__tool_{n}" for n in range(count + decisions)]
    tool, arguments = _tool(aliases[0]), {"text": "a note"}

    def taken(sources: Callable[[int], frozenset[str]]) -> float:
        seconds = []
        for number in range(decisions):
            read = sources(number)
            begun = time.perf_counter()
            assert policy.judge(tool, arguments, read) is None
            seconds.append(time.perf_counter() - begun)
        return median(seconds)

    same = frozenset(names[:count])
    grown = [frozenset(names[: count + number]) for number in range(decisions)]
    print(json.dumps({"same": taken(lambda _: same), "grown": taken(grown.__getitem__)}))


if __name__ == "__main__":
    main()
