"""A program whose own classes are in its state; the archive `classes-by-value` is its checkpoint of a release that
pickled them by value.

Run it with a directory and a number of epochs. It prints what it finds in its state.
"""

from __future__ import annotations

import enum
import logging
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.common import Time, WatermarkGenerator, WatermarkStrategy
from holdfast.datastream import AggregateFunction, KeyedProcessFunction, ProcessWindowFunction
from holdfast.datastream.functions import CheckpointedFunction, RichMapFunction
from holdfast.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.datastream.window import TumblingEventTimeWindows
from holdfast.testing import EpochProgram

PASSWORD = "not to be kept"


class Status(enum.Enum):
    NEW = "new"
    PAID = "paid"


class Order:
    class Kind(enum.IntEnum):
        CASH = 1

    @dataclass(frozen=True)
    class Line:
        cents: int

        def __add__(self, other: Any) -> Any:
            return Order.Line(self.cents + other.cents) if isinstance(other, Order.Line) else NotImplemented

    def __init__(self, line: Any) -> None:
        self.line = line

    def secret(self) -> str:
        return PASSWORD


@dataclass
class Declared:
    cents: int
    status: Status


class Total(AggregateFunction):
    def create_accumulator(self) -> Any:
        return Order.Line(0)

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator + value

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, a: Any, b: Any) -> Any:
        return a + b


class Keep(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        context = runtime_context
        self.status = context.get_state(ValueStateDescriptor("status"))
        self.order = context.get_state(ValueStateDescriptor("order"))
        self.declared = context.get_state(ValueStateDescriptor("declared", Declared))
        self.kinds = context.get_map_state(MapStateDescriptor("kinds", "string", None))
        self.lines = context.get_list_state(ListStateDescriptor("lines"))
        self.sum = context.get_reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b))
        self.total = context.get_aggregating_state(AggregatingStateDescriptor("total", Total(), None))
        self.untouched = context.get_state(ValueStateDescriptor("untouched"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[str]:
        line = Order.Line(5)
        if self.status.value() is not None:
            order = self.order.value()
            yield f"status {self.status.value() is Status.NEW}, kind {self.kinds.get('a') is Order.Kind.CASH}"
            yield f"order {type(order) is Order and order.line == line and order.secret() == PASSWORD}"
            yield f"declared {self.declared.value() == Declared(5, Status.NEW)}"
            yield f"lines {[type(found) is Order.Line for found in self.lines.get()]}"
            yield f"untouched {type(self.untouched.value()) is Order}"
        else:
            self.untouched.update(Order(line))
        self.status.update(Status.NEW)
        self.order.update(Order(line))
        self.declared.update(Declared(5, Status.NEW))
        self.kinds.put("a", Order.Kind.CASH)
        self.lines.add(line)
        self.sum.add(line)
        self.total.add(line)
        yield f"sums {self.sum.get() == self.total.get() == Order.Line(5 * len(list(self.lines.get())))}"


class Seen(RichMapFunction, CheckpointedFunction):
    def initialize_state(self, context: Any) -> None:
        self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor("seen"))

    def snapshot_state(self, context: Any) -> None:
        pass

    def map(self, value: Any) -> Any:
        if all(type(found) is Order.Line for found in self.state.get()):
            self.state.add(Order.Line(1))
            return f"seen {len(list(self.state.get()))}"
        return "seen others"


class Greatest(WatermarkGenerator):
    def __init__(self) -> None:
        self.line = Order.Line(0)

    def on_event(self, event: Any, event_timestamp: Any, output: Any) -> None:
        assert type(self.line) is Order.Line, PASSWORD
        self.line = Order.Line(max(self.line.cents, event.line.cents))

    def on_periodic_emit(self, output: Any) -> None:
        output.emit_watermark(self.line.cents - 1)


class Count(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Iterator[str]:
        yield f"window {[type(element) is Order for element in elements]}"


def main(directory: str, epochs: int) -> None:
    program = EpochProgram()
    keys = program.source("keys", "k string")
    keys.key_by("k").process(Keep(), "string").uid("keep").print()
    keys.map(Seen(), "string").uid("seen").print()
    strategy = WatermarkStrategy.for_generator(lambda context: Greatest())
    orders = (
        program.source("orders", "at bigint")
        .map(lambda row: Order(Order.Line(row.at)))
        .assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(lambda order, before: order.line.cents))
        .uid("times")
    )
    by_key = orders.key_by(lambda order: "a", key_type="string")
    windows = by_key.window(TumblingEventTimeWindows.of(Time.milliseconds(2)))
    windows.process(Count(), output_type="string").uid("windows").print()
    inputs = [{"keys": [("a",)], "orders": [(epoch,)]} for epoch in range(epochs)]
    program.run(directory, inputs, parallelism=1, source_tasks=1)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    main(sys.argv[1], int(sys.argv[2]))
