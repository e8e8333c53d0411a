"""Rows that functions change: by place and by name, what they emit on the way, and rows in state that were changed."""

from pyflink.common import Row, Types
from pyflink.datastream import KeyedProcessFunction, ProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor


def kind():
    return Types.ROW_NAMED(["word", "n"], [Types.STRING(), Types.INT()])


class Stepwise(ProcessFunction):
    def process_element(self, value, ctx: ProcessFunction.Context):
        for step in range(3):
            yield value
            value["n"] += 10
        value[0] = value.word.upper()
        value[0:2] = [value.word + "!", -1]
        yield value


class Nested(ProcessFunction):
    def process_element(self, value, ctx: ProcessFunction.Context):
        inner = Row(word=value.word, n=0)
        whole = Row(inner=inner, several=[inner])
        for n in range(2):
            inner["n"] = n
            yield whole


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


def described(row):
    row["n"] += 1
    copied = Row(word=row.word, n=row.n)
    hashed = {copied: "found"}
    yield f"equal {row.word} {row == copied} {hash(row) == hash(copied)} {hashed.get(row)}"
    row[1] = 0
    yield f"other {row.word} {row == copied} {hashed.get(row)} {row!r} {row.as_dict()} {list(row)} {len(row)}"
    word, n = row
    yield f"parts {word} {n} {row[-1]} {row[:1]} {'n' in row} {row.get_fields_by_names(['n'])}"
    for wrong in ("other", 7):
        try:
            row[wrong] = 1
        except (KeyError, ValueError, IndexError):
            yield f"wrong {row.word} {wrong}"


def added(before, after):
    before["n"] += after.n
    return before


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
rows = env.from_collection([Row("kelp", 1), Row("rock", 2), Row("kelp", 3)], type_info=kind())
rows.process(Stepwise(), output_type=kind()).map(lambda row: f"step {row.word} {row.n}", Types.STRING()).print()
pair = Types.ROW_NAMED(["inner", "several"], [kind(), Types.LIST(kind())])
nested = rows.process(Nested(), output_type=pair)
nested.map(lambda row: f"nested {row.inner.word} {row.inner.n} {row.several[0].n}", Types.STRING()).print()
keyed = rows.key_by(lambda row: row.word, key_type=Types.STRING())
keyed.process(Remembered(), output_type=Types.STRING()).print()
keyed.reduce(added).map(lambda row: f"reduced {row.word} {row.n}", Types.STRING()).print()
rows.flat_map(described, output_type=Types.STRING()).print()
rows.map(lambda row: f"same {row.word} {row.n}", Types.STRING()).print()
env.execute("changed rows")
