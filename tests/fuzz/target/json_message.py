"""A message of JSON, as rows of every type that has a form in it."""

from contextlib import suppress

from holdfast.datastream.formats.json import JsonRowDeserializationSchema
from holdfast.errors import HoldfastError
from holdfast.types.types import Types
from tests.fuzz.message import read

ROWS = Types.ROW_NAMED(
    ["whole", "big", "exact", "real", "small", "flag", "word", "bytes", "day", "time", "instant", "list", "map", "row"],
    [
        Types.LONG(), Types.BIG_INT(), Types.BIG_DEC(), Types.DOUBLE(), Types.FLOAT(), Types.BOOLEAN(), Types.STRING(),
        Types.PRIMITIVE_ARRAY(Types.BYTE()), Types.SQL_DATE(), Types.SQL_TIME(), Types.SQL_TIMESTAMP(),
        Types.LIST(Types.INT()), Types.MAP(Types.STRING(), Types.BIG_INT()),
        Types.ROW_NAMED(["a", "b"], [Types.SHORT(), Types.STRING()]),
    ],
)  # fmt: skip
STRICT = JsonRowDeserializationSchema.builder().type_info(ROWS).build()
COMPLETE = JsonRowDeserializationSchema.builder().type_info(ROWS).fail_on_missing_field().build()
LENIENT = JsonRowDeserializationSchema.builder().type_info(ROWS).ignore_parse_errors().build()


def parse(data: bytes) -> None:
    read(data, STRICT, LENIENT)
    with suppress(HoldfastError):
        read(data, COMPLETE)
