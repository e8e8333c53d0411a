"""Parquet files, exactly once.

A task writes into a hidden folder of the output directory, under a name without `.parquet`, which no reader follows
(Spark, pyarrow, DuckDB, Polars); after the commit point the driver moves each file, within the file system, to its
final name::

    <path>/.holdfast/<job>-<sink>/<token>-<epoch>-...staged    ->    <path>/part-<epoch>-<subtask>-<nonce>.parquet

No reader ever sees a row of an epoch whose checkpoint is not complete. The files of one epoch appear one after the
other, so a reader may see a part of them while they are being committed.

Commits may be repeated for ever: in the commit of a restored checkpoint a staged file that is gone was committed, also
if a consumer has taken the final one since. Not so in the first commit of an epoch, whose files were staged a moment
ago: if they are not there, the driver looks at another disk than the tasks.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from holdfast.errors import AlreadyExistError, ConfigurationError
from holdfast.runtime.sink import CommitRequest, Committer, CommitterInitContext, Sink, WriterInitContext
from holdfast.runtime.staging import ParquetFormat, ParquetStaging, require_columns
from holdfast.storage.file_system import FileSystem, file_system_for, join, local_path
from holdfast.storage.naming import FileName
from holdfast.types.type_information import TypeInformation

logger = logging.getLogger(__name__)

STAGING_FOLDER: Final = ".holdfast"
STAGED_SUFFIX: Final = ".staged"


class ParquetFileSink(Sink):
    """Writes a stream into a directory of Parquet files, exactly once.

    Args:
        path: The directory; it is made if it is missing. A relative path is taken from the driver's working directory.
        compression: `snappy`, `zstd`, `lz4`, `gzip` or `none`.
        use_dictionary: Whether columns are dictionary-encoded, or the names of those that are. Off by default: it
            costs time, and gains only for columns with few distinct values.

    Raises:
        ConfigurationError: There is no file system for the path, or an unknown compression.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, compression: str = "snappy", use_dictionary: bool | Sequence[str] = False
    ) -> None:
        self.path = absolute(os.fspath(path))
        file_system_for(self.path)
        if local_path(self.path) is None:
            raise ConfigurationError(
                f"ParquetFileSink does not write to object stores such as {self.path!r} yet: name a directory that the "
                "driver and every executor have mounted under the same path."
            )
        dictionary = use_dictionary if isinstance(use_dictionary, bool) else tuple(use_dictionary)
        self.format = ParquetFormat(compression, dictionary)

    def check_input(self, element_type: TypeInformation) -> None:
        """Refuses a stream of undeclared type."""
        require_columns("ParquetFileSink", element_type)

    def create_writer(self, context: WriterInitContext) -> ParquetStaging:
        """Stages a file in the hidden folder."""
        staged = context.file_name(STAGED_SUFFIX)
        name = FileName.parse(staged)
        assert name is not None
        committable = {
            "directory": self.path,
            "staged": join(folder_of(context.job_id, context.owner), staged),
            "final": f"part-{context.epoch:09d}-{context.subtask:05d}-{name.nonce}.parquet",
        }
        directory = join(self.path, folder_of(context.job_id, context.owner))
        return ParquetStaging(directory, staged, committable, self.format)

    def create_committer(self, context: CommitterInitContext) -> Committer:
        """Moves staged files to their final names."""
        return _MovingCommitter()

    def sweep(self, context: CommitterInitContext, is_dead: Callable[[FileName], bool]) -> int:
        """Deletes the staged files of dead attempts of this sink in this job."""
        directory = join(self.path, folder_of(context.job_id, context.owner))
        fs = file_system_for(directory)
        swept = 0
        for listed in fs.list_names(directory):
            name = FileName.parse(listed)
            if name is not None and is_dead(name):
                swept += fs.delete(join(directory, listed))
        return swept

    def __repr__(self) -> str:
        return f"ParquetFileSink({self.path!r})"


class _MovingCommitter(Committer):
    def commit(self, requests: Sequence[CommitRequest]) -> None:
        # The directory is the one that the writer used, which may not be where the sink writes today.
        for directory, group in groupby(requests, key=lambda request: str(request.committable["directory"])):
            _move_all(file_system_for(directory), list(group))


def _move_all(fs: FileSystem, requests: Sequence[CommitRequest]) -> None:
    """Moves staged files to their final names, and says which of them were moved before.

    Raises:
        ConfigurationError: A file is not there that no earlier process can have committed.
    """
    moves = [_names(request.committable) for request in requests]
    for request, (staged, final), outcome in zip(requests, moves, fs.rename_all(moves), strict=True):
        if outcome is None:
            continue
        request.signal_already_committed()
        if isinstance(outcome, AlreadyExistError):
            fs.delete(staged)  # an earlier try linked the final name, and died before it removed the staged one
        elif not fs.exists(final):
            if not request.is_recovered and not request.number_of_retries:
                raise _missing(request.committable, staged) from outcome
            logger.warning(
                "neither %r, staged with %d rows in epoch %d, nor %r is there: it was committed, and taken since",
                staged, request.committable["rows"], request.epoch, final,
            )  # fmt: skip


def _names(committable: dict[str, Any]) -> tuple[str, str]:
    directory = committable["directory"]
    return join(directory, committable["staged"]), join(directory, committable["final"])


def _missing(committable: dict[str, Any], staged: str) -> ConfigurationError:
    return ConfigurationError(
        f"A task has just staged {committable['rows']} rows in {staged!r}, but the driver does not find this file: the "
        "directory is not shared between the hosts, or somebody has deleted the file. Let all hosts have the directory "
        "mounted under the same path, and before the job runs again bring the file to its place: from then on a staged "
        "file that is gone counts as committed."
    )


def folder_of(job_id: str, owner: str) -> str:
    """Where one sink of one job stages, relative to the output directory."""
    return join(STAGING_FOLDER, f"{job_id}-{owner}")


def absolute(path: str) -> str:
    """The path as tasks on other hosts can use it: absolute, or a URI as it is."""
    if path.startswith("file:") or local_path(path) is None:
        return path
    return str(Path(path).absolute())
