"""Static frames as files, which tasks of a real-time job read: the engine writes them first, in a job of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from holdfast.errors import CorruptFileError, NotExistError
from holdfast.runtime.function.bounded_sources import SequentialReader
from holdfast.runtime.function.source import BoundedEnumerator, SourceReader, SplitEnumerator, SplitSource
from holdfast.storage.file_system import join
from holdfast.storage.job_directory import SHARED, FileName, JobDirectory
from holdfast.storage.scheme import file_system_for
from holdfast.types.arrow import element_schema, nanos_to_times
from holdfast.types.type_information import TypeInformation

_SUFFIX: Final = ".arrow"


def write_frame(batches: Iterable[pa.RecordBatch], directory: JobDirectory, token: int, partition: int) -> str | None:
    """Write the rows of one partition to a file of the job. Blocks.

    Args:
        batches: The rows.
        directory: The job's directory.
        token: Token of the attempt.
        partition: Number of the partition.

    Returns:
        The path of the file, relative to the directory; None if there are no rows.

    Raises:
        StorageError: The file cannot be written.
    """
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return None
    # No checkpoint of the attempt is complete yet, and all of them name the file until it is read. So none deletes it.
    relative = join(SHARED, FileName.new(token, 0, 0, "frame", partition).format(_SUFFIX))
    with directory.fs.open_output(directory.absolute(relative)) as file, pa.ipc.new_file(file, first.schema) as writer:
        for batch in chain([first], filled):
            writer.write_batch(batch)
    return relative


class FrameSource(SplitSource):
    """The rows of a static frame, which are written when a job begins to read it; each file is a split.

    The state of a split is its file, a batch in it and a row of the batch. Checkpoints name the files until all of them
    are read, so a job that resumes reads the same rows.

    Args:
        root: The job's directory.
        element_type: Type of the rows.
        write: Writes the rows, in the driver, and returns the files. It blocks.
    """

    def __init__(
        self, root: str, element_type: TypeInformation, write: Callable[[], Sequence[str]] | None = None
    ) -> None:
        self._root = root
        self._type = element_type
        self._write = write

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_write": None}

    def create_enumerator(self, position: Any, tasks: int) -> SplitEnumerator:
        if position is not None:
            return _WrittenEnumerator(position["splits"])
        assert self._write is not None
        return _WrittenEnumerator({str(number): [path, 0, 0] for number, path in enumerate(self._write())})

    def create_reader(self, task: int) -> SourceReader:
        return _FrameReader(self._root, self._type)


class _WrittenEnumerator(BoundedEnumerator):
    @property
    def is_begun(self) -> bool:
        """Return True: files that no checkpoint names are deleted."""
        return True


class _FrameReader(SequentialReader):
    def __init__(self, root: str, element_type: TypeInformation) -> None:
        super().__init__()
        self._root = root
        self._schema = element_schema(element_type)
        self._path = ""
        self._file: Any = None

    def read(self, split_id: str, state: Any) -> tuple[pa.RecordBatch, Any]:
        path, number, row = state
        if path != self._path:
            self._open_file(path)
        try:
            batch = self._file.get_batch(number)
        except (pa.ArrowException, OSError) as error:
            raise CorruptFileError(path, None, f"the rows of a static frame cannot be read: {error}") from error
        part = batch.slice(row, self.at_once)
        following = [path, number, row + part.num_rows]
        if following[2] >= batch.num_rows:
            following = [path, number + 1, 0]
        is_last = following[1] >= self._file.num_record_batches
        return nanos_to_times(part, self._schema), None if is_last else following

    def _open_file(self, path: str) -> None:
        self.close()
        full = join(self._root, path)
        try:
            self._file = pa.ipc.open_file(file_system_for(full).open_input(full))
        except NotExistError as error:
            raise CorruptFileError(full, None, "the rows of a static frame are missing") from error
        except pa.ArrowException as error:
            raise CorruptFileError(full, None, f"the rows of a static frame cannot be read: {error}") from error
        self._path = path

    def close(self) -> None:
        self._file, self._path = None, ""
