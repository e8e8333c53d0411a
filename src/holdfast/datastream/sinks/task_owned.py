"""Staged files in the job's own directory, which committers read and checkpoints own.

Unlike those of `ParquetFileSink` they stay where they are when they have been committed: as long as a checkpoint names
them they can be committed again. Their committables are `{"file": name, "rows": n, "bytes": n, "checksum": text}`.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from holdfast.errors import ConfigurationError, CorruptFileError, StorageError
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.runtime.function.sink import CHECKSUM, CommitRequest, CommitterInitContext
from holdfast.storage.file_system import join
from holdfast.storage.job_directory import FileName
from holdfast.storage.scheme import file_system_for

_AT_ONCE: Final = 1 << 20


def not_written_by(sink: str, committables: Any, error: Exception) -> ConfigurationError:
    """What says that a checkpoint names output for a sink that this kind of sink does not stage."""
    return ConfigurationError(
        f"The checkpoint names output that no {sink} has written, {reprlib.repr(committables)}: {error!r:.200}. "
        "Nothing was committed. If a sink of another kind has had this uid, give the new one a uid of its own, and let "
        "the old one commit its output first, or drop it (-n). If not, somebody has changed the checkpoint: start from "
        "another one (-s PATH)."
    )


def staged_paths(context: CommitterInitContext, requests: Sequence[CommitRequest]) -> list[str]:
    """Where the files of these requests are, by subtask.

    Raises:
        ConfigurationError: The committables are not those of such a sink.
    """
    try:
        for request in requests:
            if FileName.parse(request.committable["file"]) is None:
                raise ValueError("it names another file")
    except PARSE_ERRORS as error:
        sink = f"sink like {context.uid!r}"
        raise not_written_by(sink, [request.committable for request in requests], error) from error
    return [join(context.staging_dir, request.committable["file"]) for request in requests]


def checked_paths(context: CommitterInitContext, requests: Sequence[CommitRequest]) -> list[str]:
    """Where the files of these requests are, after each was found to be what its task has written. Blocks.

    Raises:
        ConfigurationError: The committables are not those of such a sink.
        CorruptFileError: One is not: its rows may be wrong, and no further try can help.
    """
    paths = staged_paths(context, requests)
    for path, request in zip(paths, requests, strict=True):
        # Staged by an older version, a file has no checksum.
        if CHECKSUM in request.committable and request.committable[CHECKSUM] != _checksum(path):
            raise CorruptFileError(
                path,
                None,
                f"its checksum is not the one that its task has told. The sink {request.uid!r} was to commit it in "
                f"epoch {request.epoch}, and has not.",
            )
    return paths


def staged_rows(context: CommitterInitContext, requests: Sequence[CommitRequest]) -> list[pa.Table]:
    """The rows of the Parquet file of each of these requests, by subtask. Blocks.

    Raises:
        StorageError: A file cannot be read.
        CorruptFileError: One is not what its task has written.
    """
    return list(map(rows_in, checked_paths(context, requests)))


def rows_in(path: str) -> pa.Table:
    """The rows of a staged file. Blocks.

    Raises:
        StorageError: It cannot be read, or has texts that are none.
    """
    with opened(path) as file:
        rows = pq.read_table(file)
        rows.validate(full=True)
        return rows.select(rows.column_names)


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """A staged file for a reader of Parquet, which knows no names of files. Blocks.

    Raises:
        StorageError: It cannot be read.
    """
    with file_system_for(path).open_input(path) as file:
        try:
            yield file
        except (pa.ArrowException, OSError, *PARSE_ERRORS) as error:
            raise StorageError(f"The file {path!r}, which a task has staged, cannot be read: {error!s:.500}") from error


def _checksum(path: str) -> str:
    found = xxhash.xxh3_64()
    with file_system_for(path).open_input(path) as file:
        while data := file.read(_AT_ONCE):
            found.update(data)
    return str(found.hexdigest())


def sweep_task_owned(context: CommitterInitContext, is_dead: Callable[[FileName], bool]) -> int:
    """Deletes the files of one sink that no checkpoint names and no attempt can name any more."""
    fs = file_system_for(context.staging_dir)
    swept = 0
    for listed in fs.list_names(context.staging_dir):
        name = FileName.parse(listed)
        if name is not None and name.owner == context.owner and is_dead(name):
            swept += fs.delete_in(context.staging_dir, listed)
    return swept
