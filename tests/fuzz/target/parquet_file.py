"""A file of Parquet as a source reads it."""

from holdfast.datastream.formats.parquet import ParquetColumnarRowInputFormat
from tests.fuzz.document import directory, replaced
from tests.fuzz.lines import read

FILE = directory() / "rows.parquet"
PATH = str(FILE)
FORMAT = ParquetColumnarRowInputFormat("word string, n bigint, list array<string>, row struct<a: double>")


def parse(data: bytes) -> None:
    replaced(FILE, data)
    read(PATH, FORMAT)
