"""The mean of the last three readings of each sensor: a list state that is truncated."""

from pyflink.common import Types
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import ListStateDescriptor


class MovingAverage(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.last = runtime_context.get_list_state(ListStateDescriptor("last", Types.DOUBLE()))

    def process_element(self, value, ctx: KeyedProcessFunction.Context):
        self.last.add(value[1])
        readings = list(self.last.get())
        if len(readings) > 3:
            readings = readings[-3:]
            self.last.update(readings)
        yield value[0], sum(readings) / len(readings)


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
readings = [("t1", 20.0), ("t2", 5.0), ("t1", 22.0), ("t1", 24.0), ("t1", 26.0), ("t2", 6.0), ("t1", 1.0)]
(
    env.from_collection(readings, type_info=Types.TUPLE([Types.STRING(), Types.DOUBLE()]))
    .key_by(lambda reading: reading[0], key_type=Types.STRING())
    .process(MovingAverage(), output_type=Types.TUPLE([Types.STRING(), Types.DOUBLE()]))
    .print()
)
env.execute("moving average")
