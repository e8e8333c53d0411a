"""Records of one subtask and epoch, staged as they will be sent, in a Parquet file in the job's directory.

They are made in the tasks, so a row that cannot be sent fails there, before its epoch is part of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.datastream.connectors.kafka.record.record_limits import Compressor, RecordLimits
from holdfast.datastream.connectors.kafka.record.record_serialization import KafkaRecord, KafkaRecordSerializationSchema
from holdfast.datastream.sinks.task_owned import opened
from holdfast.errors import HoldfastError
from holdfast.runtime.function.sink import (
    Committable,
    RefusedElementError,
    SinkWriter,
    WriterContext,
    WriterInitContext,
)
from holdfast.runtime.function.staging import ParquetStaging

SUFFIX: Final = ".records"
LARGEST: Final = 1_000_000
"""The default of `message.max.bytes`."""

_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
        ("partition", pa.int32()),
        ("timestamp", pa.int64()),
    ]
)
_ROWS: Final = 8192
_BYTES: Final = 8 << 20
_OVERHEAD: Final = 128
"""Bytes that a record, alone in a batch, has beside its key, value and headers, at most."""


class RecordStaging(SinkWriter):
    """Stages the records of one subtask and epoch.

    Args:
        schema: Makes records of elements.
        context: Of the writer.
        committable: What identifies the records to the committer; file, rows and bytes are added.
        largest: Bytes that a record may have.
        limits: What topics refuse, by their names.
        compressor: Of the producer.
    """

    def __init__(
        self,
        schema: KafkaRecordSerializationSchema,
        context: WriterInitContext,
        committable: dict[str, Any],
        largest: int = LARGEST,
        limits: Mapping[str, RecordLimits] | None = None,
        compressor: Compressor | None = None,
    ) -> None:
        name = context.file_name(SUFFIX)
        self._file = ParquetStaging(context.staging_dir, name, {**committable, "file": name})
        self._serialize = schema.serialize
        self._largest = largest
        self._limits = limits or {}
        self._compressor = compressor
        self._now = context.processing_time
        self._records: list[KafkaRecord] = []
        self._bytes = 0
        schema.open()

    def write(self, element: Any, context: WriterContext) -> None:
        """Stages one element.

        Raises:
            RefusedElementError: Its record cannot be made, or cannot be sent.
            StorageError: What serializes it needs something that is away.
        """
        try:
            record = self._serialize(element, context.timestamp())
        except (HoldfastError, OSError):
            raise
        except Exception as error:
            raise RefusedElementError(f"its record cannot be made: {type(error).__name__}: {error}") from error
        size = _OVERHEAD + len(record.key or b"") + len(record.value or b"")
        if record.headers:
            size += sum(len(name) + len(value or b"") + 8 for name, value in record.headers)
        if size > self._largest:
            raise RefusedElementError(
                f"its record has {size} bytes, and Kafka takes {self._largest} at most: make it smaller, or raise "
                "message.max.bytes of the sink, and of the brokers or max.message.bytes of the topic"
            )
        limits = self._limits.get(record.topic)
        if limits is not None and (reason := limits.why_refused(record, size, self._now, self._compressor)):
            raise RefusedElementError(reason)
        self._records.append(record)
        self._bytes += size
        if self._bytes >= _BYTES or len(self._records) >= _ROWS:
            self._write_batch()

    def flush(self, end_of_input: bool) -> None:
        """Makes the file durable."""
        if self._records:
            self._write_batch()
        self._file.flush(end_of_input)

    def prepare_commit(self) -> list[Committable]:
        """One committable, or none without rows."""
        return self._file.prepare_commit()

    def abort(self) -> None:
        self._file.abort()

    def _write_batch(self) -> None:
        columns = list(zip(*self._records, strict=True))
        columns[3] = tuple([{"name": n, "value": v} for n, v in headers] for headers in columns[3])
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
        self._file.write_batch(pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA))
        self._records, self._bytes = [], 0


def staged_records(path: str) -> Iterator[KafkaRecord]:
    """The records of a staged file in the order in which they were written; memory holds a part of them at a time.

    Raises:
        StorageError: The file cannot be read.
    """
    with opened(path) as file:
        for batch in pq.ParquetFile(file).iter_batches(_ROWS, columns=_SCHEMA.names):
            columns = [column.to_pylist() for column in batch.columns]
            columns[3] = [tuple((h["name"], h["value"]) for h in headers) for headers in columns[3]]
            yield from map(KafkaRecord._make, zip(*columns, strict=True))
