"""Sessions that merge when an element joins them, numbered by state of the key."""

from pyflink.common import Duration, Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import ProcessWindowFunction, StreamExecutionEnvironment
from pyflink.datastream.state import ValueStateDescriptor
from pyflink.datastream.window import EventTimeSessionWindows, TimeWindow


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[1]


class Numbered(ProcessWindowFunction[tuple, str, str, TimeWindow]):
    def process(self, key: str, context: ProcessWindowFunction.Context[TimeWindow], elements):
        number = context.global_state().get_state(ValueStateDescriptor("number", Types.INT()))
        number.update((number.value() or 0) + 1)
        pages = [page for _, at, page in sorted(elements, key=lambda element: element[1])]
        window = context.window()
        return [f"{key} visit {number.value()} from {window.start} to {window.end}: {' '.join(pages)}"]


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
clicks = [
    ("ada", 100, "/"),
    ("ada", 1900, "/c"),
    ("bob", 300, "/"),
    ("ada", 1000, "/b"),
    ("ada", 9000, "/"),
    ("bob", 1301, "/"),
]
strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(20)).with_timestamp_assigner(At())
(
    env.from_collection(clicks, type_info=Types.TUPLE([Types.STRING(), Types.LONG(), Types.STRING()]))
    .assign_timestamps_and_watermarks(strategy)
    .key_by(lambda click: click[0], key_type=Types.STRING())
    .window(EventTimeSessionWindows.with_gap(Time.seconds(1)))
    .process(Numbered(), output_type=Types.STRING())
    .print()
)
env.execute("sessions with state")
