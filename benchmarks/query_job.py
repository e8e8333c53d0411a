"""A job on the engine without a JVM that serves its state and paces its epochs; for benchmarks/query.py.

It first runs as fast as it can to find its rate, then starts an epoch in every second slot of that length: half the
rate. It prints each epoch as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # started by its path
    sys.path.insert(0, str(ROOT))

from holdfast.datastream.queryable_state import NoOutput  # noqa: E402
from holdfast.runtime.engine import EpochDriver, Outcome  # noqa: E402
from holdfast.runtime.function import KeyedProcessFunction  # noqa: E402
from holdfast.runtime.graph import KeyedNode, KeySpec, OperatorSpec, SinkNode, SourceNode, StreamGraph  # noqa: E402
from holdfast.state.descriptor import ValueStateDescriptor  # noqa: E402
from holdfast.testing.epoch_runner import LocalEngine, LocalInput, run_job  # noqa: E402
from holdfast.types.ddl import parse_schema  # noqa: E402

ROW = parse_schema("key string, n bigint")
KEYS = 20_000
ROWS = 100_000
FULL_SPEED = 8


class Count(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        descriptor: ValueStateDescriptor[int] = ValueStateDescriptor("count", "bigint")
        descriptor.set_queryable("counts")
        self.count = runtime_context.get_state(descriptor)

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + value.n)
        return ()


class PacedEngine(LocalEngine):
    """Runs the same epoch again and again, after some at full speed in the rhythm of half of it."""

    def __init__(self, epoch: Mapping[str, Sequence[Any]], epochs: int) -> None:
        super().__init__([epoch])
        self._epochs = epochs

    def drive(self, driver: EpochDriver) -> Outcome:
        durations = []
        due = 0.0
        for number in range(self._epochs):
            if number >= FULL_SPEED:
                slot = 2 * sorted(durations[2:FULL_SPEED])[(FULL_SPEED - 2) // 2]
                due = max(due + slot, time.perf_counter() - slot)
                time.sleep(max(0.0, due - time.perf_counter()))
            started = time.perf_counter()
            driver.process(LocalInput(number, self.inputs[0], False))
            durations.append(time.perf_counter() - started)
            due = due or time.perf_counter()
            print(json.dumps({"at": time.time(), "seconds": durations[-1], "paced": number >= FULL_SPEED}), flush=True)
        return Outcome.EXHAUSTED


def main() -> None:
    directory, port, epochs = sys.argv[1], sys.argv[2], int(sys.argv[3])
    source = SourceNode(name="rows", uid="rows", element_type=ROW, is_streaming=True)
    count = KeyedNode(
        inputs=(source,),
        name="count",
        uid="count",
        element_type=ROW,
        operator=OperatorSpec(Count(), "process", True, ROW, ROW),
        key=KeySpec(columns=("key",)),
    )
    sink = SinkNode(inputs=(count,), name="end", uid="end", element_type=ROW, sink=NoOutput())
    rows = [(f"key-{i % KEYS:08d}", 1) for i in range(ROWS)]
    options = {"queryable-state.enable": "true", "queryable-state.proxy.ports": port}
    master = run_job(StreamGraph([sink]), directory, PacedEngine({"rows": rows}, epochs), options, name="paced")
    master.run()


if __name__ == "__main__":
    main()
