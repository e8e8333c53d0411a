"""What an idle real-time job costs, and for how long a killed worker or a rescale stops its output.

    python benchmarks/realtime_life.py [--idle 60] [--checkpoints "10 s,1 s"] [--kills 5] [--rescales 4] [--rate 1000]

The job is that of `realtime.py` with events from a generator: two stages of two tasks, one value state, at-least-once
output. It has a process of its own.

- **Idle**: one event a second. `core` is the share of one core that the driver, the JVM and the workers use.
- **Kills**: at the rate, with a checkpoint each second, one of the four workers is killed after some seconds, again and
  again. `seconds` is for how long no row came out.
- **Rescales**: at the same rate, from parallelism 2 to 3 and back.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # started by its path
    sys.path.insert(0, str(ROOT))

from benchmarks.harness.realtime_outcome import read_pairs  # noqa: E402
from benchmarks.harness.realtime_run import RealTimeRun  # noqa: E402
from benchmarks.realtime import EngineError, Process, wait_for_events  # noqa: E402

WARM_UP = 25.0
BETWEEN_PAUSES = 15.0


def measure_idle(place: Path, checkpoints: str, seconds: float) -> dict[str, object]:
    job, _ = started(place, 1, checkpoints)
    try:
        time.sleep(WARM_UP)
        begin, used = time.monotonic(), job.processor_seconds()
        time.sleep(seconds)
        share = (job.processor_seconds() - used) / (time.monotonic() - begin)
        job.require_alive()
    finally:
        job.close()
    return {"measured": "idle", "checkpoints": checkpoints, "core": round(share, 4)}


def measure_pauses(place: Path, kills: int, rescales: int, rate: int) -> Iterator[dict[str, object]]:
    job, latencies = started(place, rate, "1 s")

    def pause() -> float:
        """Return for how long no row came out in the next seconds."""
        began = time.time()
        time.sleep(BETWEEN_PAUSES)
        job.require_alive()
        times = read_pairs(latencies)[:, 1] / 1e6
        ends = [began, *sorted(at for at in times if at > began), time.time()]
        return round(max(end - begin for begin, end in pairwise(ends)), 2)

    try:
        time.sleep(WARM_UP)
        for _ in range(kills):
            os.kill(random.choice(workers(job.pid)), signal.SIGKILL)
            yield {"measured": "kill", "rate": rate, "seconds": pause()}
        for number in range(rescales):
            parallelism = 2 + (number + 1) % 2
            job.tell(str(parallelism))
            yield {"measured": "rescale", "to": parallelism, "rate": rate, "seconds": pause()}
    finally:
        job.close()


def started(place: Path, rate: int, checkpoints: str) -> tuple[Process, Path]:
    """Start the job in an empty directory, and return its process and the directory of latencies."""
    latencies = place / "latencies"
    latencies.mkdir(parents=True)
    names = ("", "", str(place), str(latencies))
    run = RealTimeRun("holdfast-real-time", "generator", rate, 50_000, *names, checkpoints=checkpoints)
    job = Process(["benchmarks.realtime_engines.holdfast", run.to_json()], place)
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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--idle", type=float, default=60.0, help="seconds that are measured; 0: not (%(default)s)")
    parser.add_argument("--checkpoints", default="10 s,1 s", help="intervals of the idle job (%(default)s)")
    parser.add_argument("--kills", type=int, default=5, help="number of workers that are killed (%(default)s)")
    parser.add_argument("--rescales", type=int, default=4, help="number of changes of the parallelism (%(default)s)")
    parser.add_argument("--rate", type=int, default=1_000, help="events a second while they are (%(default)s)")
    chosen = parser.parse_args(arguments)
    print(json.dumps({"load": round(os.getloadavg()[0], 1)}), flush=True)
    with tempfile.TemporaryDirectory(prefix="realtime-life-") as folder:
        if chosen.idle > 0:
            for number, interval in enumerate(chosen.checkpoints.split(",")):
                print(json.dumps(measure_idle(Path(folder, f"idle-{number}"), interval, chosen.idle)), flush=True)
        if chosen.kills > 0 or chosen.rescales > 0:
            for line in measure_pauses(Path(folder, "pauses"), chosen.kills, chosen.rescales, chosen.rate):
                print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
