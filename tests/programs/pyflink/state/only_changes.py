"""Emit a reading only if it differs from the previous one: a stateful filter on a keyed stream."""

from pyflink.common import Types
from pyflink.datastream import FilterFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import ValueStateDescriptor


class Changed(FilterFunction):
    def open(self, runtime_context: RuntimeContext):
        self.before = runtime_context.get_state(ValueStateDescriptor("before", Types.STRING()))

    def filter(self, value):
        changed = self.before.value() != value[1]
        self.before.update(value[1])
        return changed


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
doors = [("front", "open"), ("front", "open"), ("back", "shut"), ("front", "shut"), ("back", "shut"), ("front", "open")]
(
    env.from_collection(doors, type_info=Types.TUPLE([Types.STRING(), Types.STRING()]))
    .key_by(lambda door: door[0], key_type=Types.STRING())
    .filter(Changed())
    .print()
)
env.execute("only changes")
