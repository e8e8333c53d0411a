"""A global window with a trigger that counts and purges. The rest at the end is not emitted."""

from pyflink.common import Types
from pyflink.datastream import ProcessWindowFunction, StreamExecutionEnvironment
from pyflink.datastream.window import CountTrigger, GlobalWindows, PurgingTrigger


class Sum(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield key, sum(n for _, n in elements)

    def clear(self, context):
        pass


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
numbers = [("a", 1), ("b", 10), ("a", 2), ("a", 3), ("b", 20), ("a", 4), ("a", 5), ("a", 6), ("a", 7), ("b", 30)]
kind = Types.TUPLE([Types.STRING(), Types.INT()])
(
    env.from_collection(numbers, type_info=kind)
    .key_by(lambda number: number[0], key_type=Types.STRING())
    .window(GlobalWindows.create())
    .trigger(PurgingTrigger.of(CountTrigger.of(3)))
    .process(Sum(), output_type=kind)
    .print()
)
env.execute("every third of all")
