"""What it takes to keep, find and show the state of a wide job: three levels whose subtasks have several runs each.

    python benchmarks/wide_state.py [--subtasks 1000] [--runs 8] [--directory DIR] [--json]

The job of `width.py` runs an epoch for each run, without compaction, and ends. Then, in milliseconds:

- `document_ms`, `pointer_ms`: writing them, in the last epoch; both are synced.
- `load_ms`: reading the document, and checking it.
- `recover_ms`: a new process of the job begins, and is ready for its first epoch.
- `sweep_ms`: a sweep looks at all files, and finds that all are needed.
- `rest_ms`: the answers of the REST interface, by path.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # started by its path
    sys.path.insert(0, str(ROOT))

from benchmarks.harness import stopwatch  # noqa: E402
from benchmarks.width import LEVELS, UNCOMPACTED, rows_of_epoch, three_levels  # noqa: E402
from holdfast.checkpoint.completed_checkpoint import read_newest  # noqa: E402
from holdfast.checkpoint.retention import Sweeper  # noqa: E402
from holdfast.rest.client import RestClient  # noqa: E402
from holdfast.runtime.job.engine import EpochDriver, Outcome  # noqa: E402
from holdfast.runtime.master.job_master import JobMaster  # noqa: E402
from holdfast.testing.epoch_runner import LocalEngine, run_job  # noqa: E402

PATHS = (
    "",
    "epochs",
    "metrics/samples",
    f"vertices/{LEVELS[0]}",
    "checkpoints",
    "checkpoints/details/{checkpoint}",
    f"checkpoints/details/{{checkpoint}}/subtasks/{LEVELS[0]}",
    "state",
    "state/{checkpoint}",
)


class AskedEngine(LocalEngine):
    """Runs one epoch, and then asks the REST interface of its job instead of running more."""

    def ask(self, master: JobMaster) -> None:
        """Whose job it is."""
        self._master = master
        self.answers: dict[str, float] = {}

    def drive(self, driver: EpochDriver) -> Outcome:
        self.ready = time.perf_counter()
        super().drive(driver)
        client = RestClient.find(self._master.job.directory)
        checkpoint = client.get("checkpoints")["latest"]["completed"]["id"]
        for path in PATHS:
            began = time.perf_counter()
            client.get(path.format(checkpoint=checkpoint), timeout=60)
            self.answers[path] = since(began)
        return Outcome.ENDED


def since(began: float) -> float:
    return round(1000 * (time.perf_counter() - began), 1)


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return since(began)


def measure(subtasks: int, runs: int, place: str) -> dict[str, Any]:
    """Fills a job's directory, and measures what goes on in it."""
    times = Path(place, "times")
    times.mkdir()
    stopwatch.watch(str(times))
    inputs = [rows_of_epoch(subtasks)] * runs
    run_job(three_levels(), place, LocalEngine(inputs), UNCOMPACTED, parallelism=subtasks).run()
    written = {part["part"]: part["ms"] for part in stopwatch.noted(times)}  # the last of each

    engine = AskedEngine([*inputs, rows_of_epoch(subtasks)])
    master = run_job(three_levels(), place, engine, {**UNCOMPACTED, "rest.enable": "true"}, parallelism=subtasks)
    engine.ask(master)
    job = master.job
    load = timed(lambda: read_newest(job.directory, job.register.read()))
    document = max(Path(job.directory.path).glob("chk-*/_metadata"), key=lambda path: path.stat().st_mtime)
    document_bytes = document.stat().st_size
    files = len(list(Path(job.directory.path, "shared").iterdir()))
    began = time.perf_counter()
    master.run()
    sweeper = Sweeper(job.directory, job.register.raise_token("sweep"), job.configuration)
    sweep = timed(sweeper.sweep)
    sweeper.close()
    return {
        "subtasks": len(LEVELS) * subtasks,
        "runs": files,
        "document_bytes": document_bytes,
        "document_ms": round(written["metadata.write"], 1),
        "pointer_ms": round(written["pointer.write"], 1),
        "load_ms": load,
        "recover_ms": round(1000 * (engine.ready - began), 1),
        "sweep_ms": sweep,
        "rest_ms": engine.answers,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What it takes to keep, find and show the state of a wide job.")
    parser.add_argument("--subtasks", type=int, default=1000, help="of each of three levels (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=8, help="of each subtask (default: %(default)s)")
    parser.add_argument("--directory", help="where all files are; the default is the temporary directory")
    parser.add_argument("--json", action="store_true", help="print a JSON line only")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="wide-state-", dir=chosen.directory) as place:
        found = measure(chosen.subtasks, chosen.runs, place)
    if chosen.json:
        print(json.dumps(found))
        return 0
    answers = found.pop("rest_ms")
    for name, value in found.items():
        print(f"{name:<44} {value:>12,}")
    for path, value in answers.items():
        print(f"{'rest: /jobs/:id/' + path:<44} {value:>12,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
