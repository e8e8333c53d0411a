"""Holdfast with its built-in count, whose files tasks read: no row of the input is ever one of Spark's."""

from __future__ import annotations

from benchmarks.engines.holdfast import HoldfastEngine
from benchmarks.harness.input_files import Source
from benchmarks.harness.workload import Engine, Workload
from holdfast.common import Duration, WatermarkStrategy
from holdfast.datastream import DataStream, StreamExecutionEnvironment
from holdfast.datastream.connectors.file_system import FileSource
from holdfast.datastream.formats.parquet import ParquetColumnarRowInputFormat


def read_files(environment: StreamExecutionEnvironment, source: Source) -> DataStream:
    """The input as a stream of the files of one epoch after the other."""
    files = FileSource.for_bulk_file_format(ParquetColumnarRowInputFormat(source.ddl), str(source.directory))
    paced = files.monitor_continuously(Duration.of_millis(100)).set_max_files_per_epoch(source.files).build()
    return environment.from_source(paced, WatermarkStrategy.no_watermarks(), "input").uid("input")


class FilesEngine(HoldfastEngine):
    """The job with an input of its own."""

    def stream(self, environment: StreamExecutionEnvironment) -> DataStream:
        return read_files(environment, self._source)


def make_engine(workload: Workload) -> Engine:
    return FilesEngine(workload, lambda stream: stream.count())
