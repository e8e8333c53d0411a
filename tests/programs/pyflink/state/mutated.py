"""Accumulators and values that are mutated in place and returned: lists and dictionaries."""

from pyflink.common import Types
from pyflink.datastream import AggregateFunction, KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import AggregatingStateDescriptor, ValueStateDescriptor


class Collected(AggregateFunction):
    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator):
        return "".join(accumulator)

    def merge(self, a, b):
        return a + b


class Letters(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.all = runtime_context.get_aggregating_state(
            AggregatingStateDescriptor("all", Collected(), Types.LIST(Types.STRING()))
        )
        self.counts = runtime_context.get_state(ValueStateDescriptor("counts", Types.MAP(Types.STRING(), Types.INT())))

    def process_element(self, value, ctx: KeyedProcessFunction.Context):
        self.all.add(value[1])
        counts = self.counts.value() or {}
        counts[value[1]] = counts.get(value[1], 0) + 1
        self.counts.update(counts)
        yield f"{value[0]} {self.all.get()} {sorted(self.counts.value().items())}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
letters = [("a", "x"), ("b", "y"), ("a", "z"), ("a", "x"), ("b", "x")]
(
    env.from_collection(letters, type_info=Types.TUPLE([Types.STRING(), Types.STRING()]))
    .key_by(lambda pair: pair[0], key_type=Types.STRING())
    .process(Letters(), output_type=Types.STRING())
    .print()
)
env.execute("mutated")
