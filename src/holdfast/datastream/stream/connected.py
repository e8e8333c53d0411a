"""Connected streams: two streams of different types, for one function with a method for the elements of each."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

from holdfast.datastream.stream.data_stream import DataStream
from holdfast.datastream.stream.keyed_stream import KeyedStream
from holdfast.datastream.stream.operation import declared_type, key_spec
from holdfast.errors import ConfigurationError
from holdfast.runtime.function.user_function import (
    BaseBroadcastProcessFunction,
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoGroupFunction,
    CoMapFunction,
    CoProcessFunction,
    JoinFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeySelector,
    RuntimeContext,
    close_owner,
    open_owner,
)
from holdfast.runtime.graph.stream_graph import (
    BroadcastNode,
    KeyedNode,
    KeySpec,
    Node,
    NonKeyedNode,
    OperatorSpec,
    SecondInputNode,
    Shape,
)
from holdfast.runtime.window.window import WindowFunction
from holdfast.state.descriptor import MapStateDescriptor
from holdfast.types.composite import RowTypeInformation, StructTypeInformation
from holdfast.types.type_information import TypeInformation


class ConnectedStreams:
    """Two streams, both keyed or both not, for a function of both; `DataStream.connect` makes them.

    The function has one instance for both, so elements of one find in its state what those of the other have left.

        >>> class Enrich(KeyedCoProcessFunction):
        ...     def open(self, runtime_context):
        ...         self.country = runtime_context.get_state(ValueStateDescriptor("country", Types.STRING()))
        ...     def process_element1(self, country, ctx):
        ...         self.country.update(country.name)
        ...     def process_element2(self, sale, ctx):
        ...         yield f"{sale.city}, {self.country.value()}: {sale.n}"
        >>> countries = env.from_collection([("oslo", "norway")], "city string, name string")
        >>> sales = env.from_collection([("oslo", 3)], "city string, n bigint")
        >>> connected = countries.connect(sales).key_by("city", "city")
        >>> list(connected.process(Enrich(), "string").execute_and_collect())
        ['oslo, norway: 3']

    Raises:
        ConfigurationError: The streams come from different environments, or their keys have different types.
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
        """Partition both streams by the same key, so that the function after it has state for each key.

            >>> class Both(CoMapFunction):
            ...     def map1(self, sale):
            ...         return f"sale of {sale.city}"
            ...     def map2(self, country):
            ...         return f"{country.town} is in {country.name}"
            >>> sales = env.from_collection([("oslo", 3)], "city string, n bigint")
            >>> countries = env.from_collection([("oslo", "norway")], "town string, name string")
            >>> connected = sales.connect(countries).key_by("city", "town")
            >>> sorted(connected.map(Both(), "string").execute_and_collect())
            ['oslo is in norway', 'sale of oslo']

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
        """Replace each element of either stream by one other, or by none where the function returns None.

            >>> class Lengths(CoMapFunction):
            ...     def map1(self, value):
            ...         return len(value)
            ...     def map2(self, value):
            ...         return value
            >>> words, numbers = env.from_collection(["abc"], "string"), env.from_collection([7], "bigint")
            >>> sorted(words.connect(numbers).map(Lengths(), "bigint").execute_and_collect())
            [3, 7]

        Args:
            func: The function.
            output_type: Type of the results, as in `DataStream.map`.

        Raises:
            ConfigurationError: It is no `CoMapFunction`, or the type is unknown.
        """
        return self._apply("map", func, (CoMapFunction,), output_type)

    def flat_map(self, func: CoFlatMapFunction, output_type: Any = None) -> DataStream:
        """Replace each element of either stream by any number of others.

            >>> class Words(CoFlatMapFunction):
            ...     def flat_map1(self, value):
            ...         yield from value.split()
            ...     def flat_map2(self, value):
            ...         yield value
            >>> lines, words = env.from_collection(["to be"], "string"), env.from_collection(["or"], "string")
            >>> sorted(lines.connect(words).flat_map(Words(), "string").execute_and_collect())
            ['be', 'or', 'to']

        Args:
            func: The function.
            output_type: Type of the results, as in `DataStream.map`.

        Raises:
            ConfigurationError: It is no `CoFlatMapFunction`, or the type is unknown.
        """
        return self._apply("flat_map", func, (CoFlatMapFunction,), output_type)

    def process(self, func: CoProcessFunction | KeyedCoProcessFunction, output_type: Any = None) -> DataStream:
        """Pass the elements of both streams with their context to a function; the class has an example.

        Args:
            func: The function.
            output_type: Type of the results, as in `DataStream.map`.

        Raises:
            ConfigurationError: It is no `CoProcessFunction` and no `KeyedCoProcessFunction`, is one of keyed streams
                where these have no keys, or the type is unknown.
        """
        if self._keys is None and isinstance(func, KeyedCoProcessFunction):
            raise ConfigurationError(
                f"process() of streams without keys takes a CoProcessFunction; {type(func).__name__} is a "
                "KeyedCoProcessFunction: call key_by() before process()."
            )
        return self._apply("process", func, (CoProcessFunction, KeyedCoProcessFunction), output_type)

    def _apply(
        self,
        shape: Shape,
        function: Any,
        kinds: tuple[type[Any], ...],
        output_type: Any,
        *,
        emits_timestamps: bool = False,
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
            emits_timestamps=emits_timestamps,
        )
        key = None if self._keys is None else self._keys[1]
        other = SecondInputNode(inputs=(second._node,), name=second._node.name, element_type=second.get_type(), key=key)
        inputs = (first._node, other)
        name = f"{'keyed_' if self._keys else ''}co_{shape}"
        if self._keys is None:
            plain = NonKeyedNode(inputs=inputs, name=name, element_type=element_type, operator=spec)
            return DataStream(first._environment, plain)
        keyed = KeyedNode(inputs=inputs, name=name, element_type=element_type, operator=spec, key=self._keys[0])
        return DataStream(first._environment, keyed)

    def _require_both_or_neither(self) -> None:
        keyed = [isinstance(stream, KeyedStream) for stream in (self.stream1, self.stream2)]
        if keyed[0] != keyed[1]:
            one, other = ("first", "second") if keyed[0] else ("second", "first")
            raise ConfigurationError(
                f"The {one} of the connected streams is keyed and the {other} is not: call key_by() on both, or on "
                "what connect() returns."
            )


class WindowJoin:
    """Two streams whose elements meet in windows: `.where(key1).equal_to(key2).window(assigner).apply(function)`.

    `DataStream.join` makes one whose function gets each pair, `DataStream.co_group` one whose function gets all
    elements of a key and a window at once.
    """

    def __init__(self, first: DataStream, second: DataStream, kind: type[JoinFunction | CoGroupFunction]) -> None:
        if not isinstance(second, DataStream) or first._environment is not second._environment:
            raise ConfigurationError(f"A join takes another stream of the same environment, not {second!r}.")
        self._streams = _origin(first), _origin(second)
        self._kind = kind
        self._keys: list[KeySpec] = []
        self._key_type: Any = None
        self._windowed: Any = None

    def where(self, key_selector: Any, key_type: Any = None) -> Self:
        """Set the key of the first stream: a column, several, or a function.

        Raises:
            ConfigurationError: A column does not exist.
        """
        self._keys = [key_spec(key_selector, key_type, (), self._streams[0].get_type())]
        return self

    def equal_to(self, key_selector: Any, key_type: Any = None) -> Self:
        """Set the key of the second stream.

        Raises:
            ConfigurationError: `where` was not called, or its key has another type.
        """
        if len(self._keys) != 1:
            raise ConfigurationError("A join names the key of the first stream first: where(key1).equal_to(key2).")
        second = key_spec(key_selector, key_type, (), self._streams[1].get_type())
        keyed = [
            KeyedStream(s._environment, s._node, k) for s, k in zip(self._streams, (*self._keys, second), strict=True)
        ]
        self._keys = list(_common_keys(*keyed))
        types = [_key_type(stream) for stream in keyed]
        self._key_type = next((type_ for type_ in types if type_ is not None), None)
        return self

    def window(self, window_assigner: Any) -> Self:
        """Set the windows in which elements meet; event-time windows need timestamps on both streams.

        Raises:
            ConfigurationError: The keys were not set, or it is no window assigner.
        """
        if len(self._keys) != 2:
            raise ConfigurationError("A join names its keys before its windows: where(key1).equal_to(key2).")
        sides = [stream.map(_Side(side), None) for side, stream in enumerate(self._streams)]
        both = sides[0].union(sides[1])
        self._windowed = both.key_by(_KeyOfSide(self._keys), self._key_type).window(window_assigner)
        return self

    def trigger(self, trigger: Any) -> Self:
        """Set the trigger of the windows, as `WindowedStream.trigger` does."""
        self._windowed = self._windows().trigger(trigger)
        return self

    def evictor(self, evictor: Any) -> Self:
        """Set the evictor of the windows, as `WindowedStream.evictor` does."""
        self._windowed = self._windows().evictor(evictor)
        return self

    def allowed_lateness(self, time_ms: Any) -> Self:
        """Keep windows for late elements, as `WindowedStream.allowed_lateness` does."""
        self._windowed = self._windows().allowed_lateness(time_ms)
        return self

    def apply(self, function: JoinFunction | CoGroupFunction, output_type: Any = None) -> DataStream:
        """Call the function when a window fires.

        Args:
            function: A `JoinFunction` after `join`, a `CoGroupFunction` after `co_group`.
            output_type: Type of the results, as in `DataStream.map`.

        Raises:
            ConfigurationError: The windows were not set, or the function is of another kind.
        """
        if not isinstance(function, self._kind):
            raise ConfigurationError(f"This join takes an instance of {self._kind.__name__}, not {function!r}.")
        joined: DataStream = self._windows().apply(JoinWindowFunction(function), output_type)
        return joined.name("join" if self._kind is JoinFunction else "co_group")

    def _windows(self) -> Any:
        if self._windowed is None:
            raise ConfigurationError("A join names its windows first: where(key1).equal_to(key2).window(assigner).")
        return self._windowed


class _Side:
    """Tags an element with the number of its stream."""

    def __init__(self, side: int) -> None:
        self._side = side

    def __call__(self, value: Any) -> tuple[int, Any]:
        return self._side, value


class _KeyOfSide(KeySelector):
    """Computes the key of a tagged element."""

    def __init__(self, keys: Sequence[KeySpec]) -> None:
        self._selectors = [key.selector or _columns_of(key.columns) for key in keys]

    def open(self, runtime_context: RuntimeContext) -> None:
        for selector in self._selectors:
            open_owner(selector, runtime_context)

    def close(self) -> None:
        for selector in self._selectors:
            close_owner(selector)

    def get_key(self, sided: tuple[int, Any]) -> Any:
        side, value = sided
        return self._selectors[side](value)


def _columns_of(names: tuple[str, ...]) -> Any:
    if len(names) == 1:
        return lambda row: row[names[0]]
    return lambda row: tuple(row[name] for name in names)


class JoinWindowFunction(WindowFunction[Any, Any, Any, Any]):
    """Calls the function of a join with the elements of a key and a window."""

    NAME_IN_UIDS: ClassVar = "_Meeting"

    def __init__(self, function: JoinFunction | CoGroupFunction) -> None:
        self._function = function

    @property
    def program_functions(self) -> tuple[Any, ...]:
        return (self._function,)

    def open(self, runtime_context: Any) -> None:
        self._function.open(runtime_context)

    def close(self) -> None:
        self._function.close()

    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Iterator[Any]:
        sides: tuple[list[Any], list[Any]] = ([], [])
        for side, value in inputs:
            sides[side].append(value)
        if isinstance(self._function, CoGroupFunction):
            yield from self._function.co_group(*sides) or ()
        else:
            for first in sides[0]:
                for second in sides[1]:
                    yield self._function.join(first, second)


def _origin(stream: DataStream) -> DataStream:
    """Return the stream that a keyed one was made of."""
    return DataStream(stream._environment, stream._node) if isinstance(stream, KeyedStream) else stream


def _common_keys(stream1: KeyedStream, stream2: KeyedStream) -> tuple[KeySpec, KeySpec]:
    """Return the keys of both streams with one type; a key without a declared type takes that of the other."""
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
    """Return whether two types have the same keys: names of fields do not count."""
    if isinstance(one, StructTypeInformation) and isinstance(other, StructTypeInformation):
        parts = zip(one.types, other.types, strict=False)
        return len(one.types) == len(other.types) and all(_are_alike(*pair) for pair in parts)
    return one == other


class BroadcastStream:
    """A stream whose elements all go to every subtask of an operator, before those of the other stream.

    >>> limits = MapStateDescriptor("limits", "string", "bigint")
    >>> stream = env.from_collection([("kelp", 5)], "word string, most bigint").broadcast(limits)

    Args:
        stream: The stream.
        descriptors: The broadcast states in which its elements are kept.

    Raises:
        ConfigurationError: There is no descriptor, one is of another kind of state, or a name comes twice.
    """

    def __init__(self, stream: DataStream, descriptors: Sequence[MapStateDescriptor[Any, Any]]) -> None:
        if not descriptors or not all(isinstance(descriptor, MapStateDescriptor) for descriptor in descriptors):
            raise ConfigurationError(
                f"broadcast() takes at least one MapStateDescriptor, for the state that keeps the elements, not "
                f"{list(descriptors)!r}."
            )
        names = [descriptor.name for descriptor in descriptors]
        if len(set(names)) < len(names):
            raise ConfigurationError(f"broadcast() takes states of different names, not {names!r}.")
        self.stream = stream
        self.descriptors = tuple(descriptors)


class BroadcastConnectedStream:
    """A stream, keyed or not, and a broadcast one, for a function of both; `DataStream.broadcast` has an example.

    >>> LIMITS = MapStateDescriptor("limits", "string", "bigint")
    >>> class Check(BroadcastProcessFunction):
    ...     def process_element(self, value, ctx):
    ...         if value.n > (ctx.get_broadcast_state(LIMITS).get(value.word) or 0):
    ...             yield value
    ...
    ...     def process_broadcast_element(self, value, ctx):
    ...         ctx.get_broadcast_state(LIMITS).put(value.word, value.most)
    >>> rows = env.from_collection([("kelp", 3), ("kelp", 7)], "word string, n bigint")
    >>> limits = env.from_collection([("kelp", 5)], "word string, most bigint").broadcast(LIMITS)
    >>> list(rows.connect(limits).process(Check(), "word string, n bigint").execute_and_collect())
    [Row(word='kelp', n=7)]
    """

    def __init__(self, stream: DataStream, broadcast: BroadcastStream) -> None:
        if stream._environment is not broadcast.stream._environment:
            raise ConfigurationError("connect() takes streams of one environment.")
        self._stream = stream
        self._broadcast = broadcast

    def process(
        self, func: BroadcastProcessFunction | KeyedBroadcastProcessFunction, output_type: Any = None
    ) -> DataStream:
        """Pass the elements of both streams to a function.

        Args:
            func: A `KeyedBroadcastProcessFunction` where the stream is keyed, otherwise a `BroadcastProcessFunction`.
            output_type: Type of the results, as in `DataStream.map`.

        Raises:
            ConfigurationError: The function is of the other kind, or the type is unknown.
        """
        main = self._stream
        is_keyed = isinstance(main, KeyedStream)
        wanted = KeyedBroadcastProcessFunction if is_keyed else BroadcastProcessFunction
        if not isinstance(func, wanted):
            raise ConfigurationError(
                f"process() of a {'keyed ' if is_keyed else ''}stream connected with a broadcast one takes an instance "
                f"of {wanted.__name__}, not {func!r}."
            )
        element_type = declared_type(output_type, "process")
        spec = OperatorSpec(
            func, "process", is_keyed, main.get_type(), element_type, broadcast=self._broadcast.descriptors
        )
        rules = self._broadcast.stream
        second = BroadcastNode(inputs=(rules._node,), name="broadcast", element_type=rules.get_type())
        inputs: tuple[Node, ...] = (main._node, second)
        node: Node
        if isinstance(main, KeyedStream):
            node = KeyedNode(
                inputs=inputs, name="keyed_broadcast", element_type=element_type, operator=spec, key=main._key
            )
        else:
            node = NonKeyedNode(inputs=inputs, name="broadcast_process", element_type=element_type, operator=spec)
        return DataStream(main._environment, node)
