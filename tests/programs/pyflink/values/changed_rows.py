"""Functions that change rows: by position and by name, with the effects on emitted and shared rows."""

from pyflink.common import Row, Types
from pyflink.datastream import ProcessFunction, StreamExecutionEnvironment


def kind():
    return Types.ROW_NAMED(["word", "n"], [Types.STRING(), Types.INT()])


class Stepwise(ProcessFunction):
    def process_element(self, value, ctx: ProcessFunction.Context):
        for _ in range(3):
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


def described(row):
    row["n"] += 1
    copied = Row(word=row.word, n=row.n)
    hashed = {copied: "found"}
    yield f"equal {row.word} {row == copied} {hash(row) == hash(copied)} {hashed.get(row)}"
    row[1] = 0
    yield f"other {row.word} {row == copied} {hashed.get(row)} {row!r} {row.as_dict()} {list(row)} {len(row)}"
    word, n = row
    yield f"parts {word} {n} {row[-1]} {list(row[:1])} {'n' in row} {row.get_fields_by_names(['n'])}"
    for wrong in ("other", 7):
        try:
            row[wrong] = 1
        except (KeyError, ValueError, IndexError):
            yield f"wrong {row.word} {wrong}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
rows = env.from_collection([Row("kelp", 1), Row("rock", 2), Row("kelp", 3)], type_info=kind())
rows.process(Stepwise(), output_type=kind()).map(lambda row: f"step {row.word} {row.n}", Types.STRING()).print()
pair = Types.ROW_NAMED(["inner", "several"], [kind(), Types.LIST(kind())])
nested = rows.process(Nested(), output_type=pair)
nested.map(lambda row: f"nested {row.inner.word} {row.inner.n} {row.several[0].n}", Types.STRING()).print()
rows.flat_map(described, output_type=Types.STRING()).print()
rows.map(lambda row: f"same {row.word} {row.n}", Types.STRING()).print()
env.execute("changed rows")
