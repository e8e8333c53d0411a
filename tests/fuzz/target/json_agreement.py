"""Lines of JSON, read from a file and one by one as messages: the same rows, and the same lines that are none."""

from holdfast.datastream.formats.json import JsonLinesFormat, JsonRowDeserializationSchema
from tests.fuzz.lines import require_agreement

COLUMNS = (
    "word string, n bigint, price decimal(9,2), wei decimal(38,18), day date, clock time, seen timestamp, "
    "local timestamp_ntz, flag boolean, real double, part float, bytes binary, list array<struct<a: decimal(38,37)>>"
)
LINES, MESSAGES = JsonLinesFormat(COLUMNS), JsonRowDeserializationSchema.builder().type_info(COLUMNS).build()


def parse(data: bytes) -> None:
    require_agreement(LINES, MESSAGES, data)
