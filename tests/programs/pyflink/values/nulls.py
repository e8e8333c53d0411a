"""None as a value: returned by map, in fields and nested values, and dropped only by a filter."""

from pyflink.common import Row, Types
from pyflink.datastream import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
numbers = env.from_collection([1, 2, 3], type_info=Types.INT())
maybe = numbers.map(lambda n: None if n == 2 else n * 10, output_type=Types.INT())
maybe.map(lambda n: f"shown {n}", output_type=Types.STRING()).print()
maybe.filter(lambda n: n is not None).map(lambda n: f"kept {n}", output_type=Types.STRING()).print()
kind = Types.ROW_NAMED(["word", "n", "tags"], [Types.STRING(), Types.INT(), Types.LIST(Types.STRING())])
rows = [Row(word="a", n=None, tags=["x"]), Row(word="b", n=1, tags=None), Row(word="a", n=2, tags=[])]
rows = env.from_collection(rows, type_info=kind)
rows.map(lambda row: f"row {row.word} {row.n} {row.tags}", output_type=Types.STRING()).print()
(
    rows.key_by(lambda row: row.word, key_type=Types.STRING())
    .reduce(lambda a, b: Row(word=a.word, n=(a.n or 0) + (b.n or 0), tags=None))
    .map(lambda row: f"reduced {row.word} {row.n} {row.tags}", output_type=Types.STRING())
    .print()
)
env.execute("nulls")
