"""Ledger and identity of an output directory, as anybody who may write there can make them."""

from holdfast.datastream.sinks.output_directory import CommitLedger, OutputDirectory, StagedFile
from tests.fuzz.document import directory, replaced, sealed

OUTPUT = directory() / "output"
PATH = str(OUTPUT)
STAGED = ".holdfast/line-sink/000001-000000007-0-sink-0-000000000000.staged"
FILES = [StagedFile(STAGED, "part-000000007-00000-0.parquet")]


def parse(data: bytes) -> None:
    output = OutputDirectory(PATH)
    replaced(OUTPUT / ".holdfast" / "identity", data)
    output.identity()
    ledger = CommitLedger(output, ".holdfast/line-sink")
    replaced(OUTPUT / ".holdfast" / "line-sink" / "ledger" / "000000007.begun", sealed("commit-intent", 1, data))
    assert ledger.last_epoch() == 7
    ledger.named(7, FILES)
