"""What an idle real-time job costs, for how long a kill or a rescale stops its output, and its memory over time.

    python benchmarks/realtime_life.py [idle] [kills] [executors] [rescales] [memory] [--idle 60]
        [--checkpoints "10 s,1 s"] [--parallelism 2] [--kills 5] [--rescales 4] [--rate 1000] [--minutes 60]
        [--memory-rate 10000]

Without the name of a part it measures all but the memory.

The job is that of `realtime.py` with events from a generator: two stages of `--parallelism` tasks, one value state,
at-least-once output. It has a process of its own.

- **Idle**: one event a second. `core` is the share of one core that the driver, the JVM and the workers use.
- **Kills**: at the rate, with a checkpoint each second, one of the workers is killed after some seconds, again and
  again. `seconds` is for how long no row came out. It contains the delay of a restart, which is one second.
- **Executors**: the same with the JVM of one of two executors, of `local-cluster[2,PARALLELISM,700]`. The job needs all
  slots, so it waits for a new executor. `slots` is the time from the kill until Spark has all slots again, `row` the
  time from then until the next row.
- **Rescales**: at the same rate, to one task more and back.
- **Memory**: with a checkpoint each second, once a minute, in MB: the resident memory of the driver and the JVM, that
  of the workers without mapped files, and these (`mapped`), the heap behind a collection, and direct memory. The
  slope is that of the line through all samples behind the first sixth of the time. `rows` are the rows a second since
  the last sample.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # started by its path
    sys.path.insert(0, str(ROOT))

from benchmarks.harness.realtime_outcome import read_pairs  # noqa: E402
from benchmarks.harness.realtime_run import PAIR_BYTES, PARALLELISM, RealTimeRun  # noqa: E402
from benchmarks.harness.warm_process import members  # noqa: E402
from benchmarks.realtime import EngineError, Process, wait_for_events  # noqa: E402

PARTS = ("idle", "kills", "executors", "rescales", "memory")
WARM_UP = 25.0
BETWEEN_PAUSES = 15.0
PATIENCE = 120.0
LOOK = 0.05


def measure_idle(place: Path, checkpoints: str, seconds: float, parallelism: int) -> dict[str, object]:
    job, _ = started(place, 1, checkpoints, parallelism=parallelism)
    try:
        time.sleep(WARM_UP)
        begin, used = time.monotonic(), job.processor_seconds()
        time.sleep(seconds)
        share = (job.processor_seconds() - used) / (time.monotonic() - begin)
        job.require_alive()
    finally:
        job.close()
    return {"measured": "idle", "parallelism": parallelism, "checkpoints": checkpoints, "core": round(share, 4)}


def measure_pauses(place: Path, kills: int, rescales: int, rate: int, parallelism: int) -> Iterator[dict[str, object]]:
    job, latencies = started(place, rate, "1 s", parallelism=parallelism)

    def pause() -> float:
        """Return for how long no row came out in the next seconds."""
        began = time.time()
        time.sleep(BETWEEN_PAUSES)
        job.require_alive()
        begin, end = longest_pause(seen_since(latencies, began), began, time.time())
        return round(end - begin, 2)

    try:
        time.sleep(WARM_UP)
        for _ in range(kills):
            os.kill(random.choice(workers(job.pid)), signal.SIGKILL)
            yield {"measured": "kill", "rate": rate, "seconds": pause()}
        for number in range(rescales):
            changed = parallelism + (number + 1) % 2
            job.tell(str(changed))
            yield {"measured": "rescale", "to": changed, "rate": rate, "seconds": pause()}
    finally:
        job.close()


def measure_executors(place: Path, kills: int, rate: int, parallelism: int) -> Iterator[dict[str, object]]:
    cluster = {"spark.master": f"local-cluster[2,{parallelism},700]", "spark.executor.memory": "700m"}
    job, latencies = started(place, rate, "1 s", has_output=True, parallelism=parallelism, spark=cluster)

    def wait_for_slots(*, has_all: bool) -> None:
        """Block until the job has all slots, or lacks some."""
        deadline = time.monotonic() + PATIENCE
        while (slots_of(job) == 2 * parallelism) is not has_all:
            job.require_alive()
            if time.monotonic() > deadline:
                raise EngineError(f"an executor was killed, and Spark has {slots_of(job)} slots after {PATIENCE:.0f} s")
            time.sleep(LOOK)

    try:
        time.sleep(WARM_UP)
        for _ in range(kills):
            began = time.time()
            os.kill(random.choice(executors(job.pid)), signal.SIGKILL)
            wait_for_slots(has_all=False)
            wait_for_slots(has_all=True)
            back = time.time()
            time.sleep(BETWEEN_PAUSES)
            job.require_alive()
            begin, end = longest_pause(seen_since(latencies, began), began, time.time())
            times = {"slots": back - began, "row": end - back, "seconds": end - begin}
            yield {"measured": "executor", "rate": rate} | {name: round(took, 2) for name, took in times.items()}
    finally:
        job.close()


def slots_of(job: Process) -> int:
    assert job.output is not None
    job.tell("slots")
    return int(job.output.readline() or 0)


def seen_since(latencies: Path, began: float) -> list[float]:
    """Return when rows came out since a time."""
    return [at for at in read_pairs(latencies)[:, 1] / 1e6 if at > began]


def longest_pause(seen: Sequence[float], began: float, ended: float) -> tuple[float, float]:
    """Return begin and end of the longest time between two rows; the measured time begins and ends with one."""
    return max(pairwise([began, *sorted(seen), ended]), key=lambda pause: pause[1] - pause[0])


def measure_memory(place: Path, minutes: float, rate: int, parallelism: int) -> Iterator[dict[str, object]]:
    """Yield a sample a minute, the first one when the job is warm."""
    job, latencies = started(place, rate, "1 s", has_output=True, parallelism=parallelism)
    try:
        time.sleep(WARM_UP)
        began, rows = time.monotonic(), rows_in(latencies)
        at, before = 0.0, began - WARM_UP
        while True:
            job.require_alive()
            now, seen = time.monotonic(), rows_in(latencies)
            sizes = {"rows": round((seen - rows) / (now - before)) if at else rate}
            rows, before = seen, now
            assert job.output is not None
            job.tell("memory")
            of_jvm = json.loads(job.output.readline())
            resident = resident_bytes(job.pid)
            sizes |= {name: round(size / 1e6) for name, size in (resident | of_jvm).items()}
            yield {"measured": "memory", "minute": round(at, 1), **sizes}
            if at >= minutes:
                return
            at = min(at + 1, minutes)
            time.sleep(max(0.0, began + 60 * at - time.monotonic()))
    finally:
        job.close()


def memory_table(samples: Sequence[dict[str, Any]]) -> str:
    """Return the samples as a table: the start, after 10 and 30 minutes, the end, and the slope."""
    minutes = [sample["minute"] for sample in samples]
    shown = [at for at in (0, 10, 30) if at < minutes[-1]]
    lines = [
        "| MB | " + " | ".join([*(f"{at} min" for at in shown), f"end: {minutes[-1]} min", "slope, MB an hour"]) + " |",
        "|---|" + "---:|" * (len(shown) + 2),
    ]
    steady = [sample for sample in samples if sample["minute"] >= minutes[-1] / 6]
    for name in samples[0]:
        if name not in ("measured", "minute"):
            values = [next(one[name] for one in samples if one["minute"] >= at) for at in shown]
            cells = [f"{value:,}" for value in (*values, samples[-1][name])]
            times = [sample["minute"] / 60 for sample in steady]
            has_slope = len(steady) > 1 and name != "rows"
            slope = f"{np.polyfit(times, [one[name] for one in steady], 1)[0]:+.1f}" if has_slope else ""
            lines.append(f"| {name} | {' | '.join(cells)} | {slope} |")
    return "\n".join(lines)


def rows_in(latencies: Path) -> int:
    return sum(path.stat().st_size for path in latencies.iterdir()) // PAIR_BYTES


def resident_bytes(session: int) -> dict[str, int]:
    """Return the memory of the driver, of the JVM and of the workers, and what the workers have mapped of files."""
    found = {"driver": 0, "jvm": 0, "workers": 0, "mapped": 0}
    forked = workers(session)
    for process, _ in members(session):
        with contextlib.suppress(OSError):  # it has ended
            is_java = Path(f"/proc/{process}/comm").read_text().strip() == "java"
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            sizes = {line.split()[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}
            resident, anonymous = sizes["Rss:"], sizes["Anonymous:"]
            if process in forked:
                found["workers"] += anonymous
                found["mapped"] += resident - anonymous
            elif is_java or process == session:  # others fork workers, and merge runs
                found["jvm" if is_java else "driver"] += resident
    return found


def started(
    place: Path,
    rate: int,
    checkpoints: str,
    *,
    parallelism: int,
    has_output: bool = False,
    spark: Mapping[str, str] | None = None,
) -> tuple[Process, Path]:
    """Start the job in an empty directory, and return its process and the directory of latencies."""
    latencies = place / "latencies"
    latencies.mkdir(parents=True)
    names = ("", "", str(place), str(latencies))
    run = RealTimeRun(
        "holdfast-real-time",
        "generator",
        rate,
        50_000,
        *names,
        checkpoints=checkpoints,
        parallelism=parallelism,
        spark=dict(spark or {}),
    )
    job = Process(["benchmarks.realtime_engines.holdfast", run.to_json()], place, has_output=has_output)
    try:
        wait_for_events(job, None, latencies)
    except EngineError:
        job.close()
        raise
    return job, latencies


def workers(session: int) -> list[int]:
    """Return the Python workers of a session: the processes whose parent is a daemon of PySpark's."""
    parents: dict[int, int] = {}
    daemons = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            is_daemon = b"daemon" in (path / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        if int(fields[3]) == session and is_daemon:
            daemons.add(int(path.name))
            parents[int(path.name)] = int(fields[1])
    return [process for process, parent in parents.items() if parent in daemons]


def executors(session: int) -> list[int]:
    """Return the JVMs of the executors of a session."""
    found = []
    for process, _ in members(session):
        with contextlib.suppress(OSError):  # it has ended
            command = Path(f"/proc/{process}/cmdline").read_bytes()
            if b"CoarseGrainedExecutorBackend" in command and b"java" in command.partition(b"\0")[0]:
                found.append(process)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; by default all but memory")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds that are measured; 0: not (%(default)s)")
    parser.add_argument("--checkpoints", default="10 s,1 s", help="intervals of the idle job (%(default)s)")
    parser.add_argument("--parallelism", type=int, default=PARALLELISM, help="tasks of each stage (%(default)s)")
    parser.add_argument("--kills", type=int, default=5, help="number of kills of each kind (%(default)s)")
    parser.add_argument("--rescales", type=int, default=4, help="number of changes of the parallelism (%(default)s)")
    parser.add_argument("--rate", type=int, default=1_000, help="events a second while they are (%(default)s)")
    parser.add_argument("--minutes", type=float, default=60.0, help="for which memory is measured (%(default)s)")
    parser.add_argument("--memory-rate", type=int, default=10_000, help="events a second meanwhile (%(default)s)")
    chosen = parser.parse_args(arguments)
    unknown = [part for part in chosen.parts if part not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}: choose from {', '.join(PARTS)}")
    parts = chosen.parts or PARTS[:-1]
    kills, rescales = chosen.kills * ("kills" in parts), chosen.rescales * ("rescales" in parts)
    print(json.dumps({"load": round(os.getloadavg()[0], 1)}), flush=True)
    with tempfile.TemporaryDirectory(prefix="realtime-life-", ignore_cleanup_errors=True) as folder:
        if chosen.idle > 0 and "idle" in parts:
            for number, interval in enumerate(chosen.checkpoints.split(",")):
                place = Path(folder, f"idle-{number}")
                print(json.dumps(measure_idle(place, interval, chosen.idle, chosen.parallelism)), flush=True)
        if kills > 0 or rescales > 0:
            for line in measure_pauses(Path(folder, "pauses"), kills, rescales, chosen.rate, chosen.parallelism):
                print(json.dumps(line), flush=True)
        if chosen.kills and "executors" in parts:
            for line in measure_executors(Path(folder, "executors"), chosen.kills, chosen.rate, chosen.parallelism):
                print(json.dumps(line), flush=True)
        if "memory" in parts:
            samples = []
            for line in measure_memory(Path(folder, "memory"), chosen.minutes, chosen.memory_rate, chosen.parallelism):
                print(json.dumps(line), flush=True)
                samples.append(line)
            print(memory_table(samples))
    return 0


if __name__ == "__main__":
    sys.exit(main())
