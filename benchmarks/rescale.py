"""What a change of the parallelism costs a job that runs: no restart, on real Spark with two cores.

    python benchmarks/rescale.py [--keys 1000000] [--rows 200000] [--epochs 6] [--parallelism 2,8,3,16] [--json]

One continuous job counts rows by key. Its state is filled, then it is rescaled from each parallelism to the next, and
runs some epochs in between. For each change:

- `rescale_ms`: from the wish to its being in force. No state is moved: key groups are other ranges of the same files;
- `first_ms`: the first epoch after it, whose tasks open other key groups than before;
- `epoch_ms`: median of the later ones, whose tasks find what they need in their memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # started by its path
    sys.path.insert(0, str(ROOT))

from benchmarks.engines.holdfast import DiscardingSink, count_rows  # noqa: E402
from benchmarks.harness.input_files import Source  # noqa: E402
from benchmarks.harness.spark_session import read_epochs, start_session  # noqa: E402
from benchmarks.harness.workload import Workload  # noqa: E402
from holdfast.datastream import StreamExecutionEnvironment  # noqa: E402

FILL = 500_000
PATIENCE = 300.0
SECONDS_FOR_A_CHANGE = 60.0


class Job:
    """A continuous job that is given an epoch at a time."""

    def __init__(self, workload: Workload, parallelism: int) -> None:
        self._source = Source(workload)
        self.session = start_session("rescale")
        options = {
            "execution.checkpointing.dir": f"{workload.workspace}/checkpoints",
            "parallelism.default": str(parallelism),
        }
        env = StreamExecutionEnvironment.get_execution_environment(options, spark=self.session)
        stream = env.from_dataframe(read_epochs(self.session, self._source))
        count_rows(stream.key_by("key")).uid("counter").sink_to(DiscardingSink())
        self.client = env.execute_async("rescale")

    def epoch(self) -> float:
        """Runs an epoch; milliseconds that it took, as the job says."""
        before = self._last()
        self._source.add(1)
        deadline = time.monotonic() + PATIENCE
        while self._last() == before:
            failure = self.client.exception()
            if failure is not None:
                raise failure
            if time.monotonic() > deadline:
                raise TimeoutError(f"no epoch within {PATIENCE:.0f} s")
            time.sleep(0.01)
        return float(self._with_rows()[-1]["duration_ms"])

    def _last(self) -> int:
        """The last epoch with rows."""
        return max((progress["epoch"] for progress in self._with_rows()), default=0)

    def _with_rows(self) -> list[dict[str, Any]]:
        return [progress for progress in self.client.recent_progress if progress["rows"]]

    def rescale(self, parallelism: int) -> float:
        """Milliseconds until another parallelism is in force."""
        begun = time.perf_counter()
        self.client.rescale(parallelism).result(timeout=SECONDS_FOR_A_CHANGE)
        return 1000 * (time.perf_counter() - begun)


def measure(workload: Workload, steps: list[int], epochs: int) -> list[dict[str, Any]]:
    """A line for each parallelism: the first, and each change."""
    job = Job(workload, steps[0])
    try:
        for _ in range(workload.fill_epochs):
            job.epoch()
        job.epoch()
        steady = statistics.median(job.epoch() for _ in range(epochs))
        lines = [{"keys": workload.keys, "from": None, "to": steps[0], "epoch_ms": round(steady, 1)}]
        for before, after in pairwise(steps):
            changed = job.rescale(after)
            first, *later = [job.epoch() for _ in range(epochs)]
            lines.append(
                {
                    "keys": workload.keys,
                    "from": before,
                    "to": after,
                    "rescale_ms": round(changed, 1),
                    "first_ms": round(first, 1),
                    "epoch_ms": round(statistics.median(later), 1),
                }
            )
        return lines
    finally:
        job.client.cancel().result(timeout=SECONDS_FOR_A_CHANGE)
        job.session.stop()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000, help="in the state (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=200_000, help="rows an epoch (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=6, help="at each parallelism, at least 2 (default: %(default)s)")
    parser.add_argument("--parallelism", default="2,8,3,16", help="one after the other (default: %(default)s)")
    parser.add_argument("--cache", type=Path, default=ROOT / ".bench", help="generated input")
    parser.add_argument("--json", action="store_true", help="print JSON lines only")
    chosen = parser.parse_args(arguments)
    steps = [int(text) for text in chosen.parallelism.split(",")]
    if chosen.epochs < 2:
        parser.error("--epochs is at least 2: the first after a change is told by itself")
    with tempfile.TemporaryDirectory(dir=chosen.cache.parent) as place:
        fill = min(chosen.keys, FILL)
        workload = Workload(chosen.rows, chosen.keys, "discard", str(chosen.cache.resolve()), place, fill=fill)
        lines = measure(workload, steps, chosen.epochs)
    if not chosen.json:
        print(f"{'parallelism':<14} {'rescale ms':>11} {'first ms':>9} {'epoch ms':>9}   {chosen.keys:,} keys")
    for line in lines:
        if chosen.json:
            print(json.dumps(line))
        else:
            change = str(line["to"]) if line["from"] is None else f"{line['from']} -> {line['to']}"
            numbers = (line.get("rescale_ms", "-"), line.get("first_ms", "-"), line["epoch_ms"])
            print(f"{change:<14} {numbers[0]:>11} {numbers[1]:>9} {numbers[2]:>9}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
