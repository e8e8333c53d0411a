"""PyFlink 2.3's DataStream in thread mode, for some queries: what its documentation would have one write.

The rows come from Flink's reader of Parquet and go to Flink's sink that drops them; the functions are Python's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.nexmark.engine import Engine, Settings
from benchmarks.nexmark.engines import flink_sql

WINDOW, SLIDE = 10_000, 2_000
QUERIES: Final = ["q1", "q5", "q11", "q17", "q18"]


def interpreter(cache: Path) -> str:
    return flink_sql.interpreter(cache)


def _euro(stream: Any) -> Any:
    from pyflink.common import Types

    kind = Types.TUPLE([Types.LONG(), Types.LONG(), Types.DOUBLE(), Types.LONG(), Types.STRING()])
    return stream.map(lambda row: (row[0], row[1], 0.908 * row[2], row[5], row[6]), output_type=kind)


def _timed(stream: Any) -> Any:
    from pyflink.common import Duration, WatermarkStrategy
    from pyflink.common.watermark_strategy import TimestampAssigner

    class Assigner(TimestampAssigner):
        def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
            return int(value[5])

    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(4))
    return stream.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(Assigner()))


def _windowed(stream: Any, field: int, assigner: Any) -> Any:
    """Counts by key and window."""
    from pyflink.common import Types
    from pyflink.datastream.functions import AggregateFunction, ProcessWindowFunction

    class Count(AggregateFunction):
        def create_accumulator(self) -> int:
            return 0

        def add(self, value: Any, accumulator: int) -> int:
            return accumulator + 1

        def get_result(self, accumulator: int) -> int:
            return accumulator

        def merge(self, a: int, b: int) -> int:
            return a + b

    class WithWindow(ProcessWindowFunction):
        def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
            yield key, next(iter(elements)), context.window().start, context.window().end

    keyed = _timed(stream).key_by(lambda row: row[field], key_type=Types.LONG())
    kind = Types.TUPLE([Types.LONG()] * 4)
    return keyed.window(assigner).aggregate(Count(), WithWindow(), Types.LONG(), kind)


def _hot_items(stream: Any) -> Any:
    from pyflink.common import Time, Types
    from pyflink.datastream.window import SlidingEventTimeWindows, TumblingEventTimeWindows

    sliding = SlidingEventTimeWindows.of(Time.milliseconds(WINDOW), Time.milliseconds(SLIDE))
    counts = _windowed(stream, 0, sliding)
    per_window = counts.key_by(lambda row: row[3], key_type=Types.LONG())
    return per_window.window(TumblingEventTimeWindows.of(Time.milliseconds(SLIDE))).reduce(
        lambda a, b: a if a[1] >= b[1] else b
    )


def _sessions(stream: Any) -> Any:
    from pyflink.common import Time
    from pyflink.datastream.window import EventTimeSessionWindows

    return _windowed(stream, 1, EventTimeSessionWindows.with_gap(Time.milliseconds(WINDOW)))


def _statistics(stream: Any) -> Any:
    from pyflink.common import Types
    from pyflink.datastream import KeyedProcessFunction
    from pyflink.datastream.state import ValueStateDescriptor

    kind = Types.TUPLE([Types.LONG()] * 9)

    class Statistics(KeyedProcessFunction):
        def open(self, runtime_context: Any) -> None:
            self._state = runtime_context.get_state(ValueStateDescriptor("statistics", Types.TUPLE([Types.LONG()] * 7)))

        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            price = value[2]
            bids, low, middle, high, least, most, total = self._state.value() or (0, 0, 0, 0, price, price, 0)
            low, middle, high = (
                low + (price < 10_000),
                middle + (10_000 <= price < 1_000_000),
                high + (price >= 1_000_000),
            )
            bids, least, most, total = bids + 1, min(least, price), max(most, price), total + price
            self._state.update((bids, low, middle, high, least, most, total))
            yield value[0], bids, low, middle, high, least, most, total // bids, total

    keyed = stream.key_by(
        lambda row: (row[0], row[5] // 86_400_000), key_type=Types.TUPLE([Types.LONG(), Types.LONG()])
    )
    return keyed.process(Statistics(), output_type=kind)


def _last_bids(stream: Any) -> Any:
    from pyflink.common import Types
    from pyflink.datastream import KeyedProcessFunction
    from pyflink.datastream.state import ValueStateDescriptor

    long, text = Types.LONG(), Types.STRING()

    class Last(KeyedProcessFunction):
        def open(self, runtime_context: Any) -> None:
            self._time = runtime_context.get_state(ValueStateDescriptor("time", Types.LONG()))

        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            if value[5] >= (self._time.value() or 0):
                self._time.update(value[5])
                yield tuple(value)

    keyed = stream.key_by(lambda row: (row[1], row[0]), key_type=Types.TUPLE([long, long]))
    return keyed.process(Last(), output_type=Types.TUPLE([long, long, long, text, text, long, text]))


PROGRAMS: Final[dict[str, Callable[[Any], Any]]] = {
    "q1": _euro,
    "q5": _hot_items,
    "q11": _sessions,
    "q17": _statistics,
    "q18": _last_bids,
}


class PyFlinkEngine:
    """One job a run, in a JVM that stays."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        import sys

        options = {
            "python.execution-mode": "thread",
            "python.executable": sys.executable,
            # Checkpoints of session windows fail there (q11); the job goes on without them, which costs it nothing.
            "execution.checkpointing.tolerable-failed-checkpoints": "1000000",
        }
        self._tables = flink_sql.table_environment(settings, options)
        self._runs = 0

    def run(self, query: str) -> None:
        self._runs += 1
        columns = "auction, bidder, price, channel, url, date_time, extra"
        stream = self._tables.to_data_stream(self._tables.sql_query(f"select {columns} from bid"))
        found = self._tables.from_data_stream(PROGRAMS[query](stream))
        flink_sql.into_nowhere(self._tables, found, f"nowhere_{self._runs}")

    def close(self) -> None:
        pass


def make_engine(settings: Settings) -> Engine:
    flink_sql.show_environment()
    return PyFlinkEngine(settings)
