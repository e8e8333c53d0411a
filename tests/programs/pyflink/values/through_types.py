"""The Python values of declared types: their classes, and the conversions of each type.

Here: `BIG_DEC` has 18 digits after the point, as in Flink's tables, because a column of Arrow and Spark has a
fixed number of them.
"""

import datetime
import decimal

from pyflink.common import Row, Types
from pyflink.datastream import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
VALUES = {
    "byte": (Types.BYTE(), -128),
    "short": (Types.SHORT(), 32767),
    "int": (Types.INT(), -(2**31)),
    "long": (Types.LONG(), 2**63 - 1),
    "float": (Types.FLOAT(), 0.1),
    "double": (Types.DOUBLE(), 0.1),
    "boolean": (Types.BOOLEAN(), True),
    "string": (Types.STRING(), "kelp 🌿"),
    "date": (Types.SQL_DATE(), datetime.date(1969, 12, 31)),
    "time": (Types.SQL_TIME(), datetime.time(23, 59, 58)),
    "timestamp": (Types.SQL_TIMESTAMP(), datetime.datetime(2026, 11, 25, 3, 4, 5, 678000)),
    "bigdec": (Types.BIG_DEC(), decimal.Decimal("1.5")),
    "bytes": (Types.PRIMITIVE_ARRAY(Types.BYTE()), b"\x00\xff"),
    "primitives": (Types.PRIMITIVE_ARRAY(Types.INT()), [1, 2]),
    "array": (Types.BASIC_ARRAY(Types.STRING()), ["a", "b"]),
    "objects": (Types.OBJECT_ARRAY(Types.ROW([Types.INT()])), [Row(1), Row(2)]),
    "list": (Types.LIST(Types.DOUBLE()), [1.0, 2.0]),
    "map": (Types.MAP(Types.STRING(), Types.LIST(Types.INT())), {"a": [1]}),
    "tuple": (Types.TUPLE([Types.INT(), Types.STRING()]), (1, "a")),
    "row": (Types.ROW([Types.INT(), Types.STRING()]), Row(1, "a")),
    "named": (Types.ROW_NAMED(["n", "s"], [Types.INT(), Types.STRING()]), Row(n=1, s="a")),
    "python": (None, {"any": (1, None)}),
}


def told(name):
    return lambda value: f"{name} {type(value).__name__} {value!r}"


for name, (kind, value) in VALUES.items():
    values = env.from_collection([0]).map(lambda _, value=value: value, output_type=kind)
    values.key_by(lambda value: 0, key_type=Types.INT()).map(told(name), output_type=Types.STRING()).print()
env.execute("through types")
