"""The running mean of each film's ratings: aggregating state whose accumulator differs from its result."""

from pyflink.common import Types
from pyflink.datastream import AggregateFunction, MapFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import AggregatingStateDescriptor


class Mean(AggregateFunction):
    def create_accumulator(self):
        return 0, 0

    def add(self, value, accumulator):
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, a, b):
        return a[0] + b[0], a[1] + b[1]


class Rated(MapFunction):
    def open(self, runtime_context: RuntimeContext):
        accumulator = Types.TUPLE([Types.LONG(), Types.LONG()])
        self.mean = runtime_context.get_aggregating_state(AggregatingStateDescriptor("mean", Mean(), accumulator))

    def map(self, value):
        film, stars = value
        if stars == 0:
            self.mean.clear()
        else:
            self.mean.add(stars)
        return f"{film} {self.mean.get()}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
ratings = [("alien", 5), ("cats", 1), ("alien", 4), ("cats", 2), ("alien", 3), ("cats", 0), ("cats", 4)]
(
    env.from_collection(ratings, type_info=Types.TUPLE([Types.STRING(), Types.INT()]))
    .key_by(lambda rating: rating[0], key_type=Types.STRING())
    .map(Rated(), output_type=Types.STRING())
    .print()
)
env.execute("mean so far")
