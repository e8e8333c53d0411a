"""What the size of the state costs a job: rows a second, resuming, bytes written and memory, with few and many keys.

    python benchmarks/large_state.py [--engine a,b] [--keys 100000,10000000] [--rounds 3] [--epochs 3]
        [--directory DIR] [--json]

The job of `keyed_count.py`, on `local[2]` with the Parquet sink. The state is filled first, each key once. Then the
engines take turns, each with each number of keys, in processes that know nothing: a process resumes the job, which is
its first epoch, warms up, and runs the epochs that are measured, with keys drawn uniformly. The engines of Holdfast
share one job and its state, since each of them resumes what another one wrote. Ratios are to the first number of keys.

Resuming is measured from the start of `execute` to the end of the first epoch: that starts Python workers, loads the
code, opens the state and processes the rows of an epoch. Written are the files of runs, compaction aside, relative to
hash, key, value and operation of the entries that were changed. Memory is the most that any Python worker had.

`large_state_worker.py` measures what a Python worker does of it, in processor time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # started by its path
    sys.path.insert(0, str(ROOT))

from benchmarks.harness.contest import PATIENCE, progress  # noqa: E402
from benchmarks.harness.workload import Workload, chosen_engines  # noqa: E402

FORMS = {
    "holdfast": ("hashmap", "rows"),
    "holdfast-columnar": ("columnar", "rows"),
    "holdfast-vectorised": ("hashmap", "batches"),
}
FILLER = "holdfast-vectorised"
ENGINES = (*FORMS, "spark-native")


class Jobs:
    """Runs engines with so many keys, each in a process of its own.

    Args:
        workload: The sizes; workspaces are made below its own.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    def fill(self, engine: str) -> None:
        """Let each key come once."""
        self.run(FILLER if engine in FORMS else engine, self._workload.fill_epochs)

    def run(self, engine: str, epochs: int) -> dict[str, Any]:
        """Run so many further epochs and return what was seen."""
        folder = Path(self._workload.workspace, "holdfast" if engine in FORMS else engine)
        folder.mkdir(parents=True, exist_ok=True)
        workload = replace(self._workload, workspace=str(folder))
        # Functions are pickled by reference, so that Spark's Python workers have to find this package.
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        command = [
            sys.executable,
            "-m",
            "benchmarks.harness.large_state_process",
            engine,
            workload.to_json(),
            str(epochs),
        ]
        log = folder / "log"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": path},
                cwd=folder,
                text=True,
                start_new_session=True,
            )
            try:
                answer, _ = process.communicate(timeout=PATIENCE)
            finally:
                with contextlib.suppress(ProcessLookupError):  # the JVM too, if we were ended
                    os.killpg(process.pid, signal.SIGKILL)
        if process.returncode or not answer:
            text = log.read_text(encoding="utf-8", errors="replace")
            raise SystemExit(f"engine {engine!r} ended with exit code {process.returncode}:\n{text[-4000:]}")
        found: dict[str, Any] = json.loads(answer)
        return found


def summary(engine: str, workload: Workload, rounds: list[dict[str, Any]], warm_up: int) -> dict[str, Any]:
    """What the rounds of one engine with one number of keys say; their first epoch and the warm-up do not count."""
    backend, form = FORMS.get(engine, (None, None))
    epochs = [seconds for found in rounds for seconds in found["seconds"][1 + warm_up :]]
    seconds = statistics.median(epochs)
    result = {
        "engine": engine,
        "backend": backend,
        "form": form,
        "keys": workload.keys,
        "rows_per_second": round(workload.rows / seconds),
        "epoch_seconds": round(seconds, 3),
        "epochs": [round(value, 3) for value in epochs],
        "resume_seconds": round(statistics.median(found["resume_seconds"] for found in rounds), 2),
        "resumes": [round(found["resume_seconds"], 2) for found in rounds],
    }
    if backend is None:
        return result
    worst = {name: max(found[name] for found in rounds) for name in ("written_by_encoded", "anonymous_megabytes")}
    last = {name: rounds[-1][name] for name in ("state_megabytes", "state_files")}
    return result | {name: round(value, 2) for name, value in (worst | last).items()}


def measure(chosen: argparse.Namespace, directory: str) -> list[dict[str, Any]]:
    """Fill, take turns, and sum up, with the ratios to the first number of keys."""
    engines = chosen_engines(chosen.engine)
    sizes = [
        Workload(chosen.rows, keys, "parquet", f"{directory}/inputs", f"{directory}/{keys}", chosen.fill)
        for keys in map(int, chosen.keys.split(","))
    ]
    for workload in sizes:
        for engine in sorted({FILLER if engine in FORMS else engine for engine in engines}):
            progress(f"{engine}: filling {workload.keys:,} keys")
            Jobs(workload).fill(engine)
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for number in range(chosen.rounds):
        for engine in engines:
            for workload in sizes:
                one = Jobs(workload).run(engine, 1 + chosen.warm_up + chosen.epochs)
                found.setdefault((engine, workload.keys), []).append(one)
                rate = chosen.rows / statistics.mean(one["seconds"][1 + chosen.warm_up :])
                resumed = one["resume_seconds"]
                where = f"round {number + 1} of {chosen.rounds}: {engine}, {workload.keys:,} keys"
                progress(f"{where}: {rate:,.0f} rows/s, resumed in {resumed:.2f} s")
    results = []
    for engine in engines:
        few: dict[str, Any] = {}
        for workload in sizes:
            result = summary(engine, workload, found[engine, workload.keys], chosen.warm_up)
            few = few or result
            result["rate_by_few"] = round(few["epoch_seconds"] / result["epoch_seconds"], 2)
            result["resume_by_few"] = round(result["resume_seconds"] / few["resume_seconds"], 2)
            results.append(result)
    return results


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What the size of the state costs a job.")
    parser.add_argument("--engine", default=",".join(ENGINES), help="names, separated by commas (default: %(default)s)")
    parser.add_argument("--keys", default="100000,10000000", help="numbers of keys (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=200_000, help="rows an epoch (default: %(default)s)")
    parser.add_argument("--fill", type=int, default=500_000, help="rows an epoch when the state is filled")
    parser.add_argument("--rounds", type=int, default=3, help="rounds in which the engines take turns")
    parser.add_argument("--warm-up", type=int, default=3, help="epochs after the first that are not measured")
    parser.add_argument("--epochs", type=int, default=3, help="measured epochs a round")
    parser.add_argument("--directory", help="where all files are, about 3 GB; the default is the temporary directory")
    parser.add_argument("--json", action="store_true", help="print JSON lines only")
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the engine is ended too
    with tempfile.TemporaryDirectory(prefix="large-state-", dir=chosen.directory) as directory:
        for result in measure(chosen, directory):
            if chosen.json:
                print(json.dumps(result))
            else:
                print("  ".join(f"{name}={value}" for name, value in result.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
