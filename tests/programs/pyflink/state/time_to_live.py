"""State with a time to live of an hour; list elements and map entries expire one by one."""

from pyflink.common import Time, Types
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import ListStateDescriptor, MapStateDescriptor, StateTtlConfig

HOUR = (
    StateTtlConfig.new_builder(Time.hours(1))
    .set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)
    .set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)
    .cleanup_incrementally(10, False)
    .build()
)


class Visits(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        pages = ListStateDescriptor("pages", Types.STRING())
        pages.enable_time_to_live(HOUR)
        counts = MapStateDescriptor("counts", Types.STRING(), Types.LONG())
        counts.enable_time_to_live(HOUR)
        self.pages = runtime_context.get_list_state(pages)
        self.counts = runtime_context.get_map_state(counts)

    def process_element(self, value, ctx: KeyedProcessFunction.Context):
        self.pages.add(value[1])
        self.counts.put(value[1], (self.counts.get(value[1]) or 0) + 1)
        yield f"{value[0]} {list(self.pages.get())} {sorted(self.counts.items())}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
visits = [("ada", "home"), ("bob", "home"), ("ada", "cart"), ("ada", "home")]
(
    env.from_collection(visits, type_info=Types.TUPLE([Types.STRING(), Types.STRING()]))
    .key_by(lambda visit: visit[0], key_type=Types.STRING())
    .process(Visits(), output_type=Types.STRING())
    .print()
)
env.execute("time to live")
