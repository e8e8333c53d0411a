"""Aggregates of windows by columns, without a loop over rows.

An aggregate works on *accumulators*: columns with one row for each key and pane. It makes them of the rows of a batch,
merges those of one key and window, and computes the result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ConfigurationError, OutputTypeError
from holdfast.runtime.operator.batch_function import Groups, exact_decimals
from holdfast.types.composite import RowTypeInformation
from holdfast.types.opaque import OpaqueTypeInformation
from holdfast.types.ordering import canonical_floats, ranks_of
from holdfast.types.type_information import (
    AtomicTypeInformation,
    CollatedStringTypeInformation,
    DecimalTypeInformation,
    TypeInformation,
)
from holdfast.types.type_parser import parse_type

Arrival = npt.NDArray[np.int64]
_SAFE_SUM: Final = 2.0**62
_WHOLE: Final = frozenset({"tinyint", "smallint", "int", "bigint"})
_FRACTIONS: Final = frozenset({"float", "double"})
_NEVER: Final = np.iinfo(np.int64).max


class BatchAggregateFunction(ABC):
    """An aggregate by columns, for `aggregate_batches`.

    All columns are Arrow arrays. `groups` has the rows that belong together: `groups.order` are the row numbers, those
    of one group together and in their order, and `groups.starts` is where each group begins among them.

    >>> import numpy as np
    >>> import pyarrow as pa
    >>> from holdfast.common import Types
    >>> class Product(BatchAggregateFunction):
    ...     def accumulator_types(self, input_type):
    ...         return [Types.LONG()]
    ...
    ...     def result_type(self, input_type):
    ...         return Types.LONG()
    ...
    ...     def accumulate(self, batch, groups, arrival):
    ...         return self.merge([batch.column("n")], groups)
    ...
    ...     def merge(self, accumulators, groups):
    ...         values = accumulators[0].to_numpy()[groups.order]
    ...         return [pa.array(np.multiply.reduceat(values, groups.starts))]
    ...
    ...     def result(self, accumulators):
    ...         return accumulators[0]
    >>> groups = Groups(np.array([7, 5, 7]))
    >>> Product().accumulate(pa.RecordBatch.from_pydict({"n": [2, 10, 3]}), groups, None)[0].to_pylist()
    [10, 6]
    """

    @abstractmethod
    def accumulator_types(self, input_type: RowTypeInformation) -> Sequence[TypeInformation]:
        """Return the types of the columns of an accumulator.

        Args:
            input_type: Type of the rows.

        Raises:
            ConfigurationError: A column does not exist, or has a type that is not supported.
        """

    @abstractmethod
    def result_type(self, input_type: RowTypeInformation) -> TypeInformation:
        """Return the type of the result for rows of a type."""

    @abstractmethod
    def accumulate(self, batch: pa.RecordBatch, groups: Groups, arrival: Arrival) -> Sequence[pa.Array]:
        """Return the accumulators of the rows of a batch, one row for each group.

        Args:
            batch: The rows.
            groups: The rows of each key and pane.
            arrival: For each row a number that grows from row to row, also from epoch to epoch.
        """

    @abstractmethod
    def merge(self, accumulators: Sequence[pa.Array], groups: Groups) -> Sequence[pa.Array]:
        """Return one accumulator for each group of accumulators.

        Args:
            accumulators: Columns of `accumulator_types`.
            groups: The accumulators of each key and window.
        """

    @abstractmethod
    def result(self, accumulators: Sequence[pa.Array]) -> pa.Array:
        """Return the result of each accumulator."""


class ColumnAggregate(BatchAggregateFunction):
    """The base class of aggregates of one column."""

    def __init__(self, column: str) -> None:
        self.column = column

    def _type(self, input_type: RowTypeInformation) -> TypeInformation:
        if self.column not in input_type.names:
            raise ConfigurationError(
                f"{type(self).__name__}: there is no column {self.column!r}; the stream has {list(input_type.names)!r}."
            )
        found = input_type.types[list(input_type.names).index(self.column)]
        if isinstance(found, OpaqueTypeInformation):
            raise ConfigurationError(f"{type(self).__name__}: column {self.column!r} has no declared type.")
        return found

    def _ordered(self, input_type: RowTypeInformation) -> TypeInformation:
        found = self._type(input_type)
        is_plain = isinstance(found, AtomicTypeInformation | DecimalTypeInformation)
        if not is_plain or isinstance(found, CollatedStringTypeInformation):
            raise ConfigurationError(
                f"{type(self).__name__}: values of column {self.column!r}, {found.ddl!r}, are not compared here."
            )
        return found

    def _number(self, input_type: RowTypeInformation) -> TypeInformation:
        found = self._type(input_type)
        if found.ddl not in _WHOLE | _FRACTIONS and not isinstance(found, DecimalTypeInformation):
            raise ConfigurationError(f"{type(self).__name__}: column {self.column!r} is {found.ddl!r}, no number.")
        return found

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.column!r})"


class CountAggregate(BatchAggregateFunction):
    """The number of rows.

    >>> rows = env.from_collection([("kelp", 3), ("kelp", 5), ("kelp", 5)], "word string, n bigint")
    >>> clock = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: 0)
    >>> keyed = rows.assign_timestamps_and_watermarks(clock).key_by("word")
    >>> windows = keyed.window(TumblingEventTimeWindows.of(Time.minutes(1)))
    >>> [row.result for row in windows.aggregate_batches(result=CountAggregate()).execute_and_collect()]
    [3]
    """

    def accumulator_types(self, input_type: RowTypeInformation) -> Sequence[TypeInformation]:
        return [parse_type("bigint")]

    def result_type(self, input_type: RowTypeInformation) -> TypeInformation:
        return parse_type("bigint")

    def accumulate(self, batch: pa.RecordBatch, groups: Groups, arrival: Arrival) -> Sequence[pa.Array]:
        return [pa.array(groups.ends - groups.starts + 1)]

    def merge(self, accumulators: Sequence[pa.Array], groups: Groups) -> Sequence[pa.Array]:
        return [pa.array(np.add.reduceat(accumulators[0].to_numpy()[groups.order], groups.starts))]

    def result(self, accumulators: Sequence[pa.Array]) -> pa.Array:
        return accumulators[0]

    def __repr__(self) -> str:
        return "CountAggregate()"


class SumAggregate(ColumnAggregate):
    """The sum of the values that are not null, null if there is none; whole numbers become `bigint`, others `double`.

    The order of additions of floating-point numbers is undefined, so the last digits may differ.

    >>> rows = env.from_collection([("kelp", 3), ("kelp", 5), ("kelp", 5)], "word string, n bigint")
    >>> clock = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: 0)
    >>> keyed = rows.assign_timestamps_and_watermarks(clock).key_by("word")
    >>> windows = keyed.window(TumblingEventTimeWindows.of(Time.minutes(1)))
    >>> [row.result for row in windows.aggregate_batches(result=SumAggregate("n")).execute_and_collect()]
    [13]

    Args:
        column: The column.
    """

    def accumulator_types(self, input_type: RowTypeInformation) -> Sequence[TypeInformation]:
        found = self._number(input_type)
        if isinstance(found, DecimalTypeInformation):
            return [parse_type(f"decimal(38, {found.arrow_type.scale})")]
        return [parse_type("bigint" if found.ddl in _WHOLE else "double")]

    def result_type(self, input_type: RowTypeInformation) -> TypeInformation:
        return self.accumulator_types(input_type)[0]

    def accumulate(self, batch: pa.RecordBatch, groups: Groups, arrival: Arrival) -> Sequence[pa.Array]:
        return [summed(_wide(batch.column(self.column)), groups, repr(self))]

    def merge(self, accumulators: Sequence[pa.Array], groups: Groups) -> Sequence[pa.Array]:
        return [summed(accumulators[0], groups, repr(self))]

    def result(self, accumulators: Sequence[pa.Array]) -> pa.Array:
        return accumulators[0]


class MeanAggregate(ColumnAggregate):
    """The mean of the values that are not null, as a double; null if there is none.

    >>> rows = env.from_collection([("kelp", 3), ("kelp", 5), ("kelp", 5)], "word string, n bigint")
    >>> clock = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: 0)
    >>> keyed = rows.assign_timestamps_and_watermarks(clock).key_by("word")
    >>> windows = keyed.window(TumblingEventTimeWindows.of(Time.minutes(1)))
    >>> [row.result for row in windows.aggregate_batches(result=MeanAggregate("n")).execute_and_collect()]
    [4.333333333333333]
    """

    def accumulator_types(self, input_type: RowTypeInformation) -> Sequence[TypeInformation]:
        self._number(input_type)
        return [parse_type("double"), parse_type("bigint")]

    def result_type(self, input_type: RowTypeInformation) -> TypeInformation:
        return parse_type("double")

    def accumulate(self, batch: pa.RecordBatch, groups: Groups, arrival: Arrival) -> Sequence[pa.Array]:
        values = batch.column(self.column)
        numbers = values.cast(pa.float64(), safe=False).fill_null(0.0)
        return self.merge([numbers, values.is_valid().cast(pa.int64())], groups)

    def merge(self, accumulators: Sequence[pa.Array], groups: Groups) -> Sequence[pa.Array]:
        return [
            pa.array(np.add.reduceat(column.to_numpy(zero_copy_only=False)[groups.order], groups.starts))
            for column in accumulators
        ]

    def result(self, accumulators: Sequence[pa.Array]) -> pa.Array:
        sums, counts = (column.to_numpy() for column in accumulators)
        with np.errstate(invalid="ignore", divide="ignore"):
            return pa.array(sums / counts, mask=counts == 0)


class ExtremeAggregate(ColumnAggregate):
    """The minimum or maximum of the values that are not null; NaN is greater than all other numbers."""

    _IS_ASCENDING: ClassVar[bool]

    def accumulator_types(self, input_type: RowTypeInformation) -> Sequence[TypeInformation]:
        return [self._ordered(input_type)]

    def result_type(self, input_type: RowTypeInformation) -> TypeInformation:
        return self._ordered(input_type)

    def accumulate(self, batch: pa.RecordBatch, groups: Groups, arrival: Arrival) -> Sequence[pa.Array]:
        return self.merge([batch.column(self.column)], groups)

    def merge(self, accumulators: Sequence[pa.Array], groups: Groups) -> Sequence[pa.Array]:
        values = accumulators[0]
        return [_least(values, ranks_of(values, is_ascending=self._IS_ASCENDING), groups)]

    def result(self, accumulators: Sequence[pa.Array]) -> pa.Array:
        return accumulators[0]


class MinAggregate(ExtremeAggregate):
    """The minimum of the values that are not null.

    >>> rows = env.from_collection([("kelp", 3), ("kelp", 5), ("kelp", 5)], "word string, n bigint")
    >>> clock = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: 0)
    >>> keyed = rows.assign_timestamps_and_watermarks(clock).key_by("word")
    >>> windows = keyed.window(TumblingEventTimeWindows.of(Time.minutes(1)))
    >>> [row.result for row in windows.aggregate_batches(result=MinAggregate("n")).execute_and_collect()]
    [3]
    """

    _IS_ASCENDING = True


class MaxAggregate(ExtremeAggregate):
    """The maximum of the values that are not null.

    >>> rows = env.from_collection([("kelp", 3), ("kelp", 5), ("kelp", 5)], "word string, n bigint")
    >>> clock = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: 0)
    >>> keyed = rows.assign_timestamps_and_watermarks(clock).key_by("word")
    >>> windows = keyed.window(TumblingEventTimeWindows.of(Time.minutes(1)))
    >>> [row.result for row in windows.aggregate_batches(result=MaxAggregate("n")).execute_and_collect()]
    [5]
    """

    _IS_ASCENDING = False


class ArrivalAggregate(ColumnAggregate):
    """The first or last of the values that are not null, in order of arrival."""

    _SIGN: int

    def accumulator_types(self, input_type: RowTypeInformation) -> Sequence[TypeInformation]:
        return [self._type(input_type), parse_type("bigint")]

    def result_type(self, input_type: RowTypeInformation) -> TypeInformation:
        return self._type(input_type)

    def accumulate(self, batch: pa.RecordBatch, groups: Groups, arrival: Arrival) -> Sequence[pa.Array]:
        return self.merge([batch.column(self.column), pa.array(arrival)], groups)

    def merge(self, accumulators: Sequence[pa.Array], groups: Groups) -> Sequence[pa.Array]:
        values, arrival = accumulators
        ranks = arrival.to_numpy() * self._SIGN
        at = pa.array(_least_rows(values, ranks, groups))
        return [values.take(at), arrival.take(at)]

    def result(self, accumulators: Sequence[pa.Array]) -> pa.Array:
        return accumulators[0]


class FirstAggregate(ArrivalAggregate):
    """The first of the values that are not null, in order of arrival.

    >>> rows = env.from_collection([("kelp", 3), ("kelp", 5), ("kelp", 5)], "word string, n bigint")
    >>> clock = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: 0)
    >>> keyed = rows.assign_timestamps_and_watermarks(clock).key_by("word")
    >>> windows = keyed.window(TumblingEventTimeWindows.of(Time.minutes(1)))
    >>> [row.result for row in windows.aggregate_batches(result=FirstAggregate("n")).execute_and_collect()]
    [3]
    """

    _SIGN = 1


class LastAggregate(ArrivalAggregate):
    """The last of the values that are not null, in order of arrival.

    >>> rows = env.from_collection([("kelp", 3), ("kelp", 5), ("kelp", 5)], "word string, n bigint")
    >>> clock = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: 0)
    >>> keyed = rows.assign_timestamps_and_watermarks(clock).key_by("word")
    >>> windows = keyed.window(TumblingEventTimeWindows.of(Time.minutes(1)))
    >>> [row.result for row in windows.aggregate_batches(result=LastAggregate("n")).execute_and_collect()]
    [5]
    """

    _SIGN = -1


class ListAggregate(ColumnAggregate):
    """The base class of aggregates that keep several values; a list never contains null."""

    def accumulator_types(self, input_type: RowTypeInformation) -> Sequence[TypeInformation]:
        return [parse_type(f"array<{self._ordered(input_type).ddl}>")]

    def accumulate(self, batch: pa.RecordBatch, groups: Groups, arrival: Arrival) -> Sequence[pa.Array]:
        number = np.empty(len(groups.order), np.int64)
        number[groups.order] = groups.group
        return [self._chosen(batch.column(self.column), number, len(groups))]

    def merge(self, accumulators: Sequence[pa.Array], groups: Groups) -> Sequence[pa.Array]:
        number = np.empty(len(groups.order), np.int64)
        number[groups.order] = groups.group
        lists = accumulators[0]
        return [self._chosen(lists.flatten(), number[pc.list_parent_indices(lists).to_numpy()], len(groups))]

    @abstractmethod
    def _kept(self, values: pa.Array, number: Arrival) -> Arrival:
        """Return the rows of the values that stay, ordered by the number of their group."""

    def _chosen(self, values: pa.Array, number: Arrival, count: int) -> pa.Array:
        rows = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        values, number = values.take(pa.array(rows)), number[rows]
        kept = self._kept(values, number) if len(rows) else rows
        ends = np.searchsorted(number[kept], np.arange(count + 1))
        return pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), values.take(pa.array(kept)))


class TopNAggregate(ListAggregate):
    """A list of the `n` greatest values that are not null, the greatest first; NaN is greater than all other numbers.

    >>> rows = env.from_collection([("kelp", 3), ("kelp", 5), ("kelp", 5)], "word string, n bigint")
    >>> clock = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: 0)
    >>> keyed = rows.assign_timestamps_and_watermarks(clock).key_by("word")
    >>> windows = keyed.window(TumblingEventTimeWindows.of(Time.minutes(1)))
    >>> [row.result for row in windows.aggregate_batches(result=TopNAggregate(2, "n")).execute_and_collect()]
    [[5, 5]]

    Args:
        n: Number of values.
        column: The column.
        ascending: Whether the smallest values are kept instead.

    Raises:
        ConfigurationError: `n` is not a whole number from 1.
    """

    def __init__(self, n: int, column: str, *, ascending: bool = False) -> None:
        super().__init__(column)
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ConfigurationError(f"TopNAggregate keeps at least one value, not {n!r}.")
        self.n = n
        self._is_ascending = ascending

    def result_type(self, input_type: RowTypeInformation) -> TypeInformation:
        return self.accumulator_types(input_type)[0]

    def result(self, accumulators: Sequence[pa.Array]) -> pa.Array:
        return accumulators[0]

    def _kept(self, values: pa.Array, number: Arrival) -> Arrival:
        order = np.lexsort((ranks_of(values, is_ascending=self._is_ascending), number))
        ordered = number[order]
        position = np.arange(len(order)) - np.searchsorted(ordered, ordered)
        return order[position < self.n]


class DistinctCountAggregate(ListAggregate):
    """The number of different values that are not null; all of them are in state.

    >>> rows = env.from_collection([("kelp", 3), ("kelp", 5), ("kelp", 5)], "word string, n bigint")
    >>> clock = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: 0)
    >>> keyed = rows.assign_timestamps_and_watermarks(clock).key_by("word")
    >>> windows = keyed.window(TumblingEventTimeWindows.of(Time.minutes(1)))
    >>> [row.result for row in windows.aggregate_batches(result=DistinctCountAggregate("n")).execute_and_collect()]
    [2]
    """

    def result_type(self, input_type: RowTypeInformation) -> TypeInformation:
        self._ordered(input_type)
        return parse_type("bigint")

    def result(self, accumulators: Sequence[pa.Array]) -> pa.Array:
        return pc.list_value_length(accumulators[0]).cast(pa.int64())

    def _kept(self, values: pa.Array, number: Arrival) -> Arrival:
        codes = canonical_floats(values).dictionary_encode().indices.to_numpy().astype(np.int64)
        kept = np.unique(number * (int(codes.max()) + 1) + codes, return_index=True)[1]
        return kept[np.argsort(number[kept], kind="stable")]


def summed(values: pa.Array, groups: Groups, who: str) -> pa.Array:
    """Return the sum of the values of each group that are not null, null if there is none.

    Raises:
        OutputTypeError: A sum of whole numbers does not fit 64 bits, or one of decimals 38 digits.
    """
    present = values.is_valid().to_numpy(zero_copy_only=False)[groups.order]
    nothing: Any = Decimal(0) if pa.types.is_decimal(values.type) else 0
    numbers = values.fill_null(nothing).to_numpy(zero_copy_only=False)[groups.order]
    with exact_decimals():
        sums = np.add.reduceat(numbers, groups.starts)
    if pa.types.is_integer(values.type):
        about = np.add.reduceat(numbers.astype(np.float64), groups.starts)
        if (np.abs(sums - about) > _SAFE_SUM).any():
            raise OutputTypeError(who, "A sum does not fit 64 bits.", declared="bigint")
    try:
        return pa.array(sums, values.type, mask=~np.logical_or.reduceat(present, groups.starts))
    except pa.ArrowInvalid as error:
        raise OutputTypeError(who, f"A sum does not fit: {error}", declared=str(values.type)) from error


def _wide(values: pa.Array) -> pa.Array:
    if pa.types.is_decimal(values.type):
        return values.cast(pa.decimal128(38, values.type.scale))
    return values.cast(pa.int64() if pa.types.is_integer(values.type) else pa.float64())


def _least_rows(values: pa.Array, ranks: Arrival, groups: Groups) -> Arrival:
    """Return for each group the row of the value with the least rank; any row of a group of nulls."""
    ordered = np.where(values.is_valid().to_numpy(zero_copy_only=False), ranks, _NEVER)[groups.order]
    best = np.minimum.reduceat(ordered, groups.starts)
    at = np.where(ordered == best[groups.group], np.arange(len(ordered)), _NEVER)
    return groups.order[np.minimum.reduceat(at, groups.starts)]


def _least(values: pa.Array, ranks: Arrival, groups: Groups) -> pa.Array:
    return values.take(pa.array(_least_rows(values, ranks, groups)))
