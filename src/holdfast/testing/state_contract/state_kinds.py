"""One state of each kind, for tests that are about all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.state.declaration.descriptor import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.types.conversion.convert import to_type
from holdfast.types.information.type_information import Types


def kinds_of_state(old: Any, new: Any) -> list[tuple[Any, Any, Callable[..., None], Callable[[Any], Any]]]:
    """One state of each kind: how it was declared, how it is now, what writes values, what reads them as a list."""
    aggregate = _Collect()
    return [
        (
            ValueStateDescriptor("v", old),
            ValueStateDescriptor("v", new),
            lambda state, values: state.update(values[0]),
            lambda state: [state.value()],
        ),
        (
            ListStateDescriptor("l", old),
            ListStateDescriptor("l", new),
            lambda state, values: state.add_all(values),
            lambda state: list(state.get()),
        ),
        (
            MapStateDescriptor("m", "bigint", old),
            MapStateDescriptor("m", "bigint", new),
            lambda state, values: state.put_all(dict(enumerate(values, start=len(list(state.keys()))))),
            lambda state: [value for _, value in sorted(state.items())],
        ),
        (
            ReducingStateDescriptor("r", lambda _, b: b, old),
            ReducingStateDescriptor("r", lambda _, b: b, new),
            lambda state, values: state.add(values[0]),
            lambda state: [state.get()],
        ),
        (
            AggregatingStateDescriptor("a", aggregate, Types.LIST(to_type(old))),
            AggregatingStateDescriptor("a", aggregate, Types.LIST(to_type(new))),
            lambda state, values: [state.add(value) for value in values] and None,
            lambda state: state.get(),
        ),
        (
            FoldingStateDescriptor("f", [], lambda acc, b: [*acc, b], Types.LIST(to_type(old))),
            FoldingStateDescriptor("f", [], lambda acc, b: [*acc, b], Types.LIST(to_type(new))),
            lambda state, values: [state.add(value) for value in values] and None,
            lambda state: state.get(),
        ),
    ]


class _Collect:
    def create_accumulator(self) -> list[Any]:
        return []

    def add(self, value: Any, accumulator: list[Any]) -> list[Any]:
        return [*accumulator, value]

    def get_result(self, accumulator: list[Any]) -> list[Any]:
        return accumulator

    def merge(self, first: list[Any], second: list[Any]) -> list[Any]:
        return first + second
