"""Two streams connected: of different types, for one function that has a method for the elements of each."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from holdfast.datastream.stream.data_stream import DataStream
from holdfast.datastream.stream.keyed_stream import KeyedStream
from holdfast.datastream.stream.operation import declared_type
from holdfast.errors import ConfigurationError
from holdfast.runtime.function.broadcast import BaseBroadcastProcessFunction
from holdfast.runtime.function.two_inputs import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedCoProcessFunction,
)
from holdfast.runtime.graph.stream_graph import KeyedNode, KeySpec, NarrowNode, OperatorSpec, SecondInputNode, Shape
from holdfast.types.information.type_information import RowTypeInformation, StructTypeInformation, TypeInformation


class ConnectedStreams:
    """Two streams, both keyed or both not, waiting for a function of both. `DataStream.connect` makes them.

    The function has one instance for both, so that elements of one find in its state what those of the other have left.

    Raises:
        ConfigurationError: Only one of them is keyed, or their keys have different types.
    """

    def __init__(self, stream1: DataStream, stream2: DataStream) -> None:
        if stream1._environment is not stream2._environment:
            raise ConfigurationError("connect() takes streams of one environment.")
        self.stream1 = stream1
        self.stream2 = stream2
        self._keys: tuple[KeySpec, KeySpec] | None = None
        if isinstance(stream1, KeyedStream) and isinstance(stream2, KeyedStream):
            self._keys = _common_keys(stream1, stream2)

    def key_by(self, key_selector1: Any, key_selector2: Any, key_type: Any = None) -> ConnectedStreams:
        """Partitions both streams by the same key, so that the function after it has state for each key.

        Args:
            key_selector1: Columns of the first stream, or a function that computes the key; as in `DataStream.key_by`.
            key_selector2: The same for the second stream.
            key_type: Type of what the functions return. Without it that of the columns, if there are any.

        Raises:
            ConfigurationError: A column does not exist, or the keys have different types.
        """
        first, second = _origin(self.stream1), _origin(self.stream2)
        types = [None if isinstance(selector, str) else key_type for selector in (key_selector1, key_selector2)]
        return ConnectedStreams(first.key_by(key_selector1, types[0]), second.key_by(key_selector2, types[1]))

    def map(self, func: CoMapFunction, output_type: Any = None) -> DataStream:
        """Replaces each element of either stream by one other, or by none where the function returns None.

        Raises:
            ConfigurationError: It is no `CoMapFunction`, or the type cannot be understood.
        """
        return self._apply("map", func, (CoMapFunction,), output_type)

    def flat_map(self, func: CoFlatMapFunction, output_type: Any = None) -> DataStream:
        """Replaces each element of either stream by any number of others.

        Raises:
            ConfigurationError: It is no `CoFlatMapFunction`, or the type cannot be understood.
        """
        return self._apply("flat_map", func, (CoFlatMapFunction,), output_type)

    def process(self, func: CoProcessFunction | KeyedCoProcessFunction, output_type: Any = None) -> DataStream:
        """Passes the elements of both streams with their context to a function that emits any number of others.

        Raises:
            ConfigurationError: It is no `CoProcessFunction` and no `KeyedCoProcessFunction`, is one of keyed streams
                where these have no keys, or the type cannot be understood.
        """
        if self._keys is None and isinstance(func, KeyedCoProcessFunction):
            raise ConfigurationError(
                f"process() of streams without keys takes a CoProcessFunction; {type(func).__name__} is a "
                "KeyedCoProcessFunction: call key_by() before process()."
            )
        return self._apply("process", func, (CoProcessFunction, KeyedCoProcessFunction), output_type)

    def _apply(
        self, shape: Shape, function: Any, kinds: tuple[type[Any], ...], output_type: Any, *, gives_times: bool = False
    ) -> DataStream:
        if isinstance(function, BaseBroadcastProcessFunction):
            raise ConfigurationError(
                f"{type(function).__name__} is a function of a broadcast stream, and none of the two is broadcast: "
                "write connect(rules.broadcast(descriptor))."
            )
        if not isinstance(function, kinds):
            names = " or ".join(f"a {kind.__name__}" for kind in kinds)
            is_class = inspect.isclass(function) and issubclass(function, kinds)
            shown = f"the class: write {function.__name__}()" if is_class else repr(function)
            raise ConfigurationError(f"{shape}() of connected streams takes an instance of {names}, not {shown}.")
        self._require_both_or_neither()
        element_type = declared_type(output_type, shape)
        first, second = self.stream1, self.stream2
        spec = OperatorSpec(
            function,
            shape,
            self._keys is not None,
            first.get_type(),
            element_type,
            second_type=second.get_type(),
            gives_times=gives_times,
        )
        key = None if self._keys is None else self._keys[1]
        other = SecondInputNode(inputs=(second._node,), name=second._node.name, element_type=second.get_type(), key=key)
        inputs = (first._node, other)
        name = f"{'keyed_' if self._keys else ''}co_{shape}"
        if self._keys is None:
            plain = NarrowNode(inputs=inputs, name=name, element_type=element_type, operator=spec)
            return DataStream(first._environment, plain)
        keyed = KeyedNode(inputs=inputs, name=name, element_type=element_type, operator=spec, key=self._keys[0])
        return DataStream(first._environment, keyed)

    def _require_both_or_neither(self) -> None:
        keyed = [isinstance(stream, KeyedStream) for stream in (self.stream1, self.stream2)]
        if keyed[0] != keyed[1]:
            one, other = ("first", "second") if keyed[0] else ("second", "first")
            raise ConfigurationError(
                f"the {one} of the connected streams is keyed and the {other} is not: call key_by() on both, or on "
                "what connect() returns."
            )


def _origin(stream: DataStream) -> DataStream:
    """The stream that a keyed one was made of."""
    return DataStream(stream._environment, stream._node) if isinstance(stream, KeyedStream) else stream


def _common_keys(stream1: KeyedStream, stream2: KeyedStream) -> tuple[KeySpec, KeySpec]:
    """The keys of both streams with the same type; one that was not declared is that of the other."""
    keys = stream1._key, stream2._key
    types = [_key_type(stream) for stream in (stream1, stream2)]
    known = [type_ for type_ in types if type_ is not None]
    if len(known) == 2 and not _are_alike(*known):
        raise ConfigurationError(
            f"connect() takes streams with keys of one type: {stream1._node.name!r} has {known[0].ddl!r}, "
            f"{stream2._node.name!r} has {known[1].ddl!r}. Cast the column, or declare the same key_type."
        )
    if len(known) == 1:
        keys = tuple(key if key.selector is None else replace(key, key_type=known[0]) for key in keys)  # type: ignore[assignment]
    return keys


def _key_type(stream: KeyedStream) -> TypeInformation | None:
    key, element = stream._key, stream.get_type()
    if key.selector is not None:
        return key.key_type
    assert isinstance(element, RowTypeInformation)
    types = dict(zip(element.names, element.types, strict=True))
    if len(key.columns) == 1:
        return types[key.columns[0]]
    return RowTypeInformation(list(key.columns), [types[name] for name in key.columns])


def _are_alike(one: TypeInformation, other: TypeInformation) -> bool:
    """Whether keys of two types are the same keys: names of their parts do not count."""
    if isinstance(one, StructTypeInformation) and isinstance(other, StructTypeInformation):
        parts = zip(one.types, other.types, strict=False)
        return len(one.types) == len(other.types) and all(_are_alike(*pair) for pair in parts)
    return one == other
