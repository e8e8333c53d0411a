"""`stream.as_queryable_state(name)`: the last element of each key, or all of them reduced, can be asked for."""

import pytest

from holdfast.datastream import StreamExecutionEnvironment
from holdfast.datastream.stream.keyed_stream import NoOutput, QueryableStateFunction, queryable_descriptor
from holdfast.errors import ConfigurationError
from holdfast.runtime.graph.stream_graph import KeyedNode, KeySpec, OperatorSpec, SinkNode, SourceNode, StreamGraph
from holdfast.state.descriptor import ListStateDescriptor, ReducingStateDescriptor, ValueStateDescriptor
from holdfast.testing.epoch_runner import LocalEngine, run_job
from holdfast.types.type_parser import parse_schema

ELEMENT = parse_schema("word string, n bigint")


def run(directory, descriptor, bench):
    source = SourceNode(name="words", uid="words", element_type=ELEMENT, is_streaming=True)
    kept = KeyedNode(
        inputs=(source,),
        name="kept",
        uid="kept",
        element_type=ELEMENT,
        operator=OperatorSpec(QueryableStateFunction(descriptor), "process", True, ELEMENT, ELEMENT),
        key=KeySpec(columns=("word",), order_by=("n",)),
    )
    sink = SinkNode(inputs=(kept,), name="end", uid="end", element_type=ELEMENT, sink=NoOutput())
    inputs = [{"words": [(word, 10 * epoch + i) for i, word in enumerate("aabc")]} for epoch in range(4)]
    master = run_job(StreamGraph([sink]), directory, LocalEngine(inputs), name="words")
    master.run()
    server = bench.server()
    server.serve_job(master.job.directory, master.job.register)
    return bench.client(server)


def test_the_last_element_of_each_key(tmp_path, bench):
    client = run(tmp_path, queryable_descriptor("last", None, ELEMENT), bench)
    assert client.get_many("words", "last", ["a", "b", "c", "d"]).values == [("a", 31), ("b", 32), ("c", 33), None]
    assert client.get_kv_state("words", "last", "a").value.n == 31


def test_all_elements_of_each_key_reduced(tmp_path, bench):
    total = ReducingStateDescriptor("sum", lambda a, b: (a[0], a[1] + b[1]), ELEMENT)
    client = run(tmp_path, queryable_descriptor("sums", total, ELEMENT), bench)
    assert client.get_many("words", "sums", ["a", "b", "c"]).values == [("a", 124), ("b", 68), ("c", 72)]


def test_only_value_and_reducing_state_keep_elements_and_only_under_one_name():
    with pytest.raises(ConfigurationError, match="not in list state"):
        queryable_descriptor("x", ListStateDescriptor("x"), ELEMENT)
    named = ValueStateDescriptor("x")
    named.set_queryable("y")
    with pytest.raises(ConfigurationError, match="queryable as 'y', not 'x'"):
        queryable_descriptor("x", named, ELEMENT)
    assert queryable_descriptor("y", named, ELEMENT) is named


def test_a_keyed_stream_ends_in_queryable_state():
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_collection([("a", 1)], "word string, n bigint").key_by("word").as_queryable_state("last")
    assert stream.get_queryable_state_name() == "last"
    assert stream.get_state_descriptor().is_queryable()
    [sink] = env._sinks
    assert sink.inputs[0].uid == "queryable-last"
