"""A file of lines of CSV: with ends of lines in values, with names of columns in the first line, or with neither."""

from contextlib import suppress

from holdfast.datastream.formats.csv import CsvReaderFormat
from holdfast.errors import HoldfastError
from tests.fuzz.document import directory, replaced
from tests.fuzz.lines import read

FILE = directory() / "lines.csv"
PATH = str(FILE)
COLUMNS = "word string, n bigint, price decimal(10,2), day date, seen timestamp, flag boolean, real double"
PLAIN = CsvReaderFormat.for_schema(COLUMNS)
NAMED = CsvReaderFormat.for_schema(COLUMNS, header=True, delimiter=";")
LONG = CsvReaderFormat.for_schema(COLUMNS, multi_line=True)


def parse(data: bytes) -> None:
    replaced(FILE, data)
    for form in (NAMED, LONG):
        with suppress(HoldfastError):
            read(PATH, form)
    read(PATH, PLAIN)
