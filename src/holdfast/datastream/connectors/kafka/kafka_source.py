"""`KafkaSource`: topics as streams, without a jar, under PyFlink's names.

The driver plans ranges of offsets, and the tasks of the first stage read them with confluent-kafka. Positions are in
checkpoints. After each checkpoint they are also committed to the consumer group, for monitoring; no job resumes from
there, and there is no group rebalancing.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Partition

from holdfast.datastream.connectors.base import Source, cannot_pause
from holdfast.datastream.connectors.kafka.client import BOOTSTRAP_SERVERS, KafkaConnection, error_text
from holdfast.datastream.connectors.kafka.topic_ranges import (
    COLUMNS,
    NO_GROUP,
    KafkaOffsetsInitializer,
    KafkaTopicPartition,
    OffsetKind,
    TopicRanges,
    TopicSelection,
    next_offsets,
)
from holdfast.datastream.connectors.kafka.topic_splits import TopicSplits
from holdfast.errors import ConfigurationError, StorageError
from holdfast.kernel.secret import get_logger
from holdfast.runtime.function.source import BatchDecoder, EpochGate, SourceListener, SourceStatistics, SplitSource
from holdfast.runtime.function.user_function import (
    FlatMapFunction,
    FlatMapLike,
    OutputTag,
    ProcessFunction,
    RuntimeContext,
)
from holdfast.types.arrow import element_schema
from holdfast.types.serialization import DeserializationSchema
from holdfast.types.type_information import TypeInformation
from holdfast.types.type_parser import to_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


logger = get_logger(__name__)

_CLOSE_SECONDS: Final = 5.0
"""Seconds for which `close` waits for a pending commit."""

_MAX_ATTEMPTS: Final = 20
_PAUSE: Final = 0.25
_TRANSIENT: Final = (
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
    KafkaError._WAIT_COORD,
)
"""Error codes of a group whose coordinator is being elected, or moves."""

Offsets = Mapping[tuple[str, int], int]
_NAME: Final = "holdfast-kafka"
_GROUP: Final = "group.id"
_ISOLATION: Final = "isolation.level"
_DISCOVERY: Final = "partition.discovery.interval.ms"
_DISCOVERY_MS: Final = 10_000
_COMMITS: Final = "commit.offsets.on.checkpoint"
DEAD_LETTER: Final = f"{COLUMNS}, reason string"
"""Type of records that cannot be read: the record of Kafka, and the reason."""


class GroupOffsets(SourceListener):
    """Commits the positions of a source to its consumer group after each checkpoint, in a thread, for monitoring.

    While a request is pending only the newest offsets are kept, to be committed next.
    """

    def __init__(self, ranges: TopicRanges) -> None:
        assert ranges.group is not None
        self._group = ranges.group
        self._ranges = ranges
        self._connection = KafkaConnection(ranges.properties)
        self._admin: Any = None
        self._state = threading.Condition()
        self._wanted: Offsets = {}
        self._done: Offsets = {}
        self._is_running = self._is_closed = False
        self._has_failed = False
        self._commits = self._failed_commits = 0

    def numbers(self) -> SourceStatistics:
        """Return the numbers of commits and failed commits; retries of one commit count once."""
        return SourceStatistics(commits=self._commits, failed_commits=self._failed_commits)

    def checkpoint_completed(self, offset: Any) -> None:
        wanted = next_offsets(self._ranges.bounds()[1] if offset is None else offset)
        with self._state:
            self._wanted, self._is_closed = wanted, False
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name=f"holdfast-group-{self._group}", daemon=True).start()
            self._state.notify_all()

    def close(self) -> None:
        """Wait a few seconds for a pending commit."""
        with self._state:
            if not self._state.wait_for(lambda: self._done == self._wanted, _CLOSE_SECONDS):
                logger.warning("Kafka has not yet acknowledged the offsets of the group %r", self._group)
            self._is_closed = True
            self._state.notify_all()

    def _run(self) -> None:
        while True:
            with self._state:
                self._state.wait_for(lambda: self._is_closed or self._done != self._wanted)
                if self._done == self._wanted:
                    self._is_running = False
                    return
                wanted = self._wanted
            self._record_outcome(self._try_commit(wanted))
            with self._state:
                self._done = wanted
                self._state.notify_all()

    def _record_outcome(self, failure: Exception | None) -> None:
        """Count a commit, and warn at the first failure after a success."""
        self._commits += failure is None
        self._failed_commits += failure is not None
        if failure is not None and not self._has_failed:
            logger.warning(
                "the offsets of a checkpoint were not committed to the group %r; those of the next checkpoint will be, "
                "and the job itself does not need them: %s",
                self._group,
                error_text(failure) or repr(failure),
            )
        self._has_failed = failure is not None

    def _try_commit(self, wanted: Offsets) -> Exception | None:
        """Commit offsets; return the error if that failed."""
        for _ in range(_MAX_ATTEMPTS):
            try:
                self._commit(wanted)
            except KafkaException as error:
                last: Exception = error
                if error.args[0].code() not in _TRANSIENT:
                    return last
            except Exception as error:  # noqa: BLE001 - the caller logs it; the job goes on
                return error
            else:
                return None
            time.sleep(_PAUSE)
        return last

    def _commit(self, wanted: Offsets) -> None:
        if self._admin is None or self._connection.authentication_errors:  # these have closed the client
            self._admin = self._connection.create_admin()
        partitions = [Partition(topic, number, following) for (topic, number), following in sorted(wanted.items())]
        request = ConsumerGroupTopicPartitions(self._group, partitions)
        requests = self._admin.alter_consumer_group_offsets([request], request_timeout=self._connection.request_timeout)
        result = self._connection.wait_for(self._admin, requests[self._group])
        errors = [partition.error for partition in result.topic_partitions if partition.error is not None]
        if errors:
            raise KafkaException(errors[0])


class KafkaSource(Source):
    """Reads topics of Kafka; create it with `KafkaSource.builder()`. Needs `pip install 'holdfast[kafka]'`.

    Without a deserializer the elements are rows `key, value, topic, partition, offset, timestamp, headers`.

    Example:
        >>> from holdfast.datastream.connectors.kafka import KafkaOffsetsInitializer, KafkaSource
        >>> from holdfast.datastream.formats.json import JsonRowDeserializationSchema
        >>> schema = JsonRowDeserializationSchema.builder().type_info("word string, n bigint").build()
        >>> source = (
        ...     KafkaSource.builder()
        ...     .set_bootstrap_servers("broker:9092")
        ...     .set_topics("words")
        ...     .set_group_id("counting")
        ...     .set_starting_offsets(KafkaOffsetsInitializer.earliest())
        ...     .set_value_only_deserializer(schema)
        ...     .build()
        ... )
        >>> function, element_type = source.decoder()
        >>> element_type.names
        ('word', 'n')
    """

    def __init__(
        self,
        ranges: TopicRanges,
        is_bounded: bool,
        deserializer: DeserializationSchema | None,
        dead_letters: OutputTag | None = None,
        commits: bool = False,
    ) -> None:
        self._commits = commits
        self._ranges = ranges
        self._is_bounded = is_bounded
        self._deserializer = deserializer
        self._dead_letters = dead_letters

    @staticmethod
    def builder() -> KafkaSourceBuilder:
        """Return a builder."""
        return KafkaSourceBuilder()

    def create_frame(self, session: SparkSession) -> DataFrame:
        """Return a frame of ranges of offsets. The range of a bounded source is fixed now, and read in one epoch.

        Raises:
            ConfigurationError: Spark is older than 4.2, or a bounded source names missing topics.
            StorageError: The brokers of a bounded source do not answer.
        """
        from holdfast.spark.input.source import frame_of_ranges

        chosen = self._ranges.selection
        places = {"subscribe": ",".join(chosen.topics)} if chosen.topics else {"subscribePattern": chosen.pattern}
        if chosen.partitions:
            places = {"assign": ",".join(f"{topic}-{number}" for topic, number in chosen.partitions)}
        if self._is_bounded:
            self._ranges.fix()
        return frame_of_ranges(session, _NAME, self._ranges, COLUMNS, places, is_streaming=not self._is_bounded)

    def split_source(self) -> SplitSource:
        return TopicSplits(self._ranges)

    def timestamp_column(self) -> str:
        return "timestamp"

    def is_partitioned(self) -> bool:
        """Return True: each partition of a topic is read by one task."""
        return True

    def checkpoint_listener(self) -> SourceListener | None:
        """Return the listener that commits offsets to the group; None if `commit.offsets.on.checkpoint` is false."""
        return GroupOffsets(self._ranges) if self._commits else None

    def with_gate(self, gate: EpochGate) -> KafkaSource:
        """Return the same source, but paused in epochs that are planned while the gate is closed.

        Raises:
            ConfigurationError: The source is bounded, so that it has one epoch, or its epochs have no limit.
        """
        if self._is_bounded:
            raise cannot_pause(self, "it is bounded, and read in one epoch; use set_unbounded()")
        if not self._ranges.max_rows_per_epoch:
            raise ConfigurationError(
                "with_watermark_alignment() needs a limit: an epoch of this KafkaSource reads all available records, "
                "so it cannot pause. Set the limit with set_max_rows_per_epoch() of its builder."
            )
        ranges = replace(self._ranges, gate=gate)
        return KafkaSource(ranges, False, self._deserializer, self._dead_letters, self._commits)

    def decoder(self) -> tuple[FlatMapLike | ProcessFunction, Any] | None:
        """Return the deserializer of values; records without value, or for which it returns None, are skipped."""
        if self._deserializer is None:
            return None
        values = _ValueDecoder(self._deserializer)
        function = values if self._dead_letters is None else _DeadLetterDecoder(values, self._dead_letters)
        return function, self._deserializer.get_produced_type()


class _ValueDecoder(FlatMapFunction, BatchDecoder):
    NAME_IN_UIDS: ClassVar = "_Values"

    def __init__(self, schema: DeserializationSchema) -> None:
        self._schema = schema

    @property
    def produced_type(self) -> TypeInformation:
        return self._schema.get_produced_type()

    def decode(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Array | None] | None:
        if type(self._schema).deserialize_batch is DeserializationSchema.deserialize_batch:
            return None
        values = batch.column(batch.schema.get_field_index("value"))
        present = values.is_valid() if values.null_count else None
        messages = (values if present is None else values.filter(present)).to_pylist()
        decoded = self._schema.deserialize_batch(messages)
        if decoded is None:
            return None
        wanted = element_schema(self.produced_type)
        if decoded.num_rows != len(messages) or not decoded.schema.equals(wanted):
            raise ValueError(
                f"deserialize_batch() of {type(self._schema).__name__} returned {decoded.num_rows} rows with the "
                f"columns {decoded.schema.names} for {len(messages)} messages: return one row for each, "
                f"with {wanted.names}"
            )
        return decoded, present

    def open(self, runtime_context: RuntimeContext) -> None:
        self._schema.open()

    def flat_map(self, value: Any) -> Iterable[Any]:
        if value.value is None:
            return ()
        try:
            return list(
                self._schema.deserialize_all(bytes(value.value))
            )  # consume a generator here, where its errors are caught
        except (StorageError, ConfigurationError):
            raise  # an error of the schema registry, not of the record
        except Exception as error:
            raise ValueError(
                f"the record at offset {value.offset} of {value.topic!r}, partition {value.partition}, cannot be read: "
                f"{error}"
            ) from error


class _DeadLetterDecoder(ProcessFunction, BatchDecoder):
    """Decodes values, and sends records that cannot be read to a side output."""

    NAME_IN_UIDS: ClassVar = "_ReadableValues"

    def __init__(self, values: _ValueDecoder, dead_letters: OutputTag) -> None:
        self._values = values
        self._tag = dead_letters

    @property
    def produced_type(self) -> TypeInformation:
        return self._values.produced_type

    def decode(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Array | None] | None:
        return self._values.decode(batch)

    def open(self, runtime_context: RuntimeContext) -> None:
        self._values.open(runtime_context)

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        try:
            return self._values.flat_map(value)
        except ValueError as error:
            ctx.output(self._tag, (*value, str(error.__cause__ or error)))  # dropped if the side output is not read
            return ()


class _FunctionDeserializer(DeserializationSchema):
    def __init__(self, function: Any, produced: TypeInformation) -> None:
        self._function = function
        self._type = produced

    def deserialize(self, message: bytes) -> Any:
        return self._function(message)

    def get_produced_type(self) -> TypeInformation:
        return self._type


class KafkaSourceBuilder:
    """Builds a `KafkaSource`, under PyFlink's names. Setters raise `ConfigurationError` for an invalid value."""

    def __init__(self) -> None:
        self._properties: dict[str, Any] = {}
        self._selection: TopicSelection | None = None
        self._start = KafkaOffsetsInitializer.earliest()
        self._stop: KafkaOffsetsInitializer | None = None
        self._is_bounded = False
        self._group: str | None = None
        self._max_rows_per_epoch = 0
        self._deserializer: DeserializationSchema | None = None
        self._dead_letters: OutputTag | None = None

    def set_bootstrap_servers(self, bootstrap_servers: str) -> KafkaSourceBuilder:
        """Set the brokers: `host:port`, several separated by commas."""
        return self.set_property(BOOTSTRAP_SERVERS, bootstrap_servers)

    def set_group_id(self, group_id: str) -> KafkaSourceBuilder:
        """Set the consumer group: `committed_offsets()` reads its offsets.

        The offsets of each completed checkpoint are committed to the group, unless `commit.offsets.on.checkpoint` is
        `false`. Monitoring tools read them; the job itself resumes from its checkpoint.
        """
        if not isinstance(group_id, str) or not group_id:
            raise ConfigurationError(f"set_group_id() takes text, not {group_id!r}.")
        self._group = group_id
        return self

    def set_topics(self, *topics: str) -> KafkaSourceBuilder:
        """Set the topics to read."""
        if not topics or not all(isinstance(topic, str) and topic for topic in topics):
            raise ConfigurationError(f"set_topics() takes names of topics, not {topics!r}.")
        return self._select(TopicSelection(topics=tuple(sorted(set(topics)))))

    def set_topic_pattern(self, topic_pattern: str) -> KafkaSourceBuilder:
        """Read all topics whose whole name matches, including those that are created later."""
        try:
            re.compile(topic_pattern)
        except (re.error, TypeError) as error:
            raise ConfigurationError(
                f"set_topic_pattern() takes a regular expression, not {topic_pattern!r}: {error}."
            ) from error
        return self._select(TopicSelection(pattern=topic_pattern))

    def set_partitions(self, partitions: Iterable[KafkaTopicPartition]) -> KafkaSourceBuilder:
        """Read only these partitions."""
        listed = list(partitions)
        if not listed or not all(isinstance(partition, KafkaTopicPartition) for partition in listed):
            raise ConfigurationError(f"set_partitions() takes KafkaTopicPartitions, not {listed!r}.")
        places = sorted({(partition.topic, partition.partition) for partition in listed})
        return self._select(TopicSelection(partitions=tuple(places)))

    def set_starting_offsets(self, starting_offsets_initializer: KafkaOffsetsInitializer) -> KafkaSourceBuilder:
        """Set the starting offsets of a job without a checkpoint.

        Partitions that are created later are read from their beginning.
        """
        self._start = _check_initializer("set_starting_offsets", starting_offsets_initializer)
        return self

    def set_unbounded(self, stopping_offsets_initializer: KafkaOffsetsInitializer) -> KafkaSourceBuilder:
        """Set the offsets at which reading stops; the stream itself does not end."""
        self._stop, self._is_bounded = _check_initializer("set_unbounded", stopping_offsets_initializer), False
        return self

    def set_bounded(self, stopping_offsets_initializer: KafkaOffsetsInitializer) -> KafkaSourceBuilder:
        """Set the offsets at which the stream ends. All of it is read in one epoch."""
        self._stop, self._is_bounded = _check_initializer("set_bounded", stopping_offsets_initializer), True
        return self

    def set_value_only_deserializer(
        self, deserialization_schema: Any, type_info: TypeInformation | None = None
    ) -> KafkaSourceBuilder:
        """Set the deserializer of values, which makes the elements.

        Args:
            deserialization_schema: A `DeserializationSchema`, or a function of bytes.
            type_info: The type of the function's results.
        """
        if isinstance(deserialization_schema, DeserializationSchema):
            self._deserializer = deserialization_schema
        elif callable(deserialization_schema) and isinstance(type_info, TypeInformation):
            self._deserializer = _FunctionDeserializer(deserialization_schema, type_info)
        else:
            raise ConfigurationError(
                "set_value_only_deserializer() takes a DeserializationSchema, or a function of bytes and the type of "
                f"its results, such as Types.STRING(), not {deserialization_schema!r} and {type_info!r}."
            )
        return self

    def set_dead_letter_output(self, tag: OutputTag) -> KafkaSourceBuilder:
        """Send records for which the deserializer raises to a side output, instead of failing the job.

        Args:
            tag: `OutputTag("unreadable", DEAD_LETTER)`. `get_side_output(tag)` of the stream that `from_source` returns
                has the unchanged records, with the reason as the last column. Without that call they are dropped.
        """
        if not isinstance(tag, OutputTag) or tag.type_info != to_type(DEAD_LETTER):
            raise ConfigurationError(
                f"set_dead_letter_output() takes OutputTag('unreadable', DEAD_LETTER), not {tag!r}."
            )
        self._dead_letters = tag
        return self

    def set_max_rows_per_epoch(self, rows: int) -> KafkaSourceBuilder:
        """Limit the offsets of an epoch, over all partitions; at least one each. It has no effect in real time."""
        if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
            raise ConfigurationError(f"set_max_rows_per_epoch() takes a positive whole number, not {rows!r}.")
        self._max_rows_per_epoch = rows
        return self

    def set_client_id_prefix(self, prefix: str) -> KafkaSourceBuilder:
        """Set the `client.id` of the source's clients."""
        return self.set_property("client.id", prefix)

    def set_property(self, key: str, value: Any) -> KafkaSourceBuilder:
        """Set a property of the consumer, by its name in librdkafka; `group.id` is the same as `set_group_id`.

        Flink's `partition.discovery.interval.ms` and `commit.offsets.on.checkpoint` are accepted too.
        """
        if not isinstance(key, str):
            raise ConfigurationError(f"set_property() takes the name of a property, not {key!r}.")
        if key == _GROUP:
            return self.set_group_id(value)
        self._properties[key] = value
        return self

    def set_properties(self, props: Mapping[str, Any]) -> KafkaSourceBuilder:
        """Set several properties."""
        for key, value in props.items():
            self.set_property(key, value)
        return self

    def build(self) -> KafkaSource:
        """Create the source.

        Raises:
            ConfigurationError: Servers or topics are missing, or a property is unknown.
        """
        if self._selection is None:
            raise ConfigurationError("A KafkaSource needs set_topics(), set_topic_pattern() or set_partitions().")
        if self._dead_letters is not None and self._deserializer is None:
            raise ConfigurationError(
                "set_dead_letter_output() is for records that a deserializer cannot read: call "
                "set_value_only_deserializer() too, or remove it."
            )
        if self._group is None and OffsetKind.COMMITTED in {self._start.kind, self._stop and self._stop.kind}:
            raise ConfigurationError(NO_GROUP)
        properties = dict(self._properties)
        isolation = properties.pop(_ISOLATION, "read_committed")
        if isolation not in ("read_committed", "read_uncommitted"):
            raise ConfigurationError(f"{_ISOLATION} must be read_committed or read_uncommitted, not {isolation!r}.")
        interval = properties.pop(_DISCOVERY, _DISCOVERY_MS)
        try:
            discovery = int(interval)
        except ValueError as error:
            raise ConfigurationError(f"{_DISCOVERY} must be a number of milliseconds, not {interval!r}.") from error
        commits = _parse_bool(_COMMITS, properties.pop(_COMMITS, self._group is not None))
        if commits and self._group is None:
            raise ConfigurationError(f"{_COMMITS} needs set_group_id(): offsets are committed to a group.")
        connection = KafkaConnection(properties)
        connection.create_consumer({"group.id": "holdfast"}, with_all=True).close()  # validates the properties
        ranges = TopicRanges(
            properties=properties,
            selection=self._selection,
            start=self._start,
            stop=self._stop,
            group=self._group,
            max_rows_per_epoch=self._max_rows_per_epoch,
            reads_committed=isolation == "read_committed",
            discovery_seconds=(discovery if discovery > 0 else _DISCOVERY_MS) / 1000,
            discovers_new=discovery > 0,
        )
        return KafkaSource(ranges, self._is_bounded, self._deserializer, self._dead_letters, commits)

    def _select(self, selection: TopicSelection) -> KafkaSourceBuilder:
        if self._selection is not None:
            raise ConfigurationError("Call only one of set_topics(), set_topic_pattern() and set_partitions(), once.")
        self._selection = selection
        return self


def _parse_bool(name: str, value: Any) -> bool:
    text = str(value).lower()
    if text not in ("true", "false"):
        raise ConfigurationError(f"{name} must be true or false, not {value!r}.")
    return text == "true"


def _check_initializer(method: str, value: Any) -> KafkaOffsetsInitializer:
    if not isinstance(value, KafkaOffsetsInitializer):
        raise ConfigurationError(f"{method}() takes a KafkaOffsetsInitializer, not {value!r}.")
    return value
