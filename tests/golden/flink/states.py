"""A PyFlink job with states of many types over a few numbers, stopped with a savepoint.

    python states.py DIRECTORY process|thread

`make.py` runs it in an environment that has PyFlink.
"""

import sys
import time

from pyflink.common import Configuration, Row, Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.datastream.functions import ReduceFunction
from pyflink.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)

NUMBERS = 40
KEYS = ("ada", "grace", "jöan", "日本", "😀 smile", "", "x" * 200)


class Add(ReduceFunction):
    def reduce(self, value1, value2):
        return value1 + value2


class Everything(KeyedProcessFunction):
    def open(self, context: RuntimeContext):
        values = {
            "count": Types.LONG(), "small": Types.INT(), "ratio": Types.DOUBLE(), "flag": Types.BOOLEAN(),
            "text": Types.STRING(), "blob": Types.PRIMITIVE_ARRAY(Types.BYTE()), "tags": Types.LIST(Types.STRING()),
            "row": Types.ROW_NAMED(["word", "n"], [Types.STRING(), Types.LONG()]),
            "tuple": Types.TUPLE([Types.STRING(), Types.LONG()]), "map": Types.MAP(Types.STRING(), Types.LONG()),
            "pickled": Types.PICKLED_BYTE_ARRAY(),
        }  # fmt: skip
        self.values = {name: context.get_state(ValueStateDescriptor(name, kind)) for name, kind in values.items()}
        self.history = context.get_list_state(ListStateDescriptor("history", Types.LONG()))
        self.totals = context.get_map_state(MapStateDescriptor("totals", Types.STRING(), Types.LONG()))
        self.sum = context.get_reducing_state(ReducingStateDescriptor("sum", Add(), Types.LONG()))
        recent = ValueStateDescriptor("recent", Types.LONG())
        recent.enable_time_to_live(StateTtlConfig.new_builder(Time.days(20000)).build())
        self.recent = context.get_state(recent)

    def process_element(self, number, ctx):
        key = ctx.get_current_key()
        found = {
            "count": (self.values["count"].value() or 0) + 1, "small": -number, "ratio": number / 8,
            "flag": number % 2 == 0, "text": f"text,of {key} {number}", "blob": bytes([number, 0, 255]),
            "tags": [key, f"tag{number}"], "row": Row(word=f"w{number}", n=number), "tuple": (key, number),
            "map": {"n": number}, "pickled": {"n": number},
        }  # fmt: skip
        for name, value in found.items():
            self.values[name].update(value)
        self.history.add(number)
        self.totals.put(f"t{number % 3}", number)
        self.sum.add(number)
        self.recent.update(number)
        ctx.timer_service().register_event_time_timer(4_102_444_800_000 + number)
        ctx.timer_service().register_processing_time_timer(4_102_444_900_000 + number)
        return []


class Milliseconds(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value * 100


def few(number):
    if number < NUMBERS:
        return True
    time.sleep(0.01)  # the source has no end, so that a savepoint can be taken
    return False


def main(directory: str, mode: str) -> None:
    configuration = Configuration()
    configuration.set_string("python.execution-mode", mode)
    configuration.set_string("python.fn-execution.bundle.size", "1")
    configuration.set_string("python.executable", sys.executable)
    configuration.set_string("python.client.executable", sys.executable)
    configuration.set_string("state.backend.type", "hashmap")
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.set_parallelism(1)
    env.set_max_parallelism(128)
    source = NumberSequenceSource(0, 1 << 60)
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()).filter(few)
    stamped = numbers.assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Milliseconds())
    )
    counted = stamped.key_by(lambda n: KEYS[n % len(KEYS)], Types.STRING()).process(Everything(), Types.LONG())
    counted.uid("everything").name("Everything").print()
    job = env.execute_async("states")
    time.sleep(45)  # until all numbers have been seen, on a slow machine too
    from pyflink.java_gateway import get_gateway

    formats = get_gateway().jvm.org.apache.flink.core.execution.SavepointFormatType
    print(job._j_job_client.stopWithSavepoint(False, directory, formats.CANONICAL).get(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
