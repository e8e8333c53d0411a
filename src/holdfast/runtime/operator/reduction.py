"""Built-in reductions of keyed streams, as functions of batches; they emit a row for each row.

Their output does not depend on the boundaries of batches: it is that of a loop over the rows.
"""

from __future__ import annotations

from abc import abstractmethod
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import OutputTypeError
from holdfast.runtime.function.user_function import RuntimeContext
from holdfast.runtime.operator.batch_function import (
    BatchContext,
    BatchFunction,
    ColumnState,
    Groups,
    accumulate_groups,
    exact_decimals,
    latest_marked,
)
from holdfast.state.descriptor import StateTtlConfig, ValueStateDescriptor
from holdfast.types.ordering import is_greater, is_less, ranks_of
from holdfast.types.type_information import TypeInformation
from holdfast.types.type_parser import parse_type

_SAFE_SUM: Final = 2.0**62
_EXPIRED_IS_VISIBLE: Final = StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp


class Reduction(BatchFunction):
    """A reduction of one column, or of none.

    Args:
        column: The column; empty for reductions of whole rows.
        name: The column of the result; the same as `column` replaces it.
    """

    def __init__(self, column: str = "", name: str = "") -> None:
        self.column = column
        self.name = name or column

    def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
        """Emit each row with the result up to it."""
        ctx.keep_timestamps()
        groups = Groups(ctx.slots)
        values = batch.column(self.column) if self.column else None
        result = self.reduce(values, groups, ctx)
        if self.name in batch.schema.names:
            at = batch.schema.get_field_index(self.name)
            return batch.set_column(at, batch.schema.field(at), result)
        return batch.append_column(self.name, result)

    @abstractmethod
    def reduce(self, values: pa.Array | None, groups: Groups, ctx: BatchContext) -> pa.Array:
        """Return the result with each row, and write it to state."""

    def keep(self, state: Any, ctx: BatchContext, groups: Groups, key_by_key: pa.Array) -> None:
        """Write the last value of each key to state."""
        ctx.columns(state).put_at(groups.first_rows, key_by_key.take(pa.array(groups.ends)))


class CountReduction(Reduction):
    """The number of rows of a key."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._count: Any = runtime_context.get_state(ValueStateDescriptor("count", parse_type("bigint")))

    def reduce(self, values: pa.Array | None, groups: Groups, ctx: BatchContext) -> pa.Array:
        before = _numbers(ctx.columns(self._count).get_at(groups.first_rows), 0)
        counts = before[groups.group] + groups.position + 1
        self.keep(self._count, ctx, groups, pa.array(counts))
        return pa.array(groups.in_rows(counts))


class SumReduction(Reduction):
    """The sum of the values that are not null; null as long as there is none."""

    def __init__(self, column: str, value_type: TypeInformation) -> None:
        super().__init__(column)
        self._type = value_type

    def open(self, runtime_context: RuntimeContext) -> None:
        self._sum: Any = runtime_context.get_state(ValueStateDescriptor("sum", self._type))

    def reduce(self, values: pa.Array | None, groups: Groups, ctx: BatchContext) -> pa.Array:
        before = ctx.columns(self._sum).get_at(groups.first_rows)
        sums = running_sum(values, before, groups, self._type, ctx.uid)
        self.keep(self._sum, ctx, groups, sums)
        return _in_rows(sums, groups)


class MeanReduction(Reduction):
    """The mean of the values that are not null, as a floating-point number; null as long as there is none."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._sum: Any = runtime_context.get_state(ValueStateDescriptor("sum", parse_type("double")))
        self._count: Any = runtime_context.get_state(ValueStateDescriptor("count", parse_type("bigint")))

    def reduce(self, values: pa.Array | None, groups: Groups, ctx: BatchContext) -> pa.Array:
        assert values is not None
        ordered = values.take(pa.array(groups.order))
        present = ordered.is_valid().to_numpy(zero_copy_only=False)
        numbers = ordered.cast(pa.float64(), safe=False).fill_null(0.0).to_numpy(zero_copy_only=False)
        sums_before = _numbers(ctx.columns(self._sum).get_at(groups.first_rows), 0.0)
        counts_before = _numbers(ctx.columns(self._count).get_at(groups.first_rows), 0)
        sums = accumulate_groups(np.add, groups, numbers, sums_before)
        counts = accumulate_groups(np.add, groups, present.astype(np.int64), counts_before)
        self.keep(self._sum, ctx, groups, pa.array(sums))
        self.keep(self._count, ctx, groups, pa.array(counts))
        with np.errstate(invalid="ignore", divide="ignore"):
            means = sums / counts
        return _in_rows(pa.array(means, mask=counts == 0), groups)


class ChoosingReduction(Reduction):
    """Keeps one of the values: min, max, first or last; null as long as there is none."""

    def __init__(self, column: str, value_type: TypeInformation, choice: str) -> None:
        super().__init__(column)
        self._type = value_type
        self._choice = choice

    def open(self, runtime_context: RuntimeContext) -> None:
        self._kept: Any = runtime_context.get_state(ValueStateDescriptor(self._choice, self._type))

    def reduce(self, values: pa.Array | None, groups: Groups, ctx: BatchContext) -> pa.Array:
        assert values is not None
        before = ctx.columns(self._kept).get_at(groups.first_rows)
        both = pa.concat_arrays([before.cast(values.type), values.take(pa.array(groups.order))])
        present = both.is_valid().to_numpy(zero_copy_only=False)
        had, has = present[: len(groups)], present[len(groups) :]
        if self._choice == "last":
            chosen = latest_marked(groups, has)
        elif self._choice == "first":
            chosen = _first_marked(groups, has)
            chosen = np.where(had[groups.group], -1, chosen)
        else:
            chosen = self._extreme(groups, both, had, has)
        # Positions in `both`: what was kept before, then the rows.
        at = np.where(chosen >= 0, chosen + len(groups), groups.group)
        result = both.take(pa.array(at))
        self.keep(self._kept, ctx, groups, result)
        return _in_rows(result, groups)

    def _extreme(
        self, groups: Groups, both: pa.Array, had: npt.NDArray[np.bool_], has: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.int64]:
        """Return the row with the minimum or maximum so far, -1 for the value in state."""
        # Smaller is better; a later value that is no better does not count.
        ranks = ranks_of(both, is_ascending=self._choice == "min")
        worst = np.iinfo(np.int64).max
        before = np.where(had, ranks[: len(groups)], worst)
        own = np.where(has, ranks[len(groups) :], worst)
        best = accumulate_groups(np.minimum, groups, own, before)
        previous = np.empty_like(best)
        previous[1:] = best[:-1]
        previous[groups.starts] = before
        return latest_marked(groups, best < previous)


class InTuples(BatchFunction):
    """A reduction of one field of tuples, which are one column of structs.

    Args:
        reduction: The reduction of a table with a column for each field.
    """

    def __init__(self, reduction: BatchFunction) -> None:
        self._reduction = reduction

    def open(self, runtime_context: RuntimeContext) -> None:
        self._reduction.open(runtime_context)

    def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
        tuples = batch.column(0)
        reduced = self._reduction.process_batch(pa.RecordBatch.from_struct_array(tuples), ctx)
        mask = tuples.is_null() if tuples.null_count else None
        result = pa.StructArray.from_arrays(reduced.columns, fields=list(reduced.schema), mask=mask)
        return pa.RecordBatch.from_arrays([result], names=batch.schema.names)


class Deduplication(BatchFunction):
    """Emits the first row of each key, and of each key again when its state has expired.

    Args:
        ttl: The time to live of the state; None for ever.
    """

    def __init__(self, ttl: StateTtlConfig | None = None) -> None:
        self._ttl = ttl

    def open(self, runtime_context: RuntimeContext) -> None:
        descriptor: ValueStateDescriptor[bool] = ValueStateDescriptor("seen", parse_type("boolean"))
        if self._ttl is not None:
            descriptor.enable_time_to_live(self._ttl)
        self._seen: Any = runtime_context.get_state(descriptor)

    def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
        groups = Groups(ctx.slots)
        state = ctx.columns(self._seen)
        new = _mark_new(state, groups.first_rows)
        if self._ttl is not None and self._ttl.state_visibility is _EXPIRED_IS_VISIBLE:
            # The first read returned expired values once more, and deleted them: then the next row of the key is new.
            new = np.concatenate([new, _mark_new(state, groups.order[groups.starts[groups.starts < groups.ends] + 1])])
        new = np.sort(new)
        ctx.keep_timestamps(new)
        return batch.take(pa.array(new))


def _mark_new(state: ColumnState, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return those of some rows, of different keys, whose key has no state, and mark their keys."""
    new: npt.NDArray[np.int64] = rows[state.get_at(rows).is_null().to_numpy(zero_copy_only=False)]
    state.put_at(new, pa.array(np.ones(len(new), bool)))
    return new


class TopN(BatchFunction):
    """Emits each row that is among the best of its key on arrival, with its rank.

    Rows with equal values are ranked in order of arrival; null has no rank.
    """

    def __init__(self, n: int, column: str, value_type: TypeInformation, ascending: bool, name: str) -> None:
        self._n = n
        self._column = column
        self._type = parse_type(f"array<{value_type.ddl}>")
        self._ascending = ascending
        self._name = name

    def open(self, runtime_context: RuntimeContext) -> None:
        self._best: Any = runtime_context.get_state(ValueStateDescriptor("best", self._type))

    def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
        groups = Groups(ctx.slots)
        state = ctx.columns(self._best)
        best: list[list[Any]] = [found or [] for found in state.get_at(groups.first_rows).to_pylist()]
        values = batch.column(self._column).take(pa.array(groups.order)).to_pylist()
        rows: list[int] = []
        ranks: list[int] = []
        changed: set[int] = set()
        for row, group, value in zip(groups.order.tolist(), groups.group.tolist(), values, strict=True):
            rank = self._enter(best[group], value)
            if rank is not None:
                rows.append(row)
                ranks.append(rank)
                changed.add(group)
        written = sorted(changed)
        lists = pa.array([best[group] for group in written], self._type.arrow_type)
        state.put_at(groups.first_rows[written], lists)
        order = np.argsort(rows, kind="stable")
        kept = np.array(rows, np.int64)[order]
        ctx.keep_timestamps(kept)
        emitted = batch.take(pa.array(kept))
        return emitted.append_column(self._name, pa.array(np.array(ranks, np.int64)[order]))

    def _enter(self, best: list[Any], value: Any) -> int | None:
        """Insert a value into the best of its key; return its rank from 1, None if it is not among them."""
        if value is None:
            return None
        is_better = is_less if self._ascending else is_greater
        at = len(best)
        while at and is_better(value, best[at - 1]):
            at -= 1
        if at >= self._n:
            return None
        best.insert(at, value)
        del best[self._n :]
        return at + 1


def running_sum(
    values: pa.Array | None, before: pa.Array, groups: Groups, value_type: TypeInformation, uid: str
) -> pa.Array:
    """Return the sums along the rows of each key, key by key.

    Raises:
        OutputTypeError: A sum does not fit the type.
    """
    assert values is not None
    ordered = values.take(pa.array(groups.order))
    had = before.is_valid().to_numpy(zero_copy_only=False)
    has = ordered.is_valid().to_numpy(zero_copy_only=False)
    present = accumulate_groups(np.logical_or, groups, has, had)
    if not pa.types.is_integer(values.type):
        # Decimals are added as objects. Of the two zeros this is the one that changes nothing.
        nothing = 0 if pa.types.is_decimal(values.type) else -0.0
        with exact_decimals():
            sums = accumulate_groups(np.add, groups, _numbers(ordered, nothing), _numbers(before, nothing))
    else:
        sums = accumulate_groups(
            np.add, groups, _numbers(ordered, 0).astype(np.int64), _numbers(before, 0).astype(np.int64)
        )
        about = accumulate_groups(
            np.add, groups, _numbers(ordered, 0).astype(np.float64), _numbers(before, 0).astype(np.float64)
        )
        if (np.abs(sums - about) > _SAFE_SUM).any():
            raise OutputTypeError(uid, "A sum does not fit 64 bits.", declared=str(value_type))
    try:
        return pa.array(sums, mask=~present).cast(value_type.arrow_type)
    except pa.ArrowInvalid as error:
        raise OutputTypeError(uid, f"A sum does not fit: {error}", declared=str(value_type)) from error


def _first_marked(groups: Groups, marked: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return for each row, key by key, the first marked row of its key up to it; -1 if there is none."""
    counts = accumulate_groups(np.add, groups, marked.astype(np.int64), np.zeros(len(groups), np.int64))
    return latest_marked(groups, marked & (counts == 1))


def _numbers(array: pa.Array, nothing: Any) -> npt.NDArray[Any]:
    if pa.types.is_decimal(array.type):
        nothing = Decimal(nothing)
    numbers: npt.NDArray[Any] = array.fill_null(nothing).to_numpy(zero_copy_only=False)
    return numbers


def _in_rows(key_by_key: pa.Array, groups: Groups) -> pa.Array:
    back = np.empty(len(groups.order), np.int64)
    back[groups.order] = np.arange(len(groups.order))
    return key_by_key.take(pa.array(back))
