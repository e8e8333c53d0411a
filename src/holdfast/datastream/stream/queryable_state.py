"""A keyed stream as queryable state: the last element of each key, or all of them reduced, for readers outside."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.errors import ConfigurationError
from holdfast.runtime.function.sink import Sink, SinkWriter, WriterContext, WriterInitContext
from holdfast.runtime.function.user_function import KeyedProcessFunction, RuntimeContext
from holdfast.state.declaration.descriptor import ReducingStateDescriptor, StateDescriptor, ValueStateDescriptor


class QueryableStateStream:
    """The end of a stream whose elements are kept as queryable state."""

    def __init__(self, name: str, descriptor: StateDescriptor[Any]) -> None:
        self._name = name
        self._descriptor = descriptor

    def get_queryable_state_name(self) -> str:
        """Returns the name under which the state is queried."""
        return self._name

    def get_state_descriptor(self) -> StateDescriptor[Any]:
        """Returns the descriptor of the state."""
        return self._descriptor


class KeepForQueries(KeyedProcessFunction):
    """Keeps the elements of each key in a state, and emits nothing."""

    def __init__(self, descriptor: StateDescriptor[Any]) -> None:
        self._descriptor = descriptor

    def open(self, runtime_context: RuntimeContext) -> None:
        """Ask for the state."""
        if isinstance(self._descriptor, ReducingStateDescriptor):
            self._keep = runtime_context.get_reducing_state(self._descriptor).add
        else:
            assert isinstance(self._descriptor, ValueStateDescriptor)
            self._keep = runtime_context.get_state(self._descriptor).update

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        """Keep one element."""
        self._keep(value)
        return ()


class NoOutput(Sink):
    """The sink of a stream that has no elements."""

    def create_writer(self, context: WriterInitContext) -> SinkWriter:
        """Return a writer that is never called."""
        return _NoOutputWriter()


class _NoOutputWriter(SinkWriter):
    def write(self, element: Any, context: WriterContext) -> None:
        raise AssertionError("there are no elements")


def queryable_descriptor(name: str, given: StateDescriptor[Any] | None, element_type: Any) -> StateDescriptor[Any]:
    """Return the descriptor of the state in which elements are kept.

    Raises:
        ConfigurationError: Elements cannot be kept in the given one.
    """
    if given is None:
        given = ValueStateDescriptor(name, element_type)
    if not isinstance(given, (ValueStateDescriptor, ReducingStateDescriptor)):
        raise ConfigurationError(
            f"as_queryable_state() keeps elements in value or reducing state, not in {given.kind.value} state. Use a "
            "KeyedProcessFunction and set_queryable() on its descriptor."
        )
    if not given.is_queryable():
        given.set_queryable(name)
    elif given.get_queryable_state_name() != name:
        raise ConfigurationError(f"The descriptor is queryable as {given.get_queryable_state_name()!r}, not {name!r}.")
    return given
