"""The records of a `KafkaSink`: `KafkaRecordSerializationSchema` makes them, and `RecordStaging` stages them in tasks.

The records that a `KafkaSource` reads are rows; `topic_ranges.py` declares their columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import repeat
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.datastream.sinks.staged_files import open_staged_file
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.runtime.function.sink import (
    ColumnSinkWriter,
    Committable,
    ParquetStaging,
    RefusedElementError,
    WriterContext,
    WriterInitContext,
)
from holdfast.types.arrow import Timestamps, iterate_timestamps
from holdfast.types.serialization import SerializationSchema

Headers = Iterable[tuple[str, bytes | None]]
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_BATCH_HEADER_BYTES: Final = 61
"""The size of a batch's header, before its records."""
_BLOCK_BYTES: Final = {"lz4": 1 << 16}
_BROKER_BLOCK_BYTES: Final = {**_BLOCK_BYTES, "snappy": 1 << 15}
"""Block sizes of codecs that compress each block independently."""
_ZSTD_LEVEL: Final = 3
PRODUCER_COMPRESSION: Final = "producer"
"""The `compression.type` of a topic that stores batches as producers have compressed them."""
_UNCOMPRESSED: Final = ("none", "inherit", "uncompressed")
_COMPRESSION_MARGIN: Final = 0.03, 64
"""The fraction and the bytes by which Kafka's compressed data may be larger than that of pyarrow."""
SUFFIX: Final = ".records"
DEFAULT_MAX_MESSAGE_BYTES: Final = 1_000_000
"""The default of `message.max.bytes`."""
_ROWS: Final = 8192
_BYTES: Final = 8 << 20
_RECORD_OVERHEAD_BYTES: Final = 128
"""The largest size of a batch of one record, without key, value and headers."""


class KafkaRecord(NamedTuple):
    """A record to send. With `partition` -1 the key selects the partition; `timestamp` -1 is the time of sending."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int
    timestamp: int


class _FunctionSerializer(SerializationSchema):
    """Serializes with a function that returns bytes, or text, which is encoded as UTF-8."""

    def __init__(self, function: Callable[[Any], bytes | str | None]) -> None:
        self._function = function

    def serialize(self, element: Any) -> bytes | None:
        written = self._function(element)
        return written.encode() if isinstance(written, str) else written


class KafkaRecordSerializationSchema:
    """Converts elements to Kafka records; create it with `KafkaRecordSerializationSchema.builder()`.

    Its functions and schemas run in the tasks, when an element is staged.

    Example:
        >>> from holdfast.datastream.connectors.kafka import KafkaRecordSerializationSchema
        >>> schema = (
        ...     KafkaRecordSerializationSchema.builder()
        ...     .set_topic("counts")
        ...     .set_key_serialization_schema(lambda row: row[0])
        ...     .set_value_serialization_schema(lambda row: str(row[1]))
        ...     .build()
        ... )
        >>> record = schema.serialize(("kelp", 7), timestamp=1000)
        >>> record.topic, record.key, record.value
        ('counts', b'kelp', b'7')
    """

    def __init__(
        self,
        topic: str | Callable[[Any], str],
        key: SerializationSchema | None,
        value: SerializationSchema | None,
        headers: Callable[[Any], Headers] | None,
        partitioner: Callable[[Any], int] | None,
    ) -> None:
        self._topic = topic
        self._key = key
        self._value = value
        self._headers = headers
        self._partitioner = partitioner

    @property
    def topic(self) -> str | None:
        """The topic of all records; None if there is a topic selector."""
        return self._topic if isinstance(self._topic, str) else None

    @staticmethod
    def builder() -> KafkaRecordSerializationSchemaBuilder:
        """Return a builder."""
        return KafkaRecordSerializationSchemaBuilder()

    def open(self) -> None:
        """Open the schemas of key and value, in a task."""
        for schema in (self._key, self._value):
            if schema is not None:
                schema.open()

    def serialize(self, element: Any, timestamp: int | None) -> KafkaRecord:
        """Convert an element to a record.

        Args:
            element: An element of the stream.
            timestamp: The event time in milliseconds; None if it has none.

        Raises:
            ValueError: The record cannot be sent.
            TypeError: Key, value or a header is not bytes.
        """
        topic = self._topic
        if not isinstance(topic, str):
            topic = topic(element)
            if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in (".", ".."):
                raise ValueError(f"{topic!r} is not a valid name of a Kafka topic")
        key = None if self._key is None else self._key.serialize(element)
        value = None if self._value is None else self._value.serialize(element)
        for name, written in (("key", key), ("value", value)):
            if written is not None and not isinstance(written, bytes):
                raise TypeError(f"the {name} of a Kafka record must be bytes or None, not {type(written).__name__}")
        headers = () if self._headers is None else _check_headers(self._headers(element))
        partition = -1
        if self._partitioner is not None:
            partition = self._partitioner(element)
            if isinstance(partition, bool) or not isinstance(partition, int) or not -1 <= partition < 2**31:
                raise ValueError(f"{partition!r} is not a valid partition of a Kafka topic")
        return KafkaRecord(topic, key, value, headers, partition, _sent_time(timestamp))

    @property
    def takes_columns(self) -> bool:
        """Whether `serialize_batch` can convert elements."""
        schemas = [schema for schema in (self._key, self._value) if schema is not None]
        if self._headers is not None or self._partitioner is not None or self.topic is None:
            return False
        return all(type(schema).serialize_batch is not SerializationSchema.serialize_batch for schema in schemas)

    def serialize_batch(self, batch: pa.RecordBatch, timestamps: Timestamps | None) -> list[KafkaRecord] | None:
        """Convert elements to records by columns; None if they have to be converted one by one.

        Args:
            batch: A column for each field of a row type, otherwise one column `value`.
            timestamps: The event times; None if the elements have none.
        """
        if not self.takes_columns:
            return None
        parts = []
        for schema in (self._key, self._value):
            written = [None] * batch.num_rows if schema is None else schema.serialize_batch(batch)
            if written is None:
                return None
            if len(written) != batch.num_rows or not {bytes, type(None)}.issuperset(map(type, written)):
                raise TypeError(
                    f"serialize_batch() of {type(schema).__name__} must return bytes or None for each of the "
                    f"{batch.num_rows} elements"
                )
            parts.append(written)
        times = repeat(-1) if timestamps is None else map(_sent_time, iterate_timestamps(timestamps))
        fields = zip(repeat(self._topic), *parts, repeat(()), repeat(-1), times, strict=False)
        return list(map(KafkaRecord._make, fields))


def _sent_time(timestamp: int | None) -> int:
    return timestamp if timestamp is not None and timestamp >= 0 else -1


class KafkaRecordSerializationSchemaBuilder:
    """Builds a `KafkaRecordSerializationSchema`, under PyFlink's names. Setters raise `ConfigurationError`."""

    def __init__(self) -> None:
        self._topic: str | Callable[[Any], str] | None = None
        self._key: SerializationSchema | None = None
        self._value: SerializationSchema | None = None
        self._headers: Callable[[Any], Headers] | None = None
        self._partitioner: Callable[[Any], int] | None = None

    def set_topic(self, topic: str) -> KafkaRecordSerializationSchemaBuilder:
        """Set the topic of all records."""
        if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in (".", ".."):
            raise ConfigurationError(f"set_topic() takes the name of a Kafka topic, not {topic!r}.")
        self._topic = topic
        return self

    def set_topic_selector(self, topic_selector: Callable[[Any], str]) -> KafkaRecordSerializationSchemaBuilder:
        """Set a function from an element to its topic."""
        self._topic = _callable("set_topic_selector", topic_selector)
        return self

    def set_key_serialization_schema(self, key_serialization_schema: Any) -> KafkaRecordSerializationSchemaBuilder:
        """Set the serializer of keys: a `SerializationSchema`, or a function that returns bytes, text or None."""
        self._key = _schema("set_key_serialization_schema", key_serialization_schema)
        return self

    def set_value_serialization_schema(self, value_serialization_schema: Any) -> KafkaRecordSerializationSchemaBuilder:
        """Set the serializer of values, as for keys. A value of None is a tombstone."""
        self._value = _schema("set_value_serialization_schema", value_serialization_schema)
        return self

    def set_header_provider(self, header_provider: Callable[[Any], Any]) -> KafkaRecordSerializationSchemaBuilder:
        """Set a function from an element to its headers: a mapping, or pairs of a name and bytes or None."""
        self._headers = _callable("set_header_provider", header_provider)
        return self

    def set_partitioner(self, partitioner: Callable[[Any], int]) -> KafkaRecordSerializationSchemaBuilder:
        """Set a function from an element to its partition; by default the key decides, as in the Java client."""
        self._partitioner = _callable("set_partitioner", partitioner)
        return self

    def build(self) -> KafkaRecordSerializationSchema:
        """Create the schema.

        Raises:
            ConfigurationError: The topic or the serializer of values is missing.
        """
        if self._topic is None:
            raise ConfigurationError("A KafkaRecordSerializationSchema needs set_topic() or set_topic_selector().")
        if self._value is None:
            raise ConfigurationError("A KafkaRecordSerializationSchema needs set_value_serialization_schema().")
        return KafkaRecordSerializationSchema(self._topic, self._key, self._value, self._headers, self._partitioner)


def _schema(method: str, given: Any) -> SerializationSchema:
    if isinstance(given, SerializationSchema):
        return given
    if callable(given) and not isinstance(given, type):
        return _FunctionSerializer(given)
    raise ConfigurationError(f"{method}() takes a SerializationSchema or a function, not {given!r}.")


def _callable(method: str, given: Any) -> Any:
    if not callable(given) or isinstance(given, type):
        raise ConfigurationError(f"{method}() takes a function, not {given!r}.")
    return given


def _check_headers(headers: Any) -> tuple[tuple[str, bytes | None], ...]:
    pairs = tuple(headers.items() if isinstance(headers, Mapping) else headers)
    for name, value in pairs:
        if not isinstance(name, str) or not (value is None or isinstance(value, bytes)):
            raise TypeError(f"a header of a Kafka record must be text with bytes or None, not {name!r}: {value!r:.80}")
    return pairs


# Limits of topics. Tasks check them before they stage a record, because one rejected record would block its
# transaction forever. The driver reads them when an attempt begins (`fetch_limits` in `kafka_committer.py`), and sends
# them to the tasks as JSON.


@dataclass(frozen=True)
class RecordLimits:
    """The limits of a topic. The names of the attributes are those in JSON.

    Attributes:
        largest: The largest size of a batch in bytes, as it is sent or stored: `max.message.bytes`.
        partitions: The number of partitions.
        needs_key: Whether records need a key, because the topic is compacted.
        ahead: Milliseconds by which a timestamp may be ahead of the broker's clock; None for no limit.
        behind: Milliseconds by which a timestamp may be behind the broker's clock; None for no limit.
        compression: The `compression.type`: how brokers compress stored batches.
        level: The compression level; None for the default.
    """

    largest: int
    partitions: int
    needs_key: bool = False
    ahead: int | None = None
    behind: int | None = None
    compression: str = PRODUCER_COMPRESSION
    level: int | None = None

    @property
    def batch(self) -> int:
        """The largest uncompressed size of a batch of several records, in bytes."""
        fraction, extra = (0.0, 0) if self.compression == PRODUCER_COMPRESSION else _COMPRESSION_MARGIN
        return max(1, int((self.largest - extra) / (1 + fraction)))

    def rejection_reason(self, record: KafkaRecord, most: int, now: int, compressor: Compressor | None) -> str | None:
        """Return why the topic would reject a record; None if it accepts it.

        Args:
            record: The record.
            most: An upper bound of the size of a batch with only this record, in bytes.
            now: The time, in milliseconds.
            compressor: The compressor of the producer; None if it does not compress.
        """
        topic = record.topic
        if self.needs_key and record.key is None:
            return f"its record has no key, but the topic {topic!r} is compacted and needs one"
        if record.partition >= self.partitions:
            return f"its record is for partition {record.partition}, but the topic {topic!r} has {self.partitions}"
        if record.timestamp > 0:
            if self.ahead is not None and record.timestamp > now + self.ahead:
                return _timestamp_reason(record, "after", self.ahead)
            if self.behind is not None and record.timestamp < now - self.behind:
                return _timestamp_reason(record, "before", self.behind)
        if most <= self.batch:
            return None
        size, form = sent_batch_size(record, compressor, self.largest), "sent"
        if size <= self.largest and not self._is_stored_as_sent(record, compressor):
            size, form = stored_batch_size(record, self.compression, self.level), f"stored ({self.compression})"
        if size > self.largest:
            return (
                f"its record has {size} bytes when it is {form}, but the topic {topic!r} accepts {self.largest}: make "
                "it smaller, or raise max.message.bytes of the topic"
            )
        return None

    def _is_stored_as_sent(self, record: KafkaRecord, compressor: Compressor | None) -> bool:
        """Return whether brokers store a batch as it was sent, because it has their codec, at any level."""
        if self.compression == PRODUCER_COMPRESSION:
            return True
        if compressor is None or compressor.name != self.compression:
            return False
        return _compressed_size(record, compressor) < _uncompressed_size(record)  # a producer sends the smaller form


def to_json(limits: Mapping[str, RecordLimits]) -> list[dict[str, Any]]:
    """Return the limits as JSON for tasks, with topics of equal limits grouped."""
    groups: dict[RecordLimits, list[str]] = {}
    for topic, limit in sorted(limits.items()):
        groups.setdefault(limit, []).append(topic)
    return [{"topics": topics, **asdict(limit)} for limit, topics in groups.items()]


def from_json(groups: Iterable[Mapping[str, Any]]) -> dict[str, RecordLimits]:
    """Return the limits of topics by name, from the result of `to_json`."""
    return {
        topic: RecordLimits(**{name: value for name, value in group.items() if name != "topics"})
        for group in groups
        for topic in group["topics"]
    }


@dataclass(frozen=True)
class Compressor:
    """Computes the compressed size of bytes.

    Attributes:
        name: The name of the codec.
        level: The compression level; None for the default.
        block: The block size in bytes; 0 compresses everything at once.
    """

    name: str
    level: int | None
    block: int

    def __call__(self, data: bytes) -> int:
        # A new codec for each call, because that of gzip is not thread-safe.
        compress = pa.Codec(self.name, self._supported_level()).compress
        step = self.block or max(1, len(data))
        return sum(len(compress(data[at : at + step], asbytes=True)) for at in range(0, len(data), step))

    def _supported_level(self) -> int | None:
        if not self.level or not pa.Codec.supports_compression_level(self.name):
            return _ZSTD_LEVEL if self.name == "zstd" else None
        lowest, highest = pa.Codec.minimum_compression_level(self.name), pa.Codec.maximum_compression_level(self.name)
        return int(min(max(self.level, lowest), highest))


def producer_compressor(properties: Mapping[str, Any]) -> Compressor | None:
    """Return the compressor of a producer with these properties; None if it does not compress."""
    name = str(properties.get("compression.type", properties.get("compression.codec", "none"))).lower()
    level = int(properties.get("compression.level", -1))
    return None if name in _UNCOMPRESSED else Compressor(name, level if level > 0 else None, _BLOCK_BYTES.get(name, 0))


def sent_batch_size(record: KafkaRecord, compressor: Compressor | None, limit: int) -> int:
    """Return the size of a batch with only this record, as it is sent, in bytes.

    Args:
        record: The record.
        compressor: The compressor of the producer; None if it does not compress.
        limit: A size that is small enough: a batch of at most this size is not compressed here.
    """
    size = _uncompressed_size(record)
    return size if size <= limit or compressor is None else min(size, _compressed_size(record, compressor))


def stored_batch_size(record: KafkaRecord, compression: str, level: int | None = None) -> int:
    """Return the size of a batch with only this record, as a broker compresses and stores it, in bytes.

    Args:
        record: The record.
        compression: The `compression.type` of the topic. Brokers compress even if that makes the batch larger.
        level: The compression level; None for the default.
    """
    if compression in _UNCOMPRESSED:
        return _uncompressed_size(record)
    return _compressed_size(record, Compressor(compression, level, _BROKER_BLOCK_BYTES.get(compression, 0)))


def _uncompressed_size(record: KafkaRecord) -> int:
    size = 3 + _field_bytes(record.key) + _field_bytes(record.value) + _varint_bytes(len(record.headers))
    size += sum(_field_bytes(name.encode()) + _field_bytes(value) for name, value in record.headers)
    return size + _BATCH_HEADER_BYTES + _varint_bytes(size)


def _compressed_size(record: KafkaRecord, compressor: Compressor) -> int:
    parts = [record.key, record.value, *(part for name, value in record.headers for part in (name.encode(), value))]
    fraction, extra = _COMPRESSION_MARGIN
    return _BATCH_HEADER_BYTES + extra + int(compressor(b"".join(filter(None, parts))) * (1 + fraction))


def _field_bytes(part: bytes | None) -> int:
    return 1 if part is None else _varint_bytes(len(part)) + len(part)


def _varint_bytes(number: int) -> int:
    """Return the size of a number as a zigzag varint, which has seven bits in each byte."""
    return max(1, -(-(2 * number).bit_length() // 7))


def _timestamp_reason(record: KafkaRecord, side: str, limit: int) -> str:
    at = np.datetime64(record.timestamp, "ms")  # may be after the year 9999, if its unit is wrong
    limit_text, direction = timedelta(milliseconds=limit), "ahead" if side == "after" else "behind"
    return (
        f"its record has the timestamp {at}+00:00, but the topic {record.topic!r} rejects those more than {limit_text} "
        f"{direction}: set another timestamp, or raise message.timestamp.{side}.max.ms of the topic"
    )


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


def serialize_record(schema: KafkaRecordSerializationSchema, element: Any, timestamp: int | None) -> KafkaRecord:
    """Convert an element to a record.

    Raises:
        RefusedElementError: It cannot be converted.
        StorageError: The serializer cannot reach a service that it needs, such as a schema registry.
    """
    try:
        return schema.serialize(element, timestamp)
    except (HoldfastError, OSError):
        raise
    except Exception as error:
        raise RefusedElementError(f"it cannot be converted to a record: {type(error).__name__}: {error}") from error


class RecordStaging(ColumnSinkWriter):
    """Stages the records of one subtask and epoch in a Parquet file in the job's directory.

    Tasks create the records, so an element that cannot be sent fails there, before a checkpoint includes its epoch.

    Args:
        schema: Converts elements to records.
        context: The context of the writer.
        committable: The fields that identify the records to the committer; file, rows and bytes are added.
        largest: The largest size of a record, in bytes.
        limits: The limits of topics, by name.
        compressor: The compressor of the producer; None if it does not compress.
    """

    def __init__(
        self,
        schema: KafkaRecordSerializationSchema,
        context: WriterInitContext,
        committable: dict[str, Any],
        largest: int = DEFAULT_MAX_MESSAGE_BYTES,
        limits: Mapping[str, RecordLimits] | None = None,
        compressor: Compressor | None = None,
    ) -> None:
        name = context.file_name(SUFFIX)
        self._file = ParquetStaging(context.staging_dir, name, {**committable, "file": name})
        self._schema = schema
        self._largest = largest
        self._limits = limits or {}
        self._compressor = compressor
        self._now = context.processing_time
        self.takes_columns = schema.takes_columns
        self._records: list[KafkaRecord] = []
        self._bytes = 0
        schema.open()

    def write(self, element: Any, context: WriterContext) -> None:
        """Stage one element.

        Raises:
            RefusedElementError: The element cannot be converted to a record, or Kafka would reject the record.
            StorageError: The serializer cannot reach a service that it needs, such as a schema registry.
        """
        record = serialize_record(self._schema, element, context.timestamp())
        size = _size_of(record)
        reason = self._rejection_reason(record, size)
        if reason is not None:
            raise RefusedElementError(reason)
        self._stage(record, size)

    def write_columns(self, batch: pa.RecordBatch, timestamps: Timestamps | None) -> bool:
        records = self._schema.serialize_batch(batch, timestamps)
        if records is None:
            return False
        sizes = list(map(_size_of, records))
        if any(self._rejection_reason(record, size) for record, size in zip(records, sizes, strict=True)):
            return False
        for record, size in zip(records, sizes, strict=True):
            self._stage(record, size)
        return True

    def set_processing_time(self, now: int) -> None:
        self._now = now

    def _rejection_reason(self, record: KafkaRecord, size: int) -> str | None:
        if size > self._largest:
            return (
                f"its record has {size} bytes, but Kafka accepts at most {self._largest}: make it smaller, or raise "
                "message.max.bytes of the sink, and of the brokers or max.message.bytes of the topic"
            )
        limits = self._limits.get(record.topic)
        return None if limits is None else limits.rejection_reason(record, size, self._now, self._compressor)

    def _stage(self, record: KafkaRecord, size: int) -> None:
        self._records.append(record)
        self._bytes += size
        if self._bytes >= _BYTES or len(self._records) >= _ROWS:
            self._write_batch()

    def flush(self, end_of_input: bool) -> None:
        """Write the file durably. Blocks."""
        if self._records:
            self._write_batch()
        self._file.flush(end_of_input)

    def prepare_commit(self) -> list[Committable]:
        """Return one committable; none if nothing was written."""
        return self._file.prepare_commit()

    def abort(self) -> None:
        self._file.abort()

    def _write_batch(self) -> None:
        columns = list(zip(*self._records, strict=True))
        columns[3] = tuple([{"name": n, "value": v} for n, v in headers] for headers in columns[3])
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
        self._file.write_batch(pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA))
        self._records, self._bytes = [], 0


def _size_of(record: KafkaRecord) -> int:
    size = _RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
    if record.headers:
        size += sum(len(name) + len(value or b"") + 8 for name, value in record.headers)
    return size


def read_staged_records(path: str) -> Iterator[KafkaRecord]:
    """Yield the records of a staged file in written order, reading it in batches.

    Raises:
        StorageError: The file cannot be read.
    """
    with open_staged_file(path) as file:
        for batch in pq.ParquetFile(file).iter_batches(_ROWS, columns=_SCHEMA.names):
            columns = [column.to_pylist() for column in batch.columns]
            columns[3] = [tuple((h["name"], h["value"]) for h in headers) for headers in columns[3]]
            yield from map(KafkaRecord._make, zip(*columns, strict=True))
