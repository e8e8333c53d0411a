"""`KafkaRecordSerializationSchema`: converts elements to records, which tasks stage (`RecordStaging`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.datastream.sinks.staged_files import open_staged_file
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.runtime.function.sink import (
    Committable,
    ParquetStaging,
    RefusedElementError,
    SinkWriter,
    WriterContext,
    WriterInitContext,
)
from holdfast.types.serialization import SerializationSchema

Headers = Iterable[tuple[str, bytes | None]]
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_BATCH: Final = 61
"""Bytes that a batch has before its records."""
_BLOCKS: Final = {"lz4": 1 << 16}
_BLOCKS_OF_BROKERS: Final = {**_BLOCKS, "snappy": 1 << 15}
"""What is compressed at once, knowing nothing of what came before."""
_ZSTD_LEVEL: Final = 3
AS_IT_COMES: Final = "producer"
"""The `compression.type` of a topic that keeps batches as producers have compressed them."""
_UNCOMPRESSED: Final = ("none", "inherit", "uncompressed")
_UNCERTAIN: Final = 0.03, 64
"""By which part, and by how many bytes, what it makes may be more than what pyarrow makes of the same."""
SUFFIX: Final = ".records"
LARGEST: Final = 1_000_000
"""The default of `message.max.bytes`."""
_ROWS: Final = 8192
_BYTES: Final = 8 << 20
_OVERHEAD: Final = 128
"""Bytes that a record, alone in a batch, has beside its key, value and headers, at most."""


class KafkaRecord(NamedTuple):
    """One record as it is sent. `partition` -1 leaves it to the key, `timestamp` -1 to the time of sending."""

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
        """Opens the schemas of key and value, in a task."""
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
        topic = self._topic if isinstance(self._topic, str) else self._topic(element)
        if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in (".", ".."):
            raise ValueError(f"{topic!r} is no name of a Kafka topic")
        key = None if self._key is None else self._key.serialize(element)
        value = None if self._value is None else self._value.serialize(element)
        for name, written in (("key", key), ("value", value)):
            if written is not None and not isinstance(written, bytes):
                raise TypeError(f"the {name} of a Kafka record is bytes or None, not {type(written).__name__}")
        headers = () if self._headers is None else _checked(self._headers(element))
        partition = -1 if self._partitioner is None else self._partitioner(element)
        if isinstance(partition, bool) or not isinstance(partition, int) or not -1 <= partition < 2**31:
            raise ValueError(f"{partition!r} is no partition of a Kafka topic")
        at = timestamp if timestamp is not None and timestamp >= 0 else -1
        return KafkaRecord(topic, key, value, headers, partition, at)


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
        """How the key is made: a `SerializationSchema`, or a function from an element to bytes, text or None."""
        self._key = _schema("set_key_serialization_schema", key_serialization_schema)
        return self

    def set_value_serialization_schema(self, value_serialization_schema: Any) -> KafkaRecordSerializationSchemaBuilder:
        """How the value is made, as the key is; None is a tombstone."""
        self._value = _schema("set_value_serialization_schema", value_serialization_schema)
        return self

    def set_header_provider(self, header_provider: Callable[[Any], Any]) -> KafkaRecordSerializationSchemaBuilder:
        """A function from an element to its headers: a mapping, or pairs of a name and bytes or None."""
        self._headers = _callable("set_header_provider", header_provider)
        return self

    def set_partitioner(self, partitioner: Callable[[Any], int]) -> KafkaRecordSerializationSchemaBuilder:
        """A function from an element to its partition; without one the key decides, as in the Java client."""
        self._partitioner = _callable("set_partitioner", partitioner)
        return self

    def build(self) -> KafkaRecordSerializationSchema:
        """The schema.

        Raises:
            ConfigurationError: It has no topic, or neither key nor value.
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


def _checked(headers: Any) -> tuple[tuple[str, bytes | None], ...]:
    pairs = tuple(headers.items() if isinstance(headers, Mapping) else headers)
    for name, value in pairs:
        if not isinstance(name, str) or not (value is None or isinstance(value, bytes)):
            raise TypeError(f"a header of a Kafka record is text and bytes or None, not {name!r} and {value!r:.80}")
    return pairs


# What a topic refuses of single records, so that a task can tell before it stages one.
#
# The driver asks the cluster when an attempt begins (`limits_of` in `kafka_committer.py`), and the answer goes to the
# tasks as JSON. One record that its topic refuses would hold up the transaction that it is in, for good.


@dataclass(frozen=True)
class RecordLimits:
    """What a topic takes.

    Attributes:
        largest: Bytes of a batch, as it is sent: `max.message.bytes`.
        partitions: How many partitions there are.
        needs_key: Whether it is compacted.
        ahead: Milliseconds by which a record may be ahead of the broker's clock, None if any.
        behind: Milliseconds by which it may be behind.
        compression: Its `compression.type`: how brokers compress what they keep, whoever sent it.
        level: Level of the compression, None for the usual one.
    """

    largest: int
    partitions: int
    needs_key: bool = False
    ahead: int | None = None
    behind: int | None = None
    compression: str = AS_IT_COMES
    level: int | None = None

    @property
    def batch(self) -> int:
        """Bytes that a batch of several records may have before anybody compresses it."""
        part, more = (0.0, 0) if self.compression == AS_IT_COMES else _UNCERTAIN
        return max(1, int((self.largest - more) / (1 + part)))

    def why_refused(self, record: KafkaRecord, most: int, now: int, compressor: Compressor | None) -> str | None:
        """Why the topic would refuse a record; None if it takes it.

        Args:
            record: The record.
            most: Bytes that a batch has at most that has it alone.
            now: The time, in milliseconds.
            compressor: Compressor of the producer, None if it sends records as they are.
        """
        topic = record.topic
        if self.needs_key and record.key is None:
            return f"its record has no key, which the topic {topic!r} needs, because it is compacted"
        if record.partition >= self.partitions:
            return f"its record is for partition {record.partition}, and the topic {topic!r} has {self.partitions}"
        if record.timestamp > 0:
            if self.ahead is not None and record.timestamp > now + self.ahead:
                return _untimely(record, "after", self.ahead)
            if self.behind is not None and record.timestamp < now - self.behind:
                return _untimely(record, "before", self.behind)
        if most <= self.batch:
            return None
        size, how = sent_size(record, compressor, self.largest), "sent"
        if size <= self.largest and not self._stays(record, compressor):
            size, how = kept_size(record, self.compression, self.level), f"kept ({self.compression})"
        if size > self.largest:
            return (
                f"its record has {size} bytes as it is {how}, and the topic {topic!r} takes {self.largest}: make it "
                "smaller, or raise max.message.bytes of the topic"
            )
        return None

    def _stays(self, record: KafkaRecord, compressor: Compressor | None) -> bool:
        """Whether brokers keep a batch as it was sent: then its codec is theirs, at whatever level."""
        if self.compression == AS_IT_COMES:
            return True
        if compressor is None or compressor.name != self.compression:
            return False
        return _packed_size(record, compressor) < _plain_size(record)  # a producer sends the smaller one


def to_json(limits: Mapping[str, RecordLimits]) -> list[dict[str, Any]]:
    """As tasks get the limits of topics: those that have the same are named together."""
    groups: dict[RecordLimits, list[str]] = {}
    for topic, limit in sorted(limits.items()):
        groups.setdefault(limit, []).append(topic)
    return [{"topics": topics, **asdict(limit)} for limit, topics in groups.items()]


def from_json(groups: Iterable[Mapping[str, Any]]) -> dict[str, RecordLimits]:
    """The limits of topics, by their names."""
    return {
        topic: RecordLimits(**{name: value for name, value in group.items() if name != "topics"})
        for group in groups
        for topic in group["topics"]
    }


@dataclass(frozen=True)
class Compressor:
    """Tells how many bytes become of some.

    Attributes:
        name: Name of the codec.
        level: None for the usual one.
        block: How many bytes are compressed at once, 0 for all.
    """

    name: str
    level: int | None
    block: int

    def __call__(self, data: bytes) -> int:
        # Made anew: that of gzip is of one thread alone.
        compress = pa.Codec(self.name, self._known_level()).compress
        step = self.block or max(1, len(data))
        return sum(len(compress(data[at : at + step], asbytes=True)) for at in range(0, len(data), step))

    def _known_level(self) -> int | None:
        if not self.level or not pa.Codec.supports_compression_level(self.name):
            return _ZSTD_LEVEL if self.name == "zstd" else None
        least, most = pa.Codec.minimum_compression_level(self.name), pa.Codec.maximum_compression_level(self.name)
        return int(min(max(self.level, least), most))


def compressor_of(properties: Mapping[str, Any]) -> Compressor | None:
    """What a producer with these properties does to a batch; None if it sends it as it is."""
    name = str(properties.get("compression.type", properties.get("compression.codec", "none"))).lower()
    level = int(properties.get("compression.level", -1))
    return None if name in _UNCOMPRESSED else Compressor(name, level if level > 0 else None, _BLOCKS.get(name, 0))


def sent_size(record: KafkaRecord, compressor: Compressor | None, enough: int) -> int:
    """Bytes of a batch that has this record alone.

    Args:
        record: The record.
        compressor: Compressor of the producer.
        enough: Where no less is asked for; then it is not compressed.
    """
    size = _plain_size(record)
    return size if size <= enough or compressor is None else min(size, _packed_size(record, compressor))


def kept_size(record: KafkaRecord, compression: str, level: int | None = None) -> int:
    """Bytes of a batch that has this record alone, as a broker compresses it, also where that makes it larger.

    Args:
        record: The record.
        compression: The `compression.type` of the topic.
        level: Level of the compression, None for the usual one.
    """
    if compression in _UNCOMPRESSED:
        return _plain_size(record)
    return _packed_size(record, Compressor(compression, level, _BLOCKS_OF_BROKERS.get(compression, 0)))


def _plain_size(record: KafkaRecord) -> int:
    size = 3 + _length(record.key) + _length(record.value) + _digits(len(record.headers))
    size += sum(_length(name.encode()) + _length(value) for name, value in record.headers)
    return size + _BATCH + _digits(size)


def _packed_size(record: KafkaRecord, compressor: Compressor) -> int:
    parts = [record.key, record.value, *(part for name, value in record.headers for part in (name.encode(), value))]
    part, more = _UNCERTAIN
    return _BATCH + more + int(compressor(b"".join(filter(None, parts))) * (1 + part))


def _length(part: bytes | None) -> int:
    return 1 if part is None else _digits(len(part)) + len(part)


def _digits(number: int) -> int:
    """Bytes of a number as Kafka writes it: seven bits of it and its sign in each."""
    return max(1, -(-(2 * number).bit_length() // 7))


def _untimely(record: KafkaRecord, side: str, most: int) -> str:
    at = np.datetime64(record.timestamp, "ms")  # may be after the year 9999, if its unit is wrong
    most_text, direction = timedelta(milliseconds=most), "ahead" if side == "after" else "behind"
    return (
        f"its record is of {at}+00:00, and the topic {record.topic!r} takes none that is {most_text} or more "
        f"{direction}: give it another timestamp, or raise message.timestamp.{side}.max.ms of the topic"
    )


# Records of one subtask and epoch, staged as they will be sent, in a Parquet file in the job's directory.
#
# They are made in the tasks, so a row that cannot be sent fails there, before its epoch is part of a checkpoint.


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


class RecordStaging(SinkWriter):
    """Stages the records of one subtask and epoch.

    Args:
        schema: Makes records of elements.
        context: Context of the writer.
        committable: What identifies the records to the committer; file, rows and bytes are added.
        largest: Bytes that a record may have.
        limits: What topics refuse, by their names.
        compressor: Compressor of the producer.
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
    with open_staged_file(path) as file:
        for batch in pq.ParquetFile(file).iter_batches(_ROWS, columns=_SCHEMA.names):
            columns = [column.to_pylist() for column in batch.columns]
            columns[3] = [tuple((h["name"], h["value"]) for h in headers) for headers in columns[3]]
            yield from map(KafkaRecord._make, zip(*columns, strict=True))
