"""All ways to return elements: lists, generators, sets, nothing, and a string, which yields its letters."""

from pyflink.common import Types
from pyflink.datastream import KeyedProcessFunction, ProcessFunction, StreamExecutionEnvironment


class Listed(ProcessFunction):
    def process_element(self, value, ctx: ProcessFunction.Context):
        return [f"list {value}", f"list {value} again"] if value else None


class Ranged(KeyedProcessFunction):
    def process_element(self, value, ctx: KeyedProcessFunction.Context):
        return (f"range {value} {n}" for n in range(value))


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
numbers = env.from_collection([0, 1, 2], type_info=Types.INT())
text = Types.STRING()
numbers.process(Listed(), output_type=text).print()
numbers.key_by(lambda n: n, key_type=Types.INT()).process(Ranged(), output_type=text).print()
numbers.flat_map(lambda n: (f"tuple {n} {i}" for i in range(n)), output_type=text).print()
numbers.flat_map(lambda n: {f"set {n}"}, output_type=text).print()
numbers.flat_map(lambda n: "ab" * n, output_type=text).map(lambda s: f"letter {s}", output_type=text).print()
numbers.flat_map(lambda n: [] if n else [f"some {n}"], output_type=text).print()
env.execute("returned")
