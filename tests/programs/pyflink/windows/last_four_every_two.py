"""A sliding count window: every two elements of a key, the full windows of the last four."""

from pyflink.common import Types
from pyflink.datastream import StreamExecutionEnvironment, WindowFunction
from pyflink.datastream.window import CountWindow


class Listed(WindowFunction[tuple, str, str, CountWindow]):
    def apply(self, key: str, window: CountWindow, inputs):
        return [f"{key} window {window.id}: {[n for _, n in inputs]}"]


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
numbers = [("a", n) for n in range(1, 10)] + [("b", n) for n in range(5)]
(
    env.from_collection(numbers, type_info=Types.TUPLE([Types.STRING(), Types.INT()]))
    .key_by(lambda number: number[0], key_type=Types.STRING())
    .count_window(4, 2)
    .apply(Listed(), output_type=Types.STRING())
    .print()
)
env.execute("last four every two")
