"""What an epoch takes on Spark with a sink whose commits take long: before the next epoch, and beside it.

    python benchmarks/slow_sink.py [--commit 0,100,300,600] [--rows 100000] [--rounds 3] [--epochs 10] [--json]

The job counts by key and gives each epoch to a function of `for_each_epoch` that sleeps. How many epochs may run ahead
of it is `sink.committer.max-pending-checkpoints`, 0 or 1. All of them take turns on one session.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # started by its path
    sys.path.insert(0, str(ROOT))

from benchmarks.engines.holdfast import count_rows  # noqa: E402
from benchmarks.harness.contest import progress  # noqa: E402
from benchmarks.harness.input_files import Source  # noqa: E402
from benchmarks.harness.spark_session import EpochClock, read_epochs, start_session  # noqa: E402
from benchmarks.harness.workload import PARALLELISM, Workload  # noqa: E402
from holdfast.datastream import StreamExecutionEnvironment  # noqa: E402

SETTLING = 2
"""Epochs of each run that do not count: workers begin, and nothing is committed beside the first."""


class SlowSinkJob:
    """A job whose every commit takes so long; each run goes on where the last one has ended.

    Args:
        session: Of Spark.
        clock: Of its epochs.
        workload: The sizes.
        commit: Milliseconds of a commit.
        pending: How many epochs may wait for theirs.
    """

    def __init__(self, session: Any, clock: EpochClock, workload: Workload, commit: int, pending: int) -> None:
        self.commit, self.pending = commit, pending
        self._session, self._clock = session, clock
        place = f"{workload.workspace}/{commit}-{pending}"
        self._source = Source(replace(workload, workspace=place))
        self._options = {
            "execution.trigger": "available-now",
            "execution.checkpointing.dir": f"{place}/checkpoints",
            "parallelism.default": PARALLELISM,
            "sink.committer.max-pending-checkpoints": pending,
        }

    def run(self, epochs: int) -> Sequence[float]:
        """Seconds of so many epochs, after some to settle."""
        self._source.add(SETTLING + epochs)
        env = StreamExecutionEnvironment.get_execution_environment(self._options, spark=self._session)
        counted = count_rows(env.from_dataframe(read_epochs(self._session, self._source)).key_by("key")).uid("counter")
        counted.for_each_epoch(lambda frame, *_: time.sleep(self.commit / 1000)).uid("out")
        env.execute("slow-sink")
        return self._clock.take(SETTLING + epochs)[SETTLING:]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What an epoch takes with a sink whose commits take long.")
    parser.add_argument("--commit", default="0,100,300,600", help="milliseconds of a commit, separated by commas")
    parser.add_argument("--rows", type=int, default=100_000, help="rows an epoch (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=100_000, help="distinct keys (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds in which the jobs take turns")
    parser.add_argument("--epochs", type=int, default=10, help="measured epochs a round")
    parser.add_argument("--cache", type=Path, default=ROOT / ".bench", help="generated input")
    parser.add_argument("--json", action="store_true", help="print JSON lines only")
    chosen = parser.parse_args(arguments)
    commits = [int(text) for text in chosen.commit.split(",")]
    cache = chosen.cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    session = start_session("slow-sink")
    clock = EpochClock()
    session.streams.addListener(clock)
    seconds: dict[tuple[int, int], list[float]] = {(commit, pending): [] for commit in commits for pending in (0, 1)}
    with tempfile.TemporaryDirectory(prefix="slow-sink-", dir=cache) as workspace:
        workload = Workload(chosen.rows, chosen.keys, "discard", str(cache / "inputs"), workspace)
        jobs = [SlowSinkJob(session, clock, workload, *key) for key in seconds]
        jobs[0].run(5)  # the JVM is warm then
        for number in range(chosen.rounds):
            for job in jobs:
                measured = job.run(chosen.epochs)
                seconds[job.commit, job.pending] += measured
                progress(
                    f"round {number + 1} of {chosen.rounds}: {job.commit} ms, {job.pending} pending: "
                    f"{1000 * statistics.median(measured):,.0f} ms an epoch"
                )
        session.stop()
    if not chosen.json:
        print(f"{'commit ms':>10} {'before ms':>10} {'beside ms':>10}   medians of an epoch of {chosen.rows:,} rows")
    for commit in commits:
        before, beside = (round(1000 * statistics.median(seconds[commit, pending]), 1) for pending in (0, 1))
        if chosen.json:
            told = {"commit_milliseconds": commit, "before": before, "beside": beside, "rows": chosen.rows}
            print(json.dumps({**told, "epochs": chosen.rounds * chosen.epochs}))
        else:
            print(f"{commit:>10} {before:>10,.0f} {beside:>10,.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
