"""Keyed streams: partitioned by a key, so that the operators on them have state and timers for each key."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

from holdfast.datastream.connectors.change_functions import ChangesOfKey
from holdfast.datastream.stream.data_stream import DataStream, DataStreamSink
from holdfast.datastream.stream.operation import check_function, declared_type, operator_spec, order_columns
from holdfast.errors import ConfigurationError
from holdfast.kernel.watermark import MAX_WATERMARK
from holdfast.runtime.function.sink import Sink, SinkWriter, WriterContext, WriterInitContext
from holdfast.runtime.function.user_function import KeyedProcessFunction, ProcessLike, ReduceLike, RuntimeContext
from holdfast.runtime.graph.stream_graph import ForwardNode, KeyedNode, KeySpec, Node, OperatorSpec, Shape
from holdfast.runtime.operator.batch_function import BatchFunction, PlainBatchFunction, exact_decimals, has_timers
from holdfast.runtime.operator.reduction import (
    ChoosingReduction,
    CountReduction,
    Deduplication,
    InTuples,
    MeanReduction,
    SumReduction,
    TopN,
)
from holdfast.runtime.window.window_assigner import WindowAssigner
from holdfast.state.descriptor import (
    ReduceFunction,
    ReducingStateDescriptor,
    StateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.types.changelog_type import ChangelogTypeInformation
from holdfast.types.composite import RowTypeInformation, TupleTypeInformation
from holdfast.types.opaque import OpaqueTypeInformation
from holdfast.types.ordering import is_greater, is_less
from holdfast.types.row import field_names_of
from holdfast.types.type_information import (
    AtomicTypeInformation,
    CollatedStringTypeInformation,
    DecimalTypeInformation,
    TypeInformation,
)
from holdfast.types.type_parser import parse_type

if TYPE_CHECKING:
    from holdfast.datastream.environment.stream_execution_environment import StreamExecutionEnvironment
    from holdfast.datastream.stream.interval_join import IntervalJoin
    from holdfast.datastream.stream.windowed import WindowedStream


_VALUE = "value"
_NUMBERS = frozenset({"tinyint", "smallint", "int", "bigint", "float", "double"})
BatchLike = BatchFunction | Callable[..., Any]


class KeyedStream(DataStream):
    """A stream partitioned by a key; `DataStream.key_by` makes it.

    `map`, `flat_map`, `filter`, `process` and `reduce` on it have keyed state. A sink that changes rows by a key gets
    them by that of the stream. Everything else (`union`, other sinks, `key_by` again) treats it as the stream that it
    was made from.

    The built-in reductions (`count`, `sum`, `mean`, `min`, `max`, `first`, `last`) emit a row for each row, in its
    order: the
    row with one column replaced or added; of a tuple that is one of its fields, by position. What they emit does not
    depend on how rows are cut into batches or epochs. Each raises a `ConfigurationError` for a column that does not
    exist or cannot be reduced, and for a stream of changes, where it would count a retracted row as one more.

        >>> class Count(KeyedProcessFunction):
        ...     def open(self, runtime_context):
        ...         self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        ...     def process_element(self, value, ctx):
        ...         count = (self.count.value() or 0) + 1
        ...         self.count.update(count)
        ...         yield value, count
        >>> words = env.from_collection(["to", "be", "to"], "string").key_by(lambda word: word)
        >>> sorted(words.process(Count()).execute_and_collect())
        [('be', 1), ('to', 1), ('to', 2)]
    """

    def __init__(self, environment: StreamExecutionEnvironment, node: Node, key: KeySpec) -> None:
        super().__init__(environment, node)
        self._key = key

    def order_by(self, *columns: str) -> KeyedStream:
        """Order the rows of one key within an epoch by these columns, instead of those given to `key_by`.

            >>> rows = env.from_collection([("oslo", 2), ("oslo", 1)], "city string, n bigint")
            >>> ordered = rows.key_by("city").order_by("n")
            >>> list(ordered.process(lambda row, ctx: [row.n], "bigint").execute_and_collect())
            [1, 2]

        Raises:
            ConfigurationError: A column does not exist.
        """
        order = order_columns(columns, self.get_type())
        return KeyedStream(self._environment, self._node, replace(self._key, order_by=order))

    def process(self, func: ProcessLike, output_type: Any = None) -> DataStream:
        """Pass each element to a function with state and timers for its key; the class has an example.

        Args:
            func: A `KeyedProcessFunction`, or a generator function `(value, ctx)`.
            output_type: Type of the results, as in `map`.

        Raises:
            ConfigurationError: The function does not fit, or the type is unknown.
        """
        return self._apply("process", func, output_type)

    def reduce(self, func: ReduceLike) -> DataStream:
        """Combine the elements of each key into one, and emit the combination after each element.

            >>> words = env.from_collection(["a", "b", "c"], "string").key_by(lambda word: 0)
            >>> list(words.reduce(lambda one, other: one + other).execute_and_collect())
            ['a', 'ab', 'abc']

        In batch mode (`set_runtime_mode`) it emits one for each key, at the end of the input.

        Args:
            func: A `ReduceFunction`, or a function of two elements.

        Raises:
            ConfigurationError: The function does not fit.
        """
        return self._apply("reduce", func, None)

    def process_batches(self, func: BatchLike, output_type: Any = None, *, state: Any = None) -> DataStream:
        """Pass whole Arrow batches to a function that reads and writes value state as columns.

            >>> import pyarrow.compute as pc
            >>> def difference(batch, state):
            ...     before = pc.fill_null(state.get(batch["city"]), 0)
            ...     state.put(batch["city"], batch["n"])
            ...     return batch.set_column(1, "n", pc.subtract(batch["n"], before))
            >>> keyed = env.from_collection([("oslo", 3), ("rome", 5)], "city string, n bigint").key_by("city")
            >>> changed = keyed.process_batches(difference, state=ValueStateDescriptor("last", "bigint"))
            >>> sorted(changed.execute_and_collect())
            [Row(city='oslo', n=3), Row(city='rome', n=5)]

        Args:
            func: A `BatchFunction`, or a function `(batch, state)` that returns record batches, tables, or None. A
                batch may have the rows of many keys, and those of one key may come in several.
            output_type: Columns of the results, as DDL or type; None for those of this stream.
            state: Only for a plain function: its value state as a `ValueStateDescriptor`, several of them, or a dict of
                names and types. `state.get(keys)` returns an array, `state.put(keys, values)` takes one, where the keys
                are a column of the batch; with several states, `state` is a dict of them by name.

        Raises:
            ConfigurationError: The function or the states are not of this kind.
        """
        kept = self.get_type() if output_type is None else declared_type(output_type, "process_batches")
        if not isinstance(kept, RowTypeInformation) and output_type is not None:
            raise ConfigurationError(f"process_batches() emits columns, 'name type, ...', not {output_type!r}.")
        function = func if isinstance(func, BatchFunction) and state is None else _plain_function(func, state)
        return self._operator(self._batches(function, kept), "process_batches")

    def count(self, name: str = "count") -> DataStream:
        """Add a column with the number of rows of the key so far, this one included.

            >>> rows = env.from_collection([("oslo", 3), ("oslo", 5), ("oslo", 4)], "city string, n bigint")
            >>> [row.count for row in rows.key_by("city").count().execute_and_collect()]
            [1, 2, 3]

        Args:
            name: Name of the column.
        """
        return self._add_column(CountReduction(name=name), name, parse_type("bigint"))

    def sum(self, position_to_sum: int | str = 0) -> DataStream:
        """Replace a column by the sum of its values so far, nulls left out.

            >>> rows = env.from_collection([("oslo", 3), ("oslo", 5), ("oslo", 4)], "city string, n bigint")
            >>> [row.n for row in rows.key_by("city").sum("n").execute_and_collect()]
            [3, 8, 12]

        Args:
            position_to_sum: Name or position of the column.
        """
        if self._is_untyped:
            return self._reduce_fields("sum", position_to_sum, added)
        column, value_type = self._number(position_to_sum, "sum", is_part=True)
        if self._emits_final_values:
            return self._reduce_fields("sum", self._position(column), added)
        return self._replace_column(SumReduction(column, value_type), "sum")

    def mean(self, column: int | str = 0, name: str = "mean") -> DataStream:
        """Add a column with the mean of the values of a column so far, nulls left out, as a double.

            >>> rows = env.from_collection([("oslo", 3), ("oslo", 5), ("oslo", 4)], "city string, n bigint")
            >>> [row.mean for row in rows.key_by("city").mean("n").execute_and_collect()]
            [3.0, 4.0, 4.0]

        Args:
            column: Name or position of the column.
            name: Name of the new column.
        """
        found, _ = self._number(column, "mean")
        return self._add_column(MeanReduction(found, name), name, parse_type("double"))

    def min(self, position_to_min: int | str = 0) -> DataStream:
        """Replace a column by the least of its values so far; NaN is greater than all numbers.

            >>> rows = env.from_collection([("oslo", 3), ("oslo", 5), ("oslo", 4)], "city string, n bigint")
            >>> [row.n for row in rows.key_by("city").min("n").execute_and_collect()]
            [3, 3, 3]

        Args:
            position_to_min: Name or position of the column.
        """
        if self._is_untyped:
            return self._reduce_fields("min", position_to_min, least)
        column, value_type = self._ordered(position_to_min, "min", is_part=True)
        if self._emits_final_values:
            return self._reduce_fields("min", self._position(column), least)
        return self._replace_column(ChoosingReduction(column, value_type, "min"), "min")

    def max(self, position_to_max: int | str = 0) -> DataStream:
        """Replace a column by the greatest of its values so far; NaN is greater than all numbers.

            >>> rows = env.from_collection([("oslo", 3), ("oslo", 5), ("oslo", 4)], "city string, n bigint")
            >>> [row.n for row in rows.key_by("city").max("n").execute_and_collect()]
            [3, 5, 5]

        Args:
            position_to_max: Name or position of the column.
        """
        if self._is_untyped:
            return self._reduce_fields("max", position_to_max, greatest)
        column, value_type = self._ordered(position_to_max, "max", is_part=True)
        if self._emits_final_values:
            return self._reduce_fields("max", self._position(column), greatest)
        return self._replace_column(ChoosingReduction(column, value_type, "max"), "max")

    def min_by(self, position_to_min_by: int | str = 0) -> DataStream:
        """Emit the element with the least value of a field so far, after each element; of equal ones the first.

            >>> rows = env.from_collection([("oslo", 3), ("oslo", 5), ("oslo", 4)], "city string, n bigint")
            >>> [row.n for row in rows.key_by("city").min_by("n").execute_and_collect()]
            [3, 3, 3]

        Args:
            position_to_min_by: Name or position of the field.
        """
        return self._choose_element("min_by", position_to_min_by, is_less)

    def max_by(self, position_to_max_by: int | str = 0) -> DataStream:
        """Emit the element with the greatest value of a field so far, after each element; of equal ones the first.

            >>> rows = env.from_collection([("oslo", 3), ("oslo", 5), ("oslo", 4)], "city string, n bigint")
            >>> [row.n for row in rows.key_by("city").max_by("n").execute_and_collect()]
            [3, 5, 5]

        Args:
            position_to_max_by: Name or position of the field.
        """
        return self._choose_element("max_by", position_to_max_by, is_greater)

    def first(self, column: int | str = 0) -> DataStream:
        """Replace a column by the first of its values that was not null.

            >>> rows = env.from_collection([("oslo", 3), ("oslo", 5), ("oslo", 4)], "city string, n bigint")
            >>> [row.n for row in rows.key_by("city").first("n").execute_and_collect()]
            [3, 3, 3]

        Args:
            column: Name or position of the column.
        """
        return self._replace_column(ChoosingReduction(*self._column(column, "first", is_part=True), "first"), "first")

    def last(self, column: int | str = 0) -> DataStream:
        """Replace a column by the last of its values that was not null, so that nulls are filled.

            >>> rows = env.from_collection([("oslo", 3), ("oslo", None)], "city string, n bigint")
            >>> [row.n for row in rows.key_by("city").last("n").execute_and_collect()]
            [3, 3]

        Args:
            column: Name or position of the column.
        """
        return self._replace_column(ChoosingReduction(*self._column(column, "last", is_part=True), "last"), "last")

    def deduplicate(self, ttl: Any = None) -> DataStream:
        """Emit the first row of each key, and drop all others.

            >>> rows = env.from_collection([("oslo", 3), ("oslo", 5), ("oslo", 4)], "city string, n bigint")
            >>> [row.n for row in rows.key_by("city").deduplicate(ttl="1 h").execute_and_collect()]
            [3]

        Args:
            ttl: How long a key is known after its first row, in processing time: milliseconds, a `timedelta`, text such
                as ``"1 h"``, or a `StateTtlConfig`. Without it each key is kept for ever.

        Raises:
            ConfigurationError: It is no duration, or not positive; or the stream has changes.
        """
        self._reject_changes("deduplicate()")
        if ttl is not None and not isinstance(ttl, StateTtlConfig):
            ttl = StateTtlConfig.new_builder(ttl).build()
        return self._operator(self._batches(Deduplication(ttl), self.get_type()), "deduplicate")

    def top_n(self, n: int, column: int | str = 0, *, ascending: bool = False, name: str = "rank") -> DataStream:
        """Emit each row whose value is among the `n` greatest of its key when it comes, with its rank, from 1.

            >>> rows = env.from_collection([("oslo", 3), ("oslo", 5), ("oslo", 4)], "city string, n bigint")
            >>> [row for row in rows.key_by("city").top_n(1, "n").execute_and_collect()]
            [Row(city='oslo', n=3, rank=1), Row(city='oslo', n=5, rank=1)]

        Args:
            n: Size of the ranking.
            column: Name or position of the column that is compared; rows with null there are dropped. NaN is greater
                than all other numbers.
            ascending: Rank the least values instead.
            name: Name of the column with the rank.

        Raises:
            ConfigurationError: `n` is less than 1.
        """
        if n < 1:
            raise ConfigurationError(f"top_n() keeps at least one row a key, not {n!r}.")
        found, value_type = self._ordered(column, "top_n")
        return self._add_column(TopN(n, found, value_type, ascending, name), name, parse_type("bigint"))

    def normalize_changes(self) -> DataStream:
        """Turn changes that may come more than once into a clean changelog, keyed as its table is.

            >>> change = Row.of_kind(RowKind.INSERT, city="oslo", n=3)
            >>> changes = env.from_collection([change, change], "changelog<city: string, n: bigint>")
            >>> clean = changes.key_by("city").normalize_changes()
            >>> [(row.get_row_kind().name, row.n) for row in clean.execute_and_collect()]
            [('INSERT', 3)]

        It keeps the row of each key and emits what really changes: `+I`, or `-U` and `+U`, or `-D`, each with the whole
        row, also where only the key of a deleted row came. A row that is there already, or gone already, is left out;
        an update that comes again together with the row before it counts as one of the row that is there.

        Raises:
            ConfigurationError: The elements are no rows.
        """
        function = ChangesOfKey.of("normalize_changes()", self.get_type())
        return self.process(function, function.output_type).name("normalize_changes")

    def last_value(self, by: str) -> DataStream:
        """Emit the changes of the last row of each key: the one with the greatest value of a column.

            >>> rows = env.from_collection([("oslo", 2), ("oslo", 1), ("oslo", 3)], "city string, version bigint")
            >>> changes = rows.key_by("city").last_value("version")
            >>> [(row.get_row_kind().name, row.version) for row in changes.execute_and_collect()]
            [('INSERT', 2), ('UPDATE_BEFORE', 2), ('UPDATE_AFTER', 3)]

        Rows that are older than the kept one are left out, in whatever order and however often they come; of equal ones
        the later counts. The version of a deleted key is kept, so that nothing older brings it back.

        Args:
            by: A column whose values grow with each change of a key, such as a version or a position in a log. Null is
                an error; NaN is greater than all other numbers.

        Raises:
            ConfigurationError: The elements are no rows, have no such column, or it has no order.
        """
        function = ChangesOfKey.of("last_value()", self.get_type(), by)
        return self.process(function, function.output_type).name("last_value")

    def interval_join(self, other_stream: KeyedStream) -> IntervalJoin:
        """Pair elements of this and another keyed stream whose event times lie close.

            >>> class Describe(ProcessJoinFunction):
            ...     def process_element(self, left, right, ctx):
            ...         yield left.n, right.n
            >>> def timed(rows):
            ...     clock = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.at)
            ...     stream = env.from_collection(rows, "city string, n bigint, at bigint")
            ...     return stream.assign_timestamps_and_watermarks(clock).key_by("city")
            >>> joined = timed([("oslo", 3, 1_000)]).interval_join(timed([("oslo", 4, 2_000), ("oslo", 5, 60_000)]))
            >>> pairs = joined.between(Duration.of_seconds(-5), Duration.of_seconds(5)).process(Describe())
            >>> list(pairs.execute_and_collect())
            [(3, 4)]

        Args:
            other_stream: A stream keyed by keys of the same type.

        Returns:
            An `IntervalJoin`, whose `between` sets the interval.

        Raises:
            ConfigurationError: The other stream is not keyed, or by keys of another type.
        """
        if not isinstance(other_stream, KeyedStream):
            raise ConfigurationError(
                f"interval_join() takes a keyed stream, not {other_stream!r}: call key_by() on it."
            )
        return self._environment._stream_factory.interval_join(self, other_stream)

    def window(self, window_assigner: WindowAssigner[Any, Any]) -> WindowedStream:
        """Split the elements of each key into windows.

            >>> sales = [("oslo", 1_000), ("oslo", 61_000)]
            >>> clock = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.at)
            >>> timed = env.from_collection(sales, "city string, at bigint").assign_timestamps_and_watermarks(clock)
            >>> windows = timed.key_by("city").window(TumblingEventTimeWindows.of(Time.minutes(1)))
            >>> counts = windows.apply(lambda city, window, rows: [(city, window.start, len(list(rows)))])
            >>> list(counts.execute_and_collect())
            [('oslo', 0, 1), ('oslo', 60000, 1)]

        Args:
            window_assigner: Which windows an element belongs to.

        Raises:
            ConfigurationError: It is no window assigner.
        """
        return self._environment._stream_factory.windowed(self, window_assigner)

    def count_window(self, size: int, slide: int = 0) -> WindowedStream:
        """Split the elements of each key into windows of `size` elements; one begins every `slide` of them, if set.

        >>> words = env.from_collection(["a", "b", "c", "d"], "string").key_by(lambda word: 0)
        >>> list(words.count_window(2).reduce(lambda one, other: one + other).execute_and_collect())
        ['ab', 'cd']
        """
        return self.window(self._environment._stream_factory.count_windows(size, slide))

    def as_queryable_state(
        self, queryable_state_name: str, state_descriptor: StateDescriptor[Any] | None = None
    ) -> QueryableStateStream:
        """End the stream in state that can be queried: the last element of each key.

            >>> rows = env.from_collection([("oslo", 3)], "city string, n bigint")
            >>> rows.key_by("city").as_queryable_state("cities").get_queryable_state_name()
            'cities'

        Args:
            queryable_state_name: The name under which it is queried.
            state_descriptor: Descriptor of value state for the last element (the default), or of reducing state.

        Raises:
            ConfigurationError: The descriptor is of another kind, or has another name.
        """
        descriptor = queryable_descriptor(queryable_state_name, state_descriptor, self.get_type())
        kept = self.process(QueryableStateFunction(descriptor), self.get_type())
        kept.uid(f"queryable-{queryable_state_name}").sink_to(NoOutput()).uid(f"queryable-{queryable_state_name}-end")
        return QueryableStateStream(queryable_state_name, descriptor)

    def sink_to(self, sink: Sink) -> DataStreamSink:
        """End the stream in a sink, as `DataStream.sink_to` does.

        A sink that changes rows by a key gets all rows of a key of the stream in one subtask, in the order of
        `order_by` if there is one. Other sinks run where the rows are made.
        """
        if not isinstance(sink, Sink) or not sink.key_columns():
            return super().sink_to(sink)
        node = ForwardNode(inputs=(self._node,), name="key_by", element_type=self.get_type(), key=self._key)
        return DataStream(self._environment, node).sink_to(sink)

    def name(self, name: str) -> NoReturn:
        """Raise an error: partitioning by key is no operator."""
        self._refuse("name()")

    def uid(self, uid: str) -> NoReturn:
        """Raise an error: partitioning by key is no operator."""
        self._refuse("uid()")

    def set_parallelism(self, parallelism: int) -> Self:
        """Raise an error: partitioning by key is no operator."""
        self._refuse("set_parallelism()")

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """Raise an error: partitioning by key is no operator."""
        self._refuse("set_max_parallelism()")

    def shuffle(self) -> NoReturn:
        """Raise an error: elements of a keyed stream go to the subtask of their key."""
        self._refuse_partitioning("shuffle()")

    def rebalance(self) -> NoReturn:
        """Raise an error: elements of a keyed stream go to the subtask of their key."""
        self._refuse_partitioning("rebalance()")

    def rescale(self) -> NoReturn:
        """Raise an error: elements of a keyed stream go to the subtask of their key."""
        self._refuse_partitioning("rescale()")

    def forward(self) -> NoReturn:
        """Raise an error: elements of a keyed stream go to the subtask of their key."""
        self._refuse_partitioning("forward()")

    def _refuse_partitioning(self, what: str) -> NoReturn:
        raise ConfigurationError(f"{what} after key_by(): elements of a keyed stream go to the subtask of their key.")

    def _refuse(self, what: str) -> NoReturn:
        raise ConfigurationError(
            f"{what} directly after key_by(): call it on the operator that follows, for instance after process()."
        )

    def _key_columns(self) -> RowTypeInformation | None:
        """Return the names and types of the key's columns; None if its type is not known."""
        if not self._key.columns:
            return None if self._key.key_type is None else RowTypeInformation(["key"], [self._key.key_type])
        element_type = self.get_type()
        assert isinstance(element_type, RowTypeInformation)
        types = dict(zip(element_type.names, element_type.types, strict=True))
        return RowTypeInformation(list(self._key.columns), [types[name] for name in self._key.columns])

    @property
    def _emits_final_values(self) -> bool:
        return self._environment._emits_final_values(self._node)

    def _apply(self, shape: Shape, function: Any, output_type: Any) -> DataStream:
        if shape == "reduce" and self._emits_final_values:
            check_function(shape, function, keyed=True)
            return self.process(BatchModeReduceFunction(function, self.get_type()), self.get_type()).name("reduce")
        spec = operator_spec(shape, function, self.get_type(), output_type, keyed=True)
        return self._operator(spec, f"keyed_{shape}" if shape != "reduce" else shape)

    def _operator(self, spec: OperatorSpec, name: str) -> DataStream:
        if spec.shape == "batches":
            spec = replace(spec, key_columns=self._key_columns())
            if spec.key_columns is None and has_timers(spec.function):
                raise ConfigurationError(
                    f"{type(spec.function).__name__}.on_timers() gets keys as columns, and their type is not known: "
                    "key by columns, or give key_type to key_by()."
                )
        node = KeyedNode(
            inputs=(self._node,),
            name=name,
            element_type=spec.output_type,
            operator=spec,
            key=self._key,
        )
        return DataStream(self._environment, node)

    @property
    def _is_untyped(self) -> bool:
        return isinstance(self.get_type(), OpaqueTypeInformation)

    def _choose_element(self, name: str, position: int | str, is_better: Callable[[Any, Any], bool]) -> DataStream:
        self._reject_changes(f"{name}()")
        if not self._is_untyped:
            position = self._position(self._column(position, name, is_part=True)[0])
        return self._apply("reduce", ChooseReduceFunction(name, position, is_better), None)

    def _reduce_fields(self, name: str, position: int | str, combine: Callable[[Any, Any], Any]) -> DataStream:
        self._reject_changes(f"{name}()")
        if isinstance(position, bool) or not isinstance(position, int | str):
            raise ConfigurationError(f"{name}() takes the position of a part, or its name, not {position!r}.")
        return self._apply("reduce", AccumulateReduceFunction(name, position, combine), None)

    def _replace_column(self, function: BatchFunction, name: str) -> DataStream:
        self._reject_changes(f"{name}()")
        if isinstance(self.get_type(), TupleTypeInformation):
            function = InTuples(function)
        return self._operator(self._batches(function, self.get_type()), name)

    def _add_column(self, function: BatchFunction, name: str, added: TypeInformation) -> DataStream:
        self._reject_changes(f"the column {name!r}")
        names, types = self._fields()
        if name in names:
            raise ConfigurationError(f"There is a column {name!r} already; give the result another name: name='...'.")
        return self._operator(self._batches(function, RowTypeInformation([*names, name], [*types, added])), name)

    def _reject_changes(self, what: str) -> None:
        if isinstance(self.get_type(), ChangelogTypeInformation):
            raise ConfigurationError(
                f"{what} cannot subtract the retractions of a changelog, {self.get_type().ddl!r}: use process() and "
                "row.get_row_kind(), or normalize_changes()."
            )

    def _batches(self, function: BatchFunction, output_type: TypeInformation) -> OperatorSpec:
        return OperatorSpec(function, "batches", True, self.get_type(), output_type)

    def _fields(self, is_part: bool = False) -> tuple[list[str], list[TypeInformation]]:
        element_type = self.get_type()
        if isinstance(element_type, RowTypeInformation) or (is_part and isinstance(element_type, TupleTypeInformation)):
            return list(element_type.names), list(element_type.types)
        return [_VALUE], [element_type]

    def _position(self, column: str) -> int:
        return self._fields(is_part=True)[0].index(column)

    def _column(self, column: int | str, where: str, is_part: bool = False) -> tuple[str, TypeInformation]:
        names, types = self._fields(is_part)
        if isinstance(column, int) and not isinstance(column, bool) and 0 <= column < len(names):
            column = names[column]
        if column not in names:
            raise ConfigurationError(f"{where}(): there is no column {column!r}; the stream has {names!r}.")
        found = types[names.index(column)]
        if isinstance(found, OpaqueTypeInformation):
            raise ConfigurationError(
                f"{where}(): the elements have no declared type; declare output_type at the operator before."
            )
        return column, found

    def _ordered(self, column: int | str, where: str, is_part: bool = False) -> tuple[str, TypeInformation]:
        name, found = self._column(column, where, is_part)
        is_plain = isinstance(found, AtomicTypeInformation | DecimalTypeInformation)
        if not is_plain or isinstance(found, CollatedStringTypeInformation):
            raise ConfigurationError(f"{where}(): values of column {name!r}, {found.ddl!r}, are not compared here.")
        return name, found

    def _number(self, column: int | str, where: str, is_part: bool = False) -> tuple[str, TypeInformation]:
        name, found = self._column(column, where, is_part)
        if found.ddl not in _NUMBERS and not isinstance(found, DecimalTypeInformation):
            raise ConfigurationError(f"{where}(): column {name!r} is {found.ddl!r}, no number.")
        return name, found


class QueryableStateStream:
    """The end of a stream whose elements are kept as queryable state; `as_queryable_state` makes it."""

    def __init__(self, name: str, descriptor: StateDescriptor[Any]) -> None:
        self._name = name
        self._descriptor = descriptor

    def get_queryable_state_name(self) -> str:
        """Return the name under which the state is queried."""
        return self._name

    def get_state_descriptor(self) -> StateDescriptor[Any]:
        """Return the descriptor of the state."""
        return self._descriptor


class QueryableStateFunction(KeyedProcessFunction):
    """Keeps the elements of each key in queryable state, and emits nothing."""

    NAME_IN_UIDS: ClassVar = "KeepForQueries"

    def __init__(self, descriptor: StateDescriptor[Any]) -> None:
        self._descriptor = descriptor

    def open(self, runtime_context: RuntimeContext) -> None:
        if isinstance(self._descriptor, ReducingStateDescriptor):
            self._keep = runtime_context.get_reducing_state(self._descriptor).add
        else:
            assert isinstance(self._descriptor, ValueStateDescriptor)
            self._keep = runtime_context.get_state(self._descriptor).update

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self._keep(value)
        return ()


class NoOutput(Sink):
    """The sink of a stream without elements."""

    def create_writer(self, context: WriterInitContext) -> SinkWriter:
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


def added(before: Any, value: Any) -> Any:
    if isinstance(value, Decimal):
        with exact_decimals():
            return before + value
    return before + value


def least(before: Any, value: Any) -> Any:
    return value if is_less(value, before) else before


def greatest(before: Any, value: Any) -> Any:
    return value if is_greater(value, before) else before


class AccumulateReduceFunction(ReduceFunction):
    """Replaces one field of each tuple, named tuple or Row by an accumulated value; None is left out.

    Elements of other types are their only field.

    Args:
        name: Name of the operation, for errors.
        position: Position of the field; where fields have names, it may be one.
        combine: Combines the accumulated and a new value.
    """

    def __init__(self, name: str, position: int | str, combine: Callable[[Any, Any], Any]) -> None:
        self._name = name
        self._position = position
        self._combine = combine

    def reduce(self, value1: Any, value2: Any) -> Any:
        """Return the new element with the field replaced.

        Raises:
            ValueError: The elements have no such field.
        """
        if not isinstance(value2, tuple):
            if self._position != 0:
                raise self._missing(value2)
            return self._combined(value1, value2)
        at = self._place(value2)
        total = self._combined(value1[self._place(value1)], value2[at])
        parts = [*value2[:at], total, *value2[at + 1 :]]
        return tuple.__new__(type(value2), parts)

    def chosen(self, element: Any) -> Any:
        """Return the field of an element.

        Raises:
            ValueError: It has no such field.
        """
        if not isinstance(element, tuple):
            if self._position != 0:
                raise self._missing(element)
            return element
        return element[self._place(element)]

    def _combined(self, before: Any, value: Any) -> Any:
        if before is None or value is None:
            return value if before is None else before
        return self._combine(before, value)

    def _place(self, element: Any) -> int:
        at, names = self._position, field_names_of(type(element))
        if at in names:
            at = names.index(at)
        if not isinstance(at, int) or not isinstance(element, tuple) or not 0 <= at < len(element):
            raise self._missing(element)
        return at

    def _missing(self, element: Any) -> ValueError:
        return ValueError(f"{self._name}(): {element!r:.200} has no part {self._position!r}.")


class ChooseReduceFunction(AccumulateReduceFunction):
    """Keeps the element with the best field so far, and of equal ones the first.

    Args:
        name: Name of the operation, for errors.
        position: Position of the field; where fields have names, it may be one.
        is_better: Compares the field of a new element with the best one so far. None is never better.
    """

    def __init__(self, name: str, position: int | str, is_better: Callable[[Any, Any], bool]) -> None:
        super().__init__(name, position, is_better)
        self._is_better = is_better

    def reduce(self, value1: Any, value2: Any) -> Any:
        before, new = self.chosen(value1), self.chosen(value2)
        if new is None or (before is not None and not self._is_better(new, before)):
            return value1
        return value2


class BatchModeReduceFunction(KeyedProcessFunction):
    """Reduces the elements of a key, and emits the result when event time ends, with its input."""

    NAME_IN_UIDS: ClassVar = "FinalReduce"

    def __init__(self, function: Any, element_type: TypeInformation) -> None:
        self._function = function
        self._type = element_type

    @property
    def program_functions(self) -> tuple[Any, ...]:
        return (self._function,)

    def open(self, runtime_context: RuntimeContext) -> None:
        opener = getattr(self._function, "open", None)
        if callable(opener):
            opener(runtime_context)
        # Not a reducing state, which would call the function that was opened first, and not the copy of this task.
        self._reduced: Any = runtime_context.get_state(ValueStateDescriptor("_final", self._type))

    def close(self) -> None:
        closer = getattr(self._function, "close", None)
        if callable(closer):
            closer()

    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(MAX_WATERMARK)
        before = self._reduced.value()
        reduce = getattr(self._function, "reduce", self._function)
        self._reduced.update(value if before is None else reduce(before, value))

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield self._reduced.value()
        self._reduced.clear()


def _plain_function(function: Any, state: Any) -> PlainBatchFunction:
    if isinstance(function, type | BatchFunction) or not callable(function):
        raise ConfigurationError(
            f"process_batches() takes a BatchFunction, or a function (batch, state) with state=..., not {function!r}."
        )
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise ConfigurationError(
            f"The function given to process_batches() is called with (batch, state): {error}"
        ) from error
    single = isinstance(state, ValueStateDescriptor)
    return PlainBatchFunction(function, [state] if single else _descriptors(state), single)


def _descriptors(state: Any) -> list[ValueStateDescriptor[Any]]:
    if isinstance(state, Mapping):
        found: list[Any] = [ValueStateDescriptor(name, declared_type(kind, "state")) for name, kind in state.items()]
    else:
        found = list(state) if isinstance(state, Iterable) and not isinstance(state, str) else [state] if state else []
    wrong = [one for one in found if not isinstance(one, ValueStateDescriptor)]
    if wrong:
        raise ConfigurationError(f"process_batches(): state is made of ValueStateDescriptors, not {wrong[0]!r}.")
    return found
