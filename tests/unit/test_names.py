"""The names that are fixed: importable from where they are promised, with their arguments in their order.

Beside `test_seed_names`, which has what the seed documents name, this has the rest of the page of fixed names.
"""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from enum import Enum
from pathlib import Path
from typing import Any

import click
import pytest

from holdfast.cli import main as command
from holdfast.errors import HoldfastError
from holdfast.kernel import fault

ROOT = Path(__file__).resolve().parents[2]

PACKAGES = {
    "holdfast.ha.kubernetes": """
        KubernetesStateHandleStore StringResourceVersion RetrievableStateHandle RetrievableStateStorageHelper
        FlinkKubeClient KubeClient""",
    "holdfast.ha": """
        AbstractHaServices HighAvailabilityServices ClientHighAvailabilityServices GloballyCleanableResource
        LeaderElection LeaderElectionDriverFactory LeaderRetrievalService CheckpointRecoveryFactory ExecutionPlanStore
        JobResultStore BlobStore BlobStoreService""",
    "holdfast.ha.zookeeper": "ZooKeeperLeaderElectionHaServices ZooKeeperStateHandleStore IntegerResourceVersion",
    "holdfast.queryable": "KvStateClientProxy KvStateClientProxyImpl KvStateLocationOracle QueryableStateClient",
    "holdfast.state_processor": """
        SavepointReader SavepointWriter FlinkSavepointReader SparkQueryReader SourcePositions
        StateBootstrapTransformation KeyedStateBootstrapFunction
        BroadcastStateBootstrapFunction StateBootstrapFunction OperatorTransformation""",
    "holdfast.storage": "StateHandleStore RetrievableStateHandle AlreadyExistError NotExistError",
    "holdfast.state": """
        StateBackend StateBackendFactory AbstractKeyedStateBackend OperatorStateBackend MemoryStateBackend
        FsStateBackend HashMapStateBackend ColumnarStateBackend Environment TaskKvStateRegistry KeyedStateStore
        OperatorStateStore BroadcastState FunctionInitializationContext FunctionSnapshotContext StateSnapshotContext
        StatePartitionStreamProvider StateDescriptor ValueStateDescriptor ListStateDescriptor MapStateDescriptor
        ReducingStateDescriptor AggregatingStateDescriptor FoldingStateDescriptor""",
    "holdfast.types": "TypeSerializer TypeSerializerSnapshot TypeSerializerSchemaCompatibility Types",
    "holdfast.checkpoint": """
        CheckpointCoordinator CheckpointConfig CheckpointingMode ExternalizedCheckpointCleanup CheckpointProperties
        CheckpointRetentionPolicy CheckpointOptions CheckpointType SnapshotType CheckpointMetaData
        CheckpointStorageLocation CheckpointStorageLocationReference CheckpointStreamFactory AcknowledgeCheckpoint
        DeclineCheckpoint CheckpointFailureReason CompletedCheckpoint CompletedCheckpointStore CheckpointIDCounter
        CheckpointFailureManager FileSystemCheckpointStorage JobManagerCheckpointStorage""",
    "holdfast.common": """
        Configuration IllegalConfigurationError JobID JobVertexID OperatorID Types Row RowKind ByteArraySchema
        WatermarkGenerator WatermarkGeneratorContext WatermarkOutput Watermark WatermarkStrategy""",
    "holdfast.datastream": """
        CheckpointedFunction RichMapFunction RichFlatMapFunction RichFilterFunction RichReduceFunction MapFunction
        FlatMapFunction FilterFunction ReduceFunction KeySelector KeyedProcessFunction ProcessFunction
        BroadcastProcessFunction KeyedBroadcastProcessFunction AggregateFunction FoldFunction
        StreamExecutionEnvironment DataStream KeyedStream JobClient Sink SinkWriter Committer ParquetFileSink
        Partitioner SlotSharingGroup MemorySize PredefinedOptions RefusedElementError""",
    "holdfast.datastream.connectors.database": "DatabaseSink",
    "holdfast.datastream.connectors.delta": "DeltaSink",
    "holdfast.datastream.connectors.file_system": """
        BucketAssigner BulkFormat FileSink FileSource OutputFileConfig RollingPolicy StreamFormat""",
    "holdfast.datastream.formats.arrow": "ArrowInputFormat",
    "holdfast.datastream.formats.csv": "CsvReaderFormat CsvRowDeserializationSchema CsvRowSerializationSchema",
    "holdfast.datastream.formats.json": "JsonLinesFormat JsonRowDeserializationSchema JsonRowSerializationSchema",
    "holdfast.datastream.formats.parquet": "ParquetColumnarRowInputFormat",
    "holdfast.datastream.connectors.iceberg": "IcebergSink",
    "holdfast.datastream.formats.debezium": "DebeziumJsonDeserializationSchema",
    "holdfast.datastream.functions": """
        KeyedProcessFunction MapFunction RichMapFunction RuntimeContext KeySelector ReduceFunction AggregateFunction""",
    "holdfast.datastream.state": """
        ValueStateDescriptor ListStateDescriptor MapStateDescriptor ReducingStateDescriptor AggregatingStateDescriptor
        StateTtlConfig ValueState ListState MapState ReducingState AggregatingState""",
    "holdfast.spark": "transform_with_state transform_with_state_in_pandas",
    "holdfast.datastream.connectors.kafka": """
        KafkaSource KafkaSink KafkaOffsetsInitializer KafkaRecordSerializationSchema DeliveryGuarantee DEAD_LETTER
        ConfluentSerialization ConfluentDeserialization""",
    "holdfast.common.serialization": "SerializationSchema DeserializationSchema SimpleStringSchema",
    "holdfast.testing": """
        OperatorHarness ManualClock ZooKeeperServer ZooKeeperEnsemble KubernetesApiServer S3Server TcpProxy
        StateHandleStoreContract LeaderElectionContract StateBackendContract SinkContract""",
    "holdfast.errors": """
        HoldfastError ConfigurationError StateMigrationError CheckpointError CorruptFileError FencedError ConflictError
        PossibleInconsistentStateError AlreadyExistError NotExistError UserFunctionError""",
}

SIGNATURES = {
    "holdfast.datastream StreamExecutionEnvironment.get_execution_environment": "configuration=None, *, spark=None",
    "holdfast.datastream StreamExecutionEnvironment.execute": "job_name=None",
    "holdfast.datastream StreamExecutionEnvironment.execute_async": "job_name=None",
    "holdfast.testing OperatorHarness": "function, *, key_by=None, key_type=None, output_type=None, "
    "backend='hashmap', parallelism=1, max_parallelism=128, subtask=0, clock=None",
    "holdfast.testing OperatorHarness.process_element": "value, timestamp=None",
    "holdfast.testing OperatorHarness.process_watermark": "*",
    "holdfast.testing OperatorHarness.set_processing_time": "*",
    "holdfast.testing OperatorHarness.snapshot": "checkpoint_id",
    "holdfast.testing OperatorHarness.side_output": "tag",
    "holdfast.testing OperatorHarness.open": "",
    "holdfast.testing OperatorHarness.close": "",
    "holdfast.testing OperatorHarness.restore": "snapshots, function",
    "holdfast.ha AbstractHaServices": "config, driver_factory, io_executor, blob_store_service, job_result_store",
    "holdfast.ha.kubernetes KubernetesStateHandleStore": "kube_client, config_map_name, storage, "
    "config_map_key_filter, lock_identity=None",
    "holdfast.checkpoint CheckpointCoordinator": "job, chk_config, tasks_to_trigger, tasks_to_wait_for, "
    "tasks_to_commit_to, user_class_loader, checkpoint_id_counter, completed_checkpoint_store, "
    "checkpoint_state_backend, executor, failure_manager, *, clock=None",
}

MEMBERS = {
    "holdfast.datastream DataStreamSink": "name uid set_parallelism set_dead_letter_output get_side_output",
    "holdfast.datastream DataStream": """
        map flat_map filter key_by process union transform sink_to for_each_epoch print execute_and_collect uid name""",
    "holdfast.datastream KeyedStream": "process reduce map flat_map filter normalize_changes last_value",
    "holdfast.datastream StreamExecutionEnvironment": "from_dataframe from_collection set_parallelism",
    "holdfast.datastream JobClient": """
        get_job_id get_job_status cancel trigger_checkpoint trigger_savepoint stop_with_savepoint rescale
        await_termination process_all_available last_progress recent_progress exception""",
    "holdfast.common Configuration": """
        set_string set_long set_integer get_string get_integer get_boolean get_float""",
    "holdfast.state KeyedStateStore": """
        get_state get_list_state get_reducing_state get_aggregating_state get_folding_state get_map_state""",
    "holdfast.queryable KvStateClientProxy": "start shutdown get_server_address",
    "holdfast.checkpoint CheckpointType": "CHECKPOINT SAVEPOINT",
    "holdfast.state_processor SparkQueryReader": """
        read batch_id metadata read_state transformation source_positions""",
    "holdfast.state_processor SavepointWriter": """
        new_savepoint from_existing_savepoint with_operator remove_operator change_operator_identifier replace_state
        update_state with_source_positions set_parallelism set_clock write""",
}

VERBS = [
    "run",
    "checkpoints",
    "inspect",
    "diff",
    "savepoint",
    "stop",
    "cancel",
    "rescale",
    "list",
    "info",
    "query",
    "jobmanager",
    "submit",
    "state-server",
    "state",
    "replay",
    "new",
    "demo",
    "ui",
    "doctor",
]
TARGETS = ["help", "setup", "demo", "demo-ha", "demo-kafka", "test", "test-all", "soak", "chaos", "bench", "lint"]
BENCHMARKS = [
    "keyed_count",
    "chain",
    "latency",
    "width",
    "large_state",
    "small_epoch",
    "checkpoint",
    "rescale",
    "takeover",
    "query",
    "state_processor",
    "nexmark/run",
]
SEED_EXAMPLES = ["stateful_map", "backends", "coordinator", "trigger", "evolution", "broadcast"]
FAULT_POINTS = """
    run.write metadata.write pointer.write sink.stage sink.write sink.commit notify subsume.delete source.copy
    spark.commit rescale.write"""


def _named(text: str) -> Any:
    package, name = text.split(" ")
    found: Any = importlib.import_module(package)
    for part in name.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize(("package", "names"), PACKAGES.items(), ids=PACKAGES)
def test_names_are_importable(package: str, names: str) -> None:
    module = importlib.import_module(package)
    missing = [name for name in names.split() if not hasattr(module, name)]
    assert not missing


@pytest.mark.parametrize(("name", "expected"), SIGNATURES.items(), ids=SIGNATURES)
def test_arguments_have_their_names_order_and_defaults(name: str, expected: str) -> None:
    parameters = [p for p in inspect.signature(_named(name)).parameters.values() if p.name != "self"]
    if expected == "*":
        assert parameters, "one argument under any name"
        return
    found = ", ".join(_written(parameters))
    assert found == expected or found.startswith(f"{expected}, "), found


def _written(parameters: list[inspect.Parameter]) -> list[str]:
    written: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in written:
            written.append("*")
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        written.append(f"{parameter.name}{default}")
    return written


@pytest.mark.parametrize(("name", "members"), MEMBERS.items(), ids=MEMBERS)
def test_members_exist(name: str, members: str) -> None:
    assert [member for member in members.split() if not hasattr(_named(name), member)] == []


def test_old_names_are_aliases() -> None:
    assert _named("holdfast.ha.kubernetes FlinkKubeClient") is _named("holdfast.ha.kubernetes KubeClient")
    assert _named("holdfast.common Types") is _named("holdfast.types Types")
    assert issubclass(_named("holdfast.errors FencedError"), HoldfastError)
    assert issubclass(_named("holdfast.checkpoint CheckpointType"), Enum)


@pytest.mark.parametrize("verb", VERBS)
def test_the_command_has_its_verbs(verb: str) -> None:
    assert verb in command.list_commands(click.Context(command))


@pytest.mark.parametrize("target", TARGETS)
def test_make_has_its_targets_and_make_help_lists_them(target: str) -> None:
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.search(rf"^  make {target} ", listed, re.MULTILINE)


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_benchmarks_take_json(benchmark: str) -> None:
    script = ROOT / "benchmarks" / f"{benchmark}.py"
    told = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    assert "--json" in told.stdout


@pytest.mark.parametrize("example", SEED_EXAMPLES)
def test_the_examples_of_the_seeds_stand(example: str) -> None:
    assert (ROOT / "examples" / "seeds" / f"{example}.py").exists()


def test_fault_points_are_those_that_are_fixed() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    used = set(re.findall(r'fault\.point\("([a-z.]+)"\)', source))
    assert set(FAULT_POINTS.split()) == used == fault.POINTS


def test_the_job_id_is_uuid_5_of_the_jobs_name() -> None:
    job_id = str(_named("holdfast.common JobID").from_name("flights"))
    assert re.fullmatch("[0-9a-f]{32}", job_id)
    assert job_id[12] == "5", "the version digit of a UUIDv5"
