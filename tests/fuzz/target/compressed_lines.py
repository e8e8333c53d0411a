"""A file of lines that is compressed as a whole: the first line of an input says how, the rest is the file."""

from holdfast.datastream.connectors.file_system import StreamFormat
from holdfast.errors import HoldfastError
from tests.fuzz.document import directory, replaced
from tests.fuzz.lines import read

ENDINGS = ("gz", "bz2", "zst", "lz4", "br")
FORMAT = StreamFormat.text_line_format()


def parse(data: bytes) -> None:
    ending, _, content = data.partition(b"\n")
    if ending.decode("latin-1") not in ENDINGS:
        raise HoldfastError("it is compressed in no way that is known")
    file = directory() / "compressed" / f"lines.txt.{ending.decode()}"
    replaced(file, content)
    read(str(file), FORMAT)
