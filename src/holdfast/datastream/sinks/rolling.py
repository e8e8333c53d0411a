"""Files that end when they are large: one after the other, for the rows of one subtask, epoch and bucket."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from holdfast.runtime.function.sink import BatchSinkWriter, Committable
from holdfast.runtime.function.staging import ParquetStaging


class RollingStaging(BatchSinkWriter):
    """Begins another file when the present one is large enough.

    Args:
        make: Makes the writer of a new file.
        part_size: Bytes after which a file ends, 0 if it does not; what waits to be compressed counts as it is.
    """

    def __init__(self, make: Callable[[], ParquetStaging], part_size: int) -> None:
        self._make = make
        self._part_size = part_size
        self._files: list[ParquetStaging] = []
        self._current: ParquetStaging | None = None

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Takes a batch; it goes into one file as a whole."""
        if self._current is None:
            self._current = self._make()
            self._files.append(self._current)
        self._current.write_batch(batch)
        if self._part_size and self._current.size >= self._part_size:
            self._current.flush(False)
            self._current = None

    def flush(self, end_of_input: bool) -> None:
        """Makes the last file durable; those before it are."""
        if self._current is not None:
            self._current.flush(end_of_input)

    def prepare_commit(self) -> list[Committable]:
        """What was staged, a committable for each file."""
        return [committable for file in self._files for committable in file.prepare_commit()]

    def abort(self) -> None:
        """Removes the file that is not whole; the others are swept."""
        if self._current is not None:
            self._current.abort()
