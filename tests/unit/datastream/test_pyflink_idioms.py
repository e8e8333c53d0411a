"""What PyFlink programs write beside calls of methods, and what is said of operators that has no effect here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.common import Types
from holdfast.datastream import BroadcastProcessFunction, KeyedProcessFunction, MapFunction
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
        (lambda: keyed.rebalance(), "go where their keys belong"),
        (lambda: keyed.shuffle(), "go where their keys belong"),
        (lambda: keyed.rescale(), "go where their keys belong"),
        (lambda: keyed.forward(), "go where their keys belong"),
        (lambda: stream.partition_custom(None, lambda row: row.k), r"key_by\(key_selector\)"),
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
