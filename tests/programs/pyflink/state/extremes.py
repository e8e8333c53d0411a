"""The minimum and maximum temperature of each place, in two reducing states; emits only changes."""

from pyflink.common import Types
from pyflink.datastream import FlatMapFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import ReducingStateDescriptor


class Extremes(FlatMapFunction):
    def open(self, runtime_context: RuntimeContext):
        self.low = runtime_context.get_reducing_state(ReducingStateDescriptor("low", min, Types.INT()))
        self.high = runtime_context.get_reducing_state(ReducingStateDescriptor("high", max, Types.INT()))

    def flat_map(self, value):
        before = self.low.get(), self.high.get()
        self.low.add(value[1])
        self.high.add(value[1])
        if before != (self.low.get(), self.high.get()):
            yield value[0], self.low.get(), self.high.get()


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
degrees = [("oslo", -3), ("rome", 14), ("oslo", 4), ("oslo", 0), ("rome", 11), ("rome", 12), ("oslo", -9)]
(
    env.from_collection(degrees, type_info=Types.TUPLE([Types.STRING(), Types.INT()]))
    .key_by(lambda reading: reading[0], key_type=Types.STRING())
    .flat_map(Extremes(), output_type=Types.TUPLE([Types.STRING(), Types.INT(), Types.INT()]))
    .print()
)
env.execute("extremes")
