"""How elements are printed: declared types like Java's, undeclared ones like Python's."""

import datetime

from pyflink.common import Row, Types
from pyflink.datastream import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)


def show(name, elements, kind=None):
    env.from_collection([0]).flat_map(lambda _: elements, output_type=kind).print(name)


show(
    "tuple",
    [("kelp", 1, 2.5, True, "")],
    Types.TUPLE([Types.STRING(), Types.INT(), Types.DOUBLE(), Types.BOOLEAN(), Types.STRING()]),
)
show("row", [Row("kelp", 1), Row(None, 2)], Types.ROW([Types.STRING(), Types.INT()]))
show("named", [Row(word="kelp", n=1)], Types.ROW_NAMED(["word", "n"], [Types.STRING(), Types.INT()]))
show(
    "nested",
    [("a", ("b", [1, 2]))],
    Types.TUPLE([Types.STRING(), Types.TUPLE([Types.STRING(), Types.LIST(Types.INT())])]),
)
show("map", [{"a": 1}], Types.MAP(Types.STRING(), Types.INT()))
show("list", [[1, 2], []], Types.LIST(Types.INT()))
show("boolean", [True, False], Types.BOOLEAN())
show("long", [2**40], Types.LONG())
show("double", [1.0, 0.1, 1e10, 1e-5, 123456789.125], Types.DOUBLE())
show("date", [datetime.date(2026, 11, 25)], Types.SQL_DATE())
show("python", [("kelp", 1, None), {"a": [1.0]}, "text", 7, Row(word="kelp", n=1)])
env.execute("printed as they are")
