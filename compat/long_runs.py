"""Two hours of a batch and of a hub, in which things go wrong: what they hold, as a picture.

    python compat/long_runs.py [--minutes 120] [--svg FILE]

The batch asks an endpoint with a quota that fails now and then, ends its connections, and is away
for a minute; its clock jumps (where libfaketime is installed), and it is stopped for minutes as a
laptop is that sleeps. The hub is the one of `make soak`, with fewer calls. Prints the figures, and
ends with 1 where memory has grown by more than 5 % since the tenth minute, descriptors are left,
or a row is lost or in the results twice.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median, median_low
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from hub_soak import Report, Soak

LIBRARY = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
AISH = str(Path(sys.executable).with_name("aish"))
QUOTA = 20.0
CALLS = 20.0
ROWS = 200_000
GROWTH = 1.05
SETTLED_MINUTES = 10
ANSWER = {"kind": "wish", "urgent": False}


@dataclass(frozen=True)
class Sample:
    """What a process holds at a minute of the run."""

    minute: float
    memory: float
    descriptors: int
    threads: int
    files: int


@dataclass(frozen=True)
class Measure:
    name: str
    read: Callable[[Sample], float]


MEASURES = (
    Measure("memory, MiB", lambda sample: sample.memory),
    Measure("descriptors", lambda sample: sample.descriptors),
    Measure("threads", lambda sample: sample.threads),
    Measure("files in the folder", lambda sample: sample.files),
)


class Endpoint(ThreadingHTTPServer):
    """Answers as many requests a second as its quota; the others get a 429."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.lock = threading.Lock()
        self.tokens, self.filled = QUOTA, time.monotonic()
        self.answers: Counter[int] = Counter()
        self.chance = random.Random(1)  # ruff: ignore[suspicious-non-cryptographic-random-usage] - which answers fail
        self.away = False

    def take(self) -> bool:
        with self.lock:
            now = time.monotonic()
            self.tokens = min(QUOTA, self.tokens + (now - self.filled) * QUOTA)
            self.filled = now
            if self.tokens < 1:
                return False
            self.tokens -= 1
            return True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that leave."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Endpoint

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        self.rfile.read(length)
        if self.server.away or self.server.chance.random() < 0.005:
            self.server.answers[0] += 1
            self.close_connection = True
            return
        if not self.server.take():
            headers = {"retry-after": "1", "x-ratelimit-remaining-requests": "0"}
            self.reply(429, {"error": {"code": "rate_limit_exceeded", "message": "quota"}}, headers)
        elif self.server.chance.random() < 0.01:
            self.reply(500, {"error": {"message": "try again"}}, {})
        else:
            self.stream()

    def reply(self, status: int, body: object, headers: dict[str, str]) -> None:
        self.server.answers[status] += 1
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def stream(self) -> None:
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "mock"}
        delta = {"role": "assistant", "content": json.dumps(ANSWER)}
        usage = {"prompt_tokens": 40, "completion_tokens": 12, "total_tokens": 52}
        chunks = [
            chunk | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
            chunk | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            chunk | {"choices": [], "usage": usage},
        ]
        lines = [f"data: {json.dumps(one)}\n\n" for one in chunks]
        data = "".join([*lines, "data: [DONE]\n\n"]).encode()
        self.server.answers[200] += 1
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        """Say nothing of requests."""


def take_sample(pid: int, folder: Path, minute: float) -> Sample:
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    )
    return Sample(
        round(minute, 2),
        round(int(status["VmRSS"].split()[0]) / 1024, 2),
        sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
        int(status["Threads"]),
        sum(len(names) for _, _, names in os.walk(folder)),
    )


class Batch:
    """A run over many rows, and what happens to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.endpoint = Endpoint()
        self.port = self.endpoint.server_address[1]
        self.clock = folder / "clock"
        self.events: Counter[str] = Counter()

    def start(self) -> "subprocess.Popen[bytes]":
        schema = {
            "type": "object",
            "properties": {"kind": {"enum": ["defect", "wish"]}, "urgent": {"type": "boolean"}},
            "required": ["kind", "urgent"],
        }
        pipeline = {
            "aish": 1,
            "name": "rows",
            "models": {"m": {"base_url": f"http://127.0.0.1:{self.port}/v1", "model": "mock"}},
            "foreach": {"file": "rows.jsonl"},
            "as": "row",
            "key": "row.id",
            "concurrency": 8,
            "max_failures": "100%",
            "prompt": "What kind of ticket is this? {{ row.text }}",
            "output": {"schema": schema},
        }
        (self.folder / "p.yaml").write_text(json.dumps(pipeline))
        with (self.folder / "rows.jsonl").open("w") as rows:
            for number in range(ROWS):
                rows.write(json.dumps({"id": f"R-{number}", "text": f"Ticket {number}"}) + "\n")
        threading.Thread(target=self.endpoint.serve_forever, daemon=True).start()
        env = dict(os.environ)
        if LIBRARY.exists():
            self.jump("+0")
            env |= {
                "LD_PRELOAD": str(LIBRARY),
                "FAKETIME_TIMESTAMP_FILE": str(self.clock),
                "FAKETIME_NO_CACHE": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        with (self.folder / "stderr").open("wb") as stderr:
            return subprocess.Popen(
                [AISH, "run", "p.yaml", "--run-dir", "runs", "-q"],
                cwd=self.folder,
                env=env,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )

    def jump(self, offset: str) -> None:
        """Let the clock of the run be so many seconds off."""
        new = self.clock.with_suffix(".new")
        new.write_text(offset + "\n")
        new.replace(self.clock)

    def disturb(self, process: "subprocess.Popen[bytes]", minute: int) -> None:
        """Do what belongs to this minute of every half hour."""
        match minute % 30:
            case 12:
                self.endpoint.away = True
                self.events["network away for a minute"] += 1
            case 13:
                self.endpoint.away = False
            case 17:
                self.jump("+7200")
                self.events["clock two hours forward"] += 1
            case 21:
                self.jump("-3600")
                self.events["clock three hours back"] += 1
            case 24:
                process.send_signal(signal.SIGSTOP)
                self.events["stopped for two minutes"] += 1
            case 26:
                process.send_signal(signal.SIGCONT)
            case _:
                pass

    def check(self, process: "subprocess.Popen[bytes]") -> list[str]:
        """End the run, and return what is wrong with what it leaves."""
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
        problems = [] if code == 143 else [f"the batch ended with {code}, not 143"]
        (run,) = (one for one in (self.folder / "runs").iterdir() if not one.is_symlink())
        results = (run / "results.jsonl").read_text("utf-8").splitlines()
        keys = Counter(json.loads(line)["key"] for line in results)
        states = Counter(str(json.loads(line).get("status")) for line in results)
        problems += [f"{key} is there {count} times" for key, count in keys.items() if count > 1]
        print(f"batch: {len(keys):,} rows, {dict(states)}, answers {dict(self.endpoint.answers)}")
        print(f"batch: {dict(self.events)}")
        print((self.folder / "stderr").read_text("utf-8")[-2000:])
        return problems


def run_hub(soak: Soak, reports: list[Report]) -> None:
    import anyio

    reports.append(anyio.run(soak.run))


def judge(name: str, samples: Sequence[Sample]) -> list[str]:
    """Return what has grown from the ten minutes after the tenth to the last ten."""
    span = min(SETTLED_MINUTES, samples[-1].minute / 3)
    settled = [one for one in samples if span <= one.minute < 2 * span] or list(samples[:1])
    last = [one for one in samples if one.minute > samples[-1].minute - span]
    before, after = (median(one.memory for one in part) for part in (settled, last))
    held, left = (median_low(one.descriptors for one in part) for part in (settled, last))
    print(f"{name}: memory {before:.1f} MiB, at the end {after:.1f} ({after / before:.3f} x)")
    print(f"{name}: descriptors {held}, at the end {left}; the last sample is {last[-1]}")
    problems = []
    if after > GROWTH * before:
        problems.append(f"{name}: memory has grown to {after / before:.3f} x")
    if left > held:
        problems.append(f"{name}: {left - held} descriptors are left")
    return problems


def draw(series: dict[str, list[Sample]]) -> str:
    """Return one chart a measure, each from 0 to its largest value, as SVG."""
    width, height, left, gap = 340, 120, 46, 64
    colors = dict(zip(series, ("#1f6feb", "#bf5700"), strict=True))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 820 {2 * (height + gap) + 30}">',
        "<style>text {font: 12px sans-serif}</style>",
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    for place, (name, color) in enumerate(colors.items()):
        parts.append(f'<text x="{left + place * 90}" y="18" fill="{color}">{name}</text>')
    for number, measure in enumerate(MEASURES):
        x, y = left + number % 2 * (width + 60), 50 + number // 2 * (height + gap)
        most = max(measure.read(one) for samples in series.values() for one in samples) or 1
        end = max(samples[-1].minute for samples in series.values())
        parts += [
            f'<text x="{x}" y="{y - 8}">{measure.name}</text>',
            f'<path d="M{x} {y}V{y + height}H{x + width}" fill="none" stroke="#888"/>',
            f'<text x="{x - 6}" y="{y + 10}" text-anchor="end">{most:.0f}</text>',
            f'<text x="{x - 6}" y="{y + height}" text-anchor="end">0</text>',
            f'<text x="{x + width}" y="{y + height + 16}" text-anchor="end">{end:.0f} min</text>',
        ]
        for name, samples in series.items():
            shares = [(one.minute / end, 1 - measure.read(one) / most) for one in samples]
            points = " ".join(f"{x + width * a:.1f},{y + height * b:.1f}" for a, b in shares)
            line = f'fill="none" stroke="{colors[name]}" stroke-width="2"'
            parts.append(f'<polyline points="{points}" {line}/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def watch(
    batch: Batch, soak: Soak, process: "subprocess.Popen[bytes]", minutes: float
) -> Iterator[tuple[str, Sample]]:
    """Disturb the batch, and yield what both hold, each minute."""
    began = time.monotonic()
    for minute in range(1, int(minutes)):
        time.sleep(max(0.0, began + 60 * minute - time.monotonic()))
        batch.disturb(process, minute)
        for name, pid, folder in (
            ("batch", process.pid, batch.folder),
            ("hub", soak.pid, soak.folder),
        ):
            yield name, take_sample(pid, folder, (time.monotonic() - began) / 60)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--svg", type=Path)
    arguments = parser.parse_args()
    series: dict[str, list[Sample]] = {"batch": [], "hub": []}
    with tempfile.TemporaryDirectory() as name:
        folders = {one: Path(name) / one for one in series}
        for folder in folders.values():
            folder.mkdir()
        batch = Batch(folders["batch"])
        soak = Soak(folders["hub"], arguments.minutes * 60, CALLS)
        reports: list[Report] = []
        hub = threading.Thread(target=run_hub, args=(soak, reports))
        hub.start()
        with batch.start() as process:
            for one, sample in watch(batch, soak, process, arguments.minutes):
                series[one].append(sample)
            problems = batch.check(process)
        hub.join()
    problems += reports[0].problems if reports else ["the hub did not run"]
    print(json.dumps([vars(one) for one in reports], indent=1))
    for one, samples in series.items():
        problems += judge(one, samples)
    if arguments.svg:
        arguments.svg.write_text(draw(series), "utf-8")
    for problem in problems:
        print(f"problem: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
