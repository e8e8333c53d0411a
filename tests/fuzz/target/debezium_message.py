"""A change of a database's table as Debezium tells it in JSON."""

from holdfast.datastream.formats.debezium import DebeziumJsonDeserializationSchema
from tests.fuzz.message import read

ROWS = (
    "id bigint, name string, price decimal(10,2), seen timestamp, at timestamp_ntz, day date, time time, "
    "picture binary, tags array<string>, lsn bigint"
)
METADATA = {"lsn": "source.lsn"}
STRICT = DebeziumJsonDeserializationSchema(ROWS, metadata=METADATA)
LENIENT = DebeziumJsonDeserializationSchema(ROWS, metadata=METADATA, ignore_parse_errors=True)


def parse(data: bytes) -> None:
    read(data, STRICT, LENIENT)
