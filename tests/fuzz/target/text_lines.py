"""A file of lines of text."""

from holdfast.datastream.connectors.file_system import StreamFormat
from tests.fuzz.document import directory, replaced
from tests.fuzz.lines import read

FILE = directory() / "lines.txt"
PATH = str(FILE)
FORMAT = StreamFormat.text_line_format()


def parse(data: bytes) -> None:
    replaced(FILE, data)
    read(PATH, FORMAT)
