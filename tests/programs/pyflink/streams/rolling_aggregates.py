"""sum, min, max, min_by and max_by of a keyed stream: by tuple position, and by field name of a row.

Here: the fields that `sum`, `min` and `max` do not aggregate are those of the newest element. In Flink they
are those of the first one, but Flink leaves this open. Keeping the first needs one more element for each key.
"""

from pyflink.common import Types
from pyflink.datastream import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
sales = [("kelp", "ada", 4), ("kelp", "bob", 2), ("rock", "eve", 9), ("kelp", "dan", 2), ("kelp", "ida", 7)]
types = [Types.STRING(), Types.STRING(), Types.INT()]
tuples = env.from_collection(sales, Types.TUPLE(types)).key_by(lambda sale: sale[0], key_type=Types.STRING())
for name in ("sum", "min", "max", "min_by", "max_by"):
    getattr(tuples, name)(2).map(
        lambda sale, name=name: f"{name}-{sale[0]} {sale[1]} {sale[2]}", output_type=Types.STRING()
    ).print()
rows = env.from_collection(sales, Types.ROW_NAMED(["item", "who", "n"], types))
largest = rows.key_by(lambda sale: sale.item, key_type=Types.STRING()).max_by("n")
largest.map(lambda sale: f"row-{sale.item} {sale.who} {sale.n}", output_type=Types.STRING()).print()
numbers = env.from_collection([3, 1, 4, 1, 5], Types.INT()).key_by(lambda n: n % 2, key_type=Types.INT())
numbers.max().map(lambda n: f"plain-{n % 2} {n}", output_type=Types.STRING()).print()
env.execute("rolling aggregates")
