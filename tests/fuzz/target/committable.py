"""What a checkpoint says that a ParquetFileSink has staged: it moves files inside of one directory, or nothing."""

import json
import shutil
from typing import Any

from holdfast.datastream.sinks.output_directory import OutputDirectory
from holdfast.datastream.sinks.output_files import ParquetFileSink
from holdfast.runtime.function.sink import CommitRequest, CommitterInitContext
from tests.fuzz.document import directory, replaced

ROOT = directory() / "committed"
STAGED = ".holdfast/line-sink/000001-000000007-0-sink-0-000000000000.staged"
CONTEXT = CommitterInitContext("0" * 32, "out", str(ROOT / "staging"))


def parse(data: bytes) -> None:
    try:
        committable: Any = json.loads(data.replace(b"@root@", str(ROOT).encode()))
    except (ValueError, RecursionError):
        return  # it was JSON when its checkpoint was read
    shutil.rmtree(ROOT, ignore_errors=True)
    replaced(ROOT / "mine" / STAGED, b"rows")
    replaced(ROOT / "mine" / ".holdfast" / "identity", b"an identity\n")
    replaced(ROOT / "others" / "file", b"a file of somebody else")
    sink = ParquetFileSink(str(ROOT / "mine"))
    assert OutputDirectory(sink.path).identity() == "an identity"
    try:
        sink.create_committer(CONTEXT).commit([CommitRequest(committable, epoch=7, subtask=0, checkpoint_id=7)])
    finally:
        assert (ROOT / "others" / "file").read_bytes() == b"a file of somebody else"
        outside = {path.name for path in ROOT.iterdir()} | {path.name for path in (ROOT / "others").iterdir()}
        assert outside == {"mine", "others", "file"}, "something was moved out of the directory of the sink"
