"""Sources that real-time jobs read by splits: a program defines them without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from holdfast.common import Duration
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.datastream.connectors import RealTimeSource, SourceReader, SplitEnumerator
from holdfast.datastream.connectors.datagen import DataGeneratorSource
from holdfast.datastream.connectors.number_seq import NumberSequenceSource
from holdfast.errors import ConfigurationError
from holdfast.kernel.watermark import WatermarkStrategy
from holdfast.runtime.function.source import BoundedEnumerator
from holdfast.runtime.graph.stream_graph import SourceNode, StreamGraph
from holdfast.spark.frame import frame_of
from holdfast.types.arrow import batch_to_elements
from holdfast.types.types import Types

NONE = WatermarkStrategy.no_watermarks()

MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps()


class Clicks(RealTimeSource):
    """A source of the program's own."""

    def create_enumerator(self, position: Any, tasks: int) -> SplitEnumerator:
        return BoundedEnumerator({"all": 0})

    def create_reader(self, task: int) -> SourceReader:
        raise NotImplementedError


class Named(Clicks):
    def element_type(self) -> Any:
        return Types.LONG()

    def is_bounded(self) -> bool:
        return True

    def description(self) -> str:
        return "the clicks of a gateway"


def graph_of(source: Any, strategy: WatermarkStrategy = NONE, type_info: Any = None) -> StreamGraph:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_source(source, strategy, "clicks", type_info).print()
    return env.get_stream_graph()


def test_a_source_of_ones_own_needs_no_frame() -> None:
    source = Clicks()
    (node,) = graph_of(source, type_info="city string, n bigint").of(SourceNode)
    assert node.split_source is source and node.is_streaming and node.frame is None
    assert (node.element_type.ddl, node.reads) == ("struct<city: string, n: bigint>", "Clicks")
    (bounded,) = graph_of(Named()).of(SourceNode)
    assert (bounded.element_type, bounded.is_streaming) == (Types.LONG(), False)


def test_a_source_alone_has_the_name_of_its_class_and_no_watermarks() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_source(Named()).print()
    graph = env.get_stream_graph()
    assert [node.name for node in graph.of(SourceNode)] == ["Named"]
    assert len(graph.nodes) == len(graph_of(Named(), NONE).nodes) < len(graph_of(Named(), MONOTONOUS).nodes)


def test_its_uid_is_derived_from_its_description() -> None:
    (node,) = graph_of(Named()).of(SourceNode)
    (other,) = graph_of(Clicks(), type_info="bigint").of(SourceNode)
    assert node.identity == graph_of(Named()).of(SourceNode)[0].identity != other.identity


def test_its_declared_type_is_checked() -> None:
    with pytest.raises(ConfigurationError, match="type_info is 'string'"):
        graph_of(Named(), type_info="string")


def test_it_can_wait_for_other_sources() -> None:
    aligned = (
        WatermarkStrategy.for_monotonous_timestamps()
        .with_timestamp_assigner(lambda value, _: value)
        .with_watermark_alignment("group", Duration.of_seconds(1), Duration.of_seconds(1))
    )
    graph_of(Named(), aligned)


def test_a_job_by_epochs_refuses_it_and_names_the_option() -> None:
    (node,) = graph_of(Named()).of(SourceNode)
    session: Any = None
    with pytest.raises(ConfigurationError, match=r"the clicks of a gateway.*execution\.trigger to real-time"):
        frame_of(node, session)
    with pytest.raises(ConfigurationError, match="only real-time jobs read it"):
        Named().create_frame(session)


def read_all(source: Any, tasks: int) -> list[list[int]]:
    splits = source.split_source()
    found: list[list[int]] = []
    for task, split in enumerate(splits.create_enumerator(None, tasks).discover()):
        reader = splits.create_reader(task)
        reader.add_splits([split])
        found.append([])
        while reader.has_splits and (batch := reader.poll()) is not None:
            found[-1] += batch_to_elements(batch, Types.LONG())
    return found


def test_numbers_are_shared_by_the_tasks() -> None:
    assert read_all(NumberSequenceSource(1, 5), 2) == [[1, 2], [3, 4, 5]]
    assert read_all(DataGeneratorSource(lambda n: n, count=3), 2) == [[0], [1, 2]]


def states(reader: SourceReader) -> Mapping[str, Any]:
    return reader.snapshot()


def test_a_generator_with_a_rate_has_the_next_number_as_state() -> None:
    source = DataGeneratorSource(lambda n: n, rows_per_second=1000).split_source()
    enumerator = source.create_enumerator(None, 2)
    splits: Sequence[Any] = enumerator.discover()
    reader = source.create_reader(0)
    reader.add_splits(splits)
    batch = reader.poll()
    assert batch is not None
    assert batch_to_elements(batch, Types.LONG())[0] == 0
    state = states(reader)
    again = source.create_enumerator(enumerator.snapshot(state), 5).discover()
    assert {split.split_id: split.state for split in again} == state
