"""State as data, without a job: reading savepoints and checkpoints, and making savepoints.

reader = SavepointReader.read(None, "/savepoints/savepoint-4901f0-5a1b")
visits = reader.read_keyed_state("visits", "count")

counts = OperatorTransformation.bootstrap_with(table).key_by("user").to_state(
    ValueStateDescriptor("count", "bigint"), "n")
SavepointWriter.new_savepoint(None, 128).with_operator("visits", counts).write("/savepoints/history")
"""

from holdfast.state_processor.bootstrap import (
    BroadcastStateBootstrapFunction,
    KeyedStateBootstrapFunction,
    OperatorTransformation,
    SourcePositions,
    StateBootstrapFunction,
    StateBootstrapTransformation,
)
from holdfast.state_processor.flink_savepoint import FlinkSavepointReader
from holdfast.state_processor.reader_function import KeyedStateReaderContext, KeyedStateReaderFunction
from holdfast.state_processor.savepoint_reader import SavepointReader
from holdfast.state_processor.savepoint_writer import SavepointWriter
from holdfast.state_processor.spark_query_reader import SparkQueryReader

__all__ = [
    "BroadcastStateBootstrapFunction",
    "FlinkSavepointReader",
    "KeyedStateBootstrapFunction",
    "KeyedStateReaderContext",
    "KeyedStateReaderFunction",
    "OperatorTransformation",
    "SavepointReader",
    "SavepointWriter",
    "SourcePositions",
    "SparkQueryReader",
    "StateBootstrapFunction",
    "StateBootstrapTransformation",
]
