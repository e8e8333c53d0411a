"""Deduplicate orders by number with a flag in value state."""

from pyflink.common import Time, Types
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import StateTtlConfig, ValueStateDescriptor


class FirstOfEach(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        seen = ValueStateDescriptor("seen", Types.BOOLEAN())
        seen.enable_time_to_live(StateTtlConfig.new_builder(Time.days(1)).cleanup_full_snapshot().build())
        self.seen = runtime_context.get_state(seen)

    def process_element(self, value, ctx: KeyedProcessFunction.Context):
        if self.seen.value() is None:
            self.seen.update(True)
            yield f"{value[0]} {value[1]}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
orders = [("o1", "kelp"), ("o2", "rock"), ("o1", "kelp"), ("o3", "sand"), ("o2", "rock"), ("o1", "changed")]
(
    env.from_collection(orders, type_info=Types.TUPLE([Types.STRING(), Types.STRING()]))
    .key_by(lambda order: order[0], key_type=Types.STRING())
    .process(FirstOfEach(), output_type=Types.STRING())
    .print()
)
env.execute("first of each")
