"""Lines of CSV, read from a file and one by one as messages: the same rows, and the same lines that are none."""

from holdfast.datastream.formats.csv import CsvReaderFormat, CsvRowDeserializationSchema
from tests.fuzz.lines import require_agreement

COLUMNS = (
    "word string, n bigint, price decimal(9,2), wei decimal(38,18), day date, clock time, seen timestamp, "
    "local timestamp_ntz, flag boolean, real double, part float, bytes binary, code char(2)"
)
LINES, MESSAGES = CsvReaderFormat.for_schema(COLUMNS), CsvRowDeserializationSchema.Builder(COLUMNS).build()


def parse(data: bytes) -> None:
    require_agreement(LINES, MESSAGES, data)
