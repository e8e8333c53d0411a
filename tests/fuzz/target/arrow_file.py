"""A file or a stream in Arrow's own format: Arrow believes the offsets in one, and a source does not."""

from holdfast.datastream.formats.arrow import ArrowInputFormat
from tests.fuzz.document import directory, replaced
from tests.fuzz.lines import read

FILE = directory() / "rows.arrow"
PATH = str(FILE)
FORMAT = ArrowInputFormat("word string, n bigint, list array<string>, row struct<a: double>")


def parse(data: bytes) -> None:
    replaced(FILE, data)
    read(PATH, FORMAT)
