"""The daily totals of each customer: a map state from days to sums."""

from pyflink.common import Types
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import MapStateDescriptor


class TotalsPerDay(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.totals = runtime_context.get_map_state(MapStateDescriptor("totals", Types.STRING(), Types.DOUBLE()))

    def process_element(self, value, ctx: KeyedProcessFunction.Context):
        customer, day, amount = value
        self.totals[day] = (self.totals[day] or 0.0) + amount
        days = ", ".join(f"{day}: {total}" for day, total in sorted(self.totals.items()))
        yield f"{customer} {days}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
payments = [
    ("ada", "monday", 1.5),
    ("bob", "monday", 2.0),
    ("ada", "tuesday", 4.0),
    ("ada", "monday", 0.25),
    ("bob", "friday", 8.0),
]
(
    env.from_collection(payments, type_info=Types.TUPLE([Types.STRING(), Types.STRING(), Types.DOUBLE()]))
    .key_by(lambda payment: payment[0], key_type=Types.STRING())
    .process(TotalsPerDay(), output_type=Types.STRING())
    .print()
)
env.execute("totals per day")
