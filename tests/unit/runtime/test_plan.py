"""Which operators share a task, and what crosses each exchange."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import ConfigurationError
from holdfast.runtime.function.user_function import CheckpointedFunction
from holdfast.runtime.graph.compiler import compile_graph
from holdfast.runtime.graph.plan import JobPlan
from holdfast.runtime.graph.stream_graph import (
    BroadcastNode,
    FrameTransformNode,
    KeyedNode,
    KeySpec,
    Node,
    NonKeyedNode,
    OperatorSpec,
    SinkNode,
    SourceNode,
    StreamGraph,
    UnionNode,
)
from holdfast.types.type_parser import parse_schema, parse_type

ROW = parse_schema("id bigint, name string")


def source(uid: str = "source") -> SourceNode:
    return SourceNode(name=uid, uid=uid, element_type=ROW, is_streaming=True)


def mapped(before: Node, uid: str) -> NonKeyedNode:
    spec = OperatorSpec(lambda row: row, "map", False, ROW, ROW)
    return NonKeyedNode(inputs=(before,), name=uid, uid=uid, element_type=ROW, operator=spec)


def keyed(uid: str, *before: Node, key: KeySpec | None = None, **settings: Any) -> KeyedNode:
    spec = OperatorSpec(lambda row, ctx: (), "process", True, ROW, ROW)
    return KeyedNode(
        inputs=before,
        name=uid,
        uid=uid,
        element_type=ROW,
        operator=spec,
        key=key or KeySpec(columns=("id",)),
        **settings,
    )


def sink(before: Node, uid: str = "sink") -> SinkNode:
    return SinkNode(inputs=(before,), name=uid, uid=uid, element_type=before.element_type, sink=object())


def plan(*sinks: SinkNode, parallelism: int = 4) -> JobPlan:
    return compile_graph(StreamGraph(sinks), parallelism)


def shape(job: JobPlan) -> list[tuple[int, int, list[str], list[str]]]:
    return [
        (stage.index, stage.tasks, [s.uid for s in stage.steps], [e.consumer for e in stage.leaving])
        for stage in job.stages
    ]


def test_a_keyed_operator_straight_behind_the_source_needs_no_python_before_the_exchange() -> None:
    assert shape(plan(sink(keyed("count", source())))) == [(1, 4, ["count", "sink"], [])]


def test_narrow_operators_are_chained_into_the_task_that_makes_their_input() -> None:
    job = plan(sink(mapped(keyed("count", mapped(source(), "parse")), "format")))
    assert shape(job) == [(0, 0, ["parse"], ["count"]), (1, 4, ["count", "format", "sink"], [])]


def test_a_python_key_selector_needs_python_before_the_exchange() -> None:
    key = KeySpec(selector=lambda row: row.id, key_type=parse_type("bigint"))
    assert shape(plan(sink(keyed("count", source(), key=key)))) == [
        (0, 0, [], ["count"]),
        (1, 4, ["count", "sink"], []),
    ]


def test_two_keyed_operators_of_one_stream_share_the_tasks_of_a_stage() -> None:
    start = source()
    job = plan(sink(keyed("a", start), "sa"), sink(keyed("b", start, parallelism=2), "sb"))
    assert shape(job) == [(1, 4, ["a", "sa", "b", "sb"], [])]


def test_an_edge_that_spans_two_exchanges_is_handed_on_by_the_stage_between() -> None:
    start = source()
    job = plan(sink(keyed("second", start, keyed("first", start))))
    assert shape(job) == [(1, 4, ["first"], ["second", "second"]), (2, 4, ["second", "sink"], [])]
    assert [edge.from_stage for edge in job.stages[1].arriving] == [0, 1]


class Keeping(CheckpointedFunction):
    def initialize_state(self, context: Any) -> None:
        raise AssertionError("not reached")

    def snapshot_state(self, context: Any) -> None:
        raise AssertionError("not reached")


def test_an_operator_with_operator_state_has_an_exchange_and_subtasks_of_its_own() -> None:
    start = source()
    spec = OperatorSpec(Keeping(), "map", False, ROW, ROW)
    keeping = NonKeyedNode(inputs=(start,), name="k", uid="k", element_type=ROW, operator=spec, parallelism=3)
    job = plan(sink(keeping), sink(keyed("count", start), "other"))
    assert shape(job) == [(1, 4, ["k", "sink", "count", "other"], [])]
    assert [step.uid for step in job.stateful_steps()] == ["k", "count"]
    by_consumer = {edge.consumer: edge for edge in job.edges}
    assert [by_consumer["k"].targets(1, 4, partition) for partition in range(4)] == [(0,), (1,), (2,), (0,)]
    assert by_consumer["count"].targets(1, 4, 2) == (None,)


def test_a_broadcast_goes_to_every_subtask_at_the_last_exchange_only() -> None:
    start, rules = source(), source("rules")
    first = keyed("first", start)
    second = BroadcastNode(inputs=(rules,), name="b", uid="b", element_type=ROW)
    job = plan(sink(keyed("second", first, second, parallelism=2)))
    [edge] = [edge for edge in job.edges if edge.broadcast]
    assert (edge.origin.name, edge.from_stage, edge.to_stage, edge.key) == ("rules", 0, 2, None)
    assert list(edge.targets(1, 4, 3)) == [3]
    assert list(edge.targets(2, 2, 3)) == [0, 1]


def test_a_union_is_no_step_of_its_own() -> None:
    merged = UnionNode(inputs=(source("a"), mapped(source("b"), "m")), name="union", uid="union", element_type=ROW)
    assert shape(plan(sink(keyed("count", merged)))) == [
        (0, 0, ["m"], ["count", "count"]),
        (1, 4, ["count", "sink"], []),
    ]


def test_a_job_without_keys_is_one_stage_on_the_sources_partitions() -> None:
    assert shape(plan(sink(mapped(source(), "m")))) == [(0, 0, ["m", "sink"], [])]


def transformed(before: Node, uid: str) -> FrameTransformNode:
    return FrameTransformNode(inputs=(before,), name=uid, uid=uid, element_type=ROW, function=lambda df: df)


def epoch_jobs(job: JobPlan) -> list[tuple[int, list[int], list[tuple[str, tuple[str, ...]]]]]:
    return [
        (
            epoch_job.base,
            [stage.index for stage in epoch_job.stages],
            [(source.uid, source.staged) for source in epoch_job.sources],
        )
        for epoch_job in job.epoch_jobs
    ]


def test_a_transform_of_an_input_is_part_of_its_epoch_job() -> None:
    job = plan(sink(keyed("count", transformed(transformed(source(), "a"), "b"))))
    assert epoch_jobs(job) == [(0, [1], [("b", ())])]


def test_a_transform_after_a_python_operator_begins_an_epoch_job_that_reads_staged_files() -> None:
    job = plan(sink(keyed("count", transformed(keyed("first", mapped(source(), "m")), "t"))))
    assert epoch_jobs(job) == [(0, [0, 1], [("source", ())]), (2, [3], [("t", ("first (staged)",))])]
    assert shape(job) == [
        (0, 0, ["m"], ["first"]),
        (1, 4, ["first", "first (staged)"], []),
        (3, 4, ["count", "sink"], []),
    ]
    assert [step.uid for step in job.stateful_steps()] == ["first", "count"]
    assert [step.uid for step in job.sinks()] == ["sink"]


def test_transforms_share_an_epoch_job_unless_python_is_between_them() -> None:
    first = transformed(transformed(mapped(source(), "m"), "a"), "b")
    second = transformed(mapped(first, "n"), "c")
    job = plan(sink(second))
    assert epoch_jobs(job) == [
        (0, [0], [("source", ())]),
        (1, [1], [("b", ("m (staged)",))]),
        (2, [2], [("c", ("n (staged)",))]),
    ]


def test_a_stream_that_joins_a_later_epoch_job_is_staged_once_where_it_is_made() -> None:
    start = source()
    early = keyed("early", start)
    late = transformed(mapped(start, "m"), "t")
    merged = UnionNode(inputs=(early, late), name="union", uid="union", element_type=ROW)
    job = plan(sink(keyed("a", merged), "sa"), sink(keyed("b", early, late), "sb"), sink(keyed("c", early), "sc"))
    assert epoch_jobs(job)[1] == (3, [4], [("t", ("m (staged)",)), ("early (staged)", ("early (staged)",))])
    assert shape(job) == [
        (0, 0, ["m", "m (staged)"], ["early"]),
        (1, 4, ["early", "early (staged)"], ["c"]),
        (2, 4, ["c", "sc"], []),
        (4, 4, ["a", "sa", "b", "sb"], []),
    ]


def test_a_stream_that_is_united_with_itself_before_a_transform_is_staged_twice() -> None:
    before = mapped(source(), "m")
    inner = UnionNode(inputs=(before, source("other")), name="u", uid="u", element_type=ROW)
    outer = UnionNode(inputs=(before, inner), name="v", uid="v", element_type=ROW)
    job = plan(sink(transformed(outer, "t")))
    assert epoch_jobs(job)[1][2] == [("t", ("m (staged)", "m (staged 2)", "other (staged)"))]


@pytest.mark.parametrize(
    ("key", "message"),
    [(KeySpec(columns=("nope",)), "nope"), (KeySpec(columns=("id",), order_by=("missing",)), "missing")],
)
def test_key_and_order_columns_must_exist(key: KeySpec, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        plan(sink(keyed("count", source(), key=key)))


def test_stored_max_parallelism_is_adopted_and_bounds_the_parallelism() -> None:
    graph = StreamGraph([sink(keyed("count", source()))])
    assert compile_graph(graph, 4, None, {"count": 512}).keyed_steps()[0].max_parallelism == 512
    with pytest.raises(ConfigurationError, match="above the max parallelism 2"):
        compile_graph(graph, 4, None, {"count": 2})


@pytest.mark.parametrize("maximum", [0, -1, 32769])
def test_a_max_parallelism_that_cannot_be_is_refused_by_its_option(maximum: int) -> None:
    graph = StreamGraph([sink(keyed("count", source()))])
    with pytest.raises(ConfigurationError, match=r"pipeline.max-parallelism must be from 1 to 32768"):
        compile_graph(graph, 4, maximum)


def test_a_uid_is_unique_and_a_missing_one_can_be_an_error() -> None:
    start = source()
    with pytest.raises(ConfigurationError, match="two steps"):
        StreamGraph([sink(keyed("same", start)), sink(keyed("same", start), "other")])
    nameless = keyed("count", start)
    nameless.uid = None
    with pytest.raises(ConfigurationError, match="no uid"):
        StreamGraph([sink(nameless)], auto_generate_uids=False)
    assert StreamGraph([sink(nameless)]).nodes[1].identity.startswith("process-")


def test_an_impossible_parallelism_names_the_uid() -> None:
    wide = keyed("count", source())
    wide.parallelism, wide.max_parallelism = 8, 4
    with pytest.raises(ConfigurationError, match="parallelism 8 of 'count' is above its max parallelism 4"):
        StreamGraph([sink(wide)])


def test_a_job_without_a_sink_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no sink"):
        StreamGraph([])
