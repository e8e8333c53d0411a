"""Elements that cross an exchange in messages arrive where their keys say, in the order in which a task sent them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.errors import NullKeyError
from holdfast.kernel.key_group import key_group_of, subtask_of
from holdfast.runtime.exchange import layout as packed_layout
from holdfast.runtime.exchange.layout import CONTROL, TARGET, MessageLayout, MessageWriter
from holdfast.runtime.graph.plan import Edge, KeyPlan, Port
from holdfast.runtime.graph.stream_graph import KeySpec
from holdfast.types.key_codec import key_codec_for
from holdfast.types.type_parser import to_type

TASKS = 3
ROWS_AT_ONCE = 10_000
GROUPS = 16
TYPE = to_type("word string, n bigint, list array<string>")
ROWS = st.lists(st.tuples(st.text(max_size=5), st.integers(-(2**63), 2**63 - 1), st.none() | st.lists(st.text())))


def keyed(number: int, *, key: str = "word") -> Edge:
    codec = key_codec_for(to_type("string" if key == "word" else "bigint"))
    plan = KeyPlan(KeySpec(columns=(key,)), codec, TASKS, GROUPS)
    return Edge(f"edge-{number}", Port("step", "above"), "below", 0, 1, TYPE, plan)


def plain(number: int, *, broadcast: bool = False) -> Edge:
    return Edge(f"edge-{number}", Port("step", "above"), "below", 0, 1, TYPE, None, TASKS, broadcast)


def batch_of(rows: Sequence[Any]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) if rows else [[], [], []]
    types = [pa.string(), pa.int64(), pa.list_(pa.string())]
    arrays = [pa.array(list(column), type_) for column, type_ in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=["word", "n", "list"])


def arrived(layout: MessageLayout, sent: Iterable[pa.RecordBatch]) -> dict[int, dict[str, list[Any]]]:
    """What each task reads of each edge."""
    found: dict[int, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for batch in sent:
        for target in set(batch.column(TARGET).to_pylist()):
            mine = batch.filter(pa.compute.equal(batch.column(TARGET), target))
            marker = b"m" * (25 + target)  # behind it, messages lie at odd addresses
            both = pa.Table.from_batches([layout.control([marker, marker]), mine]).combine_chunks().to_batches()[0]
            controls, arrivals = layout.unpack(both.slice(1))
            assert controls == [marker]
            for arrival in arrivals:
                rows = [tuple(row.values()) for row in arrival.batch.to_pylist()]
                found[target][arrival.edge.name] += rows
                if arrival.edge.key is not None:
                    assert arrival.hashes is not None
                    key = arrival.edge.key.spec.columns[0]
                    told = arrival.edge.key.codec.hashes(arrival.batch.column(key).to_pylist())
                    assert arrival.hashes.tolist() == told.tolist()
    return found


@given(
    st.lists(st.tuples(st.integers(0, 3), ROWS), max_size=6),
    st.sampled_from([1, 200, 1 << 20]),
    st.sampled_from([ROWS_AT_ONCE, 10**9]),
)
def test_each_element_arrives_at_the_subtask_of_its_key_in_order(
    sendings: list[tuple[int, list[Any]]], held: int, batch_rows: int
) -> None:
    edges = [keyed(0), keyed(1, key="n"), plain(2), plain(3, broadcast=True)]
    layout = MessageLayout(edges)
    expected: dict[int, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    sent: list[pa.RecordBatch] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_layout, "_HELD", held)
        patch.setattr(packed_layout, "_MESSAGE_BYTES", held)
        packer = MessageWriter(layout, TASKS, batch_rows)
        for number, rows in sendings:
            edge = edges[number]
            targets = edge.targets(1, TASKS, 4)
            sent += packer.add(edge, batch_of(rows), targets)
            for row in rows:
                places: Iterable[Any] = targets
                if edge.key is not None:
                    [hash64] = edge.key.codec.hashes([row[number]]).tolist()
                    places = [subtask_of(key_group_of(hash64, GROUPS), GROUPS, TASKS)]
                for place in places:
                    expected[place][edge.name].append(row)
        sent += packer.flush()
    assert not list(packer.flush())
    found = arrived(layout, sent)
    assert {task: dict(edges) for task, edges in found.items()} == {t: dict(edges) for t, edges in expected.items()}


def test_messages_have_a_few_megabytes_and_one_element_may_have_more() -> None:
    layout = MessageLayout([keyed(0)])
    packer = MessageWriter(layout, TASKS, ROWS_AT_ONCE)
    rows = [("word", at, ["x" * (9 << 20) if at == 5 else "y" * (1 << 20)]) for at in range(12)]
    sent = [*packer.add(layout.edges[0], batch_of(rows), (None,)), *packer.flush()]
    sizes = [len(content) for batch in sent for content in batch.column(CONTROL).to_pylist() if content]
    assert sum(size > 6 << 20 for size in sizes) <= 2
    assert len(sizes) >= 4
    [(_, edges)] = arrived(layout, sent).items()
    assert [row[1] for row in edges["edge-0"]] == list(range(12))


def test_large_messages_are_taken_one_by_one_and_small_ones_together() -> None:
    layout = MessageLayout([keyed(0)])
    for many, batches in ((12_000, 2), (200, 1)):
        sent = []
        for start in (0, many):
            packer = MessageWriter(layout, 1, ROWS_AT_ONCE)
            rows = [("word", at, None) for at in range(start, start + many)]
            sent += [*packer.add(layout.edges[0], batch_of(rows), (None,)), *packer.flush()]
        _, arrivals = layout.unpack(pa.Table.from_batches(sent).combine_chunks().to_batches()[0])
        found = list(arrivals)
        assert [row["n"] for arrival in found for row in arrival.batch.to_pylist()] == list(range(2 * many))
        assert len(found) == batches


def test_an_element_without_a_key_is_refused_by_the_name_of_its_consumer() -> None:
    layout = MessageLayout([keyed(0)])
    packer = MessageWriter(layout, TASKS, ROWS_AT_ONCE)
    with pytest.raises(NullKeyError, match="below"):
        [*packer.add(layout.edges[0], batch_of([("a", 1, None), (None, 2, None)]), (None,)), *packer.flush()]


def test_markers_come_as_they_were_sent_and_ticks_say_nothing() -> None:
    layout = MessageLayout([keyed(0)])
    controls, arrivals = layout.unpack(layout.control([b"", b"m" * 24]))
    assert controls == [b"m" * 24]
    assert not list(arrivals)


@pytest.mark.parametrize("batch_rows", [500, 10_000, 50_000])
def test_however_many_rows_a_task_gets_at_once_their_messages_stay_below_some_megabytes(batch_rows: int) -> None:
    """What a JVM gathers at once lies outside of its heap, and too much of it has killed some."""
    layout = MessageLayout([keyed(0), keyed(1, key="n")])
    packer = MessageWriter(layout, 1, batch_rows)
    sent: list[pa.RecordBatch] = []
    for start in range(0, 64, 8):
        rows = [(f"word{at}", at, ["x" * ((5 if at % 8 == 3 else 1) << 20)]) for at in range(start, start + 8)]
        sent += packer.add(layout.edges[start // 8 % 2], batch_of(rows), (None,))
    sent += packer.flush()
    assert {target for batch in sent for target in batch.column(TARGET).to_pylist()} == {0, 1, 2}
    for target in range(TASKS):
        mine = [batch.filter(pa.compute.equal(batch.column(TARGET), target)) for batch in sent]
        sizes = [size for batch in mine for size in pa.compute.binary_length(batch.column(CONTROL)).to_pylist()]
        together = [sum(sizes[first : first + batch_rows]) for first in range(0, len(sizes), batch_rows)]
        assert max(together) < 38 << 20
    assert sum(batch.nbytes for batch in sent) > 3 * (30 << 20), "else it would be no wonder"


STRETCHES = [(0, 3000), (40, 1500), (1000, 60), (40_000, 2)]
"""Bytes of an element, and how many such elements come one after the other."""


@given(st.lists(st.sampled_from(STRETCHES), max_size=8), st.sampled_from([200, 1_000, 10_000]), st.booleans())
@example([(0, 3000), (1000, 60)], 1_000, True)
def test_however_unlike_elements_are_a_task_gets_no_more_at_once_than_a_bound_and_a_message(
    stretches: list[tuple[int, int]], batch_rows: int, has_key: bool
) -> None:
    """With all bounds a 256th of what they are."""
    edge = keyed(0) if has_key else plain(0)
    layout = MessageLayout([edge])
    bounds = {"_MESSAGE_BYTES": 16 << 10, "_BATCH_BYTES": 112 << 10, "_HELD": 128 << 10, "_HELD_FOR_A_TASK": 8 << 10}
    sizes = [size for size, count in stretches for _ in range(count)]
    with pytest.MonkeyPatch.context() as patch:
        for name, bound in bounds.items():
            patch.setattr(packed_layout, name, bound)
        packer = MessageWriter(layout, TASKS, batch_rows)
        rows = [("word", at, ["x" * size]) for at, size in enumerate(sizes)]
        sent = [*packer.add(edge, batch_of(rows), (None,) if has_key else (1,)), *packer.flush()]
    contents = [content for batch in sent for content in batch.column(CONTROL).to_pylist()]
    read = [layout._read(pa.py_buffer(content))[1] for content in contents if content]
    assert [number for piece in read for number in piece["n"].to_pylist()] == list(range(len(sizes)))
    envelope = 2 << 10
    for content, piece in zip(filter(None, contents), read, strict=True):
        assert len(content) < bounds["_MESSAGE_BYTES"] + envelope or piece.num_rows == 1
    together = [sum(map(len, contents[first : first + batch_rows])) for first in range(0, len(contents), batch_rows)]
    message = max([bounds["_MESSAGE_BYTES"], *sizes]) + envelope
    assert max(together, default=0) < 1.1 * bounds["_BATCH_BYTES"] + message


def test_broadcast_messages_are_sent_in_parts_for_any_number_of_tasks() -> None:
    layout = MessageLayout([plain(0, broadcast=True)])
    packer = MessageWriter(layout, 24, ROWS_AT_ONCE)
    rows = [(f"word{at}", at, ["x" * (1 << 20)]) for at in range(8)]
    sent = [*packer.add(layout.edges[0], batch_of(rows), range(24)), *packer.flush()]
    assert max(batch.column(CONTROL).nbytes for batch in sent) < 34 << 20
    for target in range(24):
        mine = [batch.filter(pa.compute.equal(batch.column(TARGET), target)) for batch in sent]
        _, arrivals = layout.unpack(pa.Table.from_batches(mine).combine_chunks().to_batches()[0])
        assert [row["n"] for arrival in arrivals for row in arrival.batch.to_pylist()] == list(range(8))


def test_messages_may_come_as_large_values() -> None:
    """`spark.sql.execution.arrow.useLargeVarTypes` makes them so."""
    layout = MessageLayout([keyed(0)])
    packer = MessageWriter(layout, 1, ROWS_AT_ONCE)
    [batch] = [*packer.add(layout.edges[0], batch_of([("a", 1, ["b"])]), (None,)), *packer.flush()]
    place = batch.schema.get_field_index(CONTROL)
    large = batch.set_column(place, CONTROL, batch.column(CONTROL).cast(pa.large_binary()))
    _, arrivals = layout.unpack(large)
    assert [row["n"] for arrival in arrivals for row in arrival.batch.to_pylist()] == [1]


def test_an_invalid_message_of_the_exchange_is_rejected() -> None:
    layout = MessageLayout([keyed(0)])
    packer = MessageWriter(layout, 1, ROWS_AT_ONCE)
    [batch] = [*packer.add(layout.edges[0], batch_of([("a", 1, ["b"])]), (None,)), *packer.flush()]
    [whole] = batch.column(CONTROL).to_pylist()
    for damaged in (whole[:5], whole[:8], whole[:40], whole[:-8], whole[:2] + b"\x00\x07" + whole[4:]):
        with pytest.raises(ValueError, match="message"):
            layout.unpack(layout.control([damaged]))
