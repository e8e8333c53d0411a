"""A union of streams, split into side outputs of three types; the rest stays in the main output.

Order: none within what was united.
"""

from pyflink.common import Types
from pyflink.datastream import OutputTag, ProcessFunction, StreamExecutionEnvironment

SMALL = OutputTag("small", Types.INT())
NAMED = OutputTag("named", Types.TUPLE([Types.STRING(), Types.INT()]))
ODD = OutputTag("odd")


class Split(ProcessFunction):
    def process_element(self, value, ctx: ProcessFunction.Context):
        if value < 10:
            yield SMALL, value
        if value == 42:
            yield NAMED, ("the answer", value)
        elif value % 2:
            yield ODD, {"odd": value}
        else:
            yield value


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
first = env.from_collection([1, 2, 42], type_info=Types.INT())
second = env.from_collection([8, 99], type_info=Types.INT())
third = env.from_collection([100, 42], type_info=Types.INT())
rest = first.union(second, third).process(Split(), output_type=Types.INT())
rest.map(lambda n: f"rest {n}", output_type=Types.STRING()).print()
rest.get_side_output(SMALL).map(lambda n: f"small {n + 0}", output_type=Types.STRING()).print()
rest.get_side_output(NAMED).map(lambda pair: f"{pair[0]} {pair[1]}", output_type=Types.STRING()).print()
rest.get_side_output(ODD).map(lambda found: f"odd {found['odd']}", output_type=Types.STRING()).print()
env.execute("union and split")
