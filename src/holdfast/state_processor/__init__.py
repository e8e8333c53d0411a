"""Read and write state as data, without a job: readers of savepoints and checkpoints, and a writer of savepoints.

>>> import tempfile
>>> import pyarrow as pa
>>> from holdfast.state import ValueStateDescriptor
>>> table = pa.table({"user": ["ada", "bob"], "n": [3, 1]})
>>> keyed = OperatorTransformation.bootstrap_with(table).key_by("user")
>>> counts = keyed.to_state(ValueStateDescriptor("count", "bigint"), "n")
>>> writer = SavepointWriter.new_savepoint(None, 128).with_operator("visits", counts)
>>> path = writer.write(f"{tempfile.mkdtemp()}/history")
>>> found = SavepointReader.read(None, path).read_keyed_state("visits", "count", columns=["key", "value"])
>>> sorted(found.to_pylist(), key=lambda row: row["key"])
[{'key': 'ada', 'value': 3}, {'key': 'bob', 'value': 1}]
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
