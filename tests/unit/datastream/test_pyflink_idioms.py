"""What PyFlink programs write beside calls of methods, and what is said of operators that has no effect here."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import Duration, Row, Types
from holdfast.datastream import BroadcastProcessFunction, KeyedProcessFunction, MapFunction, ReduceFunction
from holdfast.datastream.state import ListStateDescriptor, MapStateDescriptor
from holdfast.errors import ConfigurationError
from holdfast.testing import OperatorHarness
from tests.stories.local import Program

RULES = MapStateDescriptor("rules", "string", "bigint")


class Brackets(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.counts = runtime_context.get_map_state(MapStateDescriptor("counts", "string", "bigint"))
        self.order = runtime_context.get_list_state(ListStateDescriptor("order", "string"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if value.word == "forget":
            for word in list(self.counts):
                del self.counts[word]
            del self.counts["nothing"]
            return
        self.counts[value.word] = (self.counts[value.word] or 0) + 1
        self.order.add(value.word)
        yield self.counts[value.word], value.word in self.counts, list(self.order)


@pytest.mark.parametrize("backend", ["hashmap", "columnar"])
def test_state_of_maps_and_lists_is_read_and_written_as_python_has_it(backend: str) -> None:
    with OperatorHarness(Brackets(), key_by="k", key_type="string", backend=backend) as harness:
        for word in ("kelp", "rock", "kelp", "forget", "kelp"):
            harness.process_element({"k": "a", "word": word})
            harness.snapshot(1)
        assert harness.output == [
            (1, True, ["kelp"]),
            (1, True, ["kelp", "rock"]),
            (2, True, ["kelp", "rock", "kelp"]),
            (1, True, ["kelp", "rock", "kelp", "kelp"]),
        ]


class Ruled(BroadcastProcessFunction):
    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        rules = ctx.get_broadcast_state(RULES)
        if value in rules:
            del rules[value]
        else:
            rules[value] = len(value)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        rules = ctx.get_broadcast_state(RULES)
        yield value, rules[value], sorted(rules)
        with pytest.raises(TypeError):
            rules[value] = 1


def test_broadcast_state_too_and_the_other_side_only_reads() -> None:
    with OperatorHarness(Ruled(), broadcast=[RULES]) as harness:
        for rule in ("kelp", "rock", "rock"):
            harness.process_broadcast_element(rule)
        assert harness.process_elements(["kelp", "rock"]) == [("kelp", 4, ["kelp"]), ("rock", None, ["kelp"])]


def test_a_row_is_a_dictionary_down_to_the_rows_in_it() -> None:
    row = Row(a=1, b=Row(c=[Row(d=2), 3], e={"f": Row(g=4)}), h=Row(5, 6))
    assert row.as_dict()["b"] == row.b
    assert row.as_dict(recursive=True) == {"a": 1, "b": {"c": [{"d": 2}, 3], "e": {"f": {"g": 4}}}, "h": (5, 6)}


class Half(MapFunction):
    def map(self, value: Any) -> Any:
        return value


def test_what_has_nothing_to_act_on_is_accepted_and_the_stream_stays_as_it_is() -> None:
    stream = Program().source("pairs", "k string, n bigint")
    same = stream.rebalance().shuffle().rescale().forward().cache().disable_chaining().start_new_chain()
    assert same.slot_sharing_group("any").set_buffer_timeout(5) is stream
    assert stream.map(Half()).set_description("half").get_name() == "half"
    sink = stream.print().set_parallelism(1).disable_chaining().slot_sharing_group("any").set_description("shown")
    assert sink.get_name() == "shown"
    keyed = stream.key_by("k")
    for refused, message in (
        (lambda: keyed.rebalance(), "go to the subtask of their key"),
        (lambda: keyed.shuffle(), "go to the subtask of their key"),
        (lambda: keyed.rescale(), "go to the subtask of their key"),
        (lambda: keyed.forward(), "go to the subtask of their key"),
        (lambda: stream.add_sink("a function of Java"), r"sink_to\(\) takes a Sink"),
        (lambda: stream.set_uid_hash("00"), "known by its uid"),
        (lambda: stream.print().set_parallelism(0), "must be a whole number"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            refused()


def test_parts_of_tuples_and_columns_of_rows_are_projected() -> None:
    program = Program()
    rows = program.source("rows", "k string, n bigint, at double")
    assert rows.project(2, 0).get_type() == Types.ROW_NAMED(["at", "k"], [Types.DOUBLE(), Types.STRING()])
    pairs = program.source("pairs", Types.TUPLE([Types.STRING(), Types.LONG()]))
    swapped = pairs.project(1, 0)
    assert swapped.get_type() == Types.TUPLE([Types.LONG(), Types.STRING()])
    assert swapped._node.operator.function(("a", 1)) == (1, "a")  # type: ignore[attr-defined]
    for refused, message in (
        (lambda: program.source("untyped").project(0), "declare output_type"),
        (lambda: pairs.project(2), "positions from 0 to 1, not \\[2\\]"),
        (lambda: pairs.project(), "positions from 0 to 1"),
        (lambda: rows.project(0, 0), "names a column twice"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            refused()


def test_names_stand_where_pyflink_has_them() -> None:
    """Each line is one that a PyFlink program has, with `pyflink` replaced."""
    import importlib

    from holdfast.common.flink_paths import COMMON
    from holdfast.datastream.flink_paths import DATASTREAM

    for package, paths in (("holdfast.common", COMMON), ("holdfast.datastream", DATASTREAM)):
        for path, places in paths.items():
            module = importlib.import_module(f"{package}.{path}")
            for name in places:
                assert getattr(module, name) is not None
                inner = ("CloseableIterator", "CachedDataStream", "AllWindowedStream")
                assert name in inner or hasattr(importlib.import_module(package), name), name
            with pytest.raises(AttributeError):
                _ = module.Nothing
    from holdfast.common.serialization import BulkWriterFactory
    from holdfast.datastream.connectors import file_system

    assert BulkWriterFactory is file_system.BulkWriterFactory
    with pytest.raises(ImportError, match=r"no Table API.*Spark SQL"):
        exec("from holdfast.table import StreamTableEnvironment")


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("from holdfast.datastream import SourceFunction", "takes a Source"),
        ("from holdfast.datastream.functions import SinkFunction", r"sink_to\(\) takes a Sink"),
        ("from holdfast.datastream.state_backend import CustomStateBackend", "state.backend.type"),
        ("from holdfast.datastream.checkpoint_storage import CustomCheckpointStorage", "CheckpointStorageFactory"),
        ("from holdfast.datastream.connectors.jdbc import JdbcSink", "DatabaseSink"),
        ("from holdfast.datastream.connectors.kafka import FlinkKafkaConsumer", "KafkaSource"),
        ("from holdfast.datastream.connectors.kinesis import FlinkKinesisConsumer", r"from_dataframe\(\)"),
        ("from holdfast.datastream.formats.csv import CsvSchema", "DDL"),
        ("from holdfast.datastream.formats.parquet import ParquetBulkWriters", r"BulkWriterFactory.parquet\(\)"),
        ("from holdfast.datastream.formats.orc import OrcBulkWriters", r"for_each_epoch\(\)"),
        ("from holdfast.datastream.connectors.file_system import StreamingFileSink", "FileSink"),
        ("from holdfast.datastream.connectors.file_system import RowDataBulkWriterFactory", "BulkWriterFactory writes"),
        ("from holdfast.datastream.connectors.file_system import FileCompactor", "rolling policy"),
        ("from holdfast.datastream.utils import ResultTypeQueryable", "output_type"),
        ("from holdfast.common.serialization import RowDataBulkWriterFactory", r"BulkWriterFactory .*parquet\(\)"),
        ("from holdfast.common.config_options import ConfigOptions", "by their names"),
        ("from holdfast.common import RestartStrategies", r"restart-strategy\."),
        ("from holdfast.common.restart_strategy import RestartStrategies", r"restart-strategy\."),
    ],
)
def test_a_name_that_is_not_here_is_refused_with_what_to_use(line: str, instead: str) -> None:
    with pytest.raises(ImportError, match=f"Holdfast does not have PyFlink's .*: .*{instead}"):
        exec(line)


def test_a_program_that_looks_for_a_refused_name_does_not_find_it() -> None:
    """As `hasattr`, `inspect`, mocks and pickles do; whoever reads the attribute gets the same words as an import."""
    import holdfast.common
    import holdfast.common.restart_strategy
    import holdfast.datastream.connectors.kafka
    import holdfast.datastream.formats.csv
    import holdfast.table

    for module, name, words in (
        (holdfast.datastream, "CustomStateBackend", "state.backend.type takes the class path"),
        (holdfast.datastream.formats.csv, "CsvSchema", "takes DDL"),
        (holdfast.datastream.connectors.kafka, "Semantic", "takes a DeliveryGuarantee"),
        (holdfast.common, "ConfigOptions", "set options by their names"),
        (holdfast.common.restart_strategy, "RestartStrategies", r"restart-strategy\."),
        (holdfast.table, "TableEnvironment", "no Table API"),
    ):
        assert not hasattr(module, name) and getattr(module, name, None) is None
        with pytest.raises(AttributeError, match=words):
            getattr(module, name)
        with pytest.raises(ImportError, match=words):
            exec(f"from {module.__name__} import {name}")


def test_a_file_that_spark_cannot_fetch_is_one_error_with_the_cause() -> None:
    from types import SimpleNamespace

    from holdfast.datastream.environment.python_dependencies import ship_archive, ship_modules

    def add(path: str) -> None:
        raise RuntimeError(f"no file system for {path}")

    context = SimpleNamespace(addPyFile=add, addArchive=add)
    with pytest.raises(
        ConfigurationError, match=r"^add_python_file\(\): Spark cannot send 'x://a.*no file system for x"
    ):
        ship_modules(context, "x://a.zip")
    with pytest.raises(ConfigurationError, match=r"^add_python_archive\(\): Spark cannot send 'x://a.*no file system"):
        ship_archive(context, "x://a.zip", "n")


def test_keywords_are_spelled_as_pyflink_spells_them() -> None:
    from holdfast.common import Duration
    from holdfast.datastream import (
        CheckpointConfig,
        CheckpointingMode,
        EmbeddedRocksDBStateBackend,
        FileSystemCheckpointStorage,
        JobManagerCheckpointStorage,
        PredefinedOptions,
        SlotSharingGroup,
    )

    config = CheckpointConfig()
    config.set_checkpointing_mode(checkpointing_mode=CheckpointingMode.EXACTLY_ONCE)
    config.set_checkpoint_interval(checkpoint_interval=5000).set_checkpoint_timeout(checkpoint_timeout=6000)
    config.set_min_pause_between_checkpoints(min_pause_between_checkpoints=10)
    config.set_max_concurrent_checkpoints(max_concurrent_checkpoints=2)
    config.set_tolerable_checkpoint_failure_number(tolerable_checkpoint_failure_number=3)
    config.set_aligned_checkpoint_timeout(alignment_timeout=Duration.of_millis(millis=7))
    assert (config.get_checkpoint_interval(), config.get_checkpoint_timeout()) == (5000, 6000)
    assert (config.get_max_concurrent_checkpoints(), config.get_tolerable_checkpoint_failure_number()) == (2, 3)
    config.set_checkpoint_storage(FileSystemCheckpointStorage(checkpoint_path="/tmp/x", file_state_size_threshold=None))
    with pytest.raises(ConfigurationError, match=r"use FileSystemCheckpointStorage\('/tmp/x'\)"):
        JobManagerCheckpointStorage(checkpoint_path="/tmp/x")
    backend = EmbeddedRocksDBStateBackend(enable_incremental_checkpointing=True)
    backend.set_predefined_options(options=PredefinedOptions.FLASH_SSD_OPTIMIZED)
    assert backend.get_predefined_options() is PredefinedOptions.FLASH_SSD_OPTIMIZED
    with pytest.raises(ConfigurationError, match="a class of Java that tunes RocksDB"):
        backend.set_options("Options")
    group = SlotSharingGroup.builder("g").set_cpu_cores(1.5).set_task_heap_memory_mb(64).build()
    memory = group.get_task_heap_memory()
    assert memory is not None and (memory.get_bytes(), memory.get_mebi_bytes()) == (64 << 20, 64)
    stream = Program().source("pairs", "k string, n bigint")
    assert stream.slot_sharing_group(group) is stream
    assert stream.broadcast(broadcast_state_descriptor=RULES).descriptors == (RULES,)
    assert stream.map(lambda row: row).set_description(description="n").get_name() == "n"


def test_classes_that_pyflink_nests_stand_where_it_has_them() -> None:
    from holdfast.common.serialization import RowFieldExtractorSchema
    from holdfast.datastream import JobStatus, SlotSharingGroup
    from holdfast.datastream.connectors.file_system import OutputFileConfig
    from holdfast.datastream.formats.json import JsonRowDeserializationSchema, JsonRowSerializationSchema
    from holdfast.datastream.state import StateTtlConfig
    from holdfast.metrics.metricbase import Counter

    row = Types.ROW([Types.INT(), Types.STRING()])
    written = JsonRowSerializationSchema.Builder().with_type_info(row).build().serialize((1, "kelp"))
    assert JsonRowDeserializationSchema.Builder().type_info(row).build().deserialize(written) == (1, "kelp")
    named = OutputFileConfig.OutputFileConfigBuilder().with_part_prefix("p").with_part_suffix(".x").build()
    assert (named.get_part_prefix(), named.get_part_suffix()) == ("p", ".x")
    assert SlotSharingGroup.Builder("g").build().get_name() == "g"
    assert not JobStatus.CANCELLING.is_terminal_state() and JobStatus.FAILING is not JobStatus.FAILED
    assert Counter is not None
    ttl = StateTtlConfig.new_builder(5).cleanup_in_rocksdb_compact_filter(10, Duration.of_hours(1)).build()
    assert ttl.is_enabled() and not StateTtlConfig.DISABLED.is_enabled()
    assert ttl.get_cleanup_strategies().in_compaction
    schema = RowFieldExtractorSchema(1)
    rows: list[Any] = [("k", b"v"), Row("k", bytearray(b"w")), ("k", None)]
    assert [schema.serialize(one) for one in rows] == [b"v", b"w", None]
    for wrong, message in (
        (("k", "text"), "is str, not bytes"),
        (("k",), "has no field 1"),
        ("text", "fields of rows"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            schema.serialize(wrong)
    with pytest.raises(ValueError, match="at least 0"):
        RowFieldExtractorSchema(-1)


def test_types_are_made_by_the_classes_of_pyflink_too() -> None:
    from holdfast.common.typeinfo import BasicTypeInfo, ListTypeInfo, MapTypeInfo, RowTypeInfo, SqlTimeTypeInfo

    named = RowTypeInfo([BasicTypeInfo.STRING_TYPE_INFO(), BasicTypeInfo.LONG_TYPE_INFO()], ["k", "n"])
    assert named == Types.ROW_NAMED(["k", "n"], [Types.STRING(), Types.LONG()])
    assert RowTypeInfo([SqlTimeTypeInfo.DATE()]) == Types.ROW([Types.SQL_DATE()])
    assert isinstance(named, RowTypeInfo) and not isinstance(Types.STRING(), RowTypeInfo)
    assert (named.get_field_index("n"), named.get_field_index("x")) == (1, -1)
    assert ListTypeInfo(Types.INT()) == Types.LIST(Types.INT())
    assert MapTypeInfo(Types.STRING(), Types.INT()) == Types.MAP(Types.STRING(), Types.INT())


class Least(ReduceFunction):
    """Says to its base that it is opened, as PyFlink's programs do."""

    def open(self, runtime_context: Any) -> None:
        super().open(runtime_context)
        self.is_open = True

    def reduce(self, value1: Any, value2: Any) -> Any:
        assert self.is_open
        return min(value1, value2)


def test_a_reduce_function_is_opened() -> None:
    with OperatorHarness(Least(), key_by=lambda n: n % 2, output_type="bigint") as harness:
        assert harness.process_elements([4, 2, 3, 6]) == [4, 2, 3, 2]


def test_a_key_of_map_state_may_be_what_is_not_declared() -> None:
    class Seen(KeyedProcessFunction):
        def open(self, runtime_context: Any) -> None:
            pickled = Types.PICKLED_BYTE_ARRAY()
            self.seen = runtime_context.get_map_state(MapStateDescriptor("seen", pickled, pickled))

        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            self.seen[value] = (self.seen[value] or 0) + 1
            yield self.seen[value]

    for backend in ("hashmap", "columnar"):
        with OperatorHarness(Seen(), key_by=lambda value: 0, backend=backend) as harness:
            counts = [harness.process_element(value) for value in (["a"], ("a",), {"x": {1}}, ["a"], {"x": {1}})]
            assert counts == [[1], [1], [1], [2], [2]]
            snapshot = harness.snapshot(1)
        with OperatorHarness.restore([snapshot], Seen(), key_by=lambda value: 0, backend=backend) as harness:
            assert harness.process_element({"x": {1}}) == [3]


def test_an_instant_is_emitted_as_the_datetime_that_it_is() -> None:
    from holdfast.common import Instant

    at = Instant.of_epoch_milli(1_500)
    with OperatorHarness(lambda value: at, output_type=Types.INSTANT()) as harness:
        assert harness.process_element(1) == [datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)]
    with OperatorHarness(lambda value: (at, 1), output_type="at timestamp, n int") as harness:
        assert harness.process_element(1) == [(at.to_datetime(), 1)]


def test_settings_act_or_are_refused_with_what_to_use(tmp_path: Path) -> None:
    from holdfast.common import Configuration, Instant, Time
    from holdfast.datastream import StreamExecutionEnvironment

    env = StreamExecutionEnvironment.get_execution_environment()
    config = env.get_config().set_parallelism(3).set_max_parallelism(12).enable_object_reuse()
    config.set_global_job_parameters({"limit": 5}).disable_auto_generated_uids()
    assert (env.get_parallelism(), env.get_max_parallelism(), config.get_global_job_parameters()) == (
        3,
        12,
        {"limit": "5"},
    )
    assert env.get_config().is_object_reuse_enabled() and not env.get_config().has_auto_generated_uids_enabled()
    env.set_default_savepoint_directory("file:///savepoints")
    assert env.get_default_savepoint_directory() == "file:///savepoints"
    a, b = tmp_path / "a.jar", tmp_path / "b.jar"
    a.touch()
    b.touch()
    env.add_jars(str(a))
    env.add_jars(b.as_uri(), "hdfs://host/c.jar", f"{tmp_path}/*.jar", "local:/on/workers.jar")
    env.set_python_executable("/usr/bin/python3")
    jars = f"{a},{b.as_uri()},hdfs://host/c.jar,{tmp_path}/*.jar,local:/on/workers.jar"
    assert env.get_configuration().get_string("spark.jars") == jars
    assert env.get_configuration().get_string("spark.pyspark.python") == "/usr/bin/python3"
    for refused, message in (
        (lambda: env.add_jars(str(a), str(tmp_path / "d.jar")), r"add_jars\(\): there is no file '.*/d\.jar'\."),
        (lambda: env.add_jars("e.jar"), rf"there is no file 'e\.jar' in {Path.cwd()}\."),
        (lambda: env.add_classpaths("x"), r"add_jars\(\)"),
        (lambda: env.register_cached_file("x", "y"), "SparkFiles"),
        (lambda: env.add_source(None), r"from_source\(\)"),
        (lambda: env.create_input(None), r"from_source\(\)"),
        (lambda: config.disable_generic_types(), "declare output_type"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            refused()
    for key, message in (
        ("taskmanager.memory.process.size", "spark.executor.memory"),
        ("jobmanager.memory.heap.size", "spark.driver.memory"),
        ("pipeline.jars", "set spark.jars"),
        ("python.requirements", "spark.archives"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            Configuration({key: "x"}).validate()
    Configuration({"pipeline.object-reuse": True, "python.fn-execution.bundle.size": 5}).validate()
    assert Time(1500) == Time.milliseconds(1500)
    assert Instant.of_epoch_milli(-1).to_epoch_milli() == -1
