"""A process that writes the page of a live test of 50 cases, 4 models, 8 runs each: `FILE`."""

import sys
from pathlib import Path

from aish.reports.html.cases import cases_page
from aish.reports.live_results import LiveCase, LiveCell, LiveColumn, LiveResults, LiveRun

CASES, MODELS, RUNS = 50, 4, 8


def runs(case: int, model: int) -> tuple[LiveRun, ...]:
    """Answers of 6 kB, all of them different; the first run fails."""
    return tuple(
        LiveRun(
            "passed" if number else "failed",
            answer=f"{case}.{model}.{number}: a line <of> an answer & more\n" * 150,
        )
        for number in range(RUNS)
    )


def main(file: Path) -> None:
    models = [f"model-{number}" for number in range(MODELS)]
    cases = (
        LiveCase(
            f"p.yaml: {case}",
            "p.yaml",
            str(case),
            tuple(LiveCell(name, "failed", runs(case, n)) for n, name in enumerate(models)),
        )
        for case in range(CASES)
    )
    file.write_bytes(cases_page(LiveResults(tuple(map(LiveColumn, models)), tuple(cases))))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
