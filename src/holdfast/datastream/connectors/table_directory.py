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

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, BinaryIO, Final, NamedTuple

from holdfast.datastream.sinks.output_files import STAGED_SUFFIX
from holdfast.datastream.sinks.task_owned import not_written_by
from holdfast.errors import ConfigurationError, NotExistError, StorageError
from holdfast.kernel.malformed import MALFORMED
from holdfast.runtime.function.sink import CommitRequest, CommitterInitContext, WriterInitContext
from holdfast.runtime.function.staging import ParquetFormat, ParquetStaging
from holdfast.storage.file_system.path import is_absolute
from holdfast.storage.file_system.scheme import file_system_for, join
from holdfast.storage.job.naming import FileName

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
