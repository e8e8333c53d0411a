"""The timestamp of an element after map, flat_map and a timer, and the watermark before the first one."""

from pyflink.common import Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import KeyedProcessFunction, ProcessFunction, StreamExecutionEnvironment


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[1] + 1


class Show(ProcessFunction):
    def process_element(self, value, ctx: ProcessFunction.Context):
        yield value[0], f"{value[1]} at {ctx.timestamp()}"


class Later(KeyedProcessFunction):
    def process_element(self, value, ctx: KeyedProcessFunction.Context):
        yield value[0], f"{value[1]}, watermark {ctx.timer_service().current_watermark()}"
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 1000)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext):
        yield ctx.get_current_key(), f"timer at {ctx.timestamp()}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
kind = Types.TUPLE([Types.STRING(), Types.STRING()])
(
    env.from_collection([("a", 10), ("b", 20), ("a", 30)], type_info=Types.TUPLE([Types.STRING(), Types.LONG()]))
    .assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(At()))
    .map(lambda value: (value[0], str(value[1])), output_type=kind)
    .flat_map(lambda value: [value, (value[0], value[1] + "!")], output_type=kind)
    .process(Show(), output_type=kind)
    .key_by(lambda value: value[0], key_type=Types.STRING())
    .process(Later(), output_type=kind)
    .process(Show(), output_type=kind)
    .map(lambda value: " ".join(value), output_type=Types.STRING())
    .print()
)
env.execute("time of elements")
