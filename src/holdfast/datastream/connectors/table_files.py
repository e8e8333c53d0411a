"""`TableDirectory`: the data files of a table that tasks stage and the driver publishes, or sweeps.

::

    <table>/_holdfast/identity                              the id of the table, for tasks that have no client of it
                     /<incarnation>-<sink>/<name>.staged    written by a task
           /data/<incarnation>-<sink>/<name>.parquet        a second link to the file, when its checkpoint is complete

    staged --link--> has both names --commit--> in the table --delete the first name--> data
      |                |
      +-- attempt is dead: delete the first name; no version of the table names the second

Cleanup tools (VACUUM, removal of orphans) skip folders that begin with an underscore. So they leave staged files alone,
however long a job is down, and delete data files when no version of the table needs them. Between link and commit the
data file is an orphan, but a young one, because linking sets its time to now; and if a tool deletes it nevertheless,
the first name is still there.

Earlier releases left the files of a table below `_holdfast`, as `<name>.parquet`. Such a file is used as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, BinaryIO, Final, NamedTuple

import pyarrow as pa

from holdfast.datastream.sinks.output_directory import map_concurrently
from holdfast.datastream.sinks.output_files import STAGED_SUFFIX
from holdfast.datastream.sinks.staged_files import foreign_committables_error
from holdfast.errors import ConfigurationError, NotExistError, OutputTypeError, StorageError
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.runtime.function.sink import (
    CommitRequest,
    CommitterInitContext,
    ParquetFormat,
    ParquetStaging,
    Sink,
    WriterInitContext,
)
from holdfast.storage.file_system import is_absolute, join, local_path
from holdfast.storage.job_directory import FileName
from holdfast.storage.scheme import file_system_for
from holdfast.storage.uploads import uploads_for

FOLDER: Final = "_holdfast"
IDENTITY: Final = "identity"
DATA: Final = "data"
FINAL_SUFFIX: Final = ".parquet"
_MARKERS: Final = f"{FOLDER}/marks"
_MARKER_TEXT: Final = b"While this is here, the file of the same name is staged and no part of the table.\n"


class DataFile(NamedTuple):
    """A complete file that can be added to a table.

    Attributes:
        name: The path relative to the directory of the table.
        modified_at: The time of the last write, in milliseconds since 1970.
    """

    name: str
    modified_at: int


class TableDirectory:
    """The directory of a table, on a file system that all hosts share.

    Args:
        path: The absolute path.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._fs = file_system_for(path)
        self._identity_path = join(path, FOLDER, IDENTITY)

    def write_identity(self, identity: str) -> None:
        """Write the id of the table into its directory, unless it is there. Blocks.

        Raises:
            StorageError: It cannot be written, or the folder is a link to that of another table.
        """
        found = self._read_identity()
        if found == identity:
            return
        if found is not None:
            # A dropped table had this directory. Tasks of a job that still writes into that table fail from now on.
            self._fs.delete_in(join(self.path, FOLDER), IDENTITY)
        self._fs.write_atomic(self._identity_path, f"{identity}\n".encode())

    def require_identity(self, identity: str) -> None:
        """Check, in a task, that the directory belongs to the table. Blocks.

        Raises:
            StorageError: It belongs to another table, or does not exist.
        """
        found = self._read_identity()
        if found != identity:
            raise StorageError(
                f"{self._identity_path!r} contains {found!r} instead of {identity!r}, the id of the job's table: "
                "probably its directory is not mounted on this host. Nothing was staged. Mount it, and the job goes on."
            )

    def staging(
        self, context: WriterInitContext, committable: dict[str, Any], file_format: ParquetFormat
    ) -> ParquetStaging:
        """Return a writer that stages one file of a task. `committable` must have the table's `identity`."""
        folder = _folder_of(context.incarnation, context.owner)
        name = context.file_name(STAGED_SUFFIX)
        committable = {**committable, "path": self.path, "staged": f"{folder}/{name}"}
        check = partial(self.require_identity, committable["identity"])
        return ParquetStaging(join(self.path, folder), name, committable, file_format, check, self.open_staged)

    def open_staged(self, committable: dict[str, Any]) -> AbstractContextManager[BinaryIO]:
        return self._fs.open_output(join(self.path, committable["staged"]))

    def publish(self, requests: Sequence[CommitRequest]) -> list[DataFile]:
        """Link the staged files of an epoch to their final names; safe to repeat. Call `release` after the commit.

        Returns:
            The files, in the order of the requests.

        Raises:
            ConfigurationError: A file is missing or incomplete.
        """
        staged = [str(request.committable["staged"]) for request in requests]
        self._fs.link_all([(join(self.path, name), join(self.path, data_name(name))) for name in staged])
        return [self.require_complete(request) for request in requests]

    def release(self, requests: Sequence[CommitRequest]) -> None:
        """Delete the staging names of an epoch that the table contains."""
        for request in requests:
            folder, _, name = str(request.committable["staged"]).rpartition("/")
            self._fs.delete_in(join(self.path, folder), name)

    def sweep(self, context: CommitterInitContext, is_dead: Callable[[FileName], bool]) -> int:
        """Delete staged files of dead attempts. Files that a table may contain have another suffix."""
        swept = 0
        for incarnation in context.incarnations:
            folder = _folder_of(incarnation, context.owner)
            for listed in self.staged_names(folder):
                found = FileName.parse(listed)
                if found is not None and STAGED_SUFFIX in listed and is_dead(found):
                    swept += self.discard(folder, listed)
        return swept

    def staged_names(self, folder: str) -> list[str]:
        """List the names in a folder for staging; others than staged files may be among them."""
        return self._fs.list_names(join(self.path, folder))

    def discard(self, folder: str, name: str) -> bool:
        """Delete a staged file; return whether it existed."""
        return self._fs.delete_in(join(self.path, folder), name)

    def _read_identity(self) -> str | None:
        try:
            return self._fs.read(self._identity_path).decode("ascii", "replace").strip()
        except NotExistError:
            return None

    def require_complete(self, request: CommitRequest) -> DataFile:
        """Return the file of a request under its final name.

        Raises:
            ConfigurationError: It is missing or incomplete.
        """
        committable = request.committable
        name, found = data_name(committable["staged"]), None
        for place in (name, published_name(committable["staged"])):
            with suppress(NotExistError):
                name, found = place, self._fs.status(join(self.path, place))
                break
        path, size = join(self.path, name), None if found is None else found.size
        if found is None or size != committable["bytes"]:
            what = "is missing" if size is None else f"has {size} bytes instead of {committable['bytes']}"
            raise ConfigurationError(
                f"The file {path!r}, which a task has staged with {committable['rows']} rows in epoch {request.epoch}, "
                f"{what}, and the table does not contain the epoch: the directory is not shared between the hosts, or "
                "the file was changed. Nothing of its epoch was committed. Restore the file, and start the job again."
            )
        return DataFile(name, found.mtime)


def parse_target(sink: str, requests: Sequence[CommitRequest]) -> tuple[str, str]:
    """Return the directory and identity of the table for which the rows of an epoch were staged.

    Raises:
        ConfigurationError: Another kind of sink has made the committables, or they name paths outside of the table.
    """
    try:
        for request in requests:
            committable = request.committable
            staged = committable.get("staged")
            parts = (committable["file"] if staged is None else staged).split("/")
            numbers = (committable["rows"], committable["bytes"])
            is_inside = {"", ".", ".."}.isdisjoint(parts) and (staged is None or parts[0] == FOLDER)
            is_ours = type(committable["identity"]) is str and is_absolute(committable["path"])
            if not (is_inside and is_ours and all(type(number) is int for number in numbers)):
                raise ValueError("a path is outside of the table")
        [target] = {(r.committable["path"], r.committable["identity"]) for r in requests}
    except PARSE_ERRORS as error:
        raise foreign_committables_error(sink, [request.committable for request in requests], error) from error
    return target


def data_name(staged: str) -> str:
    """Return the name under which a staged file is added to the table."""
    return f"{DATA}/{published_name(staged).removeprefix(f'{FOLDER}/')}"


def published_name(staged: str) -> str:
    """Return the final name beside the staged file: of earlier releases, and in object stores before the copy."""
    return f"{staged.removesuffix(STAGED_SUFFIX)}{FINAL_SUFFIX}"


def _folder_of(incarnation: str, owner: str) -> str:
    return f"{FOLDER}/{incarnation}-{owner}"


# An object has one name. So publishing copies the file to `data`, and a marker object, instead of a suffix, tells that
# a file is only staged, because earlier releases left files of the table where they were staged::
#
#     <table>/_holdfast/marks/<incarnation>-<sink>/<name>.staged    written before the file, deleted after it
#                      /<incarnation>-<sink>/<name>.parquet         the staged file
#            /data/<incarnation>-<sink>/<name>.parquet              its copy, when its checkpoint is complete
#
#     marked --write--> staged --copy, commit--> the table has the copy --> delete the file, then the marker
#       |                 |
#       +-----------------+-- attempt is dead --> delete the file, then the marker
#
# Markers have a folder of their own, so that a sweep lists nothing else.


class ObjectStoreTableDirectory(TableDirectory):
    """The directory of a table in an object store.

    Args:
        path: Its URI.
    """

    @contextmanager
    def open_staged(self, committable: dict[str, Any]) -> Iterator[BinaryIO]:
        """Write the marker, then open the object."""
        marker, target = self._marker(committable["staged"]), join(self.path, published_name(committable["staged"]))
        self._fs.write_atomic(marker, _MARKER_TEXT)
        with uploads_for(self.path).open_object(target) as file:
            yield file
        if not self._fs.exists(marker):
            # No later sweep would find the file without its marker.
            self._fs.delete(target)
            raise StorageError(f"{target!r} was swept while it was written: its attempt is dead.")

    def publish(self, requests: Sequence[CommitRequest]) -> list[DataFile]:
        map_concurrently(requests, self._copy)
        return map_concurrently(requests, self.require_complete)

    def _copy(self, request: CommitRequest) -> None:
        staged = str(request.committable["staged"])
        source, target = (join(self.path, name(staged)) for name in (published_name, data_name))
        with suppress(NotExistError):
            uploads_for(target).copy(source, target)

    def release(self, requests: Sequence[CommitRequest]) -> None:
        map_concurrently(requests, self._remove)

    def _remove(self, request: CommitRequest) -> None:
        staged = str(request.committable["staged"])
        if self._fs.exists(self._marker(staged)):  # without a marker, the file may belong to the table
            self._fs.delete(join(self.path, published_name(staged)))
            self._fs.delete(self._marker(staged))

    def staged_names(self, folder: str) -> list[str]:
        return self._fs.list_names(self._marker(folder))

    def discard(self, folder: str, name: str) -> bool:
        """Delete a staged file, its marker and its unfinished uploads."""
        target = join(self.path, folder, published_name(name))
        uploads_for(target).abort_all(target)
        self._fs.delete(target)
        return self._fs.delete(self._marker(join(folder, name)))

    def _marker(self, staged: str) -> str:
        return join(self.path, _MARKERS, staged.removeprefix(f"{FOLDER}/"))


def table_directory(path: str) -> TableDirectory:
    """Return the directory of a table at an absolute path or URI."""
    return TableDirectory(path) if local_path(path) is not None else ObjectStoreTableDirectory(path)


def check_required(sink: Sink, uid: str, upserts: pa.RecordBatch, required: Sequence[str]) -> None:
    """Check the columns that a table requires, before rows are staged.

    Raises:
        OutputTypeError: One is null.
    """
    for name in required:
        if upserts.column(name).null_count:
            raise OutputTypeError(
                uid, f"{sink!r} got a row in which {name!r} is null; the table requires it.", field=name
            )
