"""Any bytes where a task has staged rows in the directory of the job, for a sink that commits them itself."""

from holdfast.datastream.connectors.kafka.records import read_staged_records
from holdfast.datastream.sinks.staged_files import staged_rows
from tests.fuzz.document import directory, replaced
from tests.fuzz.output import STAGED_NAME, context, request_of

NAME = f"{STAGED_NAME}.parquet"
PATH = str(directory() / "rows" / "staging")


def parse(data: bytes) -> None:
    replaced(directory() / "rows" / "staging" / NAME, data)
    [rows] = staged_rows(context("rows"), [request_of({"file": NAME})])
    if rows.schema.names == ["topic", "key", "value", "headers", "partition", "timestamp"]:
        for record in read_staged_records(f"{PATH}/{NAME}"):
            assert len(record) == 6
