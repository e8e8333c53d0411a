"""What a keyed stream does with whole batches: functions of Arrow batches, and reductions that are built in."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.datastream.stream.accumulation import (
    AccumulateReduceFunction,
    ChooseReduceFunction,
    added,
    greatest,
    is_greater,
    is_less,
    least,
)
from holdfast.datastream.stream.operation import declared_type
from holdfast.errors import ConfigurationError
from holdfast.runtime.graph.stream_graph import OperatorSpec, Shape
from holdfast.runtime.operator.vectorised.batch_function import BatchFunction, PlainBatchFunction
from holdfast.runtime.operator.vectorised.reduction import (
    ChoosingReduction,
    CountReduction,
    Deduplication,
    InTuples,
    MeanReduction,
    SumReduction,
    TopN,
)
from holdfast.state.declaration.descriptor import ValueStateDescriptor
from holdfast.types.conversion.ddl import parse_type
from holdfast.types.information.type_information import (
    AtomicTypeInformation,
    ChangelogTypeInformation,
    CollatedStringTypeInformation,
    DecimalTypeInformation,
    OpaqueTypeInformation,
    RowTypeInformation,
    TupleTypeInformation,
    TypeInformation,
)

if TYPE_CHECKING:
    from holdfast.datastream.stream.data_stream import DataStream

_VALUE = "value"
_NUMBERS = frozenset({"tinyint", "smallint", "int", "bigint", "float", "double"})
BatchLike = BatchFunction | Callable[..., Any]


class BatchOperations:
    """The operations of a keyed stream on whole batches.

    The reductions emit a row for each row, in its order: the row with one column replaced (`sum`, `min`, `max`,
    `first`, `last`) or added (`count`, `mean`); of a tuple that is one of its parts, by position. What they emit does
    not depend on how rows are cut into batches or epochs.

    Each raises a `ConfigurationError` for a column that is not there or whose values it cannot reduce, and for a stream
    of changes, of which it would count a row that takes another one back as one more.
    """

    @abstractmethod
    def get_type(self) -> TypeInformation:
        """Return the type of the elements."""

    @property
    @abstractmethod
    def _is_final(self) -> bool:
        """Whether reductions emit once a key, at the end."""

    @abstractmethod
    def _operator(self, spec: OperatorSpec, name: str) -> DataStream:
        """Add an operator."""

    @abstractmethod
    def _apply(self, shape: Shape, function: Any, output_type: Any) -> DataStream:
        """Add an operator with a user's function."""

    def process_batches(self, func: BatchLike, output_type: Any = None, *, state: Any = None) -> DataStream:
        """Passes whole Arrow batches to a function that reads and writes value state as columns.

        Args:
            func: A `BatchFunction`, or a function ``(batch, state)`` that returns record batches, tables, or None. It
                may get the rows of many keys in one batch, and those of one key in several.
            output_type: Columns of what it returns, as DDL or type; None for those of this stream.
            state: Only for a plain function: its value state as a `ValueStateDescriptor`, several of them, or a dict of
                names and types. ``state.get(keys)`` returns an array and ``state.put(keys, values)`` takes one, where
                the keys are a column of the batch; with several states, `state` is a dict of them by name.

        Raises:
            ConfigurationError: The function or the states are not of this kind.
        """
        kept = self.get_type() if output_type is None else declared_type(output_type, "process_batches")
        if not isinstance(kept, RowTypeInformation) and output_type is not None:
            raise ConfigurationError(f"process_batches() emits columns, 'name type, ...', not {output_type!r}.")
        function = func if isinstance(func, BatchFunction) and state is None else _plain_function(func, state)
        return self._operator(self._batches(function, kept), "process_batches")

    def count(self, name: str = "count") -> DataStream:
        """Adds how many rows of its key there have been, this one included."""
        return self._adding(CountReduction(name=name), name, parse_type("bigint"))

    def sum(self, position_to_sum: int | str = 0) -> DataStream:
        """Replaces a column by the sum of its values so far, without those that are null."""
        if self._is_untyped:
            return self._accumulated("sum", position_to_sum, added)
        column, value_type = self._number(position_to_sum, "sum", is_part=True)
        if self._is_final:
            return self._accumulated("sum", self._position(column), added)
        return self._replacing(SumReduction(column, value_type), "sum")

    def mean(self, column: int | str = 0, name: str = "mean") -> DataStream:
        """Adds the mean of the values of a column so far, without those that are null, as a double."""
        found, _ = self._number(column, "mean")
        return self._adding(MeanReduction(found, name), name, parse_type("double"))

    def min(self, position_to_min: int | str = 0) -> DataStream:
        """Replaces a column by the least of its values so far; NaN counts only as long as there is nothing else."""
        if self._is_untyped:
            return self._accumulated("min", position_to_min, least)
        column, value_type = self._ordered(position_to_min, "min", is_part=True)
        if self._is_final:
            return self._accumulated("min", self._position(column), least)
        return self._replacing(ChoosingReduction(column, value_type, "min"), "min")

    def max(self, position_to_max: int | str = 0) -> DataStream:
        """Replaces a column by the greatest of its values so far; NaN counts only as long as there is nothing else."""
        if self._is_untyped:
            return self._accumulated("max", position_to_max, greatest)
        column, value_type = self._ordered(position_to_max, "max", is_part=True)
        if self._is_final:
            return self._accumulated("max", self._position(column), greatest)
        return self._replacing(ChoosingReduction(column, value_type, "max"), "max")

    def min_by(self, position_to_min_by: int | str = 0) -> DataStream:
        """Emits the element with the least value of a part so far, after each element; of equal ones the first."""
        return self._best("min_by", position_to_min_by, is_less)

    def max_by(self, position_to_max_by: int | str = 0) -> DataStream:
        """Emits the element with the greatest value of a part so far, after each element; of equal ones the first."""
        return self._best("max_by", position_to_max_by, is_greater)

    def first(self, column: int | str = 0) -> DataStream:
        """Replaces a column by the first of its values that was not null."""
        return self._replacing(ChoosingReduction(*self._column(column, "first", is_part=True), "first"), "first")

    def last(self, column: int | str = 0) -> DataStream:
        """Replaces a column by the last of its values that was not null: null is filled with what was before."""
        return self._replacing(ChoosingReduction(*self._column(column, "last", is_part=True), "last"), "last")

    def deduplicate(self) -> DataStream:
        """Emits the first row of each key, and drops all others."""
        self._refuse_changes("deduplicate()")
        return self._operator(self._batches(Deduplication(), self.get_type()), "deduplicate")

    def top_n(self, n: int, column: int | str = 0, *, ascending: bool = False, name: str = "rank") -> DataStream:
        """Emits each row whose value is among the `n` greatest of its key when it comes, with its rank from 1 on.

        Args:
            n: How many.
            column: Whose values count; rows with null or NaN are dropped.
            ascending: The least values count instead.
            name: Of the column with the rank.
        """
        if n < 1:
            raise ConfigurationError(f"top_n() keeps at least one row a key, not {n!r}.")
        found, value_type = self._ordered(column, "top_n")
        return self._adding(TopN(n, found, value_type, ascending, name), name, parse_type("bigint"))

    @property
    def _is_untyped(self) -> bool:
        return isinstance(self.get_type(), OpaqueTypeInformation)

    def _best(self, name: str, position: int | str, is_better: Callable[[Any, Any], bool]) -> DataStream:
        self._refuse_changes(f"{name}()")
        if not self._is_untyped:
            position = self._position(self._column(position, name, is_part=True)[0])
        return self._apply("reduce", ChooseReduceFunction(name, position, is_better), None)

    def _accumulated(self, name: str, position: int | str, combine: Callable[[Any, Any], Any]) -> DataStream:
        self._refuse_changes(f"{name}()")
        if isinstance(position, bool) or not isinstance(position, int | str):
            raise ConfigurationError(f"{name}() takes the position of a part, or its name, not {position!r}.")
        return self._apply("reduce", AccumulateReduceFunction(name, position, combine), None)

    def _replacing(self, function: BatchFunction, name: str) -> DataStream:
        self._refuse_changes(f"{name}()")
        if isinstance(self.get_type(), TupleTypeInformation):
            function = InTuples(function)
        return self._operator(self._batches(function, self.get_type()), name)

    def _adding(self, function: BatchFunction, name: str, added: TypeInformation) -> DataStream:
        self._refuse_changes(f"the column {name!r}")
        names, types = self._fields()
        if name in names:
            raise ConfigurationError(f"There is a column {name!r} already; give the result another name: name='...'.")
        return self._operator(self._batches(function, RowTypeInformation([*names, name], [*types, added])), name)

    def _refuse_changes(self, what: str) -> None:
        if isinstance(self.get_type(), ChangelogTypeInformation):
            raise ConfigurationError(
                f"{what} would count a row that takes another one back as one more: the elements are changes, "
                f"{self.get_type().ddl!r}. Use process() and row.get_row_kind(), or normalize_changes()."
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
