"""What a program chains becomes a graph; nothing runs yet."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.datastream import (
    DataStream,
    KeyedProcessFunction,
    OutputTag,
    ParquetFileSink,
    ProcessFunction,
    StreamExecutionEnvironment,
)
from holdfast.errors import ConfigurationError, OutputTypeError
from holdfast.runtime.graph.stream_graph import KeyedNode, NonKeyedNode, SideOutputNode, SinkNode, SourceNode, UnionNode

COLUMNS = "word string, n bigint"


class Seen(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        yield value.word, 1


class Split(ProcessFunction):
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterator[Any]:
        yield value


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment()


@pytest.fixture
def words(env: StreamExecutionEnvironment) -> DataStream:
    return env.from_collection([("kelp", 1), ("rock", 2)], COLUMNS)


def test_a_program_becomes_a_graph_in_the_order_of_its_definition(
    env: StreamExecutionEnvironment, words: DataStream, tmp_path: Any
) -> None:
    counted = (
        words.filter(lambda row: row.n > 0)
        .map(lambda row: (row.word, row.n), output_type=COLUMNS)
        .key_by("word", order_by="n")
        .process(Seen(), output_type="word string, seen bigint")
        .uid("seen")
        .name("words seen")
        .set_parallelism(3)
        .set_max_parallelism(12)
    )
    counted.sink_to(ParquetFileSink(tmp_path)).uid("files")
    counted.for_each_epoch(lambda df, epoch: None).uid("database")

    graph = env.get_stream_graph()

    assert [type(node) for node in graph.nodes] == [
        SourceNode,
        NonKeyedNode,
        NonKeyedNode,
        KeyedNode,
        SinkNode,
        SinkNode,
    ]
    (keyed,) = graph.of(KeyedNode)
    assert (keyed.uid, keyed.name, keyed.parallelism, keyed.max_parallelism) == ("seen", "words seen", 3, 12)
    assert keyed.key.columns == ("word",)
    assert keyed.key.order_by == ("n",)
    assert [sink.uid for sink in graph.sinks] == ["files", "database"]


def test_order_by_after_key_by_replaces_the_order(words: DataStream) -> None:
    stream = words.key_by("word", order_by="word").order_by("n", "word").process(Seen(), output_type=COLUMNS)
    node = stream._node
    assert isinstance(node, KeyedNode)
    assert node.key.order_by == ("n", "word")


def test_a_keyed_stream_is_no_step_of_its_own(words: DataStream) -> None:
    keyed = words.key_by("word")
    for call in (
        lambda: keyed.uid("x"),
        lambda: keyed.name("x"),
        lambda: keyed.set_parallelism(2),
        lambda: keyed.set_max_parallelism(2),
    ):
        with pytest.raises(ConfigurationError, match=r"directly after key_by\(\): call it on the operator"):
            call()


def test_keyed_streams_can_be_chained_and_united(env: StreamExecutionEnvironment, words: DataStream) -> None:
    first = words.key_by("word").process(Seen(), output_type=COLUMNS)
    second = first.key_by(lambda row: row.n % 2, "bigint").reduce(lambda a, b: a)
    first.union(second, words.key_by("n")).print()

    graph = env.get_stream_graph()

    assert len(graph.of(KeyedNode)) == 2
    (union,) = graph.of(UnionNode)
    assert len(union.inputs) == 3
    assert second.get_type() == words.get_type()


def test_streams_of_other_types_or_environments_cannot_be_united(words: DataStream) -> None:
    other = StreamExecutionEnvironment.get_execution_environment().from_collection([("a", 1)], COLUMNS)
    with pytest.raises(ConfigurationError, match="streams of one type: 'collection' has"):
        words.union(words.map(lambda row: row.n, "bigint"))
    with pytest.raises(ConfigurationError, match="streams of one environment"):
        words.union(other)
    assert words.union() is words


def test_a_side_output_has_the_type_of_its_tag_and_comes_from_process_only(
    env: StreamExecutionEnvironment, words: DataStream
) -> None:
    tag = OutputTag("late", "word string")
    side = words.process(Split(), COLUMNS).get_side_output(tag)
    side.print()

    assert side.get_type().ddl == tag.type_info.ddl
    assert [node.tag for node in env.get_stream_graph().of(SideOutputNode)] == ["late"]
    with pytest.raises(ConfigurationError, match="only the streams that process"):
        words.get_side_output(tag)
    with pytest.raises(ConfigurationError, match="a name that is not empty"):
        OutputTag("")


def test_a_sink_must_be_an_instance_and_must_be_able_to_write_the_type(words: DataStream, tmp_path: Any) -> None:
    with pytest.raises(ConfigurationError, match="takes an instance of"):
        words.sink_to(ParquetFileSink)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="takes an instance of"):
        words.sink_to("out")  # type: ignore[arg-type]
    undeclared = words.map(lambda row: {"any": row})
    with pytest.raises(ConfigurationError, match=r"ParquetFileSink writes columns.*pass output_type"):
        undeclared.sink_to(ParquetFileSink(tmp_path))
    with pytest.raises(ConfigurationError, match="for_each_epoch writes columns"):
        undeclared.for_each_epoch(lambda df, epoch: None)
    with pytest.raises(ConfigurationError, match=r"takes a function write\(df, epoch, incarnation\)"):
        words.for_each_epoch("write")  # type: ignore[arg-type]
    undeclared.print()


def test_parallelism_of_a_chained_step_has_no_effect_and_says_so(
    words: DataStream, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        words.map(lambda row: row).set_parallelism(1)
    assert "parallelism of 'map' has no effect" in caplog.text
    for wrong in (0, -1, 2**20, True, "2"):
        with pytest.raises(ConfigurationError, match="parallelism must be a whole number from 1 to"):
            words.set_parallelism(wrong)  # type: ignore[arg-type]


def test_an_empty_uid_is_refused(words: DataStream) -> None:
    with pytest.raises(ConfigurationError, match="must not be empty"):
        words.uid("")


def test_a_transform_needs_elements_of_a_declared_type(words: DataStream) -> None:
    with pytest.raises(ConfigurationError, match=r"follows 'map', whose elements are pickled"):
        words.map(lambda row: row).transform(lambda df: df)


def test_a_collection_is_checked_against_its_type_at_once(env: StreamExecutionEnvironment) -> None:
    with pytest.raises(OutputTypeError, match="from_collection"):
        env.from_collection([("kelp", "one")], COLUMNS)
