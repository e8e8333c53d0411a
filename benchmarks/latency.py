"""How long an event takes from its creation until the row that is made of it can be read.

    python benchmarks/latency.py [--engine a,b] [--rate 1000,10000] [--seconds 30] [--table] [--json]
    python benchmarks/latency.py --source kafka [--spark-kafka VERSION]

Events with their creation time come in paced files, one every 50 ms, or as JSON in a topic of two partitions, from a
broker on this machine; they go through a counter per key into Parquet files. Each engine writes as it does: Holdfast by
its sink of files, exactly once; the others by `foreachBatch` into a directory an epoch, whose rows count as readable
with its `_SUCCESS`. `bare` is the same plan with functions that pass rows through, without state; `spark-group-by`
emits a row a key, with the newest creation time, so its latencies are those of the newest events. Latencies are in
milliseconds, of the events that were created after the warm-up.

Spark's own Kafka source is a jar, which there is not for every Spark: `--spark-kafka` names its version, and without it
only Holdfast reads topics.

With `--table` it also prints the parts of an epoch as medians, from the reports of Spark and Holdfast and from
`stopwatch.py`. Each task then writes a few lines more.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # started by its path
    sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

from benchmarks.harness import stopwatch  # noqa: E402
from benchmarks.harness.latency_run import FilePacer, LatencyRun, Pacer, TopicPacer  # noqa: E402

ENGINES = {
    "files": ("holdfast", "holdfast-files", "bare", "spark-group-by", "spark-tws"),
    "kafka": ("holdfast", "bare", "spark-group-by", "spark-tws"),
}
RATES = "1000,10000,50000"
LOOK = 0.004
PATIENCE = 180.0


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

    def __init__(self, run: LatencyRun) -> None:
        self.name = run.engine
        self.told: list[dict[str, Any]] = []
        self._log = Path(run.workspace, "log")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.harness.latency_engine", run.to_json()],
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


def measure(wanted: LatencyRun, rate: int, warm_up: float, seconds: float, is_timed: bool) -> dict[str, Any]:
    """Runs one engine at one rate.

    Args:
        wanted: The engine and what it reads from; the rest is made for it.
        rate: Events a second.
        warm_up: Seconds from the first row until events count.
        seconds: For how long they count.
        is_timed: Whether to look where the time of an epoch goes.
    """
    with tempfile.TemporaryDirectory(prefix="latency-", dir=ROOT / ".bench") as place:
        folders = {name: Path(place) / name for name in ("source/in", "output", "workspace", "times")}
        for folder in folders.values():
            folder.mkdir(parents=True)
        run = replace(wanted, output=str(folders["output"]), workspace=str(folders["workspace"]))
        if is_timed:
            run = replace(run, times=str(folders["times"]))
        pacer: Pacer
        if run.servers:
            run = replace(run, source=f"{run.engine}-{rate}")
            pacer = TopicPacer(run.servers, run.source, rate)
        else:
            run = replace(run, source=str(folders["source/in"]))
            pacer = FilePacer(folders["source/in"], rate)
        engine, observer = Engine(run), Observer(folders["output"])
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
        parts = stopwatch.noted(folders["times"])
    ages = observer.since(begun)
    p50, p99, p999 = (float(round(np.percentile(ages, at), 1)) for at in (50, 99, 99.9))
    return {
        "engine": run.engine,
        "source": "kafka" if run.servers else "files",
        "rate": rate,
        "p50_ms": p50,
        "p99_ms": p99,
        "p999_ms": p999,
        "rows": len(ages),
        "behind_s": round(backlog, 1),
        "pacer_late_ms": round(1000 * pacer.late, 1),
        "epoch_ms": stopwatch.table(engine.told, parts, begun),
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
    newest = (ended - 2 * FilePacer.EVERY) * 1e6
    while not any((created >= newest).any() for created, _ in observer.ages[-8:]):
        observer.look()
        engine.require_alive()
        if time.time() > ended + PATIENCE:
            break
        time.sleep(LOOK)
    return time.time() - ended


@contextlib.contextmanager
def servers_of(source: str) -> Iterator[str]:
    """A broker, if events come from a topic; nothing otherwise."""
    if source == "files":
        yield ""
        return
    from holdfast.testing import KafkaServer

    with KafkaServer() as kafka:
        yield kafka.bootstrap_servers


def chosen_engines(text: str, source: str, connector: str) -> list[str]:
    """The engines of a command line; all that can read the source if there is none."""
    able = ENGINES[source] if source == "files" or connector else ENGINES[source][:1]
    names = [name.strip() for name in text.split(",") if name.strip()] or list(able)
    unknown = [name for name in names if name not in able]
    if unknown:
        raise SystemExit(f"there is no engine {unknown[0]!r} for {source}: choose from {', '.join(able)}")
    return names


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="From the creation of an event to the row that can be read.")
    parser.add_argument("--engine", default="", help="names, separated by commas; by default all")
    parser.add_argument("--source", choices=tuple(ENGINES), default="files", help="where events come from")
    parser.add_argument("--spark-kafka", default="", metavar="VERSION", help="of Spark's own Kafka source")
    parser.add_argument("--rate", default=RATES, help="events a second, separated by commas (default: %(default)s)")
    parser.add_argument("--warm-up", type=float, default=15, help="seconds after the first row (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=30, help="that are measured (default: %(default)s)")
    parser.add_argument("--table", action="store_true", help="also print the parts of an epoch")
    parser.add_argument("--json", action="store_true", help="print JSON lines only")
    chosen = parser.parse_args(arguments)
    names = chosen_engines(chosen.engine, chosen.source, chosen.spark_kafka)
    (ROOT / ".bench").mkdir(exist_ok=True)
    if not chosen.json:
        print(f"{'engine':<16} {'events/s':>9} {'p50 ms':>9} {'p99 ms':>9} {'p99.9 ms':>9} {'behind s':>9}")
    with servers_of(chosen.source) as servers:
        for rate in map(int, chosen.rate.split(",")):
            for name in names:
                connector = "" if name == "holdfast" else chosen.spark_kafka
                run = LatencyRun(name, "", "", "", servers, connector)
                report(measure(run, rate, chosen.warm_up, chosen.seconds, chosen.table), chosen.json)
    return 0


def report(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(found), flush=True)
        return
    numbers = (found["p50_ms"], found["p99_ms"], found["p999_ms"], found["behind_s"])
    print(
        f"{found['engine']:<16} {found['rate']:>9,} " + " ".join(f"{number:>9,.0f}" for number in numbers), flush=True
    )
    for part, median in found["epoch_ms"].items():
        print(f"    {part:<52} {median:>9,.1f}")


if __name__ == "__main__":
    sys.exit(main())
