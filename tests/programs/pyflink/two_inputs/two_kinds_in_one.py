"""Two streams of different types become one: a CoMapFunction, and a keyed CoFlatMapFunction with state.

Order: none, the two inputs come as they like.
"""

from pyflink.common import Types
from pyflink.datastream import CoFlatMapFunction, CoMapFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import ReducingStateDescriptor


class AsText(CoMapFunction):
    def map1(self, value):
        return f"number {value}"

    def map2(self, value):
        return f"pair {value[0]}={value[1]}"


class Seen(CoFlatMapFunction):
    def open(self, runtime_context: RuntimeContext):
        self.sum = runtime_context.get_reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b, Types.INT()))

    def flat_map1(self, value):
        return self.add(value, 1)

    def flat_map2(self, value):
        return self.add(ord(value[0]) - ord("a"), value[1])

    def add(self, key, n):
        self.sum.add(n)
        if self.sum.get() == 12:
            yield f"key {key} has twelve"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
numbers = env.from_collection([0, 1, 2, 1], type_info=Types.INT())
pairs = env.from_collection([("a", 5), ("b", 4), ("b", 6), ("c", 11)], Types.TUPLE([Types.STRING(), Types.INT()]))
numbers.connect(pairs).map(AsText(), output_type=Types.STRING()).print()
(
    numbers.connect(pairs)
    .key_by(lambda number: number, lambda pair: ord(pair[0]) - ord("a"), key_type=Types.INT())
    .flat_map(Seen(), output_type=Types.STRING())
    .print()
)
env.execute("two kinds in one")
