"""Descriptors: names, types, serializers, functions."""

import pickle

import cloudpickle
import pytest

from holdfast.errors import ConfigurationError
from holdfast.state import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.testing.state_contract.state_access_contract import Reversed
from holdfast.types.types import Types


def test_types_may_be_written_in_many_ways():
    for described in (Types.LONG(), "bigint", int, Types.LONG().create_serializer()):
        assert ValueStateDescriptor("s", described).type_info == Types.LONG()
    assert ValueStateDescriptor("s").type_info == Types.PICKLED_BYTE_ARRAY()
    assert MapStateDescriptor("s", str, dict).key_type_info == Types.STRING()


def test_name_and_kind_make_a_descriptor():
    assert ValueStateDescriptor("s", "bigint") == ValueStateDescriptor("s", "string")
    assert hash(ValueStateDescriptor("s", "bigint")) == hash(ValueStateDescriptor("s"))
    assert ValueStateDescriptor("s") != ListStateDescriptor("s")
    assert ValueStateDescriptor("s") != ValueStateDescriptor("t")
    for name in ("", None, 5, "_timer_state/event_x"):
        with pytest.raises(ConfigurationError):
            ValueStateDescriptor(name)


def test_a_serializer_is_taken_unless_there_is_one():
    mine, other = Reversed(), Reversed()
    descriptor = ValueStateDescriptor("s", mine)
    descriptor.initialize_serializer_unless_set(other)
    assert descriptor.get_serializer() is mine
    late = ValueStateDescriptor("s")
    assert not late.is_serializer_initialized()
    late.initialize_serializer_unless_set(mine)
    assert late.get_serializer() is mine
    by_type = ValueStateDescriptor("s", "bigint")
    by_type.initialize_serializer_unless_set()
    assert by_type.is_serializer_initialized()


def test_functions_are_objects_or_callables():
    class Longest:
        def reduce(self, a, b):
            return max(a, b, key=len)

    assert ReducingStateDescriptor("s", Longest()).reduce("a", "bb") == "bb"
    assert ReducingStateDescriptor("s", max).reduce(1, 2) == 2
    assert FoldingStateDescriptor("s", "", lambda a, b: a + b).fold("a", "b") == "ab"
    for make in (
        lambda: ReducingStateDescriptor("s", 5),
        lambda: FoldingStateDescriptor("s", 0, Longest()),
        lambda: AggregatingStateDescriptor("s", Longest()),
        lambda: MapStateDescriptor("s", Reversed()),
        lambda: MapStateDescriptor("s", "array<int>"),
    ):
        with pytest.raises(ConfigurationError):
            make()


def test_descriptors_travel():
    descriptor = ValueStateDescriptor("s", "array<bigint>", [1])
    found = pickle.loads(pickle.dumps(descriptor))
    assert (found, found.type_info, found.get_default_value()) == (descriptor, descriptor.type_info, [1])
    assert pickle.loads(cloudpickle.dumps(ReducingStateDescriptor("r", lambda a, b: a + b))).reduce(1, 2) == 3
