"""A message of CSV, as rows of every type that has a form in it."""

from holdfast.datastream.formats.csv import CsvRowDeserializationSchema
from holdfast.types.types import Types
from tests.fuzz.message import read

ROWS = Types.ROW_NAMED(
    ["whole", "big", "exact", "real", "small", "flag", "word", "bytes", "day", "time", "instant", "list"],
    [
        Types.LONG(), Types.BIG_INT(), Types.BIG_DEC(), Types.DOUBLE(), Types.FLOAT(), Types.BOOLEAN(), Types.STRING(),
        Types.PRIMITIVE_ARRAY(Types.BYTE()), Types.SQL_DATE(), Types.SQL_TIME(), Types.SQL_TIMESTAMP(),
        Types.LIST(Types.INT()),
    ],
)  # fmt: skip
STRICT = CsvRowDeserializationSchema.Builder(ROWS).set_escape_character("\\").build()
LENIENT = CsvRowDeserializationSchema.Builder(ROWS).set_null_literal("n").set_ignore_parse_errors(True).build()


def parse(data: bytes) -> None:
    read(data, STRICT, LENIENT)
