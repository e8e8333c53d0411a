"""Rows of a changelog: insertions, and for each update the row before and the row after it."""

from pyflink.common import Row, RowKind, Types
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import ValueStateDescriptor


class Count(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.n = runtime_context.get_state(ValueStateDescriptor("n", Types.INT()))

    def process_element(self, value, ctx: KeyedProcessFunction.Context):
        before = self.n.value()
        self.n.update((before or 0) + 1)
        for kind, n in ((RowKind.UPDATE_BEFORE, before), (RowKind.UPDATE_AFTER, self.n.value())):
            if n is not None:
                row = Row(word=value, n=n)
                row.set_row_kind(RowKind.INSERT if before is None else kind)
                yield f"{row.word} {row.get_row_kind().name} {row.as_dict()}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
(
    env.from_collection(["kelp", "rock", "kelp", "kelp"], type_info=Types.STRING())
    .key_by(lambda word: word, key_type=Types.STRING())
    .process(Count(), output_type=Types.STRING())
    .print()
)
env.execute("changelog rows")
