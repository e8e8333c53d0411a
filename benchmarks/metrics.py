"""What metrics cost: the share of keyed_count's epochs that goes into counting, and into a scrape.

    python benchmarks/metrics.py [--rows 100000] [--keys 100000] [--epochs 40] [--subtasks 2] [--json]

The job counts rows by key on the epoch runner: job master, tasks, checkpoints and reports as they are, and no Spark,
whose part of an epoch would only make the share smaller. All that counts is timed where it happens, in the same epochs:
what tasks report of their functions, the numbers of operators, subtasks and edges in the driver, and one scrape of
/metrics an epoch, which is far more often than Prometheus asks.

- `epoch_ms`: median of an epoch, without the scrape;
- `counting_ms`: median of what counting took of it;
- `scrape_ms`: median of a scrape, from the numbers to the text that Prometheus reads;
- `share`: counting divided by the epoch; `share_with_scrapes`: the same with one scrape in 15 s of epochs.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # started by its path
    sys.path.insert(0, str(ROOT))

from holdfast.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment  # noqa: E402
from holdfast.datastream.state import ValueStateDescriptor  # noqa: E402
from holdfast.rest.metric_samples import collect_samples  # noqa: E402
from holdfast.rest.prometheus import exposition  # noqa: E402
from holdfast.runtime.function.metric import TaskMetrics  # noqa: E402
from holdfast.runtime.master.job_metrics import JobFlow, JobMetrics  # noqa: E402
from holdfast.testing.epoch_runner import LocalEngine, run_job  # noqa: E402

WARM_UP = 5
SCRAPE_SECONDS = 15.0
COUNTING = ((JobMetrics, "on_epoch_accepted"), (JobFlow, "on_epoch_accepted"), (TaskMetrics, "report"))


class Count(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint", 0))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        count = self.count.value() + 1
        self.count.update(count)
        yield count


@contextmanager
def timed(spent: list[float]) -> Iterator[None]:
    """Adds up what counting takes, in place of the last number of a list."""

    def of(counting: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            begun = time.perf_counter()
            try:
                return counting(*arguments)
            finally:
                spent[-1] += time.perf_counter() - begun

        return call

    patches = [mock.patch.object(kind, name, of(getattr(kind, name))) for kind, name in COUNTING]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def measured(rows: int, keys: int, epochs: int, subtasks: int, root: Path) -> dict[str, Any]:
    """Runs the job to its end, with a scrape after each epoch."""
    chosen = random.Random(20)
    inputs = [{"rows": [chosen.randrange(keys) for _ in range(rows)]} for _ in range(WARM_UP + epochs)]
    env = StreamExecutionEnvironment.get_execution_environment()
    counted = env.from_collection([], "bigint").uid("rows").key_by(lambda key: key, "bigint")
    counted.process(Count(), output_type="bigint").uid("count").for_each_epoch(lambda rows, epoch: None).uid("sink")
    options = {"parallelism.default": subtasks, "rest.enable": False}
    master = run_job(env.get_stream_graph(), root, LocalEngine(inputs, is_bounded=True), options, name="metrics")
    counting, scrapes, times = [0.0], [], []

    def after(_: Any) -> None:
        begun = time.perf_counter()
        exposition(collect_samples(master))
        scrapes.append(time.perf_counter() - begun)
        counting.append(0.0)

    master.progress.listen(after)
    master.progress.listen(lambda record: times.append(record.duration_ms))
    with timed(counting):
        master.run()
    epoch = statistics.median(times[WARM_UP:])
    count = 1000 * statistics.median(counting[WARM_UP : len(times)])
    scrape = 1000 * statistics.median(scrapes[WARM_UP:])
    share = count / epoch
    return {
        "rows": rows,
        "keys": keys,
        "epochs": epochs,
        "subtasks": subtasks,
        "epoch_ms": round(epoch, 1),
        "counting_ms": round(count, 3),
        "scrape_ms": round(scrape, 2),
        "share": round(share, 5),
        "share_with_scrapes": round(share + scrape / (1000 * SCRAPE_SECONDS), 5),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What metrics cost.")
    parser.add_argument("--rows", type=int, default=100_000, help="rows an epoch (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=100_000, help="distinct keys (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=40, help="measured epochs (default: %(default)s)")
    parser.add_argument("--subtasks", type=int, default=2, help="of the operator (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print a JSON line only")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="holdfast-metrics-") as root:
        found = measured(chosen.rows, chosen.keys, chosen.epochs, chosen.subtasks, Path(root))
    if chosen.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:<20} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
