"""Which ranges of which files an epoch reads, as the driver has recorded it beside Spark's log."""

import json

from holdfast.datastream.connectors.file_system import StreamFormat
from holdfast.datastream.connectors.file_system.file_source import FileSplits
from tests.fuzz.document import directory, replaced

FILE = directory() / "recorded.txt"
SPLITS = FileSplits(StreamFormat.text_line_format())


def parse(data: bytes) -> None:
    if not FILE.exists():
        replaced(FILE, b"kelp\nrock\n")
    length, time = FILE.stat().st_size, FILE.stat().st_mtime_ns // 1_000_000
    text = data.decode("utf-8", "replace").replace("@file@", str(FILE)).replace('"@time@"', str(time))
    for splits in SPLITS.plan([], text, 2).tasks:
        for path, _, whole, begin, end in json.loads(splits):
            assert FILE.samefile(path) and whole == length
            assert 0 <= begin <= end <= length, "a range that the file has not"
        list(SPLITS.read(splits))
