"""How long an event takes from its creation until the row that is made of it can be read.

    python benchmarks/latency.py [--engine a,b] [--rate 1000,10000] [--seconds 30] [--json]

Events with their creation time come in paced files, one every 50 ms, through a counter per key into Parquet files. Each
engine writes as it does: Holdfast by its sink of files, exactly once; the others by `foreachBatch` into a directory an
epoch, whose rows count as readable with its `_SUCCESS`. `bare` is the same plan with functions that pass rows through,
without state; `spark-group-by` emits a row a key, with the newest creation time, so its latencies are those of the
newest events. Latencies are in milliseconds, of the events that were created after the warm-up.

With `--table` it also prints where the time of an epoch went, medians of what Spark and Holdfast say.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parent.parent
ENGINES = ("holdfast", "holdfast-files", "bare", "spark-group-by", "spark-tws")
RATES = "1000,10000,50000"
EVERY = 0.05
"""Seconds between two files."""

KEYS = 10_000
LOOK = 0.004
PATIENCE = 180.0


class Pacer(threading.Thread):
    """Writes a file every 50 ms with the events of that time, as long as it is not stopped."""

    def __init__(self, directory: Path, rate: int) -> None:
        super().__init__(daemon=True)
        self._directory = directory
        self._rows = max(1, round(rate * EVERY))
        self._random = np.random.default_rng(7)
        self._stopped = threading.Event()
        self.late = 0.0

    def run(self) -> None:
        due = time.time() + EVERY
        number = 0
        while not self._stopped.wait(max(0.0, due - time.time())):
            created = ((due - EVERY + EVERY * np.arange(self._rows) / self._rows) * 1e6).astype(np.int64)
            keys = [f"key-{key:06d}" for key in self._random.integers(0, KEYS, self._rows).tolist()]
            unfinished = self._directory.parent / "unfinished"
            pq.write_table(pa.table({"key": keys, "created": created}), unfinished)
            unfinished.rename(self._directory / f"{number:08d}.parquet")
            self.late = max(self.late, time.time() - due)
            number += 1
            due += EVERY

    def stop(self) -> None:
        self._stopped.set()
        self.join()


class Observer:
    """Sees rows as soon as they can be read, and notes how old they are."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._seen: set[str] = set()
        self.ages: list[tuple[np.ndarray, np.ndarray]] = []
        """Creation times and ages of the rows of each file, in microseconds."""

    def look(self) -> None:
        for path in self._readable():
            now = time.time() * 1e6
            created = pq.read_table(path, columns=["created"], use_threads=False).column(0).to_numpy()
            self.ages.append((created, now - created))

    def _readable(self) -> Iterator[str]:
        for folder, folders, names in os.walk(self._output):
            folders[:] = [name for name in folders if f"{folder}/{name}" not in self._seen and name[0] not in "._"]
            is_epoch = "epoch=" in folder
            if is_epoch and "_SUCCESS" not in names:
                continue
            if is_epoch:
                self._seen.add(folder)
            for name in names:
                path = f"{folder}/{name}"
                if name.endswith(".parquet") and name[0] not in "._" and path not in self._seen:
                    self._seen.add(path)
                    yield path

    def since(self, begun: float) -> np.ndarray:
        """The ages of rows created after a time, in milliseconds."""
        ages = [age[created >= begun * 1e6] for created, age in self.ages]
        return np.concatenate(ages) / 1000 if ages else np.empty(0)


class Engine:
    """An engine in a process group of its own."""

    def __init__(self, name: str, source: Path, output: Path, workspace: Path) -> None:
        self.name = name
        self.told: list[dict[str, Any]] = []
        self._log = workspace / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.latency_engine", name, str(source), str(output), str(workspace)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.getenv("PYTHONPATH"))))},
                text=True,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self.told.append({"at": time.time(), **json.loads(line)})

    def require_alive(self) -> None:
        if self._process.poll() is not None:
            raise SystemExit(f"engine {self.name!r} has ended:\n{self._log.read_text(errors='replace')[-4000:]}")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(5)


def measure(name: str, rate: int, warm_up: float, seconds: float) -> dict[str, Any]:
    """Runs one engine at one rate."""
    with tempfile.TemporaryDirectory(prefix="latency-", dir=ROOT / ".bench") as place:
        source, output, workspace = (Path(place) / part for part in ("source/in", "output", "workspace"))
        for folder in (source, output, workspace):
            folder.mkdir(parents=True)
        engine, observer, pacer = Engine(name, source, output, workspace), Observer(output), Pacer(source, rate)
        try:
            wait_for_start(engine)
            pacer.start()
            begun = first_row(engine, observer) + warm_up
            while time.time() < begun + seconds:
                observer.look()
                engine.require_alive()
                time.sleep(LOOK)
            pacer.stop()
            backlog = drain(engine, observer, begun + seconds)
        finally:
            engine.close()
    ages = observer.since(begun)
    p50, p99, p999 = (float(round(np.percentile(ages, at), 1)) for at in (50, 99, 99.9))
    return {
        "engine": name,
        "rate": rate,
        "p50_ms": p50,
        "p99_ms": p99,
        "p999_ms": p999,
        "rows": len(ages),
        "behind_s": round(backlog, 1),
        "pacer_late_ms": round(1000 * pacer.late, 1),
        "epoch_ms": split(engine.told, begun),
    }


def wait_for_start(engine: Engine) -> None:
    deadline = time.time() + PATIENCE
    while not any("started" in said for said in engine.told):
        engine.require_alive()
        if time.time() > deadline:
            raise SystemExit(f"engine {engine.name!r} has not started")
        time.sleep(0.05)


def first_row(engine: Engine, observer: Observer) -> float:
    """When the first row could be read."""
    deadline = time.time() + PATIENCE
    while not observer.ages:
        observer.look()
        engine.require_alive()
        if time.time() > deadline:
            raise SystemExit(f"engine {engine.name!r} has written nothing")
        time.sleep(LOOK)
    return time.time()


def drain(engine: Engine, observer: Observer, ended: float) -> float:
    """Waits for the last events; returns how long that took."""
    newest = (ended - 2 * EVERY) * 1e6
    while not any((created >= newest).any() for created, _ in observer.ages[-8:]):
        observer.look()
        engine.require_alive()
        if time.time() > ended + PATIENCE:
            break
        time.sleep(LOOK)
    return time.time() - ended


def split(told: Sequence[dict[str, Any]], begun: float) -> dict[str, float]:
    """Medians of the parts of an epoch."""
    parts: defaultdict[str, list[float]] = defaultdict(list)
    for said in told:
        if said["at"] < begun:
            continue
        for name, value in said.get("spark", {}).items():
            parts[f"spark {name}"].append(value)
        own = said.get("holdfast", {})
        for name in ("duration_ms", "task_ms", "function_ms", "saving_ms", "checkpoint_ms", "commit_ms"):
            if name in own:
                parts[f"holdfast {name.removesuffix('_ms')}"].append(own[name])
    return {name: round(statistics.median(values), 1) for name, values in parts.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="From the creation of an event to the row that can be read.")
    parser.add_argument("--engine", default=",".join(ENGINES), help="names, separated by commas (default: %(default)s)")
    parser.add_argument("--rate", default=RATES, help="events a second, separated by commas (default: %(default)s)")
    parser.add_argument("--warm-up", type=float, default=15, help="seconds after the first row (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=30, help="that are measured (default: %(default)s)")
    parser.add_argument("--table", action="store_true", help="print where the time of an epoch went, too")
    parser.add_argument("--json", action="store_true", help="print JSON lines only")
    chosen = parser.parse_args(arguments)
    names = [name.strip() for name in chosen.engine.split(",")]
    unknown = [name for name in names if name not in ENGINES]
    if unknown:
        raise SystemExit(f"there is no engine {unknown[0]!r}: choose from {', '.join(ENGINES)}")
    (ROOT / ".bench").mkdir(exist_ok=True)
    if not chosen.json:
        print(f"{'engine':<16} {'events/s':>9} {'p50 ms':>9} {'p99 ms':>9} {'p99.9 ms':>9} {'behind s':>9}")
    for rate in map(int, chosen.rate.split(",")):
        for name in names:
            found = measure(name, rate, chosen.warm_up, chosen.seconds)
            if chosen.json:
                print(json.dumps(found), flush=True)
                continue
            numbers = (found["p50_ms"], found["p99_ms"], found["p999_ms"], found["behind_s"])
            print(f"{name:<16} {rate:>9,} " + " ".join(f"{number:>9,.0f}" for number in numbers), flush=True)
            if chosen.table:
                for part, median in found["epoch_ms"].items():
                    print(f"    {part:<28} {median:>9,.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
