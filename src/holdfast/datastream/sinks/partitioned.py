"""Staging by partition: the rows of one subtask and epoch in a file for each combination of values of some columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from holdfast.runtime.function.sink import BatchSinkWriter, Committable

_POSITIONS: Final = "__positions"

Values = tuple[Any, ...]
"""Of the partition columns of a row, in their order."""


class PartitionedStaging(BatchSinkWriter):
    """Hands each row to the writer of its partition, and hands out what all of them hand out.

    Args:
        columns: The columns by which rows are divided; none for a single partition.
        make: Makes the writer of a partition, whose values it is given.
    """

    def __init__(self, columns: Sequence[str], make: Callable[[Values], BatchSinkWriter]) -> None:
        self._columns = list(columns)
        self._make = make
        self._writers: dict[Values, BatchSinkWriter] = {}

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Divides a batch; rows of one partition keep their order."""
        if not batch.num_rows:
            return
        parts = list(self._divided(batch))
        for values, _ in parts:  # before anything is written: a partition may be refused
            if values not in self._writers:
                self._writers[values] = self._make(values)
        for values, part in parts:
            self._writers[values].write_batch(part)

    def flush(self, end_of_input: bool) -> None:
        """Makes all files durable."""
        for writer in self._writers.values():
            writer.flush(end_of_input)

    def prepare_commit(self) -> list[Committable]:
        """What was staged, a committable for each file."""
        return [committable for writer in self._writers.values() for committable in writer.prepare_commit()]

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def abort(self) -> None:
        """Removes the files as far as they were written."""
        for writer in self._writers.values():
            writer.abort()

    def partitions(self, batch: pa.RecordBatch) -> pa.Table:
        """The values by which the rows of a batch are divided."""
        return pa.Table.from_batches([batch]).select(self._columns)

    def _divided(self, batch: pa.RecordBatch) -> Iterator[tuple[Values, pa.RecordBatch]]:
        if not self._columns:
            yield (), batch
            return
        table = self.partitions(batch)
        positions = pa.array(range(batch.num_rows), pa.int64())
        groups = table.append_column(_POSITIONS, positions).group_by(self._columns, use_threads=False)
        for row in groups.aggregate([(_POSITIONS, "list")]).to_pylist():
            taken = row[f"{_POSITIONS}_list"]
            part = batch if len(taken) == batch.num_rows else batch.take(pa.array(taken, pa.int64()))
            yield tuple(row[name] for name in self._columns), part
