"""Nexmark: events a second of Holdfast, Flink's SQL, PyFlink's DataStream and Spark's SQL, over the same files.

    python benchmarks/nexmark/run.py [--query q5,q9] [--engine holdfast,flink-sql] [--events N] [--rounds 3] [--json]

Each engine has a process of its own, which stays warm, on two cores, with a checkpoint every ten seconds; results are
dropped (q10 writes files in directories). The engines take turns: a run that does not count, then the rounds. A run is
a job from its submission to its end, so what it costs to start one is in it. The events of a query are those of the
kinds that it reads. PyFlink takes minutes for what the others do in seconds, so it has one run, of a tenth of the
events, or with `--same-events` of all. Each result has `others`: how many cores were busy with other work in each
round. `scripts/nexmark_table.py` puts the JSON lines of one run, or of one in pieces, into the results.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # started by its path
    sys.path.insert(0, str(ROOT))

from benchmarks.harness.contest import progress  # noqa: E402
from benchmarks.harness.warm_process import WarmProcess  # noqa: E402
from benchmarks.nexmark.engine import Settings, engine_module  # noqa: E402
from benchmarks.nexmark.files import events_on_disk, rows_of  # noqa: E402
from benchmarks.nexmark.queries import QUERIES  # noqa: E402

ENGINES: Final = ("holdfast", "holdfast-real-time", "flink-sql", "flink-sql-without-keys", "spark-sql", "pyflink")
SLOW: Final = {"pyflink"}
FEWER: Final = 10
"""How many times fewer events a slow engine gets; its rate is of these."""
PATIENCE: Final = 1200.0


class EngineProcess(WarmProcess):
    """One engine."""

    def __init__(self, name: str, settings: Settings) -> None:
        self.name = name
        module = engine_module(name)
        python = module.interpreter(Path(settings.cache)) if hasattr(module, "interpreter") else sys.executable
        command = [python, "-m", "benchmarks.nexmark.engine", name, settings.to_json()]
        super().__init__(command, Path(settings.workspace), PATIENCE)

    def run(self, query: str) -> float:
        """Blocks until the engine has run a query; returns the seconds that it took.

        Raises:
            SystemExit: The engine has failed; its log is shown.
        """
        answer = self.ask(query)
        found: dict[str, Any] = json.loads(answer) if answer else {"error": f"no answer within {PATIENCE:.0f} s"}
        if "error" in found:
            raise SystemExit(f"engine {self.name!r} failed at {query}: {found['error']}\n{self.last_words()}")
        return float(found["seconds"])


def measure(chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """Hold the contest and return a result for each query and engine that has it."""
    cache = chosen.cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    fewer = 1 if chosen.same_events else FEWER
    folders = {name: _events(cache, chosen, fewer if name in SLOW else 1) for name in chosen.engine}
    results = []
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the engines are ended too
    with contextlib.ExitStack() as stack:
        directory = tempfile.TemporaryDirectory(prefix="nexmark-", dir=cache, ignore_cleanup_errors=True)
        workspace = Path(stack.enter_context(directory))
        running = []
        for name in chosen.engine:
            running.append(EngineProcess(name, Settings(str(folders[name]), str(workspace / name), str(cache))))
            stack.callback(running[-1].close)
        for query in chosen.query:
            results += _rounds(
                query, [one for one in running if query in engine_module(one.name).QUERIES], folders, chosen
            )
    return results


def _events(cache: Path, chosen: argparse.Namespace, fewer: int) -> Path:
    epoch = max(1, chosen.epoch // fewer)
    return events_on_disk(cache / "nexmark", max(1, chosen.events // fewer // epoch) * epoch, epoch)


def _rounds(
    query: str, engines: Sequence[EngineProcess], folders: dict[str, Path], chosen: argparse.Namespace
) -> list[dict[str, Any]]:
    """Let engines take turns at a query."""
    kinds = tuple({read.kind for read in QUERIES[query].inputs.values()})
    events = {engine.name: rows_of(folders[engine.name], kinds) for engine in engines}
    seconds: dict[str, list[float]] = {engine.name: [] for engine in engines}
    others: dict[str, list[float]] = {engine.name: [] for engine in engines}
    for number in range(chosen.warm_up + chosen.rounds):
        for engine in engines:
            if engine.name in SLOW and number != chosen.warm_up:
                continue
            began, before = time.monotonic(), busy_seconds() - engine.processor_seconds()
            took = engine.run(query)
            beside = (busy_seconds() - engine.processor_seconds() - before) / (time.monotonic() - began)
            kind = "warm-up" if number < chosen.warm_up else f"round {number - chosen.warm_up + 1}"
            rate = f"{events[engine.name] / took:,.0f} events/s, {beside:.2f} cores busy with other work"
            progress(f"{query}: {engine.name}: {kind}: {took:.2f} s, {rate}")
            if number >= chosen.warm_up:
                seconds[engine.name].append(took)
                others[engine.name].append(beside)
    results = [
        {
            "query": query,
            "engine": name,
            "events_per_second": round(events[name] / statistics.median(took), 1),
            "seconds": round(statistics.median(took), 3),
            "rounds": [round(one, 3) for one in took],
            "events": events[name],
            "others": [round(one, 2) for one in others[name]],
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
        }
        for name, took in seconds.items()
    ]
    if chosen.json:
        for result in results:
            print(json.dumps(result), flush=True)
    return results


def busy_seconds() -> float:
    """What all processors of this machine have worked since it was started."""
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    ticks = dict(zip(names, map(int, fields), strict=False))
    return sum(ticks[name] for name in names if name not in ("idle", "iowait")) / os.sysconf("SC_CLK_TCK")


def names_of(text: str, known: Sequence[str], what: str) -> list[str]:
    """Names separated by commas, for argparse."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"there is no {what} {name!r}: choose from {', '.join(known)}")
    return names


def main(arguments: list[str] | None = None) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="Events a second on the queries of Nexmark.")
    parser.add_argument(
        "--query",
        type=lambda text: names_of(text, list(QUERIES), "query"),
        default=list(QUERIES),
        help="names, separated by commas (default: all)",
    )
    parser.add_argument(
        "--engine",
        type=lambda text: names_of(text, ENGINES, "engine"),
        default=["holdfast", "flink-sql"],
        help=f"names, separated by commas, of {', '.join(ENGINES)} (default: holdfast,flink-sql)",
    )
    parser.add_argument("--events", type=int, default=2_000_000, help="of all kinds together (default: %(default)s)")
    parser.add_argument("--epoch", type=int, default=500_000, help="events an epoch (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count (default: %(default)s)")
    parser.add_argument("--warm-up", type=int, default=1, help="runs before them (default: %(default)s)")
    parser.add_argument("--same-events", action="store_true", help="PyFlink reads all events, not a tenth")
    parser.add_argument("--cache", type=Path, default=ROOT / ".bench", help="generated events and environments")
    parser.add_argument("--json", action="store_true", help="print JSON lines only")
    chosen = parser.parse_args(arguments)
    if min(chosen.events, chosen.epoch, chosen.rounds) < 1 or chosen.warm_up < 0:
        parser.error("--events, --epoch and --rounds are at least 1, --warm-up at least 0")
    results = measure(chosen)
    if not chosen.json:
        for result in results:
            print("{query:<4} {engine:<10} {events_per_second:>12,.0f} events/s   {seconds:.2f} s".format(**result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
