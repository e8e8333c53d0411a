"""A custom partitioner that selects the task by the element's sign."""

from pyflink.common import Types
from pyflink.datastream import MapFunction, Partitioner, RuntimeContext, StreamExecutionEnvironment


class BySign(Partitioner):
    def partition(self, key: int, num_partitions: int) -> int:
        return 0 if key < 0 else num_partitions - 1


class Placed(MapFunction):
    def open(self, runtime_context: RuntimeContext):
        self.context = runtime_context

    def map(self, value):
        return f"{value[0]} in task {self.context.get_index_of_this_subtask()}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)
(
    env.from_collection([("a", 1), ("b", -2), ("c", -3), ("d", 0)], Types.TUPLE([Types.STRING(), Types.INT()]))
    .partition_custom(BySign(), lambda pair: pair[1])
    .map(Placed(), output_type=Types.STRING())
    .print()
)
env.execute("by hand to tasks")
