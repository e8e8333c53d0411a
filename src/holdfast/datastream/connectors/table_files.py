"""Data files of a table that tasks write and the driver gives to it: staged, found whole, named for ever, or swept.

::

    <table>/_holdfast/identity                              the id of the table, for tasks that have no client of it
                     /<incarnation>-<sink>/<name>.staged    written by a task
           /data/<incarnation>-<sink>/<name>.parquet        a second name of the file, when its checkpoint is complete

    staged --link--> has both names --commit--> the table's --take the first name away--> data
      |                |
      +-- attempt is dead: the first name goes; the second is one that no version of the table names

Tools that clean tables up leave folders alone that begin with an underscore, so nothing that is staged is taken for
rubbish, however long a job is down. What the table has is theirs: outside of such folders they delete it when it was
replaced, and no version names it any more that they keep. Between link and commit a file is rubbish to them, but a
young one, because the link gives it the time of now; and if they take the second name nevertheless, the first is there.

Earlier releases left the files of a table below `_holdfast`, as `<name>.parquet`. Such a file is taken as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, BinaryIO, Final, NamedTuple

from holdfast.datastream.sinks.output_directory import of_each
from holdfast.datastream.sinks.output_files import STAGED_SUFFIX
from holdfast.datastream.sinks.task_owned import not_written_by
from holdfast.errors import ConfigurationError, NotExistError, StorageError
from holdfast.kernel.malformed import MALFORMED
from holdfast.runtime.function.sink import (
    CommitRequest,
    CommitterInitContext,
    ParquetFormat,
    ParquetStaging,
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


class DataFile(NamedTuple):
    """A file that may be given to a table.

    Attributes:
        name: Relative to the directory of the table.
        modified_at: When it was last written, in milliseconds since 1970.
    """

    name: str
    modified_at: int


class TableDirectory:
    """The directory of a table, on a file system that all hosts share.

    Args:
        path: An absolute path.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._fs = file_system_for(path)
        self._identity_path = join(path, FOLDER, IDENTITY)

    def write_identity(self, identity: str) -> None:
        """Says in the directory which table this is. Blocks.

        Raises:
            StorageError: It cannot be written, or a link to the folder of another table is in the place of its own.
        """
        found = self._identity()
        if found == identity:
            return
        if found is not None:
            # Of a table that was dropped, and whose directory another one has got: who writes into that one is told.
            self._fs.delete_in(join(self.path, FOLDER), IDENTITY)
        self._fs.write_atomic(self._identity_path, f"{identity}\n".encode())

    def require_identity(self, identity: str) -> None:
        """Makes sure, in a task, that the directory is that of the table. Blocks.

        Raises:
            StorageError: It is not, or is not there.
        """
        found = self._identity()
        if found != identity:
            raise StorageError(
                f"{self._identity_path!r} says {found!r} instead of {identity!r}, the id of the table that the job "
                "writes into: probably its directory is not mounted, on this host. Nothing was staged; bring it back, "
                "and the job goes on."
            )

    def staging(
        self, context: WriterInitContext, committable: dict[str, Any], file_format: ParquetFormat
    ) -> ParquetStaging:
        """Stages one file of a task, for the table whose `identity` the committable has."""
        folder = _folder_of(context.incarnation, context.owner)
        name = context.file_name(STAGED_SUFFIX)
        committable = {**committable, "path": self.path, "staged": f"{folder}/{name}"}
        check = partial(self.require_identity, committable["identity"])
        return ParquetStaging(join(self.path, folder), name, committable, file_format, check, self.open_staged)

    def open_staged(self, committable: dict[str, Any]) -> AbstractContextManager[BinaryIO]:
        """Opens a file for what a task stages."""
        return self._fs.open_output(join(self.path, committable["staged"]))

    def publish(self, requests: Sequence[CommitRequest]) -> list[DataFile]:
        """Gives the staged files of an epoch the names under which the table gets them; those that have them keep them.

        Call `release` when the table has them.

        Returns:
            The files, in the order of the requests.

        Raises:
            ConfigurationError: A file is not there, or not whole.
        """
        staged = [str(request.committable["staged"]) for request in requests]
        self._fs.link_all([(join(self.path, name), join(self.path, data_name(name))) for name in staged])
        return [self.whole_file(request) for request in requests]

    def release(self, requests: Sequence[CommitRequest]) -> None:
        """Takes away the names under which the files of an epoch were staged that the table has."""
        for request in requests:
            folder, _, name = str(request.committable["staged"]).rpartition("/")
            self._fs.delete_in(join(self.path, folder), name)

    def sweep(self, context: CommitterInitContext, is_dead: Callable[[FileName], bool]) -> int:
        """Deletes staged files of dead attempts; what the table may name has another suffix and stays."""
        swept = 0
        for incarnation in context.incarnations:
            folder = _folder_of(incarnation, context.owner)
            for listed in self.staged_names(folder):
                found = FileName.parse(listed)
                if found is not None and STAGED_SUFFIX in listed and is_dead(found):
                    swept += self.discard(folder, listed)
        return swept

    def staged_names(self, folder: str) -> list[str]:
        """The names of what is staged in a folder, and maybe of what was."""
        return self._fs.list_names(join(self.path, folder))

    def discard(self, folder: str, name: str) -> bool:
        """Removes what a dead attempt has staged under a name in a folder; returns whether it was there."""
        return self._fs.delete_in(join(self.path, folder), name)

    def _identity(self) -> str | None:
        try:
            return self._fs.read(self._identity_path).decode("ascii", "replace").strip()
        except NotExistError:
            return None

    def whole_file(self, request: CommitRequest) -> DataFile:
        """The file of a request under its last name.

        Raises:
            ConfigurationError: It is not there, or not whole.
        """
        committable = request.committable
        name, found = data_name(committable["staged"]), None
        for place in (name, published_name(committable["staged"])):
            with suppress(NotExistError):
                name, found = place, self._fs.status(join(self.path, place))
                break
        path, size = join(self.path, name), None if found is None else found.size
        if found is None or size != committable["bytes"]:
            what = "is not there" if size is None else f"has {size} bytes instead of {committable['bytes']}"
            raise ConfigurationError(
                f"The file {path!r}, which a task has staged with {committable['rows']} rows in epoch {request.epoch}, "
                f"{what}, and the table says that the epoch is not committed: the directory is not shared between the "
                "hosts, or somebody has changed the file. Nothing of its epoch was committed. Bring the file to its "
                "place, and start the job again."
            )
        return DataFile(name, found.mtime)


def target_of(sink: str, requests: Sequence[CommitRequest]) -> tuple[str, str]:
    """The directory and identity of the table into which the rows of an epoch go.

    Raises:
        ConfigurationError: The committables are not those of such a sink, or name other places.
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
                raise ValueError("it names other places")
        [target] = {(r.committable["path"], r.committable["identity"]) for r in requests}
    except MALFORMED as error:
        raise not_written_by(sink, [request.committable for request in requests], error) from error
    return target


def data_name(staged: str) -> str:
    """The name under which the table gets a staged file."""
    return f"{DATA}/{published_name(staged).removeprefix(f'{FOLDER}/')}"


def published_name(staged: str) -> str:
    """The name of a staged file below the folder in which it was staged, where the table has it there."""
    return f"{staged.removesuffix(STAGED_SUFFIX)}{FINAL_SUFFIX}"


def _folder_of(incarnation: str, owner: str) -> str:
    return f"{FOLDER}/{incarnation}-{owner}"


# Data files of a table in an object store, where a mark says that a file is not the table's yet.
#
# An object has one name. So when the table gets a file, the store makes a copy of it where tools look that clean tables
# up; and what a suffix says of files elsewhere, an object beside it says, because earlier releases left files of tables
# where they were staged::
#
#     <table>/_holdfast/marks/<incarnation>-<sink>/<name>.staged    before the file is written, as long as it is staged
#                      /<incarnation>-<sink>/<name>.parquet         the file
#            /data/<incarnation>-<sink>/<name>.parquet              its copy, when its checkpoint is complete
#
#     marked --write--> staged --copy, commit--> the table has the copy --> the file goes, then the mark
#       |                 |
#       +-----------------+-- attempt is dead --> the file goes, then the mark
#
# Marks have a folder of their own, because a sweep lists it.

_MARKS: Final = f"{FOLDER}/marks"
_TEXT: Final = b"While this is here, the file of the same name is staged and no part of the table.\n"


class TableBucket(TableDirectory):
    """The directory of a table in an object store.

    Args:
        path: Its URI.
    """

    @contextmanager
    def open_staged(self, committable: dict[str, Any]) -> Iterator[BinaryIO]:
        """Opens an object for what a task stages, which is marked before it is there."""
        mark, target = self._mark(committable["staged"]), join(self.path, published_name(committable["staged"]))
        self._fs.write_atomic(mark, _TEXT)
        with uploads_for(self.path).open_object(target) as file:
            yield file
        if not self._fs.exists(mark):
            # Nobody would find what a task leaves that outlives its attempt.
            self._fs.delete(target)
            raise StorageError(f"{target!r} was swept while it was written: its attempt is dead.")

    def publish(self, requests: Sequence[CommitRequest]) -> list[DataFile]:
        """Copies files to where the table gets them."""
        of_each(requests, self._copy)
        return of_each(requests, self.whole_file)

    def _copy(self, request: CommitRequest) -> None:
        staged = str(request.committable["staged"])
        source, target = (join(self.path, name(staged)) for name in (published_name, data_name))
        with suppress(NotExistError):
            uploads_for(target).copy(source, target)

    def release(self, requests: Sequence[CommitRequest]) -> None:
        """Removes what was copied, and the marks; a file without one may be the table's own."""
        of_each(requests, self._remove)

    def _remove(self, request: CommitRequest) -> None:
        staged = str(request.committable["staged"])
        if self._fs.exists(self._mark(staged)):
            self._fs.delete(join(self.path, published_name(staged)))
            self._fs.delete(self._mark(staged))

    def staged_names(self, folder: str) -> list[str]:
        """The names of the marks."""
        return self._fs.list_names(self._mark(folder))

    def discard(self, folder: str, name: str) -> bool:
        """Removes a file and its mark, and uploads of it."""
        target = join(self.path, folder, published_name(name))
        uploads_for(target).abort_all(target)
        self._fs.delete(target)
        return self._fs.delete(self._mark(join(folder, name)))

    def _mark(self, staged: str) -> str:
        return join(self.path, _MARKS, staged.removeprefix(f"{FOLDER}/"))


def table_at(path: str) -> TableDirectory:
    """The directory of a table at an absolute path or URI."""
    return TableDirectory(path) if local_path(path) is not None else TableBucket(path)


def release(path: str, requests: Sequence[CommitRequest]) -> StorageError | None:
    """Lets go of the names under which tasks staged what the table has now; what stood against it, None for nothing."""
    try:
        if "staged" in requests[0].committable:
            table_at(path).release(requests)
    except StorageError as error:
        return error
    return None
