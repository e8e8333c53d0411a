"""Read rows from state, change them and write them back: in value and map state, and in a reduction."""

from pyflink.common import Row, Types
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor


def kind():
    return Types.ROW_NAMED(["word", "n"], [Types.STRING(), Types.INT()])


class Remembered(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.last = runtime_context.get_state(ValueStateDescriptor("last", kind()))
        self.all = runtime_context.get_list_state(ListStateDescriptor("all", kind()))
        self.by_n = runtime_context.get_map_state(MapStateDescriptor("by n", Types.INT(), kind()))

    def process_element(self, value, ctx: KeyedProcessFunction.Context):
        before = self.last.value()
        if before is None:
            before = Row(word=value.word, n=100)
        before["n"] += value.n
        self.last.update(before)
        yield f"value {value.word} {self.last.value().n}"
        self.all.add(Row(word=value.word, n=value.n))
        self.by_n.put(value.n, Row(word=value.word, n=value.n))
        found = self.by_n.get(value.n)
        found["n"] *= 2
        self.by_n.put(value.n, found)
        yield f"map {value.word} {sorted(row.n for row in self.by_n.values())}"
        yield f"list {value.word} {[row['n'] for row in self.all.get()]}"


def added(before, after):
    before["n"] += after.n
    return before


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
rows = env.from_collection([Row("kelp", 1), Row("rock", 2), Row("kelp", 3)], type_info=kind())
keyed = rows.key_by(lambda row: row.word, key_type=Types.STRING())
keyed.process(Remembered(), output_type=Types.STRING()).print()
keyed.reduce(added).map(lambda row: f"reduced {row.word} {row.n}", Types.STRING()).print()
env.execute("changed rows in state")
