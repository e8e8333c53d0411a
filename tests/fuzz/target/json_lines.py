"""A file with an object of JSON in each line."""

from holdfast.datastream.formats.json import JsonLinesFormat
from tests.fuzz.document import directory, replaced
from tests.fuzz.lines import read

FILE = directory() / "lines.json"
PATH = str(FILE)
FORMAT = JsonLinesFormat(
    "word string, n bigint, price decimal(10,2), day date, seen timestamp, flag boolean, real double, bytes binary, "
    "list array<struct<a: bigint>>, row struct<a: string, b: array<double>>"
)


def parse(data: bytes) -> None:
    replaced(FILE, data)
    read(PATH, FORMAT)
